//! Loads that are sampled by their latency.

use pmu_core::Event;
use pmu_core::access::RegisterAddress;
use pmu_core::error::CounterError;
use pmu_core::precise::{DataSource, NotPrecise, Precision, SampleParts};
use pmu_core::registers::EventSelect;
use pmu_tests::Reason;
use pmu_virt::mock::PmiFault;

use crate::scene::*;
use crate::support::*;

/// The auxiliary event of Golden Cove's load latencies.
pub(crate) fn auxiliary() -> Event {
    Event::raw(EventSelect::from_bits(0x8203))
}

/// MEM_TRANS_RETIRED.LOAD_LATENCY, tagged with its latency.
pub(crate) fn latency(cycles: u16) -> Event {
    let event = Event::raw(EventSelect::from_bits(0x01CD)).user_only().every(PERIOD);
    let event = event.tagged(cycles.into()).precise(Precision::ZeroSkidRequested);
    event.recording(SampleParts::ACCESS).latency_at_least(cycles)
}

/// Returns the events that sample load latencies on a processor. From format 4 on the mock is a Sapphire Rapids.
pub(crate) fn loads(processor: &Processor, cycles: u16) -> Vec<Event> {
    let is_older = ["format 2", "format 3"].contains(&processor.name);
    let beside = (!is_older).then(auxiliary);
    beside.into_iter().chain([latency(cycles)]).collect()
}

/// The least latency is in one register, for events that are counted and for those that are precise.
#[test]
fn a_counted_event_and_a_precise_event_have_only_one_latency() {
    for processor in named("format 3") {
        let scene = Scene::new(processor);
        let mut session = scene.take();
        // SAFETY: the mock's registers are numbers.
        let register = unsafe { RegisterAddress::new(0x3F6) };
        let counted = Event::raw(EventSelect::from_bits(0x01CD)).with_extra(register, 30);
        let counted = session.open(&scene.counters, &[counted]).unwrap();
        session.enable(counted, 0).unwrap();
        let in_use = Err(CounterError::ExtraRegisterInUse(0x3F6));
        let recorded = session.open(&scene.counters, &[latency(50)]).unwrap();
        assert_eq!(session.enable(recorded, 0).reason(), in_use);
        session.disable(counted, 0).unwrap();
        session.enable(recorded, 0).unwrap();
        assert_eq!(scene.read(0x3F6), 50);
        assert_eq!(session.enable(counted, 0).reason(), in_use);
        session.disable(recorded, 0).unwrap();
        session.enable(counted, 0).unwrap();
        assert_eq!(scene.read(0x3F6), 30);
        scene.ends(session, processor.name);
    }
}

/// The register has the value of the event whose turn it is.
#[test]
fn events_of_two_latencies_take_turns() {
    for processor in processors().into_iter().filter(|p| ["format 2", "format 3"].contains(&p.name))
    {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        let events = [30, 50].map(|cycles| {
            (cycles.into(), scene.start(&mut session, &latency(cycles).with_total().rotating()))
        });
        scene.take_turns(&mut session, 0x3F6, events, &what);
        scene.ends(session, &what);
    }
}

/// Events with an auxiliary event beside them take turns together with it.
#[test]
fn groups_of_two_latencies_take_turns() {
    let mut tried = 0;
    for processor in processors() {
        let events = [30, 50].map(|cycles| {
            let events = loads(&processor, cycles).into_iter();
            events.map(|event| event.with_total().rotating()).collect::<Vec<_>>()
        });
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        if events[0].len() == 1 || session.open(&scene.counters, &events[0]).is_err() {
            continue;
        }
        tried += 1;
        let groups = events.map(|events| scene.start_together(&mut session, &events));
        let mut turns = [0; 2];
        for now in 1..=20 {
            let on = groups.map(|(group, _)| {
                let on = session.group_events(group).map(|of| session.counter_of(of).is_some());
                let on: Vec<bool> = on.collect();
                assert_eq!(on[0], on[1], "{what}: as a whole");
                on[0]
            });
            assert_eq!(on.iter().filter(|on| **on).count(), 1, "{what}");
            let turn = usize::from(on[1]);
            turns[turn] += 1;
            assert_eq!(scene.read(0x3F6), [30, 50][turn], "{what}");
            let recording = session.counter_of(groups[turn].1).unwrap().only().bits();
            assert_eq!(scene.enabled(), recording, "{what}");
            session.rotate(now).unwrap();
        }
        assert_eq!(turns, [10; 2], "{what}");
        scene.ends(session, &what);
    }
    assert!(tried >= 8, "{tried}");
}

