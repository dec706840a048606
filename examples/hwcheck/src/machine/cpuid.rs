//! CPUID of a processor as its kernel sees it: `/dev/cpu/N/cpuid`. Read first: cpuid(4).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_core::x86::raw_cpuid::native_cpuid::cpuid_count;
use pmu_virt::configuration::CpuidRegisters;

/// CPUID of the processor that executes the call, by the instruction in user mode.
pub fn native_cpuid(leaf: u32, subleaf: u32) -> CpuidRegisters {
    let CpuIdResult { eax, ebx, ecx, edx } = cpuid_count(leaf, subleaf);
    [eax, ebx, ecx, edx]
}

/// The leaves that name the vendor, the processor and its PMU, and the registers of each that programs and kernel have
/// in common: leaf 1, EBX is of the processor that executes it, and ECX bit 27 is of the kernel.
const COMPARED: [(u32, [u32; 4]); 7] = [
    (0, [!0; 4]),
    (1, [!0, 0, !(1 << 27), !0]),
    (0x0A, [!0; 4]),
    (0x8000_0000, [!0; 4]),
    (0x8000_0001, [!0; 4]),
    (0x8000_001B, [!0; 4]),
    (0x8000_0022, [!0; 4]),
];

/// CPUID of one processor: the kernel's, where the file is there, otherwise a program's. In some virtual machines a
/// program's is the host's.
#[derive(Debug)]
pub struct KernelCpuid {
    file: Option<File>,
}

impl KernelCpuid {
    /// Opens the file of a processor. Loads no module.
    pub fn of(processor: u32) -> Self {
        Self::open(&PathBuf::from(format!("/dev/cpu/{processor}/cpuid")))
    }

    /// Opens a file, if it is there and can be read.
    pub fn open(path: &Path) -> Self {
        Self { file: File::open(path).ok() }
    }

    /// Returns a leaf: the kernel's, or that of the processor that executes the call.
    pub fn read(&self, leaf: u32, subleaf: u32) -> CpuidRegisters {
        self.of_kernel(leaf, subleaf).unwrap_or_else(|| native_cpuid(leaf, subleaf))
    }

    fn of_kernel(&self, leaf: u32, subleaf: u32) -> Option<CpuidRegisters> {
        let mut bytes = [0; 16];
        let at = u64::from(subleaf) << 32 | u64::from(leaf);
        self.file.as_ref()?.read_exact_at(&mut bytes, at).ok()?;
        let (words, _) = bytes.as_chunks::<4>();
        Some([words[0], words[1], words[2], words[3]].map(u32::from_le_bytes))
    }

    /// Returns the first leaf in which a program's CPUID differs from the kernel's, with both.
    pub fn difference(
        &self,
        of_program: impl Fn(u32, u32) -> CpuidRegisters,
    ) -> Option<(u32, CpuidRegisters, CpuidRegisters)> {
        COMPARED.iter().find_map(|(leaf, mask)| {
            let (program, kernel) = (of_program(*leaf, 0), self.of_kernel(*leaf, 0)?);
            let differs = (0..4).any(|place| (program[place] ^ kernel[place]) & mask[place] != 0);
            differs.then_some((*leaf, program, kernel))
        })
    }

    /// Returns the sentence that says that the two differ, if they do.
    pub fn warning(&self, of_program: impl Fn(u32, u32) -> CpuidRegisters) -> Option<String> {
        let (leaf, program, kernel) = self.difference(of_program)?;
        Some(format!(
            "CPUID leaf {leaf:#x} of a program is {program:#010x?}, and the kernel's {kernel:#010x?}: a hypervisor \
             hides it from the kernel alone, and the kernel's is used"
        ))
    }
}
