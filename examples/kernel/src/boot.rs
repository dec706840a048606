//! The command line that the loader left. The way here is in `boot.s`.

use core::arch::global_asm;
use core::ffi::{CStr, c_char};

use crate::processor::MAX_PROCESSORS;

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

/// A copy of a word, since the loader's memory is not this kernel's. What does not fit is cut off.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    bytes: [u8; 128],
    len: usize,
}

impl Word {
    fn new(text: &str) -> Self {
        let mut bytes = [0; 128];
        let len = text.floor_char_boundary(bytes.len());
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { bytes, len }
    }

    /// Returns the word.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or("")
    }
}

/// The words of the command line that concern this kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommandLine {
    /// `events`: only the events that are opened; no profile.
    pub events: bool,
    /// `exact`: the machine counts exactly; check what was counted by hand.
    pub exact: bool,
    /// `event=NAME`: count the event with this name.
    pub event: Option<Word>,
    /// `freeze`: let the processor stop the counters by itself while an interrupt is serviced.
    pub freeze: bool,
    /// `quick`: fewer samples.
    pub quick: bool,
    /// `trace`: send the trace to the debug console, with as many samples as a profile has.
    pub trace: bool,
    /// `samples=N`: how many samples a profile is to have.
    pub samples: Option<u32>,
}

impl CommandLine {
    /// Reads it from what the loader describes. Unknown words are left to others.
    ///
    /// # Safety
    /// - `information` is what the loader of that door left in EBX, and nothing overwrote it.
    pub unsafe fn read(door: Door, information: u32) -> Self {
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
            return Self::default();
        }
        // SAFETY: both specifications end the text with a zero.
        let text = unsafe { CStr::from_ptr(text as usize as *const c_char) };
        Self::parse(text.to_str().unwrap_or(""))
    }

    fn parse(text: &str) -> Self {
        let mut line = Self::default();
        for word in text.split_ascii_whitespace() {
            match word {
                "events" => line.events = true,
                "exact" => line.exact = true,
                "freeze" => line.freeze = true,
                "quick" => line.quick = true,
                "trace" => line.trace = true,
                _ => {
                    if let Some(number) = word.strip_prefix("samples=") {
                        line.samples = number.parse().ok();
                    } else if let Some(name) = word.strip_prefix("event=") {
                        line.event = Some(Word::new(name));
                    }
                }
            }
        }
        line
    }

    /// Returns the number of samples that each profile is to have.
    pub fn samples(&self) -> u64 {
        let usual = match self {
            Self { exact: true, .. } => 5,
            Self { quick: true, .. } => 200,
            _ => 1_500,
        };
        self.samples.map_or(usual, u64::from)
    }
}

/// Reads a member of a loader's structure.
///
/// # Safety
/// - There is a `T` at `structure` + `offset`.
unsafe fn at<T: Copy>(structure: u32, offset: usize) -> T {
    // SAFETY: as promised; loaders do not promise alignment.
    unsafe { ((structure as usize + offset) as *const T).read_unaligned() }
}
