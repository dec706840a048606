//! A thread's group on every pair of core types: its precise event counts, and goes on with the rest of its period, on
//! the cores that have records of any format; on a core that has none, the whole group stands still.

use pmu_core::memory::{CounterMemory, CounterSlot, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSession, CounterSet, Events};
use pmu_intel::precise::{Pebs, PreciseThreshold};
use pmu_tests::opened::raw;

use crate::scene::*;
use crate::support::{Processor, address, processors};

/// Events of a slice on each core: less than a period.
const SLICES: [u64; 2] = [30, 45];

fn pairs() -> impl Iterator<Item = [Processor; 2]> {
    let all = || processors().into_iter().filter(|processor| processor.freezes);
    all().flat_map(move |here| all().map(move |there| [here, there]))
}

/// Checks that a core's samples have its records, each once and in order.
fn reported(scene: &Scene, what: &str) -> u64 {
    let written = scene.mock.written_records();
    let expected: Vec<_> = (0..written).map(|number| Some(address(number))).collect();
    assert_eq!(scene.addresses(0), expected, "{what}");
    written
}

#[test]
fn a_threads_group_goes_between_cores_of_any_two_formats() {
    for cores in pairs() {
        for threshold in [PreciseThreshold::EachRecord, PreciseThreshold::NearlyFull] {
            let what = format!("{} and {}, {threshold:?}", cores[0].name, cores[1].name);
            let scenes = cores.map(Scene::new);
            scenes.iter().for_each(|scene| scene.memory.set_threshold(threshold));
            let [mut here, mut there] = scenes.map(|scene| scene.take());
            let without = Scene::new(cores[0]);
            let table = &without.table as &EventTable;
            let memory: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new();
            let source = Events::new(&without.counters, table).with(None::<Pebs<'static>>);
            let (unit, mock) = (&without.counters, without.mock);
            let blind = CounterSession::take(source, unit, CounterSet::ALL, mock, &memory);
            let mut blind = blind.unwrap();
            let events = [precise(0).with_total().rotating(), raw(2).user_only().rotating()];
            let (group, _) = scenes[0].start_together(&mut here, &events);
            let mut thread: Vec<_> = here.group_events(group).map(ThreadEvent::Opened).collect();
            here.switch_out(&mut thread, 0, |_| ()).unwrap();
            let mut counted = 0;
            for slice in 1..=12 {
                let parts = scenes.into_iter().zip([&mut here, &mut there]).zip(SLICES);
                for ((scene, session), count) in parts {
                    session.switch_in(&scene.counters, &mut thread, slice).expect(&what);
                    scene.happen(0, count);
                    scene.happen(2, 2 * count);
                    let note = |sample: pmu_core::Sample<'_, _>| scene.note(&sample);
                    session.switch_out(&mut thread, slice, note).expect(&what);
                    scene.happen(0, 1_000);
                    counted += count;
                    let samples = scenes.map(|scene| reported(scene, &what)).iter().sum::<u64>();
                    assert_eq!(samples, counted / PERIOD, "{what}, {slice}");
                }
                blind.switch_in(unit, &mut thread, slice).expect(&what);
                without.happen(0, 1_000);
                without.happen(2, 1_000);
                blind.switch_out(&mut thread, slice, |_| panic!("{what}")).expect(&what);
            }
            let counts = thread.iter().map(|event| match event {
                ThreadEvent::SwitchedOut(event) => event.count().value,
                other => panic!("{what}: {other:?}"),
            });
            assert_eq!(counts.collect::<Vec<_>>(), [counted, 2 * counted], "{what}");
            scenes[0].ends(here, &what);
            scenes[1].ends(there, &what);
            blind.shut_down().unwrap();
        }
    }
}
