//! CPUID of a mock processor.

use pmu_core::Snapshot;
use pmu_core::raw_cpuid::CpuIdResult;

use crate::configuration::vendor::Vendor;
use crate::mock::processor::MockMsr;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Returns CPUID of this processor, as a driver captures it: a processor of the vendor with 64-bit mode and its
    /// PMU as its only features, and with those that the platform's deviations add. The model is Sapphire Rapids or
    /// Zen 4, whatever the PMU is.
    pub fn snapshot(&self) -> Snapshot {
        let configuration = self.pmu.borrow().configuration();
        let (name, signature) = match configuration.vendor() {
            // Sapphire Rapids and Zen 4.
            Vendor::Intel => (b"GenuineIntel", 0x0008_06F8),
            Vendor::Amd => (b"AuthenticAMD", 0x00A6_0F12),
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
                _ => [0; 4],
            };
            let [eax, ebx, ecx, edx] = self.deviations.cpuid(&configuration, leaf, subleaf, given);
            CpuIdResult { eax, ebx, ecx, edx }
        })
    }
}
