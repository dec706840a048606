//! The profiled code: three functions whose shares of time are known.

use core::arch::global_asm;

use crate::machine::clock;

/// Iterations in the shortest [`turn`], times the shares.
const ITERATIONS: u32 = 300;

// The functions take a number of iterations, and execute five, three and two times as many, of the same
// instructions. Each multiplication waits for the one before, so that nothing else decides how long an
// iteration takes.
macro_rules! share {
    ($name:literal, $times:literal) => {
        global_asm!(
            ".pushsection .text.workload, \"ax\", @progbits",
            ".balign 64",
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            concat!("imul ecx, edi, ", $times),
            "2:",
            ".rept 8",
            "imul eax, eax, 3",
            ".endr",
            "dec ecx",
            "jnz 2b",
            "ret",
            concat!(".size ", $name, ", . - ", $name),
            ".balign 64",
            concat!(".globl ", $name, "_end"),
            concat!($name, "_end:"),
            ".popsection",
        );
    };
}
share!("fifty_percent", 5);
share!("thirty_percent", 3);
share!("twenty_percent", 2);

unsafe extern "C" {
    fn fifty_percent(iterations: u32);
    fn thirty_percent(iterations: u32);
    fn twenty_percent(iterations: u32);
    static fifty_percent_end: u8;
    static thirty_percent_end: u8;
    static twenty_percent_end: u8;
    static workload_start: u8;
    static workload_end: u8;
}

/// A function of known share.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its symbol.
    pub name: &'static str,
    /// Its share of whatever passes evenly, in percent.
    pub share: u32,
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
}

/// Returns the functions of known shares.
pub fn functions() -> [Function; 3] {
    let function = |name, share, start: unsafe extern "C" fn(u32), end: *const u8| Function {
        name,
        share,
        start: start as usize as u64,
        end: end as u64,
    };
    [
        function("fifty_percent", 50, fifty_percent, &raw const fifty_percent_end),
        function("thirty_percent", 30, thirty_percent, &raw const thirty_percent_end),
        function("twenty_percent", 20, twenty_percent, &raw const twenty_percent_end),
    ]
}

/// Returns the addresses of all assembly code here: the first one, and the one after the last.
pub fn code() -> (u64, u64) {
    (&raw const workload_start as u64, &raw const workload_end as u64)
}

/// Runs one turn of the workload: 30,000 to 43,000 instructions. Consecutive turns differ in length, so that they do
/// not run in step with the interrupts.
pub fn turn() {
    execute(ITERATIONS + (clock::now() as u32 & 0x7F));
}

/// Runs a hundredth of the shortest [`turn`].
pub fn short_turn() {
    execute(ITERATIONS / 100);
}

fn execute(iterations: u32) {
    // SAFETY: they use no memory, and follow the C calling convention; 0 iterations are not asked for.
    unsafe {
        fifty_percent(iterations);
        thirty_percent(iterations);
        twenty_percent(iterations);
    }
}
