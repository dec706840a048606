//! CPUID, read once.

use core::fmt;

use raw_cpuid::{CpuId, CpuIdReader, CpuIdResult};

/// The leaves of the processor's identity and of its performance monitoring, with their sub-leaf in bits 23:16, which
/// no leaf number uses. They are in ascending order. Source: Intel SDM vol. 2A, CPUID; AMD APM vol. 3, appendix E;
/// Microsoft's Hypervisor Top-Level Functional Specification, "Feature and Interface Discovery".
const LEAVES: [u32; 27] = [
    0x0000_0000,
    0x0000_0001,
    0x0000_0006,
    0x0000_0007,
    0x0000_000A,
    0x0000_0015,
    0x0000_001A,
    0x0000_001C,
    0x0000_0023,
    0x0001_0007,
    0x0001_0023,
    0x0002_0023,
    0x0003_0023,
    0x0004_0023,
    0x0005_0023,
    0x4000_0000,
    0x4000_0001,
    0x4000_0002,
    0x4000_0003,
    0x8000_0000,
    0x8000_0001,
    0x8000_0002,
    0x8000_0003,
    0x8000_0004,
    0x8000_0008,
    0x8000_001B,
    0x8000_0022,
];

const SUBLEAF: u32 = 0xFF << 16;

const NOTHING: CpuIdResult = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };

/// One processor's CPUID leaves that describe its PMU, read once.
///
/// Take a snapshot once on each processor. The boot processor's snapshot selects the profile interface. Each session
/// gets the snapshot of its own processor. CPUID is not executed afterwards. [`raw_cpuid::CpuId`] can read from a
/// snapshot instead of from the processor. A leaf that was not recorded reads as zeros.
///
/// ```
/// use pmu_core::x86::dump::CpuidDump;
/// use pmu_core::x86::Snapshot;
/// let dump = CpuidDump::parse(
///     "   0x00000000 0x00: eax=0x0000000a ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69\n\
///         0x0000000a 0x00: eax=0x07280202 ebx=0x00000000 ecx=0x00000000 edx=0x00000503",
/// )
/// .unwrap();
/// let snapshot = Snapshot::capture(&dump);
/// assert_eq!(&snapshot.vendor(), b"GenuineIntel");
/// assert_eq!(snapshot.leaf(0x0A, 0).eax & 0xFF, 2); // version of architectural performance monitoring
/// ```
#[derive(Clone, Copy)]
pub struct Snapshot {
    leaves: [CpuIdResult; LEAVES.len()],
}

impl Snapshot {
    /// Reads the leaves that the processor declares. `reader` executes CPUID
    /// (`raw_cpuid::native_cpuid::CpuIdReaderNative`), or returns the leaves of a recorded dump or of a guest.
    pub fn capture(reader: impl CpuIdReader) -> Self {
        let basic = reader.cpuid2(0, 0).eax;
        let extended = reader.cpuid2(0x8000_0000, 0).eax;
        // A range that is absent may answer with another range's values.
        fn exists(leaf: u32, last: u32) -> bool {
            leaf == 0 || leaf <= last && leaf >> 28 == last >> 28
        }
        let hypervisor = if exists(1, basic) && reader.cpuid2(1, 0).ecx >> 31 != 0 {
            // Hypervisors that answer 0 here have the signature leaf and no more.
            reader.cpuid2(0x4000_0000, 0).eax.max(0x4000_0000)
        } else {
            0
        };
        fn read(
            reader: &impl CpuIdReader,
            recorded: u32,
            [basic, hypervisor, extended]: [u32; 3],
        ) -> CpuIdResult {
            let (leaf, subleaf) = (recorded & !SUBLEAF, (recorded & SUBLEAF) >> 16);
            let last = match leaf >> 28 {
                0 => basic,
                4 => hypervisor,
                _ => extended,
            };
            if exists(leaf, last) { reader.cpuid2(leaf, subleaf) } else { NOTHING }
        }
        let leaves = LEAVES.map(|recorded| read(&reader, recorded, [basic, hypervisor, extended]));
        Self { leaves }
    }

    /// Returns a recorded leaf. Returns zeros if the processor lacks the leaf, or if snapshots do not record the leaf.
    pub fn leaf(&self, leaf: u32, subleaf: u32) -> CpuIdResult {
        if leaf & SUBLEAF != 0 || subleaf > SUBLEAF >> 16 {
            return NOTHING;
        }
        let recorded = LEAVES.binary_search(&(leaf | subleaf << 16)).ok();
        recorded.and_then(|index| self.leaves.get(index)).copied().unwrap_or(NOTHING)
    }

