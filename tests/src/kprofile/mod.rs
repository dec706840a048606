//! Helpers of the tests of kernel profile objects.
#![allow(missing_docs, reason = "parts of tests")]

pub mod facts;
pub mod tracing;

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::BTreeSet;

use pmu_core::access::{AccessErrorKind, AccessFault, AccessOperation};
use pmu_core::error::CounterError;
use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_core::profile::{InterfaceError, KProfileSource};
use pmu_kprofile::WindowsVersion::{self, *};
use pmu_kprofile::{
    Affinity, BasicProfile, PointerWidth, ProfileCallback, ProfileHardware, ProfileObject,
    Profiles, Rules,
};

pub const WIDTHS: [PointerWidth; 2] = [PointerWidth::Bits32, PointerWidth::Bits64];

pub const VERSIONS: [WindowsVersion; 21] = [
    Nt310,
    Nt350,
    Nt351,
    Nt40,
    Nt40Sp4,
    Windows2000,
    WindowsXp,
    Server2003,
    Server2003Sp1,
    Vista,
    Windows7,
    Windows8,
    Windows81,
    Windows10v1507,
    Windows10v1607,
    Windows10v1703,
    Windows10v1803,
    Windows10v1809,
    Windows10v1903,
    Windows10v2004,
    Windows11,
];

pub const fn x64(version: WindowsVersion) -> Rules {
    Rules { version, width: PointerWidth::Bits64 }
}

pub const fn x86(version: WindowsVersion) -> Rules {
    Rules { version, width: PointerWidth::Bits32 }
}

pub fn source(value: u32) -> KProfileSource {
    KProfileSource::new(value).expect("not ProfileMaximum")
}

pub fn process(value: u64) -> Option<ProcessId> {
    ProcessId::new(value)
}

pub fn processor(group: u16, number: u8) -> ProcessorNumber {
    ProcessorNumber { group, number }
}

pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Returns counters that live as long as the test's process.
pub fn buffer(counters: usize) -> &'static [AtomicU32] {
    (0..counters).map(|_| AtomicU32::new(0)).collect::<Vec<_>>().leak()
}

pub fn counts(buffer: &[AtomicU32]) -> Vec<u32> {
    buffer.iter().map(|counter| counter.load(Ordering::Relaxed)).collect()
}

/// Returns a global profile by time on all processors, from 0x1000 on, with one 4-byte bucket per counter.
pub fn request(buffer: &[AtomicU32]) -> BasicProfile<'_> {
    BasicProfile {
        process: None,
        base: 0x1000,
        size: 4 * buffer.len() as u64,
        bucket_log2: 2,
        buffer,
        source: KProfileSource::TIME,
        affinity: None,
    }
}

/// An interrupt described by a test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    pub pc: u64,
    pub cs: u16,
    pub flags: u64,
    pub processor: ProcessorNumber,
    pub process: Option<ProcessId>,
    pub thread: u32,
    pub timestamp: u64,
    pub pebs_index: Option<u64>,
}

impl Frame {
    pub fn at(pc: u64) -> Self {
        Self { pc, ..Self::default() }
    }
}

impl InterruptFrame for Frame {
    fn pc(&self) -> u64 {
        self.pc
    }
    fn cs(&self) -> u16 {
        self.cs
    }
    fn flags(&self) -> u64 {
        self.flags
    }
    fn processor(&self) -> ProcessorNumber {
        self.processor
    }
    fn process(&self) -> Option<ProcessId> {
        self.process
    }
    fn thread(&self) -> u32 {
        self.thread
    }
    fn timestamp(&self) -> u64 {
        self.timestamp
    }
    fn pebs_index(&self) -> Option<u64> {
        self.pebs_index
    }
}

/// Profile hardware that fails the test if a source is started where it runs, or stopped where it
/// does not.
#[derive(Clone, Debug)]
pub struct Machine {
    pub this: ProcessorNumber,
    pub in_interrupt: bool,
    pub active: Affinity,
    /// Running sources, by processor.
    pub running: BTreeSet<(ProcessorNumber, u32)>,
    /// Source that the interface does not have, so no processor can start it.
    pub unsupported: Option<KProfileSource>,
    /// Source that the interface has, but no processor has a counter for it.
    pub counterless: Option<KProfileSource>,
    /// Source that no processor can stop.
    pub stuck: Option<KProfileSource>,
    /// Processors on which every start fails, and those on which every stop fails.
    pub refuses_start: Affinity,
    pub refuses_stop: Affinity,
    /// Number of successful starts and stops so far.
    pub changes: usize,
    /// Number of refused starts so far.
    pub refusals: usize,
}

