//! Callers of functions without unwind tables that have no frame, or not yet, or none any more: by the return address
//! on the stack, the call before it, and the code of the function that the call names.
//!
//! Sources: Intel SDM vol. 2, CALL, RET, ENDBR64; System V ABI, AMD64 supplement, "The Stack Frame".

use core::ops::Range;

/// The bytes of a direct call, E8 and the distance.
const CALL: u64 = 5;

/// Code that is farther behind a function's beginning is taken for another function's.
const FARTHEST: u64 = 1 << 16;

const ENDBR64: [u8; 4] = [0xF3, 0x0F, 0x1E, 0xFA];
/// `push %rbp`, and `mov %rsp, %rbp` in its two encodings.
const PUSH: u8 = 0x55;
const MOVES: [[u8; 3]; 2] = [[0x48, 0x89, 0xE5], [0x48, 0x8B, 0xEC]];
const RETURN: u8 = 0xC3;

/// The stack before a function's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// The address to which the function returns.
    pub(super) return_address: u64,
    /// The stack pointer there.
    pub(super) sp: u64,
    /// The frame pointer there, if the function has saved it already.
    pub(super) bp: Option<u64>,
}

/// Returns the caller of the function at `ip`; `None` where the function has a frame, or the code does not tell.
///
/// `word` reads the stack, `code` the bytes at an address.
pub(super) fn caller(
    ip: u64,
    sp: u64,
    mut word: impl FnMut(u64) -> Option<u64>,
    code: impl Fn(u64, &mut [u8]) -> bool,
) -> Option<Caller> {
    let on_top = Caller { return_address: word(sp)?, sp: sp.checked_add(8)?, bp: None };
    let mut next = [0];
    if code(ip, &mut next) && next == [RETURN] {
        return Some(on_top);
    }
    if let Some(function) = called(on_top.return_address, ip, &code)
        && frame(function, &code).is_none_or(|frame| ip <= frame.start)
    {
        return Some(on_top);
    }
    // Between `push` and `mov`.
    let below = Caller {
        return_address: word(on_top.sp)?,
        sp: sp.checked_add(16)?,
        bp: Some(on_top.return_address),
    };
    let function = called(below.return_address, ip, &code)?;
    let frame = frame(function, &code)?;
    (frame.contains(&ip) && ip > frame.start).then_some(below)
}

/// Returns the beginning of the function that the call before an address names, if code at `ip` may be its.
fn called(address: u64, ip: u64, code: &impl Fn(u64, &mut [u8]) -> bool) -> Option<u64> {
    let mut call = [0; CALL as usize];
    if !code(address.checked_sub(CALL)?, &mut call) || call[0] != 0xE8 {
        return None;
    }
    let distance = i32::from_le_bytes([call[1], call[2], call[3], call[4]]);
    let function = address.wrapping_add_signed(distance.into());
    (function..function.saturating_add(FARTHEST)).contains(&ip).then_some(function)
}

/// Returns the addresses from a function's `push %rbp` until its frame is there; `None` if it makes none.
fn frame(function: u64, code: &impl Fn(u64, &mut [u8]) -> bool) -> Option<Range<u64>> {
    let mut begin = [0; 8];
    if !code(function, &mut begin) {
        return None;
    }
    let skipped = if begin.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let [push, moves @ ..] = &begin[skipped..skipped + 4] else { return None };
    let start = function + skipped as u64;
    (*push == PUSH && MOVES.iter().any(|known| known == moves)).then(|| start..start + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses of the code and of the stack.
    const CODE: u64 = 0x1000;
    const STACK: u64 = 0x8000;

    /// `calls: endbr64; call leaf; call framed; nop`, `leaf: nop; nop; ret`, `framed: push; mov; nop; pop; ret`.
    const TEXT: [u8; 30] = [
        0xF3, 0x0F, 0x1E, 0xFA, 0xE8, 0x07, 0, 0, 0, 0xE8, 0x05, 0, 0, 0, 0x90,
        0x90, // 0x1010:
        0x90, 0x90, 0xC3, // 0x1013: framed
        0xF3, 0x0F, 0x1E, 0xFA, 0x55, 0x48, 0x89, 0xE5, 0x90, 0x5D, 0xC3,
    ];

    fn found(ip: u64, stack: &[u64]) -> Option<Caller> {
        let word = |address: u64| stack.get(((address - STACK) / 8) as usize).copied();
        let code = |address: u64, bytes: &mut [u8]| {
            let place = address.wrapping_sub(CODE) as usize;
            let there = TEXT.get(place..).and_then(|rest| rest.get(..bytes.len()));
            there.inspect(|there| bytes.copy_from_slice(there)).is_some()
        };
        caller(ip, STACK, word, code)
    }

    #[test]
    fn a_function_without_a_frame_returns_to_the_call_of_it_and_to_no_other() {
        let on_top = |return_address| Caller { return_address, sp: STACK + 8, bp: None };
        assert_eq!(found(0x1010, &[0x1009, 7]), Some(on_top(0x1009)));
        assert_eq!(found(0x1012, &[0x1009, 7]), Some(on_top(0x1009)));
        // Words that follow no call, or a call of a function behind this one.
        assert_eq!(found(0x1010, &[0x1008, 7]), None);
        assert_eq!(found(0x1010, &[0x100E, 0x100E]), None);
        assert_eq!(found(0x1010, &[0xFFFF_FFFF_0000, 0]), None);
        assert_eq!(found(0x1010, &[2, 0x1009]), None);
        assert_eq!(found(0x1010, &[]), None);
    }

    #[test]
    fn a_frame_is_not_there_before_it_is_made_and_after_it_is_left() {
        let framed = 0x1013;
        let on_top = Caller { return_address: 0x100E, sp: STACK + 8, bp: None };
        for ip in [framed, framed + 4, framed + 10] {
            assert_eq!(found(ip, &[0x100E, 7]), Some(on_top), "{ip:#x}");
        }
        let pushed = Caller { return_address: 0x100E, sp: STACK + 16, bp: Some(0x8050) };
        assert_eq!(found(framed + 5, &[0x8050, 0x100E]), Some(pushed));
        // With the frame, what lies on top is no return address of this function's.
        assert_eq!(found(framed + 8, &[0x100E, 0x100E]), None);
        assert_eq!(found(framed + 8, &[0x8050, 0x100E]), None);
    }
}
