//! The bits of CPUID that declare precise records and the branch trace store.

use crate::configuration::cpuid::{CpuidLeaf, EAX, EBX, ECX, EDX};
use crate::precise::configuration::PreciseRecords;
use crate::precise::virtual_precise::VirtualPrecise;

impl VirtualPrecise {
    /// Returns the PMU's leaf with the bits that declare the records and the trace.
    pub(crate) fn declared(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        match (leaf.leaf, leaf.subleaf) {
            // ECX: 2 DTES64, 4 DS-CPL. EDX: 21 DS.
            (1, _) if self.has_debug_store() => {
                let by_privilege = u32::from(self.configuration.branch_trace) << 4;
                leaf.bits(ECX, 1 << 2 | 1 << 4, 1 << 2 | by_privilege).bits(EDX, 1 << 21, 1 << 21)
            }
            (0x23, Some(subleaf)) => {
                let PreciseRecords::Architectural(records) = self.configuration.records else {
                    return leaf;
                };
                let [a, b, c, d] = match subleaf {
                    0 => [0b11 << 4, 0, 0, 0],
                    4 => [0, records.groups, 0, 0],
                    5 => [
                        self.general.into(),
                        (records.general_exact & self.general).into(),
                        self.fixed.into(),
                        (records.fixed_exact & self.fixed).into(),
                    ],
                    _ => [0; 4],
                };
                leaf.bits(EAX, a, a).bits(EBX, b, b).bits(ECX, c, c).bits(EDX, d, d)
            }
            _ => leaf,
        }
    }
}
