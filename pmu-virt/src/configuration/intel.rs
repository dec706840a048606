//! The configuration of Intel's architectural performance monitoring.

use crate::configuration::bitmap::{first, has_gaps};
use crate::configuration::error::ConfigurationError;

/// Configuration of Intel's architectural performance monitoring. SDM vol. 3B, "Architectural Performance Monitoring".
///
/// ```
/// use pmu_virt::{Configuration, IntelConfiguration};
/// let mut narrow = IntelConfiguration::new(2, 4, 3);
/// narrow.general_width = 40;
/// narrow.full_width_writes = false;
/// assert!(Configuration::Intel(narrow).check().is_ok());
///
/// let sixth = IntelConfiguration::new(6, 8, 4).with(|sixth| {
///     sixth.unit_mask_2 = true;
///     sixth.rdpmc_user_disable = true;
/// });
/// assert!(Configuration::Intel(sixth).check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct IntelConfiguration {
    /// Version, 1–6 (leaf 0x0A, EAX bits 7:0). In version 6 the registers of each counter have addresses from 0x1900
    /// on, in addition to the older addresses.
    pub version: u8,
    /// The general counters: bit *n* for `IA32_PMCn`. At least one bit is set. A bitmap with gaps needs
    /// [`extended_leaf`](Self::extended_leaf).
    pub general: u8,
    /// Width of the general counters in bits, 32–64.
    pub general_width: u8,
    /// The fixed counters: bit *n* for `IA32_FIXED_CTRn`. Version 1 has none. The bitmap may have gaps from version 5
    /// on.
    pub fixed: u8,
    /// Width of the fixed counters in bits, 32–64. The field is ignored if there are no fixed counters.
    pub fixed_width: u8,
    /// The general counters can be written in full width, at addresses from 0x4C1 on (`IA32_PERF_CAPABILITIES[13]`).
    pub full_width_writes: bool,
    /// The first eight architectural events: bit *n* is set if CPUID declares event *n* (leaf 0x0A, EBX). A guest may
    /// program any event, declared or not.
    pub events: u8,
    /// Event selects have the AnyThread bit (version 3 on). CPUID does not declare AnyThread deprecated: leaf 0x0A, EDX
    /// bit 15 is clear. The AnyThread bit is part of the [event's key](crate::EventKey). On a real counter, AnyThread
    /// also counts the core's other thread, which may run another guest.
    pub any_thread: bool,
    /// Leaf 0x23 gives the bitmaps of counters; leaf 7.1, EAX bit 8, announces leaf 0x23. Version 5 may have leaf 0x23,
    /// and version 6 must.
    pub extended_leaf: bool,
    /// Event selects have `IN_TX` (bit 32), and the select of counter 2 also has `IN_TXCP` (bit 33). The two bits are
    /// part of the [event's key](crate::EventKey).
    ///
    /// If the field is set, the embedder decides whether CPUID declares TSX (leaf 7, EBX bits 4, HLE, and 11, RTM). If
    /// the field is not set, CPUID hides TSX, and `IN_TX` and `IN_TXCP` are reserved.
    pub transactional: bool,
    /// Event selects have a second unit mask, UMASK2 (bits 47:40): leaf 0x23, EBX bit 0. Version 6 only.
    pub unit_mask_2: bool,
    /// Event selects have the flag EQ (bit 36), with which a counter counts the cycles in which the event happened
    /// exactly as often as the counter mask says: leaf 0x23, EBX bit 1. Version 6 only.
    pub equal: bool,
    /// The guest's kernel can hide each counter from RDPMC at CPL 1–3: leaf 0x23, EBX bit 2. Bit 37 of an event select
    /// hides a general counter, and bit 33 + 4*n* of `IA32_FIXED_CTR_CTRL` hides fixed counter *n*. Version 6 only.
    pub rdpmc_user_disable: bool,
}

impl IntelConfiguration {
    /// Creates the configuration of a PMU with `general` general and `fixed` fixed counters, all 48 bits wide.
    ///
    /// The counters are numbered from 0 and have full-width writes. CPUID declares the first seven architectural
    /// events. Version 6 has leaf 0x23, and none of the optional features that leaf 0x23 declares.
    pub const fn new(version: u8, general: u8, fixed: u8) -> Self {
        Self {
            version,
            general: first(general),
            general_width: 48,
            fixed: first(fixed),
            fixed_width: 48,
            full_width_writes: true,
            events: 0x7F,
            any_thread: false,
            extended_leaf: version >= 6,
            transactional: false,
            unit_mask_2: false,
            equal: false,
            rdpmc_user_disable: false,
        }
    }

    /// Returns the configuration after `change` has changed it.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(crate) const fn check(&self) -> Result<(), ConfigurationError> {
        use ConfigurationError as E;
        if self.version == 0 || self.version > 6 {
            return Err(E::Version(self.version));
        }
        if self.general == 0 {
            return Err(E::NoGeneralCounter);
        }
        if self.extended_leaf && self.version < 5 {
            return Err(E::ExtendedLeaf { version: self.version });
        }
        if !self.extended_leaf && self.version >= 6 {
            return Err(E::NoExtendedLeaf { version: self.version });
        }
        if (self.unit_mask_2 || self.equal || self.rdpmc_user_disable) && self.version < 6 {
            return Err(E::SelectFeature { version: self.version });
        }
        if has_gaps(self.general) && !self.extended_leaf {
            return Err(E::GeneralGaps { general: self.general });
        }
        if self.fixed != 0 && self.version == 1 {
            return Err(E::FixedInVersion1);
        }
        if has_gaps(self.fixed) && self.version < 5 {
            return Err(E::FixedGaps { fixed: self.fixed });
        }
        if self.general_width < 32 || self.general_width > 64 {
            return Err(E::Width(self.general_width));
        }
        if self.fixed != 0 && (self.fixed_width < 32 || self.fixed_width > 64) {
            return Err(E::Width(self.fixed_width));
        }
        if self.any_thread && self.version < 3 {
            return Err(E::AnyThread { version: self.version });
        }
        Ok(())
    }
}
