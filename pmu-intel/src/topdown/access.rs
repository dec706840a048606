//! Accesses to the registers of the slots and of the metrics.
//!
//! The metrics are fractions of the slots since both registers were written. The slots' counter must be written first,
//! and then the metrics (SDM vol. 3B, "Performance Metrics").

use pmu_core::{MsrAccess, MsrAddress, MsrBackend, MsrFault, PmcIndex, RegisterBits};

use crate::registers::{IA32_FIXED_CTR_CTRL, MSR_PERF_METRICS, RDPMC_METRICS};
use crate::topdown::unit::{Kind, SLOTS, TopDownUnit};

/// Bits of the overflow status, and of the global control: the slots' counter, and the metrics (SDM vol. 4, table 2-2).
pub(crate) const SLOTS_BIT: u64 = 1 << (32 + SLOTS);
pub(crate) const BITS: u64 = SLOTS_BIT | 1 << 48;

/// The values of both registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) slots: u64,
    pub(crate) metrics: u64,
}

/// The register whose write failed.
pub(crate) enum NotWritten {
    /// The slots' counter: both registers are as before.
    Slots(MsrFault),
    /// The metrics, after the slots' counter.
    Metrics(MsrFault),
}

impl NotWritten {
    pub(crate) const fn fault(self) -> MsrFault {
        match self {
            Self::Slots(fault) | Self::Metrics(fault) => fault,
        }
    }
}

impl TopDownUnit {
    /// Reads both registers by RDPMC. The slots come first: what is counted in between is in the next harvest's slots.
    pub(crate) fn read_pair(&self, msr: &impl MsrBackend) -> Result<Pair, MsrFault> {
        let slots = msr.rdpmc_retrying(PmcIndex::new(1 << 30 | u32::from(SLOTS)))?;
        let metrics = msr.rdpmc_retrying(PmcIndex::new(RDPMC_METRICS))?;
        Ok(Pair { slots, metrics })
    }

    /// Writes both registers, in the order in which the fractions begin with the slots.
    pub(crate) fn write_pair(&self, msr: &impl MsrBackend, pair: Pair) -> Result<(), NotWritten> {
        let Kind::Metrics { slots, .. } = self.kind else { return Ok(()) };
        // SAFETY: the metrics are fractions, and hold no address (SDM vol. 4, MSR_PERF_METRICS).
        let metrics = unsafe { MsrAddress::new(MSR_PERF_METRICS) };
        let written = msr.wrmsr_retrying(slots.value_register(), pair.slots);
        written.map_err(NotWritten::Slots)?;
        msr.wrmsr_retrying(metrics, pair.metrics).map_err(NotWritten::Metrics)
    }

    /// Writes 0 to both registers.
    pub(crate) fn clear_pair(&self, msr: &impl MsrBackend) -> Result<(), NotWritten> {
        self.write_pair(msr, Pair { slots: 0, metrics: 0 })
    }

    /// Returns whether both registers hold what is written to them.
    pub(crate) fn answers(&self, msr: &impl MsrBackend) -> Result<bool, MsrFault> {
        // Shares that add up to 255.
        let pair = Pair { slots: 0x0135_7AC0, metrics: 0x40_3F_40_40 };
        self.write_pair(msr, pair).map_err(NotWritten::fault)?;
        let found = self.read_pair(msr)?;
        let level_1 = found.metrics & 0xFFFF_FFFF;
        Ok(found.slots == pair.slots && level_1 == pair.metrics)
    }

    /// Returns which of the two registers' bits the overflow status has set.
    pub(crate) fn pending(&self, msr: &impl MsrBackend) -> Result<u64, MsrFault> {
        match self.kind {
            Kind::Metrics { global, .. } => Ok(msr.rdmsr_retrying(global.status)? & BITS),
            Kind::Counts => Ok(0),
        }
    }

    /// Acknowledges bits of the overflow status.
    pub(crate) fn acknowledge(&self, msr: &impl MsrBackend, bits: u64) -> Result<(), MsrFault> {
        match self.kind {
            Kind::Metrics { global, .. } => msr.wrmsr_retrying(global.acknowledge, bits),
            Kind::Counts => Ok(()),
        }
    }

    /// Returns the mask of the slots' bits in the control register of the fixed counters (SDM vol. 3B,
    /// `IA32_FIXED_CTR_CTRL`).
    pub(crate) const fn mask(&self) -> u64 {
        let deny = self.processor.has_user_rdpmc_control() as u64;
        (0b1111 | deny << 33) << (4 * SLOTS)
    }

    /// Returns the slots' bits of this register, for accesses beside the session.
    pub(crate) const fn control(&self) -> RegisterBits {
        // SAFETY: the bits decide what a fixed counter counts, and whether it interrupts.
        unsafe { RegisterBits::new(IA32_FIXED_CTR_CTRL, self.mask()) }
    }

    /// Returns the number of slots after which the slots' counter wraps.
    pub(crate) fn range(&self) -> u64 {
        match self.kind {
            Kind::Metrics { slots, .. } => slots.mask().wrapping_add(1),
            Kind::Counts => 0,
        }
    }
}
