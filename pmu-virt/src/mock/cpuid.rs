//! CPUID of a mock processor.

use pmu_core::Snapshot;
use pmu_core::raw_cpuid::CpuIdResult;

use crate::branches::configuration::BranchConfiguration;
use crate::configuration::vendor::Vendor;
use crate::mock::processor::MockMsr;
use crate::pmu::facility::GuestFacility;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Captures CPUID of this processor, as a driver does. The processor's only features are 64-bit mode, the PMU, and
    /// the features that the platform's deviations add. Family and model are usually those of Sapphire Rapids (Intel)
    /// or Zen 4 (AMD). Some Intel features exist only on other models: legacy [branch records](Self::with_branches),
    /// and [precise records](Self::with_precise) of a format below 4. With such a feature, family and model are those
    /// of a processor that has the feature.
    ///
    /// ```
    /// use pmu_virt::mock::MockMsr;
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, VirtualPmu};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// // A driver detects the PMU in it.
    /// let snapshot = mock.snapshot();
    /// assert_eq!((&snapshot.vendor(), snapshot.family()), (b"GenuineIntel", 6));
    /// assert_eq!(snapshot.leaf(0x0A, 0).eax & 0xFFFF, 0x0404);
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        let configuration = self.pmu.borrow().configuration();
        let beside = *self.beside.borrow();
        let legacy = match beside.0.0.map(|branches| branches.configuration()) {
            Some(BranchConfiguration::Legacy { format }) => Some(format),
            _ => None,
        };
        let format =
            beside.0.1.1.and_then(|precise| precise.debug_store()).map(|store| store.format);
        let level_1_alone = beside.1.0.is_some_and(|metrics| !metrics.has_level_2());
        let (name, signature) = match (configuration.vendor(), legacy) {
            // Cores whose branch records have the format: Sandy Bridge, Haswell, Skylake, Goldmont, Goldmont Plus.
            (Vendor::Intel, Some(3)) => (b"GenuineIntel", 0x0002_06A7),
            (Vendor::Intel, Some(4)) => (b"GenuineIntel", 0x0003_06C3),
            (Vendor::Intel, Some(5)) => (b"GenuineIntel", 0x0005_06E3),
            (Vendor::Intel, Some(6)) => (b"GenuineIntel", 0x0005_06C9),
            (Vendor::Intel, Some(_)) => (b"GenuineIntel", 0x0007_06A1),
            // Ice Lake, whose metrics have level 1 alone.
            (Vendor::Intel, None) if level_1_alone => (b"GenuineIntel", 0x0007_06E5),
            // Cores whose precise records have the format: Penryn, Nehalem, Haswell, Skylake; later Sapphire Rapids.
            (Vendor::Intel, None) => (
                b"GenuineIntel",
                match format {
                    Some(0) => 0x0001_0676,
                    Some(1) => 0x0001_06A5,
                    Some(2) => 0x0003_06C3,
                    Some(3) => 0x0005_06E3,
                    _ => 0x0008_06F8,
                },
            ),
            // Zen 4.
            (Vendor::Amd, _) => (b"AuthenticAMD", 0x00A6_0F12),
        };
        let word = |at: usize| {
            let characters = name.get(at..at + 4).and_then(|word| word.try_into().ok());
            characters.map_or(0, u32::from_le_bytes)
        };
        Snapshot::capture(|leaf: u32, subleaf: u32| {
            let given = match leaf {
                0 => [1, word(0), word(8), word(4)],
                1 => [signature, 0, 0, 0],
                0x8000_0000 => [0x8000_0001, 0, 0, 0],
                0x8000_0001 => [0, 0, 1 << 2, 1 << 29],
                // 48 bits of linear address, 48 of physical.
                0x8000_0008 => [0x3030, 0, 0, 0],
                _ => [0; 4],
            };
            let answer = match configuration.cpuid_leaf(leaf, subleaf) {
                Some(own) => beside.cpuid(own).apply(given),
                None => given,
            };
            let [eax, ebx, ecx, edx] = self.deviations.declared(leaf, answer);
            CpuIdResult { eax, ebx, ecx, edx }
        })
    }
}
