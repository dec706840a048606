//! The instructions that the guest's CPUID offers: any other is #UD, also where KVM interprets the guest and knows it
//! not.

use iced_x86::{CpuidFeature as F, Instruction};
use kvm_bindings::{CpuId, kvm_sregs};

/// #UD.
pub(crate) const UNDEFINED: u8 = 6;

const CR4_OSXSAVE: u64 = 1 << 18;

const EAX: usize = 0;
const EBX: usize = 1;
const ECX: usize = 2;
const EDX: usize = 3;

/// Features with a bit of their own: leaf, sub-leaf, register and bit. SDM vol. 2A and APM vol. 3, CPUID.
const BITS: &[(F, u32, u32, usize, u8)] = &[
    (F::CX8, 1, 0, EDX, 8),
    (F::CMOV, 1, 0, EDX, 15),
    (F::CLFSH, 1, 0, EDX, 19),
    (F::MMX, 1, 0, EDX, 23),
    (F::FXSR, 1, 0, EDX, 24),
    (F::SSE, 1, 0, EDX, 25),
    (F::SSE2, 1, 0, EDX, 26),
    (F::SSE3, 1, 0, ECX, 0),
    (F::PCLMULQDQ, 1, 0, ECX, 1),
    (F::MONITOR, 1, 0, ECX, 3),
    (F::VMX, 1, 0, ECX, 5),
    (F::SMX, 1, 0, ECX, 6),
    (F::SSSE3, 1, 0, ECX, 9),
    (F::FMA, 1, 0, ECX, 12),
    (F::CMPXCHG16B, 1, 0, ECX, 13),
    (F::SSE4_1, 1, 0, ECX, 19),
    (F::SSE4_2, 1, 0, ECX, 20),
    (F::MOVBE, 1, 0, ECX, 22),
    (F::POPCNT, 1, 0, ECX, 23),
    (F::AES, 1, 0, ECX, 25),
    (F::XSAVE, 1, 0, ECX, 26),
    (F::AVX, 1, 0, ECX, 28),
    (F::F16C, 1, 0, ECX, 29),
    (F::RDRAND, 1, 0, ECX, 30),
    (F::FSGSBASE, 7, 0, EBX, 0),
    (F::BMI1, 7, 0, EBX, 3),
    (F::AVX2, 7, 0, EBX, 5),
    (F::BMI2, 7, 0, EBX, 8),
    (F::INVPCID, 7, 0, EBX, 10),
    (F::RTM, 7, 0, EBX, 11),
    (F::AVX512F, 7, 0, EBX, 16),
    (F::AVX512DQ, 7, 0, EBX, 17),
    (F::RDSEED, 7, 0, EBX, 18),
    (F::ADX, 7, 0, EBX, 19),
    (F::SMAP, 7, 0, EBX, 20),
    (F::CLFLUSHOPT, 7, 0, EBX, 23),
    (F::CLWB, 7, 0, EBX, 24),
    (F::SHA, 7, 0, EBX, 29),
    (F::AVX512BW, 7, 0, EBX, 30),
    (F::AVX512VL, 7, 0, EBX, 31),
    (F::PKU, 7, 0, ECX, 3),
    (F::WAITPKG, 7, 0, ECX, 5),
    (F::CET_SS, 7, 0, ECX, 7),
    (F::GFNI, 7, 0, ECX, 8),
    (F::VAES, 7, 0, ECX, 9),
    (F::VPCLMULQDQ, 7, 0, ECX, 10),
    (F::RDPID, 7, 0, ECX, 22),
    (F::MOVDIRI, 7, 0, ECX, 27),
    (F::MOVDIR64B, 7, 0, ECX, 28),
    (F::ENQCMD, 7, 0, ECX, 29),
    (F::SERIALIZE, 7, 0, EDX, 14),
    (F::TSXLDTRK, 7, 0, EDX, 16),
    (F::XSAVEOPT, 0x0D, 1, EAX, 0),
    (F::XSAVEC, 0x0D, 1, EAX, 1),
    (F::XSAVES, 0x0D, 1, EAX, 3),
    (F::SVM, 0x8000_0001, 0, ECX, 2),
    (F::LZCNT, 0x8000_0001, 0, ECX, 5),
    (F::SSE4A, 0x8000_0001, 0, ECX, 6),
    (F::XOP, 0x8000_0001, 0, ECX, 11),
    (F::SKINIT, 0x8000_0001, 0, ECX, 12),
    (F::LWP, 0x8000_0001, 0, ECX, 15),
    (F::FMA4, 0x8000_0001, 0, ECX, 16),
    (F::TBM, 0x8000_0001, 0, ECX, 21),
    (F::MONITORX, 0x8000_0001, 0, ECX, 29),
    (F::RDTSCP, 0x8000_0001, 0, EDX, 27),
    (F::D3NOWEXT, 0x8000_0001, 0, EDX, 30),
    (F::D3NOW, 0x8000_0001, 0, EDX, 31),
    (F::CLZERO, 0x8000_0008, 0, EBX, 0),
    (F::RDPRU, 0x8000_0008, 0, EBX, 4),
    (F::MCOMMIT, 0x8000_0008, 0, EBX, 8),
];

/// Features of processors that no KVM runs on: VIA's, Cyrix', Knights Corner, and those of old.
const NOWHERE: [F; 17] = [
    F::PADLOCK_ACE,
    F::PADLOCK_GMI,
    F::PADLOCK_PHE,
    F::PADLOCK_PMM,
    F::PADLOCK_RNG,
    F::PADLOCK_UNDOC,
    F::CENTAUR_AIS,
    F::CYRIX_D3NOW,
    F::CYRIX_DDI,
    F::CYRIX_DMI,
    F::CYRIX_EMMI,
    F::CYRIX_FPU,
    F::CYRIX_SHR,
    F::CYRIX_SMM,
    F::KNC,
    F::UMOV,
    F::MOV_TR,
];

