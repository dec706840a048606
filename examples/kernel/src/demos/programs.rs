//! Programs of ring 3. They are code of this image, and use nothing of it but their arguments.

use core::arch::{asm, global_asm};

use pmu::user::UserPage;

use crate::machine::ring3::{Stop, Thread};

// Counts down from RDI, comes back, and does it again: 1 + 2 · RDI instructions the first time, and one more each
// other time. RSI is `Stop::ASKED`.
global_asm!(
    ".pushsection .text.count_down_in_turns, \"ax\", @progbits",
    ".globl count_down_in_turns",
    "count_down_in_turns:",
    "mov ecx, edi",
    "2: dec ecx",
    "jnz 2b",
    "ud2",
    "jmp count_down_in_turns",
    ".popsection",
);

unsafe extern "C" {
    static count_down_in_turns: u8;
}

/// The value with which a program ends that read a page which was hidden.
pub const HIDDEN: u64 = u64::MAX;

/// Creates a thread that counts down from `turns`, which is not 0, each time that it runs.
pub fn count_down(number: usize, turns: u32) -> Thread {
    Thread::new(number, &raw const count_down_in_turns as u64, [turns.into(), Stop::ASKED])
}

/// Creates a thread that reads the event before and after as many turns of a loop, of two instructions each, and ends
/// with what was counted in between.
pub fn measure(number: usize, turns: u32) -> Thread {
    extern "C" fn program(page: &UserPage, turns: u64) -> ! {
        let before = read(page, || ());
        // SAFETY: counts a register down.
        unsafe { asm!("2: dec {}", "jnz 2b", inout(reg) turns => _, options(nomem, nostack)) };
        end(read(page, || ()).wrapping_sub(before))
    }
    Thread::new(number, program as *const () as u64, [Thread::page(), turns.into()])
}

/// Creates a thread that comes back in the middle of reading the event, when it knows the counter and has not read it
/// yet; and then ends with what it read, or [`HIDDEN`].
pub fn read_interrupted(number: usize) -> Thread {
    extern "C" fn program(page: &UserPage) -> ! {
        end(read(page, ask))
    }
    Thread::new(number, program as *const () as u64, [Thread::page(), 0])
}

/// Creates a thread that ends with what RDPMC reads of a counter.
pub fn read_counter(number: usize, index: u32) -> Thread {
    extern "C" fn program(index: u32) -> ! {
        end(rdpmc(index))
    }
    Thread::new(number, program as *const () as u64, [index.into(), 0])
}

/// Reads the event, and calls `meanwhile` before the first RDPMC.
#[inline(always)]
fn read(page: &UserPage, meanwhile: fn()) -> u64 {
    let mut is_first = true;
    let count = page.read(|index| {
        if core::mem::take(&mut is_first) {
            meanwhile();
        }
        rdpmc(index)
    });
    count.unwrap_or(HIDDEN)
}

#[inline(always)]
fn rdpmc(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the kernel lets ring 3 execute it, and an index of the page is a counter's. It stays between the readings
    // of the page's sequence: so the compiler is not told that it leaves memory alone.
    unsafe { asm!("rdpmc", in("ecx") index, out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Comes back to the kernel, and goes on where that says so.
#[inline(always)]
fn ask() {
    // SAFETY: the kernel keeps all registers. It may write to the page.
    unsafe { asm!("ud2", in("rsi") Stop::ASKED) };
}

#[inline(always)]
fn end(value: u64) -> ! {
    // SAFETY: the kernel does not come back.
    unsafe { asm!("ud2", in("rsi") Stop::ENDED, in("rax") value, options(noreturn)) }
}