    /// Returns a decoder of the recorded leaves, from the crate [`raw_cpuid`].
    pub fn cpuid(&self) -> CpuId<&Self> {
        CpuId::with_cpuid_reader(self)
    }

    /// Returns the vendor's twelve characters (leaf 0, EBX, EDX, ECX).
    pub fn vendor(&self) -> [u8; 12] {
        let leaf = self.leaf(0, 0);
        let mut vendor = [0; 12];
        for (characters, register) in vendor.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx])
        {
            characters.copy_from_slice(&register.to_le_bytes());
        }
        vendor
    }

    /// Returns the family as manuals print it: base family plus extended family (leaf 1, EAX).
    ///
    /// ```
    /// # use pmu_core::x86::dump::{CpuidDump, DumpError};
    /// # use pmu_core::x86::Snapshot;
    /// let dump = CpuidDump::parse(
    ///     "CPUID 00000000: 00000001-756E6547-6C65746E-49656E69\nCPUID 00000001: 000906EA-00000000-00000000-00000000",
    /// )?;
    /// let processor = Snapshot::capture(&dump);
    /// assert_eq!(&processor.vendor(), b"GenuineIntel");
    /// assert_eq!((processor.family(), processor.model(), processor.stepping()), (6, 0x9E, 0xA));
    /// # Ok::<(), pmu_core::x86::dump::DumpError>(())
    /// ```
    #[inline(never)] // 48 bytes of the glue, at `opt-level` 3.
    pub fn family(&self) -> u16 {
        let signature = self.leaf(1, 0).eax;
        let base = (signature >> 8 & 0xF) as u16;
        if base == 0xF { base + (signature >> 20 & 0xFF) as u16 } else { base }
    }

    /// Returns the model as manuals print it: extended model and base model (leaf 1, EAX). The method uses the extended
    /// model in family 15 and above, and in families 6 and 7 of every vendor except AMD.
    #[inline(never)] // 608 bytes of the Hermit-like glue, at `opt-level` 3.
    pub fn model(&self) -> u8 {
        let signature = self.leaf(1, 0).eax;
        let base = (signature >> 4 & 0xF) as u8;
        let extended = (signature >> 16 & 0xF) as u8;
        match signature >> 8 & 0xF {
            0xF => extended << 4 | base,
            // The extended model of AMD's family 6 is reserved.
            6 | 7 if self.vendor() != *b"AuthenticAMD" => extended << 4 | base,
            _ => base,
        }
    }

    /// Returns the stepping (leaf 1, EAX).
    pub fn stepping(&self) -> u8 {
        (self.leaf(1, 0).eax & 0xF) as u8
    }

    /// Returns whether the processor has 64-bit mode (leaf 0x80000001, EDX bit 29).
    pub fn has_long_mode(&self) -> bool {
        self.leaf(0x8000_0001, 0).edx >> 29 & 1 != 0
    }

    /// Returns whether a hypervisor declares that this is a virtual machine (leaf 1, ECX bit 31).
    pub fn has_hypervisor(&self) -> bool {
        self.leaf(1, 0).ecx >> 31 != 0
    }

    /// Returns whether the hypervisor implements Microsoft's interface (`Hv#1` in leaf 0x40000001, EAX).
    pub fn has_microsoft_hypervisor(&self) -> bool {
        self.has_hypervisor() && self.leaf(0x4000_0001, 0).eax == u32::from_le_bytes(*b"Hv#1")
    }

    /// Returns whether a Microsoft-compatible hypervisor hides the counters from this machine. Such a hypervisor clears
    /// EDX bit 2 of leaf 0x40000003, "performance monitors available".
    ///
    /// ```
    /// # use pmu_core::x86::Snapshot;
    /// # use pmu_core::error::NoInterface;
    /// /// Returns the reason not to try the counters of a virtual machine, if there is one.
    /// fn reason(processor: &Snapshot) -> Option<NoInterface> {
    ///     processor.hypervisor_hides_counters().then_some(NoInterface::HiddenByHypervisor)
    /// }
    /// # let _ = reason;
    /// ```
    pub fn hypervisor_hides_counters(&self) -> bool {
        self.has_microsoft_hypervisor() && self.leaf(0x4000_0003, 0).edx >> 2 & 1 == 0
    }
}

