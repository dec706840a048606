//! The loader's description of the machine. The way here is in `boot.s`.

use core::arch::global_asm;
use core::ffi::{CStr, c_char};
use core::slice;

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
    /// A multiboot2 loader's: GRUB's, from a stick.
    Multiboot2,
}

impl Door {
    /// Returns the door with this number.
    pub fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Multiboot,
            3 => Self::Multiboot2,
            _ => Self::Pvh,
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Multiboot => "multiboot",
            Self::Pvh => "PVH",
            Self::Multiboot2 => "multiboot2",
        }
    }
}

/// Memory that the screen shows: pixels of 32 or 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framebuffer {
    /// Its physical address.
    pub address: u64,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bytes of a pixel: 3 or 4.
    pub pixel: usize,
}

/// The loader's description of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Information<'a> {
    /// The command line; empty if there is none, or it is not UTF-8.
    pub command_line: &'a str,
    /// Address of ACPI's root pointer (RSDP).
    pub root_pointer: Option<usize>,
    /// The screen.
    pub framebuffer: Option<Framebuffer>,
    /// A free page below 1 MiB, where another processor can begin.
    pub low_page: Option<usize>,
}

/// Reads what the loader left.
///
/// # Safety
/// - `information` is what the loader of that door left in EBX, and nothing overwrites it during `'a`.
pub unsafe fn read<'a>(door: Door, information: u32) -> Information<'a> {
    // SAFETY: as promised; the fields are where the loader's specification puts them.
    let text = unsafe {
        match door {
            Door::Multiboot => {
                let flags = at::<u32>(information, 0);
                if flags & 1 << 2 != 0 { at::<u32>(information, 16) } else { 0 }
            }
            // `hvm_start_info`: an address below 4 GiB in a 64-bit field.
            Door::Pvh => at::<u32>(information, 24),
            Door::Multiboot2 => return multiboot2(information),
        }
    };
    if text == 0 {
        return Information::default();
    }
    // SAFETY: both specifications end the text with a zero.
    let text = unsafe { CStr::from_ptr(text as usize as *const c_char) };
    Information { command_line: text.to_str().unwrap_or(""), ..Information::default() }
}

/// Reads the tags of multiboot2 (specification 2.0, §3.6). A tag that is longer than the whole ends it.
///
/// # Safety
/// - See [`read`].
unsafe fn multiboot2<'a>(information: u32) -> Information<'a> {
    const COMMAND_LINE: u32 = 1;
    const MEMORY_MAP: u32 = 6;
    const FRAMEBUFFER: u32 = 8;
    const ROOT_POINTER_1: u32 = 14;
    const ROOT_POINTER_2: u32 = 15;
    let mut found = Information::default();
    // SAFETY: the loader says how long it is, and each tag.
    unsafe {
        let total = at::<u32>(information, 0) as usize;
        let mut tag = 8;
        while tag + 8 <= total {
            let (kind, size) =
                (at::<u32>(information, tag), at::<u32>(information, tag + 4) as usize);
            if kind == 0 || size < 8 || tag + size > total {
                break;
            }
            let address = information as usize + tag;
            let body = slice::from_raw_parts((address + 8) as *const u8, size - 8);
            match kind {
                COMMAND_LINE => {
                    let text = CStr::from_bytes_until_nul(body).ok();
                    found.command_line = text.and_then(|text| text.to_str().ok()).unwrap_or("");
                }
                MEMORY_MAP => found.low_page = low_page(body, information as usize, total),
                FRAMEBUFFER => found.framebuffer = framebuffer(body),
                ROOT_POINTER_1 => _ = found.root_pointer.get_or_insert(address + 8),
                ROOT_POINTER_2 => found.root_pointer = Some(address + 8),
                _ => {}
            }
            tag += size.next_multiple_of(8);
        }
    }
    found
}

/// Returns the highest page below 640 KiB that is free memory, but not the loader's information.
fn low_page(map: &[u8], information: usize, length: usize) -> Option<usize> {
    const PAGE: usize = 0x1000;
    const FREE: u32 = 1;
    let size = number::<4>(map, 0)? as usize;
    let mut best = None;
    for entry in map.get(8..)?.chunks_exact(size.max(20)) {
        let (base, bytes) = (number::<8>(entry, 0)?, number::<8>(entry, 8)?);
        if number::<4>(entry, 16)? as u32 != FREE || base >= 0xA_0000 {
            continue;
        }
        let end = base.saturating_add(bytes).min(0xA_0000) as usize;
        let mut page = (end & !(PAGE - 1)).saturating_sub(PAGE);
        while page >= (base as usize).max(PAGE) {
            if page + PAGE <= information || page >= information + length {
                best = best.max(Some(page));
                break;
            }
            page -= PAGE;
        }
    }
    best
}

/// Returns a screen of pixels of 8 bits per color; `None` for text, palettes and others.
fn framebuffer(tag: &[u8]) -> Option<Framebuffer> {
    const DIRECT: u8 = 1;
    let bits = *tag.get(20)?;
    if *tag.get(21)? != DIRECT || !matches!(bits, 24 | 32) {
        return None;
    }
    let word = |at| number::<4>(tag, at).map(|word| word as usize);
    let pixel = usize::from(bits / 8);
    let found = Framebuffer {
        address: number::<8>(tag, 0)?,
        pitch: word(8)?,
        width: word(12)?,
        height: word(16)?,
        pixel,
    };
    (found.width.checked_mul(pixel)? <= found.pitch).then_some(found)
}

/// Returns the little-endian number of `N` bytes, at most 8, at this place.
pub fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut all = [0; 8];
    all.get_mut(..N)?.copy_from_slice(bytes.get(at..at + N)?);
    Some(u64::from_le_bytes(all))
}

/// Reads a member of a loader's structure.
///
/// # Safety
/// - There is a `T` at `structure` + `offset`.
unsafe fn at<T: Copy>(structure: u32, offset: usize) -> T {
    // SAFETY: as promised; loaders do not promise alignment.
    unsafe { ((structure as usize + offset) as *const T).read_unaligned() }
}
