//! Register access. What is asked of a register for the first time, in task context, may turn out not to exist:
//! `FixupMsr` makes its #GP an error, with [`resume`] in the handler of exceptions. The interrupt path touches only
//! registers that are verified, and executes the same instructions.

use core::sync::atomic::{AtomicU64, Ordering};

use pmu::core::x86::{FaultFixup, FixupMsr};

use crate::machine::interrupts::{GENERAL_PROTECTION, TrapFrame, UNDEFINED};

/// Instructions of `FixupMsr` that were undefined opcodes: RDPMC in an emulator without counters. The crates execute
/// none, so this kernel could do without its handler of #UD.
pub static UNDEFINED_OPCODES: AtomicU64 = AtomicU64::new(0);

/// Returns the registers of the processor that executes the call.
pub fn control_msr() -> FixupMsr {
    // SAFETY: this kernel's handler of #GP and #UD asks `FaultFixup` first, on every processor.
    unsafe { FixupMsr::new() }
}

/// Lets an access of `FixupMsr` that faulted return its error. `false`: the exception is another's.
pub fn resume(frame: &mut TrapFrame) -> bool {
    let vector = frame.vector as u8;
    if let GENERAL_PROTECTION | UNDEFINED = vector
        && let Some(resume) = FaultFixup::resume_at(frame.rip)
    {
        if vector == UNDEFINED {
            UNDEFINED_OPCODES.fetch_add(1, Ordering::Relaxed);
        }
        frame.rip = resume;
        return true;
    }
    false
}
