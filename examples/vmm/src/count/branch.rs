//! Taken branches of the guest, for its branch records.

use iced_x86::{Code, FlowControl, Instruction};
use pmu_virt::branches::{FedBranch, FedBranchKind};

use crate::count::retired::Retired;

/// Returns the taken branch that an instruction was, if it was one.
pub(crate) fn taken(retired: &Retired) -> Option<FedBranch> {
    let Retired { instruction, to, to_privilege, .. } = retired;
    let is_branch = retired.is_branch() && retired.taken;
    let branch = || FedBranch::new(instruction.ip(), *to, kind(instruction), *to_privilege);
    is_branch.then(branch)
}

/// Returns whether an instruction returns from a subroutine.
pub(crate) fn is_return(instruction: &Instruction) -> bool {
    matches!(
        instruction.code(),
        Code::Retnw
            | Code::Retnw_imm16
            | Code::Retnd
            | Code::Retnd_imm16
            | Code::Retnq
            | Code::Retnq_imm16
    )
}

/// Returns the kind by which the processors' filters tell branches apart.
fn kind(instruction: &Instruction) -> FedBranchKind {
    match instruction.flow_control() {
        FlowControl::ConditionalBranch => FedBranchKind::Conditional,
        _ if is_return(instruction) => FedBranchKind::Return,
        _ if instruction.is_jmp_short_or_near() => FedBranchKind::RelativeJump,
        _ if instruction.is_jmp_near_indirect() => FedBranchKind::IndirectJump,
        _ if instruction.is_call_near() => FedBranchKind::RelativeCall,
        _ if instruction.is_call_near_indirect() => FedBranchKind::IndirectCall,
        _ => FedBranchKind::Far,
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    /// SDM vol. 3B, "LBR Filtering": near relative and indirect jumps and calls, near returns, conditional jumps, and
    /// the rest. The instructions are encoded by hand.
    #[test]
    fn each_kind_of_branch_is_told_from_the_others() {
        for (code, expected) in [
            (&[0x75, 0x10][..], FedBranchKind::Conditional), // JNE
            (&[0xE2, 0x10], FedBranchKind::Conditional),     // LOOP
            (&[0xE3, 0x10], FedBranchKind::Conditional),     // JRCXZ
            (&[0xEB, 0x10], FedBranchKind::RelativeJump),    // JMP rel8
            (&[0xE9, 0, 1, 0, 0], FedBranchKind::RelativeJump), // JMP rel32
            (&[0xFF, 0xE0], FedBranchKind::IndirectJump),    // JMP RAX
            (&[0xFF, 0x20], FedBranchKind::IndirectJump),    // JMP [RAX]
            (&[0xFF, 0x28], FedBranchKind::Far),             // JMP FAR [RAX]
            (&[0xE8, 0, 1, 0, 0], FedBranchKind::RelativeCall), // CALL rel32
            (&[0xFF, 0xD0], FedBranchKind::IndirectCall),    // CALL RAX
            (&[0xFF, 0x10], FedBranchKind::IndirectCall),    // CALL [RAX]
            (&[0xFF, 0x18], FedBranchKind::Far),             // CALL FAR [RAX]
            (&[0xC3], FedBranchKind::Return),                // RET
            (&[0xC2, 8, 0], FedBranchKind::Return),          // RET 8
            (&[0xCB], FedBranchKind::Far),                   // RETF
            (&[0x48, 0xCF], FedBranchKind::Far),             // IRETQ
            (&[0x0F, 0x05], FedBranchKind::Far),             // SYSCALL
            (&[0xCD, 0x80], FedBranchKind::Far),             // INT 0x80
        ] {
            let instruction = Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).decode();
            assert_eq!(kind(&instruction), expected, "{code:02x?}");
        }
    }
}
