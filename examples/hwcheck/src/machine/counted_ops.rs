//! A loop in which each instruction is one op: their number, their addresses, and the one that loads are known.

use core::arch::global_asm;

// No branch follows an instruction with which processors fuse it.
global_asm!(
    ".p2align 6",
    ".globl pmu_hwcheck_counted_ops",
    "pmu_hwcheck_counted_ops:",
    "2:",
    ".rept 6",
    "lea rax, [rax + 1]", // 48 8D 40 01
    ".endr",
    "mov rdx, [rsi]", // 48 8B 16
    ".rept 6",
    "lea rax, [rax + 1]",
    ".endr",
    "dec rdi", // 48 FF CF
    "lea rax, [rax + 1]",
    "jnz 2b", // 75 C4
    "ret",
);

unsafe extern "sysv64" {
    #[link_name = "pmu_hwcheck_counted_ops"]
    fn body(times: u64, load: *const u64) -> u64;
}

/// Number of ops each time.
pub(crate) const OPS: u64 = 16;

/// Offsets of the instructions that load, and that branch, and the length of the loop.
pub(crate) const LOAD: u64 = 24;
pub(crate) const BRANCH: u64 = 58;
pub(crate) const LENGTH: u64 = 60;

/// Executes the loop so many times, at least once.
pub(crate) fn counted_ops(times: u64) {
    let load = 0;
    // SAFETY: registers that calls may change, and a read of a number that lives during the call.
    core::hint::black_box(unsafe { body(times.max(1), &load) });
}

/// Returns the address of the loop.
pub(crate) fn start() -> u64 {
    body as *const () as u64
}

/// Returns the offset of an address in the loop, if it is there.
pub(crate) fn offset(address: u64) -> Option<u64> {
    address.checked_sub(start()).filter(|offset| *offset < LENGTH)
}

/// Returns whether an instruction begins at this offset.
pub(crate) fn is_instruction(offset: u64) -> bool {
    match offset {
        0..=LOAD => offset.is_multiple_of(4),
        27..=51 => (offset - 27).is_multiple_of(4),
        54 | BRANCH => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Intel SDM vol. 2: LEA 8D, MOV 8B, DEC FF /1, JNZ 75, RET C3.
    #[test]
    fn the_instructions_lie_where_they_are_counted() {
        let start = body as *const u8;
        // SAFETY: the loop and its RET are readable.
        let code = unsafe { core::slice::from_raw_parts(start, LENGTH as usize + 1) };
        let mut expected = vec![];
        (0..6).for_each(|_| expected.extend([0x48, 0x8D, 0x40, 1]));
        expected.extend([0x48, 0x8B, 0x16]);
        (0..6).for_each(|_| expected.extend([0x48, 0x8D, 0x40, 1]));
        expected.extend([0x48, 0xFF, 0xCF, 0x48, 0x8D, 0x40, 1, 0x75, 0xC4, 0xC3]);
        assert_eq!(code, expected);
        let instructions: Vec<u64> = (0..LENGTH).filter(|at| is_instruction(*at)).collect();
        assert_eq!(instructions.len() as u64, OPS);
        let lengths: Vec<u64> = instructions.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(lengths, [4, 4, 4, 4, 4, 4, 3, 4, 4, 4, 4, 4, 4, 3, 4]);
        counted_ops(1_000);
    }

    #[test]
    fn addresses_outside_the_loop_have_no_offset() {
        let start = start();
        assert_eq!([start, start + 59].map(offset), [Some(0), Some(59)]);
        assert_eq!([start - 1, start + LENGTH].map(offset), [None, None]);
    }
}
