//! The registers of the executing processor: the only assembly of the crate.

use core::arch::asm;
use core::convert::Infallible;

use crate::backend::SystemRegisters;
use crate::counters::Identification;
use crate::registers::{CYCLE_COUNTER, Register, for_each_register};

/// [`SystemRegisters`] by MRS and MSR on this processor.
///
/// **An exception is not caught.** An access that EL2 or EL3 traps may raise an undefined-instruction exception in the
/// kernel. A hypervisor that offers no counters declares none, so that the driver makes no access.
///
/// ```no_run
/// use pmu_arm::{ArmRegisters, NativeRegisters};
/// // SAFETY: the kernel runs at EL1.
/// let registers = unsafe { NativeRegisters::new() };
/// let (processor, msr) = (registers.identify(), ArmRegisters::new(registers));
/// # let _ = (processor, msr);
/// ```
///
/// Wrong: the code runs in a user process, which cannot access most of the registers.
///
/// ```no_run
/// # use pmu_arm::NativeRegisters;
/// // SAFETY: not given. The accesses raise exceptions.
/// let registers = unsafe { NativeRegisters::new() };
/// # let _ = registers;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NativeRegisters(());

/// Reads a counter at EL0, for `pmu::user::UserPage::read`. `index` is what that calls its closure with: the number of
/// an event counter, or 31 for the cycle counter. Of another index, the result is 0.
///
/// # Safety
/// - `PMUSERENR_EL0` permits the access, or the kernel's handler of the exception returns to the next instruction.
///
/// # Context
/// User mode, on the thread to which the page belongs.
#[inline]
pub unsafe fn read_at_el0(index: u32) -> u64 {
    let register = match index {
        CYCLE_COUNTER => Some(Register::Pmccntr),
        number => Register::event_counter(number as usize),
    };
    // EL0 has the counters' values by the names that the kernel has.
    register.map_or(0, |register| {
        let Ok(value) = NativeRegisters(()).read(register);
        value
    })
}

/// Returns a system register that has no side effect when it is read, by the name that the assembler knows.
macro_rules! read {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: EL1 or EL2 by the promise of `new`; reading changes nothing.
        unsafe {
            asm!(concat!("mrs {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags));
        }
        value
    }};
}

impl NativeRegisters {
    /// Creates the access to the registers of the processor that executes each access.
    ///
    /// # Safety
    /// - The code runs at EL1 or EL2, in AArch64 state, whenever it uses the value.
    /// - If an access raises an exception, the handler does not resume the code at the next instruction.
    pub const unsafe fn new() -> Self {
        Self(())
    }

    /// Reads the identification registers. Those of the counters are read only if `ID_AA64DFR0_EL1` declares PMUv3.
    ///
    /// # Context
    /// Task.
    pub fn identify(&self) -> Identification {
        let id_aa64dfr0_el1 = read!("ID_AA64DFR0_EL1");
        let declared = Identification { id_aa64dfr0_el1, ..Identification::NONE };
        if !declared.has_counters() {
            return declared;
        }
        let is_at_el2 = read!("CurrentEL") >> 2 & 0b11 == 2;
        Identification {
            pmcr_el0: read!("S3_3_C9_C12_0"),
            pmceid0_el0: read!("S3_3_C9_C12_6"),
            pmceid1_el0: read!("S3_3_C9_C12_7"),
            pmmir_el1: if declared.has_pmmir() { read!("S3_0_C9_C14_6") } else { 0 },
            mdcr_el2: is_at_el2.then(|| read!("S3_4_C1_C1_1")),
            ..declared
        }
    }
}

// Neither access is `nomem`: the drivers access a counter before or after they change what an interrupt finds in memory.
macro_rules! by_encoding {
    ($($variant:ident $name:literal $op1:literal $crn:literal $crm:literal $op2:literal $doc:literal;)*) => {
        #[inline]
        fn read(&self, register: Register) -> Result<u64, Infallible> {
            let value: u64;
            match register {
                $(Register::$variant => {
                    // SAFETY: EL1 or EL2 by the promise of `new`, or a counter that EL0 may read by that of
                    // `read_at_el0`; reading changes nothing.
                    unsafe {
                        asm!(concat!("mrs {}, S3_", $op1, "_C", $crn, "_C", $crm, "_", $op2), out(reg) value,
                             options(nostack, preserves_flags));
                    }
                })*
            }
            Ok(value)
        }

        #[inline]
        fn write(&self, register: Register, value: u64) -> Result<(), Infallible> {
            match register {
                $(Register::$variant => {
                    // SAFETY: EL1 or EL2 by the promise of `new`; no value of the register makes the processor access
                    // memory.
                    unsafe {
                        asm!(concat!("msr S3_", $op1, "_C", $crn, "_C", $crm, "_", $op2, ", {}"), in(reg) value,
                             options(nostack, preserves_flags));
                    }
                })*
            }
            Ok(())
        }
    };
}

impl SystemRegisters for NativeRegisters {
    type Error = Infallible;

    for_each_register!(by_encoding);

    #[inline]
    fn synchronize(&self) {
        // SAFETY: ISB changes no register and no memory.
        unsafe { asm!("isb", options(nostack, preserves_flags)) };
    }
}
