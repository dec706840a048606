//! The threshold interrupt with a further overflow, and its interrupt, at each of its accesses.

use pmu_intel::precise::PreciseThreshold;
use pmu_tests::opened::raw;
use pmu_virt::mock::{Deviation, Deviations};

use crate::scene::*;
use crate::support::*;

/// The platforms: a further interrupt comes after the handler, or within it.
const PLATFORMS: [&[Deviation]; 4] = [
    &[],
    &[Deviation::NestsInterrupts],
    &[Deviation::RaisesOnUnmask],
    &[Deviation::NestsInterrupts, Deviation::PreciseStatusBeside],
];

/// The name, the fill level at which the interrupt comes, and whether the handler sets another period.
type Recording = (&'static str, PreciseThreshold, bool);

const RECORDINGS: [Recording; 3] = [
    ("each record", PreciseThreshold::EachRecord, false),
    ("nearly full", PreciseThreshold::NearlyFull, false),
    ("another period", PreciseThreshold::EachRecord, true),
];

/// The tag of the plain event beside.
const BESIDE: u64 = 1;

/// A threshold interrupt on one platform, of one recording.
#[derive(Clone, Copy)]
struct Interrupted {
    processor: Processor,
    recording: Recording,
}

impl Interrupted {
    fn all() -> impl Iterator<Item = Self> {
        let platform = |deviations: &'static [Deviation]| {
            let deviations = Deviations::of(deviations);
            let with = move |processor| Processor { deviations, ..processor };
            processors().into_iter().map(with)
        };
        PLATFORMS.into_iter().flat_map(platform).flat_map(|processor| {
            RECORDINGS.into_iter().map(move |recording| Self { processor, recording })
        })
    }

    /// Lets records be written until the threshold interrupts, with a further overflow of every counter at the
    /// `access`-th access of the interrupt. Returns whether the interrupt had so many accesses.
    fn at(self, access: u32) -> bool {
        let (processor, (recording, threshold, changes)) = (self.processor, self.recording);
        let what =
            format!("{}, {:?}, {recording}, {access}", name(&processor), processor.deviations);
        let scene = Scene::new(processor);
        let mock = scene.mock;
        let control = mock.with_pmu(|pmu| pmu.read(0x38F));
        scene.memory.set_threshold(threshold);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.start(&mut session, &raw(2).every(10_000).tagged(BESIDE));
        if changes {
            // The counter is loaded with each sample.
            *scene.react.borrow_mut() = Some(Box::new(|scene, seen| {
                let next = if seen.period == PERIOD { PERIOD - 1 } else { PERIOD };
                if seen.tag == 0 {
                    scene.table.set_period(seen.event, next).unwrap();
                }
            }));
        }
        let before = mock.accesses().total();
        for _ in (0..1000).take_while(|_| mock.interrupts() == 0) {
            // The count begins with the interrupt's first access.
            mock.interrupt_at(access);
            scene.happen(0, PERIOD);
        }
        mock.interrupt_at(0);
        let reached = mock.accesses().total() - before >= access;
        // Both counters ran at that access, or neither: then the interrupt was another owner's.
        let further = scene.samples(BESIDE) as u32;
        assert!(further <= u32::from(reached), "{what}");
        let foreign = u32::from(reached) - further;
        assert!(scene.unknown.get() <= foreign, "{what}: an own interrupt");
        assert_eq!(mock.performance_entry(), 0x400, "{what}");
        // The counters go on, and interrupt.
        scene.happen(2, 10_000);
        assert_eq!(scene.samples(BESIDE) as u32, further + 1, "{what}");
        let written = mock.written_records();
        (0..20).for_each(|_| scene.happen(0, PERIOD));
        assert_eq!(mock.written_records(), written + 20, "{what}");
        scene.drain(&mut session);
        let records = || {
            let addresses: Vec<_> = scene.addresses(0).into_iter().flatten().collect();
            let expected: Vec<_> = (0..mock.written_records()).map(address).collect();
            assert_eq!(addresses, expected, "{what}");
        };
        records();
        assert!(scene.unknown.get() <= foreign, "{what}");
        let dropped = (scene.memory.dropped(), mock.lost_records(), scene.faulted.get());
        assert_eq!(dropped, Default::default(), "{what}");
        // No claim is left over that would swallow a second interrupt of another owner.
        let unclaimed = scene.unclaimed.get();
        mock.interrupt_from_elsewhere();
        mock.interrupt_from_elsewhere();
        assert!(scene.unclaimed.get() > unclaimed, "{what}");
        records();
        scene.ends(session, &what);
        assert_eq!(mock.with_pmu(|pmu| pmu.read(0x38F)), control, "{what}");
        reached
    }
}

#[test]
fn with_an_interrupt_at_each_access_of_the_threshold_interrupt_each_record_is_reported_once() {
    for interrupted in Interrupted::all() {
        assert!((1..).take_while(|access| interrupted.at(*access)).count() >= 2);
    }
}
