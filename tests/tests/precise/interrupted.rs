//! The threshold interrupt with a further overflow, and its interrupt, at each of its accesses.

use pmu_intel::precise::{PreciseEvent, PreciseThreshold};
use pmu_tests::opened::{happened, raw};
use pmu_virt::mock::{Deviation, Deviations};

use crate::support::*;

/// The platforms: a further interrupt comes after the handler, or within it.
const PLATFORMS: [&[Deviation]; 4] = [
    &[],
    &[Deviation::NestsInterrupts],
    &[Deviation::RaisesOnUnmask],
    &[Deviation::NestsInterrupts, Deviation::PreciseStatusBeside],
];

/// An event, and how full the buffer is when the interrupt comes.
type Recording = (&'static str, PreciseThreshold, fn() -> PreciseEvent);

const RECORDINGS: [Recording; 3] = [
    ("each record", PreciseThreshold::EachRecord, instructions),
    ("nearly full", PreciseThreshold::NearlyFull, instructions),
    ("by handler", PreciseThreshold::EachRecord, || instructions().loaded_by_handler()),
];

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
        let (processor, (name, threshold, event)) = (self.processor, self.recording);
        let what = format!(
            "{}, freezing: {}, {:?}, {name}, {access}",
            processor.name, processor.freezes, processor.deviations
        );
        let mut reached = false;
        processor.run(|kernel, mock| {
            let control = mock.with_pmu(|pmu| pmu.read(0x38F));
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.set_threshold(threshold);
            recorder.start(&mut session, &event(), |_| ()).unwrap();
            let beside = raw(2).every(10_000).tagged(1);
            let beside = session.open_event(&kernel.counters, &beside).unwrap();
            session.start_event(beside, 0).unwrap();
            let before = mock.accesses().total();
            for _ in (0..1000).take_while(|_| mock.interrupts() == 0) {
                // The count begins with the interrupt's first access.
                mock.interrupt_at(access);
                mock.advance(&mut happened(0, PERIOD));
            }
            mock.interrupt_at(0);
            reached = mock.accesses().total() - before >= access;
            // Both counters ran at that access, or neither: then the interrupt was another owner's.
            let further = kernel.overflows.get();
            assert!(further <= u32::from(reached), "{what}");
            let foreign = u32::from(reached) - further;
            assert!(kernel.unknown.get() <= foreign, "{what}: an own interrupt");
            assert_eq!(mock.performance_entry(), 0x400, "{what}");
            // The counters go on, and interrupt.
            mock.advance(&mut happened(2, 10_000));
            assert_eq!(kernel.overflows.get(), further + 1, "{what}");
            let written = mock.written_records();
            (0..20).for_each(|_| mock.advance(&mut happened(0, PERIOD)));
            assert_eq!(mock.written_records(), written + 20, "{what}");
            recorder.drain(&mut session, |report| kernel.report(report)).unwrap();
            kernel.all_reported(mock, &what);
            assert!(kernel.unknown.get() <= foreign, "{what}");
            let dropped = (kernel.memory.dropped(), mock.lost_records(), kernel.faulted.get());
            assert_eq!(dropped, Default::default(), "{what}");
            // No claim is left over that would swallow a second interrupt of another owner.
            let unclaimed = kernel.unclaimed.get();
            mock.interrupt_from_elsewhere();
            mock.interrupt_from_elsewhere();
            assert!(kernel.unclaimed.get() > unclaimed, "{what}");
            recorder.shut_down(&mut session, |report| kernel.report(report)).unwrap();
            kernel.all_reported(mock, &what);
            session.shut_down().unwrap();
            nothing_is_enabled(mock, &what);
            assert_eq!(mock.with_pmu(|pmu| pmu.read(0x38F)), control, "{what}");
        });
        reached
    }
}

#[test]
fn with_an_interrupt_at_each_access_of_the_threshold_interrupt_each_record_is_reported_once() {
    for interrupted in Interrupted::all() {
        assert!((1..).take_while(|access| interrupted.at(*access)).count() >= 2);
    }
}