impl Machine {
    pub fn new(active: Affinity) -> Self {
        Self {
            this: ProcessorNumber::default(),
            in_interrupt: false,
            active,
            running: BTreeSet::new(),
            unsupported: None,
            counterless: None,
            stuck: None,
            refuses_start: Affinity::EMPTY,
            refuses_stop: Affinity::EMPTY,
            changes: 0,
            refusals: 0,
        }
    }

    /// Drops all state of a processor, as a power-down does.
    pub fn lose(&mut self, processor: ProcessorNumber) {
        self.running.retain(|(on, _)| *on != processor);
    }

    /// Returns the running sources, with processors as (group, number).
    pub fn running(&self) -> Vec<(u16, u8, u32)> {
        self.running.iter().map(|(on, source)| (on.group, on.number, *source)).collect()
    }
}

/// Error of [`Machine`] for a refused start.
pub const REFUSAL: InterfaceError = InterfaceError::NoFreeCounter(KProfileSource::TIME);

/// Error of [`Machine`] for a refused stop.
pub const FAULT: InterfaceError =
    InterfaceError::Counters(CounterError::StateUnknown(AccessFault {
        operation: AccessOperation::Write,
        register: 0x186,
        kind: AccessErrorKind::Fault,
    }));

impl ProfileHardware for Machine {
    fn this_processor(&self) -> ProcessorNumber {
        self.this
    }

    fn in_interrupt(&self) -> bool {
        self.in_interrupt
    }

    fn active_processors(&self) -> Affinity {
        self.active
    }

    fn supports(&self, source: KProfileSource) -> bool {
        self.unsupported != Some(source)
    }

    fn start(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        assert!(self.active.contains(on), "{on} is not active");
        if self.refuses_start.contains(on) || self.counterless == Some(source) {
            self.refusals += 1;
            return Err(REFUSAL);
        }
        assert!(self.running.insert((on, source.value())), "{source} runs on {on}");
        self.changes += 1;
        Ok(())
    }

    fn stop(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        assert!(self.running.contains(&(on, source.value())), "{source} does not run on {on}");
        if self.refuses_stop.contains(on) || self.stuck == Some(source) {
            return Err(FAULT);
        }
        self.running.remove(&(on, source.value()));
        self.changes += 1;
        Ok(())
    }
}

pub fn object<'b>(request: BasicProfile<'b>, machine: &Machine) -> ProfileObject<'b> {
    ProfileObject::basic(Rules::LATEST, request, machine).expect("a good request")
}

/// Checks that an operation changes neither the running sources, the number of started objects nor the statistics.
#[track_caller]
pub fn unchanged<R, const N: usize, const P: usize>(
    lists: &Profiles<N, P>,
    machine: &mut Machine,
    act: impl FnOnce(&mut Machine) -> R,
) -> R {
    let before = (machine.running(), lists.started(), lists.statistics());
    let result = act(machine);
    assert_eq!((machine.running(), lists.started(), lists.statistics()), before);
    result
}

/// Returns a profile by `from` on `processors` of group 0.
pub fn on(from: u32, processors: &[u8], machine: &Machine) -> &'static ProfileObject<'static> {
    let affinity = processors.iter().map(|number| processor(0, *number)).collect();
    let request =
        BasicProfile { source: source(from), affinity: Some(affinity), ..request(buffer(1)) };
    leak(object(request, machine))
}

/// Returns a profile by `from` on the processors that are active now.
pub fn everywhere(from: u32, machine: &Machine) -> &'static ProfileObject<'static> {
    leak(object(BasicProfile { source: source(from), ..request(buffer(1)) }, machine))
}

/// Returns a profile of all processors, present and future.
pub fn everywhere_ever(from: u32, machine: &Machine) -> &'static ProfileObject<'static> {
    let asked =
        BasicProfile { source: source(from), affinity: Some(Affinity::ALL), ..request(buffer(1)) };
    leak(object(asked, machine))
}

/// Returns active processors of two groups, neither of them fully active.
pub fn active() -> Affinity {
    Affinity::of_group(0, 0b1011).union(Affinity::of_group(1, 0b10_0001))
}

/// A callback that does nothing.
pub struct Nothing;

impl ProfileCallback for Nothing {
    fn profile_interrupt(&self, _: &dyn InterruptFrame, _: KProfileSource) {}
}
