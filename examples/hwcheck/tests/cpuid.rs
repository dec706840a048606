//! CPUID as the kernel has it, where a program's is another: the kernel's is used, and the difference is told.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod machines;

use std::fs::File;
use std::os::unix::fs::FileExt;

use machines::Folder;
use pmu_hwcheck::machine::{KernelCpuid, native_cpuid};
use pmu_virt::configuration::CpuidRegisters;

/// cpuid(4): 16 bytes at the leaf, with the sub-leaf in bits 63:32.
fn put(file: &File, leaf: u32, subleaf: u32, registers: CpuidRegisters) {
    let bytes: Vec<u8> = registers.iter().flat_map(|one| one.to_le_bytes()).collect();
    file.write_all_at(&bytes, u64::from(subleaf) << 32 | u64::from(leaf)).unwrap();
}

/// EAX, EBX, ECX and EDX of leaf 0: the vendors' names are in EBX, EDX, ECX.
const INTEL: CpuidRegisters = [0x16, 0x756E_6547, 0x6C65_746E, 0x4965_6E69];
const AMD: CpuidRegisters = [0x10, 0x6874_7541, 0x444D_4163, 0x6974_6E65];
const LEAVES: [u32; 7] = [0x8000_0022, 0x8000_001B, 0x8000_0001, 0x8000_0000, 0x0A, 1, 0];

/// The kernel of an Intel guest, on an AMD host whose hypervisor leaves CPUID of programs alone.
#[test]
fn an_intel_guest_of_an_amd_host_is_taken_for_what_its_kernel_sees() {
    let folder = Folder::new();
    let path = folder.0.join("cpuid");
    let file = File::create(&path).unwrap();
    // The first leaf is written last: those before it overlap the bytes of smaller numbers.
    LEAVES.iter().for_each(|leaf| put(&file, *leaf, 0, [0; 4]));
    put(&file, 4, 3, [1, 2, 3, 4]);
    put(&file, 0, 0, INTEL);
    let cpuid = KernelCpuid::open(&path);
    assert_eq!(cpuid.read(0, 0), INTEL);
    assert_eq!(cpuid.read(4, 3), [1, 2, 3, 4]);
    let program = |leaf: u32, _: u32| if leaf == 0 { AMD } else { cpuid.read(leaf, 0) };
    assert_eq!(cpuid.difference(program), Some((0, AMD, INTEL)));
    let warning = cpuid.warning(program).unwrap();
    assert!(
        warning.contains("CPUID leaf 0x0 of a program") && warning.contains("the kernel's is used")
    );
    assert_eq!(cpuid.warning(|leaf, subleaf| cpuid.read(leaf, subleaf)), None);
    // The APIC number of leaf 1, and the bit that the kernel sets by CR4, are no differences.
    let other = |leaf: u32, _: u32| {
        let [eax, ebx, ecx, edx] = cpuid.read(leaf, 0);
        let of_processor = leaf == 1;
        [eax, ebx ^ u32::from(of_processor) << 24, ecx ^ u32::from(of_processor) << 27, edx]
    };
    assert_eq!(cpuid.difference(other), None);
}

#[test]
fn without_the_kernels_file_cpuid_is_the_instructions() {
    let cpuid = KernelCpuid::open("/nonexistent/cpuid".as_ref());
    assert_eq!(cpuid.read(0, 0), native_cpuid(0, 0));
    assert_eq!(cpuid.difference(|_, _| [0; 4]), None);
}
