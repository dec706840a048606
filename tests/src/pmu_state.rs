//! The registers of a software PMU's state by purpose, of any vendor. Addresses: SDM vol. 4, APM vol. 2, appendix
//! "MSR Cross-Reference".

use pmu_virt::PmuState;

/// The registers of a state; 0 where there is none.
pub trait StateRegisters {
    /// Returns the register at the first of these addresses that exists.
    fn first_of(&self, addresses: &[u32]) -> u64;

    /// The event selects.
    fn selects(&self) -> [u64; 8] {
        of_each(|n| self.first_of(&[0x186 + n, 0xC001_0200 + 2 * n, legacy(0xC001_0000, n)]))
    }

    /// The general counters.
    fn general(&self) -> [u64; 8] {
        of_each(|n| self.first_of(&[0xC1 + n, 0xC001_0201 + 2 * n, legacy(0xC001_0004, n)]))
    }

    /// The fixed counters.
    fn fixed(&self) -> [u64; 8] {
        of_each(|n| self.first_of(&[0x309 + n]))
    }

    /// `IA32_FIXED_CTR_CTRL`.
    fn fixed_control(&self) -> u64 {
        self.first_of(&[0x38D])
    }

    /// `IA32_PERF_GLOBAL_CTRL`, `PerfCntrGlobalCtl`.
    fn global_control(&self) -> u64 {
        self.first_of(&[0x38F, 0xC000_0301])
    }

    /// `IA32_PERF_GLOBAL_STATUS`, `PerfCntrGlobalStatus`.
    fn global_status(&self) -> u64 {
        self.first_of(&[0x38E, 0xC000_0300])
    }

    /// The PMU's bits of `IA32_DEBUGCTL`.
    fn debug_control(&self) -> u64 {
        self.first_of(&[0x1D9])
    }
}

impl StateRegisters for PmuState {
    fn first_of(&self, addresses: &[u32]) -> u64 {
        addresses.iter().find_map(|address| self.register(*address)).unwrap_or(0)
    }
}

/// A register of one of the four legacy counters; of another, 0, where there is no PMU's register.
fn legacy(first: u32, counter: u32) -> u32 {
    if counter < 4 { first + counter } else { 0 }
}

fn of_each(register: impl Fn(u32) -> u64) -> [u64; 8] {
    [0, 1, 2, 3, 4, 5, 6, 7].map(register)
}
