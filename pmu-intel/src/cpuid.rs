//! CPUID leaves 0x0A and 0x23, architectural performance monitoring.

use bitfield_struct::bitfield;
use pmu_core::x86::Snapshot;

/// CPUID leaf 0x0A of a processor: version, counters and events of architectural performance monitoring (SDM vol. 2A,
/// CPUID, "Input EAX = 0AH").
///
/// ```
/// use pmu_intel::ArchitecturalPerfmon;
/// // A Skylake's leaf.
/// let perfmon = ArchitecturalPerfmon::from_registers(0x0730_0404, 0, 0, 0x603);
/// assert_eq!((perfmon.version(), perfmon.counters(), perfmon.width()), (4, 4, 48));
/// assert_eq!((perfmon.fixed_counters(), perfmon.fixed_width()), (0b111, 48));
/// assert!(perfmon.has_event(6) && !perfmon.has_event(7));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ArchitecturalPerfmon {
    eax: Eax,
    events_unavailable: u32,
    fixed_bitmap: u32,
    edx: Edx,
}

#[bitfield(u32, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
struct Eax {
    version: u8,
    counters: u8,
    width: u8,
    events: u8,
}

#[bitfield(u32, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
struct Edx {
    #[bits(5)]
    fixed_counters: u8,
    fixed_width: u8,
    #[bits(2)]
    __: u8,
    any_thread_deprecated: bool,
    __: u16,
}

impl ArchitecturalPerfmon {
    /// Returns leaf 0x0A of the processor that a snapshot describes. If the processor lacks the leaf, all bits are 0.
    ///
    /// ```
    /// # use pmu_core::x86::Snapshot;
    /// use pmu_intel::ArchitecturalPerfmon;
    /// /// Returns whether cycles have a fixed counter, so that a watchdog takes no general one away.
    /// fn has_fixed_cycles(this_processor: &Snapshot) -> bool {
    ///     ArchitecturalPerfmon::from_snapshot(this_processor).fixed_counters() & 1 << 1 != 0
    /// }
    /// # let _ = has_fixed_cycles;
    /// ```
    pub fn from_snapshot(snapshot: &Snapshot) -> Self {
        let leaf = snapshot.leaf(0x0A, 0);
        Self::from_registers(leaf.eax, leaf.ebx, leaf.ecx, leaf.edx)
    }

    /// Decodes the registers that CPUID returned for leaf 0x0A.
    pub const fn from_registers(eax: u32, ebx: u32, ecx: u32, edx: u32) -> Self {
        Self {
            eax: Eax::from_bits(eax),
            events_unavailable: ebx,
            fixed_bitmap: ecx,
            edx: Edx::from_bits(edx),
        }
    }

    /// Returns the version of architectural performance monitoring (EAX 7:0). 0 means that the processor has none.
    pub const fn version(&self) -> u8 {
        self.eax.version()
    }

    /// Returns the number of general counters per logical processor (EAX 15:8).
    pub const fn counters(&self) -> u8 {
        self.eax.counters()
    }

    /// Returns the width of the general counters in bits (EAX 23:16).
    pub const fn width(&self) -> u8 {
        self.eax.width()
    }

    /// Returns the number of architectural events that the leaf describes (EAX 31:24). If this number is *n*, only the
    /// lowest *n* bits of [`events_unavailable`](Self::events_unavailable) are valid.
    pub const fn events(&self) -> u8 {
        self.eax.events()
    }

    /// Returns EBX: bit n is set if the architectural event n is not available.
    pub const fn events_unavailable(&self) -> u32 {
        self.events_unavailable
    }

    /// Returns whether the architectural event with this number is available: the event's bit in EBX is valid and
    /// clear.
    ///
    /// ```
    /// use pmu_intel::ArchitecturalPerfmon;
    /// const LLC_MISSES: u8 = 4;
    /// // A hypervisor's leaf, which hides both events of the last cache: bits 3 and 4 of EBX.
    /// let perfmon = ArchitecturalPerfmon::from_registers(0x0730_0402, 0b1_1000, 0, 0x603);
    /// assert!(!perfmon.has_event(LLC_MISSES));
    /// ```
    pub const fn has_event(&self, number: u8) -> bool {
        number < self.events() && number < 32 && self.events_unavailable >> number & 1 == 0
    }

    /// Returns the available architectural events among the first eight, one bit per event.
    pub(crate) const fn available_events(&self) -> u8 {
        let meaningful = if self.events() < 8 { (1 << self.events()) - 1 } else { u8::MAX };
        meaningful & !(self.events_unavailable as u8)
    }

    /// Returns a bitmap of the fixed counters: bit n is set if fixed counter n exists.
    ///
    /// Before version 2 of architectural performance monitoring, there are no fixed counters. In versions 2 to 4, fixed
    /// counters 0 to N − 1 exist, where N is the value of EDX 4:0. From version 5 on, fixed counter n also exists if
    /// bit n of ECX is set.
    pub const fn fixed_counters(&self) -> u32 {
        let contiguous = ((1u64 << self.edx.fixed_counters()) - 1) as u32;
        match self.version() {
            0 | 1 => 0,
            2..=4 => contiguous,
            _ => contiguous | self.fixed_bitmap,
        }
    }

