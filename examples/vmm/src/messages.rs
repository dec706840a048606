//! Messages on standard error.

use core::fmt;
use std::io::{self, Write};

/// Prints a message on standard error; ignores a closed one.
pub(crate) fn say(what: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "vmm: {what}");
}

/// Prints on standard error; ignores a closed one.
pub(crate) fn print(what: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "{what}");
}
