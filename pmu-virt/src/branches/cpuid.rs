//! The bits of CPUID that declare branch records.

use crate::branches::configuration::BranchConfiguration;
use crate::configuration::cpuid::{CpuidLeaf, EAX, EBX, ECX, EDX};

impl BranchConfiguration {
    /// Returns the PMU's leaf with the bits that declare these records. A legacy stack has none: its format is in
    /// `IA32_PERF_CAPABILITIES`. XSAVE does not save the records of a guest.
    pub(crate) const fn declared(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        match (self, leaf.leaf, leaf.subleaf) {
            (Self::Architectural(_), 0, _) => {
                let needed = if leaf.at_least < 0x1C { 0x1C } else { leaf.at_least };
                leaf.at_least(needed)
            }
            // SDM vol. 2A, CPUID: EDX bit 19, architectural LBRs.
            (Self::Architectural(_), 7, Some(0)) => leaf.bits(EDX, 1 << 19, 1 << 19),
            (Self::Architectural(branches), 0x1C, _) => {
                let eax = branches.depths as u32
                    | (branches.resets_in_deep_sleep as u32) << 30
                    // Addresses are linear.
                    | 1 << 31;
                let ebx = branches.privilege_filter as u32
                    | (branches.kind_filter as u32) << 1
                    | (branches.call_stack as u32) << 2;
                let ecx = branches.mispredictions as u32
                    | (branches.cycles as u32) << 1
                    | (branches.kinds as u32) << 2
                    | (branches.counters as u32) << 16;
                leaf.bits(EAX, u32::MAX, eax).bits(EBX, u32::MAX, ebx).bits(ECX, u32::MAX, ecx)
            }
            // APM vol. 3, leaf 0x80000022: EAX 1 LbrStack, 2 LbrAndPmcFreeze; EBX 9:4 LbrStackSize.
            (Self::Amd(branches), 0x8000_0022, _) => {
                let eax = 1 << 1 | (branches.freeze as u32) << 2;
                leaf.bits(EAX, 0b110, eax).bits(EBX, 0x3F << 4, (branches.depth as u32) << 4)
            }
            _ => leaf,
        }
    }
}
