//! Tracing on a machine of three processors, of which two have rings.

use pmu_core::profile::KProfileSource;
use pmu_kprofile::trace::{
    ContextSwitch, Detail, Event, Extended, GroupMask, Hook, Record, Sample, SwitchRing,
    SwitchTrace, TraceCallback, TraceControl, TraceError, TraceObjects, TraceRing,
};
use pmu_kprofile::{Affinity, PointerWidth, Profiles, Rules};

use super::{Frame, Machine, leak, process, processor, source};

pub type Lists = Profiles<6, 70>;

/// The members of a profile interrupt's record.
pub type Found = (PointerWidth, u64, Sample);

/// Tracing on a machine of three processors, of which two have rings, with room for 3 records each.
pub struct Tracing {
    pub lists: &'static Lists,
    pub rings: &'static [TraceRing<3>],
    pub switch_rings: &'static [SwitchRing<3>],
    pub sampled: &'static TraceCallback<3>,
    pub pmc: &'static TraceCallback<3>,
    pub switches: &'static SwitchTrace<3>,
    pub control: TraceControl<6, 70>,
    pub machine: Machine,
}

impl Tracing {
    pub fn new(rules: Rules, width: PointerWidth) -> Self {
        let lists = leak(Lists::with_rules(rules));
        let rings: &[TraceRing<3>] = leak([TraceRing::new(), TraceRing::new()]);
        let switch_rings: &[SwitchRing<3>] = leak([SwitchRing::new(), SwitchRing::new()]);
        let sampled = leak(TraceCallback::new(Hook::SampledProfile, width, rings));
        let pmc = leak(TraceCallback::new(Hook::PmcInterrupt, width, rings));
        let switches = leak(SwitchTrace::new(width, switch_rings));
        let objects = TraceObjects::new(rules, sampled, pmc).with_switches(switches);
        let control = TraceControl::new(lists, leak(objects));
        let machine = Machine::new(Affinity::first(3));
        Self { lists, rings, switch_rings, sampled, pmc, switches, control, machine }
    }

    pub fn latest() -> Self {
        Self::new(Rules::LATEST, PointerWidth::Bits64)
    }

    pub fn sources(&mut self, values: &[u32]) -> Result<(), TraceError> {
        let sources: Vec<_> = values.iter().map(|value| source(*value)).collect();
        self.control.set_pmc_sources(&sources, &self.machine)
    }

    pub fn flags(&mut self, flags: &[u32]) -> Result<(), TraceError> {
        let mask = flags.iter().fold(GroupMask::EMPTY, |mask, flag| mask.with(*flag));
        self.control.set_group_mask(mask, &mut self.machine)
    }

    pub fn configured(&self) -> Vec<u32> {
        self.control.pmc_sources().map(KProfileSource::value).collect()
    }

    /// Returns the running sources, each of which must run on all processors.
    #[track_caller]
    pub fn running(&self) -> Vec<u32> {
        let all = self.machine.running();
        let on = |number| all.iter().filter(move |(_, on, _)| *on == number).map(|(.., s)| *s);
        let sources: Vec<u32> = on(0).collect();
        assert!([1, 2].into_iter().all(|number| on(number).eq(sources.iter().copied())));
        sources
    }

    /// Drains the profile interrupts of a processor's ring.
    pub fn drain(&self, number: usize) -> Vec<Found> {
        samples(&self.rings[number])
    }

    /// Drains the context switches of a processor's ring.
    pub fn drain_switches(&self, number: usize) -> Vec<(u64, Extended, ContextSwitch)> {
        let drain = self.switch_rings[number].drain();
        let found = drain.map(|bytes| match bytes.decode().unwrap() {
            Record { timestamp, extended, event: Event::ContextSwitch(switch), .. } => {
                (timestamp, extended, switch)
            }
            other => panic!("{other:?}"),
        });
        found.collect()
    }
}

/// Drains the profile interrupts of a ring, none of which may have extended data.
pub fn samples<const N: usize>(ring: &TraceRing<N>) -> Vec<Found> {
    let found = ring.drain().map(|bytes| match bytes.decode().unwrap() {
        Record { width, timestamp, extended, event: Event::Sample(sample), .. } => {
            assert_eq!(extended, Extended::default());
            (width, timestamp, sample)
        }
        other => panic!("{other:?}"),
    });
    found.collect()
}

/// Returns an interrupt that differs from others only in its number.
pub fn frame(number: u8, pc: u64) -> Frame {
    Frame {
        processor: processor(0, number),
        process: process(pc),
        thread: pc as u32 + 1,
        timestamp: pc + 2,
        // Windows stamps only context switches.
        pebs_index: Some(77),
        ..Frame::at(pc)
    }
}

pub fn record_of(frame: Frame, width: PointerWidth, detail: Detail) -> Found {
    (width, frame.timestamp, Sample { pc: frame.pc, thread: frame.thread, detail })
}

/// Returns the members that a PMC interrupt's record adds.
pub fn pmc(from: u32) -> Detail {
    Detail::PmcInterrupt { source: from as u16, reserved: 0 }
}

pub const SAMPLE: Detail = Detail::SampledProfile { count: 1, flags: 0, rank: 0 };