/// Sapphire Rapids: an auxiliary event, 0x03 with unit mask 0x82, is counted beside it and begins before it. It is an
/// event as any other, counted in user and kernel mode, with INT.
#[test]
fn sapphire_rapids_counts_its_auxiliary_event_beside_a_latency_event() {
    for processor in named("format 4") {
        let scene = Scene::new(processor);
        let mut session = scene.take();
        let refused = |reason| Err(CounterError::NotPrecise(reason));
        let missing = session.open(&scene.counters, &[latency(0)]);
        assert_eq!(missing.reason(), refused(NotPrecise::NoLatency));
        let alone = session.open(&scene.counters, &[latency(30)]);
        assert_eq!(alone.reason(), refused(NotPrecise::NeedsBeside(0x8203)));
        for wrong in [[latency(30), auxiliary()], [precise(3), latency(30)]] {
            let outcome = session.open(&scene.counters, &wrong).map_err(|error| error.reason);
            assert_eq!(
                outcome.err(),
                Some(CounterError::NotPrecise(NotPrecise::NeedsBeside(0x8203)))
            );
        }
        let (group, event) = scene.start_together(&mut session, &loads(&processor, 30));
        assert_eq!(scene.read(0x186) & 0xFFFF_FFFF, 0x53_8203);
        assert_eq!(session.counter_of(event).unwrap().bit(), 1);
        // Adaptive: the group of memory.
        let select = scene.mock.trace().records().filter(|record| record.register == 0x187).last();
        assert_eq!(select.unwrap().outcome, Ok(1 << 34 | 0x41_01CD));
        // Only the latency event writes records.
        assert_eq!(scene.enabled(), 0b10);
        let other = session.open(&scene.counters, &loads(&processor, 31)).unwrap();
        let busy = session.enable(other, 0).map_err(|error| error.reason);
        assert_eq!(busy, Err(CounterError::ExtraRegisterInUse(0x3F6)));
        session.disable(group, 0).unwrap();
        assert_eq!((scene.read(0x186), scene.read(0x187)), (0, 0));
        session.enable(other, 0).unwrap();
        session.disable(other, 0).unwrap();
        scene.ends(session, processor.name);
    }
}

/// Panther Lake's event list has the register for its load-latency events.
#[test]
fn a_load_latency_event_has_its_cycles_in_the_register_beside_architectural_records_too() {
    let listed = pmu_events::PANTHERLAKE_COUGARCOVE.event("MEM_TRANS_RETIRED.LOAD_LATENCY_GT_64");
    let listed = listed.unwrap().extra().unwrap();
    assert_eq!((listed.register, listed.value), (0x3F6, 64));
    for processor in processors().into_iter().filter(|p| p.counters.version == 6) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut session = scene.take();
        scene.start_together(&mut session, &loads(&processor, 64));
        assert_eq!(scene.read(listed.register), 64, "{what}");
        scene.ends_after(session, 0, &what);
        assert_eq!(scene.read(listed.register), 0, "{what}");
    }
}

/// Skylake: no auxiliary event; bit 32 + n of IA32_PEBS_ENABLE lets the latency filter the records of counter n.
#[test]
fn skylake_filters_by_a_bit_of_the_enable_register_and_decodes_the_source() {
    let processor = named("format 3").next().unwrap();
    let fed = |number| {
        let mut fed = instruction(number);
        (fed.data_address, fed.data_source, fed.latency) = (0x7000, 0x34, 55);
        fed
    };
    let scene = Scene::with(processor, fed, Mock::strict);
    let mut session = scene.take();
    let event = scene.start(&mut session, &latency(50));
    let bit = session.counter_of(event).unwrap().only().bits();
    let enable = scene.mock.trace().records().filter(|record| record.register == 0x3F1).last();
    assert_eq!(enable.unwrap().outcome, Ok(bit << 32 | bit));
    assert_eq!(scene.read(0x3F6), 50);
    scene.mock.inject_pmi(PmiFault::Lost);
    // The counter overflows before the next access.
    scene.mock.interrupt_at(1);
    scene.drain(&mut session);
    let samples = scene.instructions.borrow();
    let access = samples[0].access.unwrap();
    // 0x34: the third-level cache, a page walk, a lock.
    assert_eq!((access.source, access.latency), (Some(DataSource::L3), Some(55)));
    assert_eq!((access.locked, access.address), (Some(true), Some(0x7000)));
    assert_eq!(access.translation, Some(pmu_core::precise::Translation::PageWalk));
    assert!(access.load && !access.store);
    assert_eq!(samples[0].address, Some(address(0)));
}
