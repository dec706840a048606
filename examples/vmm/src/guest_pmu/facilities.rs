//! The hardware beside the counters of a guest's processor.

use core::ops::{Deref, DerefMut};

use pmu_virt::branches::VirtualBranches;
use pmu_virt::configuration::CpuidLeaf;
use pmu_virt::ibs::VirtualIbs;
use pmu_virt::mock::Deviations;
use pmu_virt::precise::{FedRecord, GuestMemory, Recorded, VirtualPrecise};
use pmu_virt::registers::RegisterInfo;
use pmu_virt::topdown::VirtualTopDown;
use pmu_virt::{GuestFacility, Read, VirtualPmu, Writer, Written};

/// Branch records and precise records, instruction-based sampling, and top-down metrics. `None`: the guest lacks the
/// facility.
pub(crate) type Facilities = (Records, Beside);

/// Instruction-based sampling, and top-down metrics.
pub(crate) type Beside = (Option<VirtualIbs>, Option<VirtualTopDown>);

/// The records of branches, and of the instructions at which counters overflow.
pub(crate) type Records = (Option<VirtualBranches>, Option<Precise>);

/// Precise records, as a platform with deviations writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Precise {
    records: VirtualPrecise,
    deviations: Deviations,
    /// Records that were written since the machine was created.
    written: u64,
}

impl Precise {
    pub(crate) fn new(records: VirtualPrecise, deviations: Deviations) -> Self {
        Self { records, deviations, written: 0 }
    }

    /// Writes the due records of these counters.
    pub(crate) fn record(
        &mut self,
        pmu: &mut VirtualPmu,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
    ) -> Recorded {
        let Self { records, deviations, written } = self;
        let recorded = deviations.record(records, pmu, counters, *written, fed, memory);
        *written += u64::from(recorded.written);
        recorded
    }
}

impl Deref for Precise {
    type Target = VirtualPrecise;

    fn deref(&self) -> &VirtualPrecise {
        &self.records
    }
}

impl DerefMut for Precise {
    fn deref_mut(&mut self) -> &mut VirtualPrecise {
        &mut self.records
    }
}

impl GuestFacility for Precise {
    fn read(&self, address: u32) -> Read {
        self.records.read(address)
    }

    fn check_write(&self, writer: Writer, address: u32, value: u64) -> Written {
        self.records.check_write(writer, address, value)
    }

    fn write(&mut self, writer: Writer, address: u32, value: u64) -> Written {
        self.records.write(writer, address, value)
    }

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.records.cpuid(leaf)
    }

    fn registers(&self) -> impl Iterator<Item = RegisterInfo> {
        self.records.registers()
    }

    fn pmi_raised(&mut self) {
        self.records.pmi_raised();
    }

    fn own_counters(&self) -> u64 {
        self.records.own_counters()
    }

    fn overflowed(&mut self, counters: u64) {
        self.records.overflowed(counters);
    }

    fn reset(&mut self) {
        self.records.reset();
    }
}
