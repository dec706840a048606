//! Multiboot Specification, version 0.6.96.

use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::boot::error::ImageError;
use crate::boot::layout::{self, HIGH, map};
use crate::boot::parts::{Module, Piece, Start};

/// "OS image format": the header is within the first 8192 bytes, aligned to 4.
const SEARCHED: usize = 8192;
const HEADER_MAGIC: u32 = 0x1BAD_B002;
const BOOTED_MAGIC: u32 = 0x2BAD_B002;

/// Supported flags of the header's required ones: modules on pages (0) and memory information (1).
const SERVED: u32 = 0b11;
const REQUIRED: u32 = 0xFFFF;
/// The header has addresses (16), which replace ELF's.
const ADDRESSES: u32 = 1 << 16;

/// The header, and its place in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    offset: usize,
    flags: u32,
    /// header_addr, load_addr, load_end_addr, bss_end_addr, entry_addr.
    addresses: [u32; 5],
}

/// Returns the header, if the file has one.
pub(super) fn find(file: &[u8]) -> Result<Option<Header>, ImageError> {
    let words: Vec<u32> = file[..file.len().min(SEARCHED)]
        .chunks_exact(4)
        .filter_map(|word| word.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)))
        .collect();
    let is_header = |words: &[u32]| {
        words[0] == HEADER_MAGIC && words.iter().fold(0, |sum, word| word.wrapping_add(sum)) == 0
    };
    let Some(place) = words.windows(3).position(is_header) else { return Ok(None) };
    let flags = words[place + 1];
    if flags & REQUIRED & !SERVED != 0 {
        return Err(ImageError::Multiboot("requires what is not offered", flags));
    }
    let addresses = words.get(place + 3..place + 8).and_then(|words| words.try_into().ok());
    let addresses = match (flags & ADDRESSES != 0, addresses) {
        (true, None) => return Err(ImageError::Multiboot("ends too soon", flags)),
        (_, addresses) => addresses.unwrap_or_default(),
    };
    Ok(Some(Header { offset: place * 4, flags, addresses }))
}

impl Header {
    /// Returns the piece to load and the entry point, if the header has addresses.
    pub(super) fn piece<'a>(&self, file: &'a [u8]) -> Result<Option<(Piece<'a>, u64)>, ImageError> {
        if self.flags & ADDRESSES == 0 {
            return Ok(None);
        }
        let [header, load, load_end, bss_end, entry] = self.addresses;
        let broken = || ImageError::Multiboot("contradicts the file at load_addr", load);
        let before = header.checked_sub(load).ok_or_else(broken)?;
        let from = self.offset.checked_sub(before as usize).ok_or_else(broken)?;
        let data = match load_end {
            // "If this field is zero, the text and data segments occupy the whole OS image file."
            0 => file.get(from..),
            end => end.checked_sub(load).and_then(|size| file.get(from..from + size as usize)),
        };
        let data = data.ok_or_else(broken)?;
        let size = u64::from(bss_end.saturating_sub(load)).max(data.len() as u64);
        Ok(Some((Piece { start: load.into(), data, size }, entry.into())))
    }
}

/// Writes the boot information and returns the first processor's registers: "Boot information format".
pub(super) fn start(
    memory: &GuestMemoryMmap,
    entry: u64,
    module: Option<Module>,
    top: u64,
) -> Result<Start, GuestMemoryError> {
    let put = |table: u64, words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write_slice(&bytes, GuestAddress(table))
    };
    let mut map_words = Vec::new();
    for (start, size, usable) in map(top) {
        let kind = if usable { 1 } else { 2 };
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        // The size of the entry does not count itself.
        map_words.push(20);
        map_words.extend(halves(start).into_iter().chain(halves(size)).chain([kind]));
    }
    put(layout::MAP, &map_words)?;
    if let Some(module) = module {
        let end = (module.start + module.size) as u32;
        // Without a string of its own: the boot loader's name ends in a zero.
        put(layout::MODULES, &[module.start as u32, end, EMPTY as u32, 0])?;
    }
    memory.write_slice(b"pmu-vmm\0", GuestAddress(NAME))?;
    let mut info = [0; 29];
    // Flags: memory (0), command line (2), modules (3), memory map (6), name of the loader (9).
    info[0] = 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 9;
    info[1] = (layout::MP_TABLE >> 10) as u32;
    info[2] = ((top - HIGH) >> 10) as u32;
    info[4] = layout::COMMAND_LINE as u32;
    info[5] = u32::from(module.is_some());
    info[6] = layout::MODULES as u32;
    info[11] = map_words.len() as u32 * 4;
    info[12] = layout::MAP as u32;
    info[16] = NAME as u32;
    put(layout::INFO, &info)?;
    Ok(Start::Protected { eip: entry as u32, eax: BOOTED_MAGIC, ebx: layout::INFO as u32 })
}

/// The boot loader's name, and its terminating zero.
const NAME: u64 = layout::INFO + 0x100;
const EMPTY: u64 = NAME + 7;
