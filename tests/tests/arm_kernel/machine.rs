//! A machine with one processor.

use crate::embedding::{interrupts, model};

/// The exception level of the kernel.
pub(crate) fn level() -> u64 {
    model().level().into()
}

pub(crate) fn start_second() -> bool {
    false
}

pub(crate) fn yield_to_others() {}

/// Makes SW_INCR, the event with number 0, happen once.
pub(crate) fn increment() {
    model().happen(0, model().level(), 1);
    interrupts(0, model().level());
}

/// Prints one line.
macro_rules! line {
    ($($argument:tt)*) => { println!($($argument)*) };
}
pub(crate) use line;