impl CpuIdReader for &Snapshot {
    fn cpuid2(&self, eax: u32, ecx: u32) -> CpuIdResult {
        self.leaf(eax, ecx)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (recorded, result) in LEAVES.iter().zip(&self.leaves) {
            let (leaf, subleaf) = (recorded & !SUBLEAF, (recorded & SUBLEAF) >> 16);
            map.entry(
                &format_args!("{leaf:#010X}.{subleaf}"),
                &format_args!(
                    "{:08X} {:08X} {:08X} {:08X}",
                    result.eax, result.ebx, result.ecx, result.edx
                ),
            );
        }
        map.finish()
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Snapshot {
    fn format(&self, f: defmt::Formatter<'_>) {
        for (recorded, r) in LEAVES.iter().zip(&self.leaves) {
            let (leaf, subleaf) = (recorded & !SUBLEAF, (recorded & SUBLEAF) >> 16);
            defmt::write!(
                f,
                "{=u32:#010X}.{=u32}: {=u32:08X} {=u32:08X} {=u32:08X} {=u32:08X}; ",
                leaf,
                subleaf,
                r.eax,
                r.ebx,
                r.ecx,
                r.edx
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(eax: u32, ebx: u32, ecx: u32, edx: u32) -> CpuIdResult {
        CpuIdResult { eax, ebx, ecx, edx }
    }

    #[test]
    fn a_leaf_is_found_by_its_order() {
        assert!(LEAVES.is_sorted());
    }

    #[test]
    fn absent_ranges_read_as_zeros_whatever_the_reader_answers() {
        // A processor answers a leaf beyond the last with the data of another.
        let snapshot = Snapshot::capture(|leaf: u32, _: u32| match leaf {
            0 => result(1, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            1 => result(0x6F6, 0, 0, 0),
            0x8000_0000 => result(0x16, 1, 2, 3),
            _ => result(0x0730_0404, u32::MAX, u32::MAX, u32::MAX),
        });
        assert_eq!(snapshot.leaf(0x0A, 0), NOTHING);
        assert_eq!(snapshot.leaf(0x8000_0001, 0), NOTHING);
        assert_eq!(snapshot.leaf(0x4000_0000, 0), NOTHING);
        assert!(!snapshot.has_long_mode());
    }

    #[test]
    fn without_leaf_1_there_is_no_hypervisor() {
        // The last basic leaf is in no range, so leaf 1 is not there, whatever is answered to it.
        let snapshot = Snapshot::capture(|leaf: u32, _: u32| match leaf {
            0 => result(0x1000_0000, 0, 0, 0),
            1 => result(0, 0, 1 << 31, 0),
            0x4000_0000 => result(0x4000_0003, 1, 2, 3),
            _ => NOTHING,
        });
        assert!(!snapshot.has_hypervisor());
        assert_eq!(snapshot.leaf(0x4000_0000, 0), NOTHING);
    }

    #[test]
    fn the_extended_model_is_read_in_the_families_that_have_it() {
        let model = |vendor: &[u8; 12], signature: u32| {
            let word = |place: usize| {
                u32::from_le_bytes([0, 1, 2, 3].map(|byte| vendor[4 * place + byte]))
            };
            let [ebx, edx, ecx] = [0, 1, 2].map(word);
            let processor = Snapshot::capture(move |leaf: u32, _: u32| match leaf {
                0 => result(1, ebx, ecx, edx),
                1 => result(signature, 0, 0, 0),
                _ => NOTHING,
            });
            (processor.family(), processor.model())
        };
        // Skylake; Pentium 4; Zen 4; Athlon, whose bits 19:16 are reserved; KX-6000; Pentium.
        assert_eq!(model(b"GenuineIntel", 0x0005_06E3), (6, 0x5E));
        assert_eq!(model(b"GenuineIntel", 0x0000_0F29), (15, 2));
        assert_eq!(model(b"AuthenticAMD", 0x00A6_0F12), (0x19, 0x61));
        assert_eq!(model(b"AuthenticAMD", 0x0005_0662), (6, 6));
        assert_eq!(model(b"CentaurHauls", 0x0003_07B0), (7, 0x3B));
        assert_eq!(model(b"GenuineIntel", 0x0005_0543), (5, 4));
    }

    #[test]
    fn a_hypervisor_hides_counters_only_if_it_is_microsoft_compatible() {
        let with = |signature: &[u8; 4], features: u32| {
            let signature = u32::from_le_bytes(*signature);
            Snapshot::capture(move |leaf: u32, _: u32| match leaf {
                0 => result(1, 0, 0, 0),
                1 => result(0, 0, 1 << 31, 0),
                0x4000_0000 => result(0x4000_0003, 0, 0, 0),
                0x4000_0001 => result(signature, 0, 0, 0),
                0x4000_0003 => result(0, 0, 0, features),
                _ => NOTHING,
            })
        };
        assert!(with(b"Hv#1", 0).hypervisor_hides_counters());
        assert!(!with(b"Hv#1", 1 << 2).hypervisor_hides_counters());
        assert!(!with(b"Xen\0", 0).hypervisor_hides_counters());
    }
}
