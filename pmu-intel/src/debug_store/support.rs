//! Detection of the Debug Store.

use pmu_core::Snapshot;
use pmu_core::msr::{MsrBackend, MsrError, MsrFault, MsrOperation, MsrUpdate};

use crate::registers::{IA32_MISC_ENABLE, MiscEnable};

/// A processor's support for the Debug Store, from CPUID and `IA32_MISC_ENABLE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DebugStoreSupport {
    /// The vendor is Intel, and CPUID declares the Debug Store (leaf 1, EDX bit 21, DS).
    pub debug_store: bool,
    /// The DS save area has 64-bit words (CPUID leaf 1, ECX bit 2, DTES64).
    pub dtes64: bool,
    /// Value of `IA32_MISC_ENABLE`, or 0 if there is no Debug Store.
    pub misc_enable: MiscEnable,
}

impl DebugStoreSupport {
    /// Detects the Debug Store of the processor that executes the call.
    ///
    /// ```
    /// # use pmu_core::msr::{MsrBackend, MsrFault};
    /// # use pmu_core::Snapshot;
    /// use pmu_intel::debug_store::DebugStoreSupport;
    /// fn report<M: MsrBackend>(this_processor: &Snapshot, msr: &M) -> Result<(), MsrFault> {
    ///     let support = DebugStoreSupport::detect(this_processor, msr)?;
    ///     let word = if support.dtes64 { 64 } else { 32 };
    ///     println!("BTS: {}, PEBS: {}, words of {word} bits", support.has_bts(), support.has_pebs());
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The read of `IA32_MISC_ENABLE` failed. The call reads the register only if CPUID declares a Debug Store.
    pub fn detect<M: MsrBackend>(snapshot: &Snapshot, msr: &M) -> Result<Self, MsrFault> {
        let features = snapshot.leaf(1, 0);
        let debug_store = snapshot.vendor() == *b"GenuineIntel" && features.edx >> 21 & 1 != 0;
        let misc_enable = if debug_store {
            // Only read: the register has bits that change what a page table means.
            msr.update(MsrUpdate::read(IA32_MISC_ENABLE)).map_err(|error| MsrFault {
                operation: MsrOperation::Read,
                register: IA32_MISC_ENABLE,
                kind: error.kind(),
            })?
        } else {
            0
        };
        Ok(Self {
            debug_store,
            dtes64: debug_store && features.ecx >> 2 & 1 != 0,
            misc_enable: MiscEnable::from_bits(misc_enable),
        })
    }

    /// Returns whether branch trace storage (BTS) can be used.
    pub const fn has_bts(&self) -> bool {
        self.debug_store && !self.misc_enable.bts_unavailable()
    }

    /// Returns whether processor event-based sampling (PEBS) can be used.
    ///
    /// The result is `true` under these conditions:
    ///
    /// - The processor has a Debug Store.
    /// - `IA32_MISC_ENABLE` declares that performance monitoring is available.
    /// - `IA32_MISC_ENABLE` does not declare that PEBS is unavailable.
    ///
    /// 64-bit Windows creates a control area under the same conditions.
    pub const fn has_pebs(&self) -> bool {
        self.debug_store
            && self.misc_enable.performance_monitoring()
            && !self.misc_enable.pebs_unavailable()
    }
}
