//! Sources and sessions of either vendor's driver on passive registers.

use pmu_amd::Amd64;
use pmu_core::access::{AccessErrorKind, AccessFault, AccessOperation};
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::registers::CounterId;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, EventSource};
use pmu_intel::Emon;
use pmu_tests::{FakePlatform, RegisterFile, amd_processor, intel_processor};

pub(crate) type Memory = CounterMemory<[CounterSlot; 8]>;
pub(crate) const TIME: KProfileSource = KProfileSource::TIME;
pub(crate) const CYCLES: KProfileSource = KProfileSource::TOTAL_CYCLES;
pub(crate) const INSTRUCTIONS: KProfileSource = KProfileSource::TOTAL_ISSUES;
pub(crate) const BRANCHES: KProfileSource = KProfileSource::BRANCH_INSTRUCTIONS;

pub(crate) fn source(value: u32) -> KProfileSource {
    KProfileSource::new(value).unwrap()
}

/// The interface of an Intel processor with `counters` of 48 bits.
pub(crate) fn emon(version: u32, counters: u32) -> Emon {
    Emon::detect(&intel_processor(version, counters)).unwrap()
}

/// Opens a session of an interface on the processor for which it was detected.
pub(crate) fn open<'a, I: Claimed>(
    interface: &'a I,
    msr: &'a RegisterFile,
    platform: &'a FakePlatform,
    memory: &'a CounterMemory,
) -> Session<'a, &'a I, (&'a RegisterFile, &'a FakePlatform)> {
    Session::take(interface, &interface.processor(), CounterSet::GENERAL, (msr, platform), memory)
        .unwrap()
}

/// An interface, and a processor for it.
pub(crate) trait Claimed: EventSource<Processor = Snapshot> + Sized {
    fn processor(&self) -> Snapshot;
}

impl Claimed for Emon {
    fn processor(&self) -> Snapshot {
        intel_processor(
            self.perfmon().version().into(),
            (self.unit().counters() & CounterSet::GENERAL).len() as u32,
        )
    }
}

impl Claimed for Amd64 {
    fn processor(&self) -> Snapshot {
        amd_processor(false, 0)
    }
}

pub(crate) fn write_fault(register: u32) -> AccessFault {
    AccessFault { operation: AccessOperation::Write, register, kind: AccessErrorKind::Fault }
}

pub(crate) fn counter(number: u8) -> CounterId {
    CounterId::general(number).unwrap()
}
