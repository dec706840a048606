//! Return addresses, by the code that they are in: a call comes before each, but for the one that a signal's handler
//! returns to.
//!
//! Sources: Intel SDM vol. 2A, CALL; Linux, sigreturn(2).

/// The bytes that are looked at before an address, and from it on.
pub(super) const BEFORE: usize = 7;
pub(super) const BEHIND: usize = 9;

/// `mov $15, %rax` and `syscall`: the call of `rt_sigreturn` that the kernel lets a handler return to.
const SIGNAL_RETURN: [u8; BEHIND] = [0x48, 0xC7, 0xC0, 0x0F, 0, 0, 0, 0x0F, 0x05];

const NOP: u8 = 0x90;

/// The kind of an address in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A call comes before it.
    Call,
    /// A handler of a signal returns to it: what was interrupted did not call.
    Signal,
    /// The first function of a goroutine of Go's: nothing called it, and it returns to the runtime's `goexit`, a `nop`
    /// before a call and another one.
    Root,
    /// None of these.
    Other,
}

/// Returns the kind of an address, by the bytes around it.
pub(super) fn kind(code: &[u8; BEFORE + BEHIND]) -> Kind {
    let (before, behind) = code.split_at(BEFORE);
    if behind == SIGNAL_RETURN {
        Kind::Signal
    } else if before[BEFORE - 5] == 0xE8
        || (2..=BEFORE).any(|length| is_indirect_call(&before[BEFORE - length..]))
    {
        Kind::Call
    } else if before[BEFORE - 1] == NOP && (behind[0], behind[5]) == (0xE8, NOP) {
        Kind::Root
    } else {
        Kind::Other
    }
}

/// Returns true if an instruction is FF /2, a near call of a register or of memory, and as long as its operand has it.
fn is_indirect_call(code: &[u8]) -> bool {
    let [0xFF, operand, rest @ ..] = code else { return false };
    let (mode, register) = (operand >> 6, operand & 7);
    let has_index = mode != 3 && register == 4;
    let has_base = !(mode == 0
        && (register == 5 || has_index && rest.first().is_some_and(|index| index & 7 == 5)));
    let displacement = match mode {
        1 => 1,
        2 => 4,
        0 if !has_base => 4,
        _ => 0,
    };
    operand >> 3 & 7 == 2 && rest.len() == usize::from(has_index) + displacement
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `objdump -d` has them.
    #[test]
    fn calls_are_known_by_their_ends_and_other_code_is_none() {
        let kind_behind = |code: &[u8]| {
            let mut around = [0x90; BEFORE + BEHIND];
            around[BEFORE - code.len()..BEFORE].copy_from_slice(code);
            kind(&around)
        };
        for call in [
            &[0xE8, 0x12, 0x34, 0x00, 0x00][..], // call 0x3417
            &[0xFF, 0xD0],                       // call *%rax
            &[0x41, 0xFF, 0xD4],                 // call *%r12
            &[0xFF, 0x10],                       // call *(%rax)
            &[0xFF, 0x50, 0x18],                 // call *0x18(%rax)
            &[0xFF, 0x54, 0x24, 0x08],           // call *0x8(%rsp)
            &[0xFF, 0x15, 0xD5, 0x2F, 0, 0],     // call *0x2fd5(%rip)
            &[0xFF, 0x90, 0x00, 0x01, 0, 0],     // call *0x100(%rax)
            &[0xFF, 0x14, 0xC5, 0x10, 0, 0, 0],  // call *0x10(,%rax,8)
            &[0x41, 0xFF, 0x94, 0xC5, 0x10, 0, 0, 0][1..],
        ] {
            assert_eq!(kind_behind(call), Kind::Call, "{call:x?}");
        }
        for other in [
            &[0xFF, 0xE0][..],         // jmp *%rax
            &[0xFF, 0x25, 1, 0, 0, 0], // jmp *0x1(%rip)
            &[0xFF, 0xC0],             // inc %eax
            &[0x48, 0x89, 0xE5],       // mov %rsp, %rbp
            &[0xC3],
        ] {
            assert_eq!(kind_behind(other), Kind::Other, "{other:x?}");
        }
        let mut around = [0x90; BEFORE + BEHIND];
        around[BEFORE..].copy_from_slice(&SIGNAL_RETURN);
        assert_eq!(kind(&around), Kind::Signal);
        // `runtime.goexit` of Go 1.19.
        let goexit = [0x90, 0xE8, 0x1A, 0x25, 0, 0, 0x90, 0xCC, 0xCC, 0xCC];
        around[BEFORE - 1..].copy_from_slice(&goexit);
        assert_eq!(kind(&around), Kind::Root);
    }
}