    /// Returns the width of the fixed counters in bits (EDX 12:5), or 0 if [`version`](Self::version) is below 2.
    pub const fn fixed_width(&self) -> u8 {
        if self.version() < 2 { 0 } else { self.edx.fixed_width() }
    }

    /// Returns whether `AnyThread`, bit 21 of an event select, is deprecated (EDX 15).
    pub const fn any_thread_deprecated(&self) -> bool {
        self.edx.any_thread_deprecated()
    }
}

/// CPUID leaf 0x23, architectural performance monitoring extended, limited to counters and events (SDM vol. 2A, CPUID,
/// "Input EAX = 23H").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerfmonExtension {
    features: ExtensionEbx,
    general: u32,
    fixed: u32,
}

// To add a bit of event selects that leaf 0x23 declares: its constant; its bit of the leaf and its line in `event_bits`;
// and a row for each in `tests/data/register_fields.csv`, both with the same field name, by which the test finds them
// (`cargo test -p pmu-tests --test counters registers`).

/// Bits of `IA32_PERFEVTSELx`: EQ and UMASK2 (SDM vol. 3B, "Architectural Performance Monitoring Version 6").
const SELECT_EQ: u64 = 1 << 36;
const SELECT_UNIT_MASK_2: u64 = 0xFF << 40;

/// Features of the counters' controls: sub-leaf 0, EBX.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct ExtensionEbx {
    unit_mask_2: bool,
    equal: bool,
    rdpmc_user_disable: bool,
    #[bits(29)]
    __: u32,
}

impl PerfmonExtension {
    /// The leaf of a processor that lacks it.
    pub(crate) const NONE: Self = Self { features: ExtensionEbx::new(), general: 0, fixed: 0 };

    /// Returns the leaf in a snapshot, if leaf 7.1, EAX bit 8, declares it.
    pub(crate) fn from_snapshot(snapshot: &Snapshot) -> Self {
        if snapshot.leaf(7, 1).eax >> 8 & 1 == 0 {
            return Self::NONE;
        }
        let (main, counters) = (snapshot.leaf(0x23, 0), snapshot.leaf(0x23, 1));
        let has_counters = main.eax >> 1 & 1 != 0;
        let (general, fixed) = if has_counters { (counters.eax, counters.ebx) } else { (0, 0) };
        Self { features: ExtensionEbx::from_bits(main.ebx), general, fixed }
    }

    /// Returns the general counters, one bit per counter; 0 if leaf 0x0A declares them.
    pub(crate) const fn general_counters(&self) -> u32 {
        self.general
    }

    /// Returns the fixed counters, one bit per counter; 0 if leaf 0x0A declares them.
    pub(crate) const fn fixed_counters(&self) -> u32 {
        self.fixed
    }

    /// Returns the bits of an event select that the leaf declares for events.
    pub(crate) const fn event_bits(&self) -> u64 {
        let unit_mask_2 = if self.features.unit_mask_2() { SELECT_UNIT_MASK_2 } else { 0 };
        let equal = if self.features.equal() { SELECT_EQ } else { 0 };
        unit_mask_2 | equal
    }

    /// Returns whether RDPMC above privilege level 0 can be denied for each counter.
    pub(crate) const fn denies_user_reads(&self) -> bool {
        self.features.rdpmc_user_disable()
    }
}

/// Returns whether a model is in a list.
#[expect(clippy::manual_contains, reason = "the library's search for a byte is long itself")]
pub(crate) fn is_among(model: u8, models: &[u8]) -> bool {
    models.iter().any(|listed| *listed == model)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SDM's rule for a fixed counter: "FxCtr[i]_is_supported := ECX[i] || (EDX[4:0] > i)".
    #[test]
    fn fixed_counters_follow_the_manuals_formula_from_version_5() {
        for (version, bitmap, count) in [(5, 0b1_0001, 2), (5, 0, 4), (6, 0xF0, 0), (5, 1 << 31, 3)]
        {
            let leaf = ArchitecturalPerfmon::from_registers(version, 0, bitmap, count);
            for i in 0..32 {
                assert_eq!(leaf.fixed_counters() >> i & 1 != 0, bitmap >> i & 1 != 0 || count > i);
            }
        }
        assert_eq!(ArchitecturalPerfmon::from_registers(2, 0, 0xFF, 3).fixed_counters(), 0b111);
        assert_eq!(ArchitecturalPerfmon::from_registers(1, 0, 0, 3).fixed_counters(), 0);
    }

    #[test]
    fn an_event_beyond_the_meaningful_bits_is_not_available() {
        let leaf = ArchitecturalPerfmon::from_registers(0x0728_0202, 0b100, 0, 0);
        let available: std::vec::Vec<u8> = (0..=255).filter(|n| leaf.has_event(*n)).collect();
        assert_eq!(available, [0, 1, 3, 4, 5, 6]);
        let absurd = ArchitecturalPerfmon::from_registers(0xFF28_0202, 0, 0, 0);
        assert!(!absurd.has_event(32) && !absurd.has_event(255) && absurd.has_event(31));
    }
}
