//! Profiles by the addresses of samples: objects of `pmu-kprofile`, as by a counter's overflow.

use std::sync::Mutex;

use pmu_core::frame::{InterruptFrame, PlainFrame, ProcessorNumber, SampledFrame};
use pmu_core::profile::{InterfaceError, KProfileSource};
use pmu_core::{EventId, service};
use pmu_kprofile::{
    Affinity, BasicProfile, ProfileError, ProfileHardware, ProfileObject, Profiles, Rules,
};
use pmu_virt::mock::{Deviation, Deviations};

use crate::support::*;

const SOURCE: KProfileSource = KProfileSource::new(0x7000).unwrap();

/// The address at which every interrupt comes.
const INTERRUPTED: u64 = 0x7F_0000;

/// A machine of one processor, whose only source is the event of a sampling unit.
struct Hardware<'s, 'm> {
    session: &'s mut Session<'m>,
    event: EventId,
}

impl ProfileHardware for Hardware<'_, '_> {
    fn this_processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(0)
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        Affinity::first(1)
    }
    fn supports(&self, source: KProfileSource) -> bool {
        source == SOURCE
    }
    fn start(&mut self, _: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        let started = self.session.enable(self.event, 0);
        started.map_err(|_| InterfaceError::UnsupportedSource(source))
    }
    fn stop(&mut self, _: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        let stopped = self.session.disable(self.event, 0);
        stopped.map_err(|_| InterfaceError::UnsupportedSource(source))
    }
}

/// An address of a sample is linear, also where the interrupted one is an offset into a segment.
#[test]
fn a_sample_s_frame_is_not_in_virtual_8086_mode() {
    let interrupted =
        PlainFrame { pc: 0x10, cs: 0xF000, flags: 1 << 17 | 2, ..PlainFrame::default() };
    let sampled = SampledFrame::new(&interrupted, Some(0xF_0008));
    assert_eq!((sampled.pc(), sampled.cs(), sampled.flags()), (0xF_0008, 0xF000, 2));
    let without = SampledFrame::new(&interrupted, None);
    assert_eq!((without.pc(), without.flags()), (0x10, 1 << 17 | 2));
}

#[test]
fn objects_of_both_kinds_see_each_sample_at_its_address_while_they_are_started() {
    for late in [Deviations::NONE, Deviations::of(&[Deviation::LateIbs])] {
        for (processor, kind) in units() {
            let processor = Processor { deviations: late, ..processor };
            let what = format!("{}, {kind:?}, {late}", processor.name);
            let profiles = Profiles::<4, 1>::new();
            let mock = processor.mock();
            let kernel = Kernel::new(processor, kind, &mock);
            let frame =
                PlainFrame { pc: INTERRUPTED, cs: 8, flags: 2, processor: 0, process: None };
            let handler = |mock: &Mock<'_>| {
                let memory = &kernel.counter_memory;
                let serviced = service(&kernel.source(), mock, memory, |sample| {
                    let address = sample.instruction().and_then(|found| found.address);
                    profiles.interrupt(&SampledFrame::new(&frame, address), SOURCE);
                });
                assert_eq!(serviced.map(|serviced| serviced.claim.interrupts()), Ok(1));
            };
            mock.on_interrupt(&handler);
            let mut session = kernel.take(&mock);
            let event = session.open(&kernel.counters, &[processor.event(kind)]).unwrap();
            let mut hardware = Hardware { session: &mut session, event };
            let called = Mutex::new(vec![]);
            let callback = |frame: &dyn InterruptFrame, source: KProfileSource| {
                assert_eq!((source, frame.cs(), frame.flags()), (SOURCE, 8, 2));
                called.lock().unwrap().push(frame.pc());
            };
            let buffer: Vec<_> = core::iter::repeat_with(|| core::sync::atomic::AtomicU32::new(0))
                .take(1024)
                .collect();
            let request = BasicProfile {
                process: None,
                base: 0x40_0000,
                size: 1024 * 16,
                bucket_log2: 4,
                buffer: &buffer,
                source: SOURCE,
                affinity: Some(Affinity::ALL),
            };
            let rules = Rules::default();
            let basic = ProfileObject::basic(rules, request, &hardware).unwrap();
            let callback = ProfileObject::callback(rules, SOURCE, &callback).unwrap();
            let stop = |object: &ProfileObject<'_>, hardware: &mut Hardware<'_, '_>| {
                let stopping = profiles.try_stop(object, hardware).unwrap();
                assert!(stopping.is_over());
                stopping.hardware().unwrap();
            };
            // SAFETY: both objects are stopped below.
            let start = |object, hardware: &mut Hardware<'_, '_>| unsafe {
                profiles.try_start_borrowed(object, hardware)
            };
            start(&basic, &mut hardware).unwrap();
            start(&callback, &mut hardware).unwrap();
            assert_eq!(start(&basic, &mut hardware), Err(ProfileError::AlreadyStarted), "{what}");
            // The last sample comes late where samples do.
            let samples = if late == Deviations::NONE { 5 } else { 1 };
            for _ in 0..samples {
                assert!(kernel.run(&mock, PERIOD), "{what}");
            }
            stop(&basic, &mut hardware);
            stop(&callback, &mut hardware);
            let sampled = kernel.sampled();
            assert!(!kernel.run(&mock, 2 * PERIOD), "{what}");
            if late == Deviations::NONE {
                assert_eq!(*called.lock().unwrap(), *sampled, "{what}");
                let hits: Vec<_> = basic.hits().map(|(at, count)| (at.start, count)).collect();
                let expected: Vec<_> = sampled.iter().map(|address| (*address, 1)).collect();
                assert_eq!(hits, expected, "{what}");
            }
            assert_eq!(mock.interrupts() as usize, sampled.len(), "{what}");
        }
    }
}
