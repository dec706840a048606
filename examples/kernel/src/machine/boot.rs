//! The command line that the loader left. The way here is in `boot.s`.

use core::arch::global_asm;
use core::ffi::{CStr, c_char};

use crate::machine::processor::MAX_PROCESSORS;

/// Each processor's stack: 32 KiB.
const STACK_SHIFT: u32 = 15;

global_asm!(
    ".set MAX_PROCESSORS, {max}",
    ".set STACK_SHIFT, {shift}",
    include_str!("boot.s"),
    max = const MAX_PROCESSORS,
    shift = const STACK_SHIFT,
    options(att_syntax)
);

/// The door by which the boot processor came in, as `boot.s` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// A multiboot loader's.
    Multiboot,
    /// A hypervisor's that loads by PVH.
    Pvh,
}

impl Door {
    /// Returns the door with this number.
    pub fn from_number(number: u32) -> Self {
        if number == 0 { Self::Multiboot } else { Self::Pvh }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Multiboot => "multiboot",
            Self::Pvh => "PVH",
        }
    }
}

/// Returns the command line that the loader left; empty if there is none, or it is not UTF-8.
///
/// # Safety
/// - `information` is what the loader of that door left in EBX, and nothing overwrites it during `'a`.
pub unsafe fn command_line<'a>(door: Door, information: u32) -> &'a str {
    // SAFETY: as promised; the fields are where the loader's specification puts them.
    let text = unsafe {
        match door {
            Door::Multiboot => {
                let flags = at::<u32>(information, 0);
                if flags & 1 << 2 != 0 { at::<u32>(information, 16) } else { 0 }
            }
            // `hvm_start_info`: an address below 4 GiB in a 64-bit field.
            Door::Pvh => at::<u32>(information, 24),
        }
    };
    if text == 0 {
        return "";
    }
    // SAFETY: both specifications end the text with a zero.
    let text = unsafe { CStr::from_ptr(text as usize as *const c_char) };
    text.to_str().unwrap_or("")
}

/// Reads a member of a loader's structure.
///
/// # Safety
/// - There is a `T` at `structure` + `offset`.
unsafe fn at<T: Copy>(structure: u32, offset: usize) -> T {
    // SAFETY: as promised; loaders do not promise alignment.
    unsafe { ((structure as usize + offset) as *const T).read_unaligned() }
}
