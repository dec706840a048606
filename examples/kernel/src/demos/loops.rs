//! Loops whose instructions were counted by hand, and their measurement.

use core::arch::global_asm;
use core::hint::black_box;

global_asm!(
    ".pushsection .text.workload, \"ax\", @progbits",
    ".globl nothing, count_down, straight, calls, alternating",
    ".globl calls_call, calls_returned, calls_back, calls_end, calls_leaf",
    "nothing: ret",
    // 1 + 1000 · 2 instructions, 1000 branches
    "count_down: mov ecx, 1000",
    "2: dec ecx",
    "jnz 2b",
    "ret",
    // 100 instructions, no branch
    "straight:",
    ".rept 100",
    "nop",
    ".endr",
    "ret",
    // 1 + 100 · 4 instructions, 100 · 3 branches
    "calls: mov ecx, 100",
    "calls_call: call calls_leaf",
    "calls_returned: dec ecx",
    "calls_back: jnz calls_call",
    "calls_end: ret",
    "calls_leaf: ret",
    // 1 + 100 · 4 + 50 instructions, 100 · 2 branches, of which 51 are not taken
    "alternating: mov ecx, 100",
    "2: test cl, 1",
    "jz 3f",
    "nop",
    "3: dec ecx",
    "jnz 2b",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    safe fn nothing();
    safe fn count_down();
    safe fn straight();
    safe fn calls();
    safe fn alternating();
}

unsafe extern "C" {
    // Places in `calls`, of which only the addresses are used.
    static calls_call: u8;
    static calls_returned: u8;
    static calls_back: u8;
    static calls_end: u8;
    static calls_leaf: u8;
}

/// The listing of `calls`, by the addresses of its instructions.
pub const CALLS: Listing = Listing(&[
    ("call", &raw const calls_call),
    ("returned", &raw const calls_returned),
    ("back", &raw const calls_back),
    ("end", &raw const calls_end),
    ("leaf", &raw const calls_leaf),
]);

/// The effect of an instruction: its access to the stack, its branch.
#[derive(Clone, Copy, Debug)]
pub struct Effect {
    /// It loads from the stack.
    pub loads: bool,
    /// It stores to the stack.
    pub stores: bool,
    /// The target, if the instruction is a branch within the loop.
    pub target: Option<u64>,
    /// The next instruction may follow.
    pub may_pass: bool,
}

/// A loop's instructions, each with its name: a call, the two behind it, the end, and the function that is called.
#[derive(Clone, Copy, Debug)]
pub struct Listing(&'static [(&'static str, *const u8); 5]);

impl Listing {
    /// Returns the name of the instruction at an address; `None`: it is not the loop's.
    pub fn name_of(&self, address: u64) -> Option<&'static str> {
        self.0.iter().find(|(_, place)| *place as u64 == address).map(|(name, _)| *name)
    }

    /// Returns what the instruction at an address does when it retires; `None`: it is not the loop's.
    pub fn effect_of(&self, address: u64) -> Option<Effect> {
        let [call, returned, back, end, leaf] = self.0.map(|(_, place)| place as u64);
        let nothing = Effect { loads: false, stores: false, target: None, may_pass: true };
        Some(match address {
            _ if address == call => {
                Effect { stores: true, target: Some(leaf), may_pass: false, ..nothing }
            }
            _ if address == leaf => {
                Effect { loads: true, target: Some(returned), may_pass: false, ..nothing }
            }
            _ if address == returned => nothing,
            _ if address == back => Effect { target: Some(call), ..nothing },
            // Its target is the caller.
            _ if address == end => Effect { loads: true, may_pass: false, ..nothing },
            _ => return None,
        })
    }

    /// Returns the taken branch after which the instruction at an address was executed, from and to, within the loop.
    pub fn branch_before(&self, address: u64) -> Option<(u64, u64)> {
        let [call, returned, back, end, leaf] = self.0.map(|(_, place)| place as u64);
        match address {
            _ if address == call => Some((back, call)),
            _ if address == leaf => Some((call, leaf)),
            // `end` follows a jump that is not taken.
            _ if [returned, back, end].contains(&address) => Some((leaf, returned)),
            _ => None,
        }
    }
}

/// A loop whose instructions were counted by hand, without the `ret` that [`EMPTY`] has as well.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Its symbol.
    pub name: &'static str,
    /// The loop.
    pub run: extern "C" fn(),
    /// Instructions that it retires.
    pub instructions: u64,
    /// Branches that it retires, taken or not, calls and returns among them.
    pub branches: u64,
}

/// The loop that does nothing: what counts here is not the loops'.
pub const EMPTY: extern "C" fn() = nothing;

/// The loops.
pub const COUNTED: [Counted; 4] = [
    Counted { name: "count_down", run: count_down, instructions: 2_001, branches: 1_000 },
    Counted { name: "straight", run: straight, instructions: 100, branches: 0 },
    Counted { name: "calls", run: calls, instructions: 401, branches: 300 },
    Counted { name: "alternating", run: alternating, instructions: 451, branches: 200 },
];

/// Returns the events between two readings with `run` between them. Those that are not `run`'s are the same each
/// time, so for each way of reading this is one piece of code.
///
/// # Errors
/// Those of reading.
#[inline(never)]
pub fn measure<E>(read: &impl Fn() -> Result<u64, E>, run: extern "C" fn()) -> Result<u64, E> {
    let run = black_box(run);
    x86_64::instructions::interrupts::without_interrupts(|| {
        let before = read()?;
        run();
        Ok(read()?.wrapping_sub(before))
    })
}