/// Returns the registers of a leaf, EAX to EDX; 0 where there is none.
pub(crate) fn leaf(cpuid: &CpuId, function: u32, index: u32) -> [u32; 4] {
    let mut entries = cpuid.as_slice().iter();
    let entry = entries.find(|entry| entry.function == function && entry.index == index);
    entry.map_or([0; 4], |entry| [entry.eax, entry.ebx, entry.ecx, entry.edx])
}

/// Returns whether the guest may execute the instruction, by its CPUID and, for XSAVE, by CR4: one that is no
/// instruction it may not. What has no bit of CPUID is on every processor.
pub(crate) fn is_offered(instruction: &Instruction, cpuid: &CpuId, system: &kvm_sregs) -> bool {
    let has = |feature: &F| {
        let row = BITS.iter().find(|(known, ..)| known == feature);
        !NOWHERE.contains(feature)
            && row.is_none_or(|(_, function, index, register, bit)| {
                leaf(cpuid, *function, *index)[*register] >> bit & 1 != 0
            })
    };
    let features = instruction.cpuid_features();
    let enabled = !features.contains(&F::XSAVE) || system.cr4 & CR4_OSXSAVE != 0;
    !instruction.is_invalid() && features.iter().all(has) && enabled
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};
    use kvm_bindings::kvm_cpuid_entry2;

    use super::*;

    /// Returns a CPUID of all bits but these of a leaf.
    fn without(function: u32, index: u32, register: usize, bit: u8) -> CpuId {
        let mut leaves = Vec::new();
        for (at, sub) in [(1, 0), (7, 0), (0x0D, 1), (0x8000_0001, 0), (0x8000_0008, 0)] {
            let mut all = [u32::MAX; 4];
            if (at, sub) == (function, index) {
                all[register] &= !(1 << bit);
            }
            let [eax, ebx, ecx, edx] = all;
            leaves.push(kvm_cpuid_entry2 {
                function: at,
                index: sub,
                eax,
                ebx,
                ecx,
                edx,
                ..Default::default()
            });
        }
        CpuId::from_entries(&leaves).unwrap()
    }

    fn decode(code: &[u8]) -> Instruction {
        Decoder::with_ip(64, code, 0, DecoderOptions::NONE).decode()
    }

    /// SDM vol. 2 and APM vol. 3: each instruction's page, "CPUID feature flag".
    #[test]
    fn an_instruction_whose_bit_is_absent_is_not_offered() {
        let system = kvm_sregs { cr4: CR4_OSXSAVE, ..Default::default() };
        let all = without(0, 0, 0, 0);
        for (code, function, index, register, bit) in [
            (&[0x0F, 0x38, 0xF0, 0x00][..], 1, 0, ECX, 22), // MOVBE EAX, [RAX]
            (&[0x0F, 0xAE, 0x20], 1, 0, ECX, 26),           // XSAVE [RAX]
            (&[0xF3, 0x0F, 0xB8, 0xC0], 1, 0, ECX, 23),     // POPCNT EAX, EAX
            (&[0x0F, 0x58, 0xC0], 1, 0, EDX, 25),           // ADDPS XMM0, XMM0
            (&[0x48, 0x0F, 0xC7, 0x08], 1, 0, ECX, 13),     // CMPXCHG16B [RAX]
            (&[0x66, 0x0F, 0x38, 0x82, 0x00], 7, 0, EBX, 10), // INVPCID RAX, [RAX]
            (&[0x0F, 0x01, 0xCA], 7, 0, EBX, 20),           // CLAC
            (&[0x66, 0x0F, 0xAE, 0x38], 7, 0, EBX, 23),     // CLFLUSHOPT [RAX]
            (&[0xC7, 0xF8, 0, 0, 0, 0], 7, 0, EBX, 11),     // XBEGIN
            (&[0x0F, 0xC7, 0x20], 0x0D, 1, EAX, 1),         // XSAVEC [RAX]
            (&[0xF3, 0x0F, 0xBD, 0xC0], 0x8000_0001, 0, ECX, 5), // LZCNT EAX, EAX
            (&[0x0F, 0x01, 0xF9], 0x8000_0001, 0, EDX, 27), // RDTSCP
            (&[0x0F, 0x01, 0xFC], 0x8000_0008, 0, EBX, 0),  // CLZERO
        ] {
            let instruction = decode(code);
            assert!(is_offered(&instruction, &all, &system), "{code:02x?}");
            let absent = without(function, index, register, bit);
            assert!(!is_offered(&instruction, &absent, &system), "{code:02x?}");
        }
        // XGETBV and XSAVE want CR4.OSXSAVE, too.
        assert!(!is_offered(&decode(&[0x0F, 0x01, 0xD0]), &all, &kvm_sregs::default()));
        // INT n and WAIT are on every processor; VIA's XSTORE is on none, and 0F 04 no instruction.
        for code in [&[0xCD, 0x80][..], &[0x9B]] {
            assert!(is_offered(&decode(code), &CpuId::new(0).unwrap(), &kvm_sregs::default()));
        }
        for code in [&[0x0F, 0xA7, 0xC0][..], &[0x0F, 0x04]] {
            assert!(!is_offered(&decode(code), &all, &system));
        }
    }
}
