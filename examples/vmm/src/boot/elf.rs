//! ELF files: their segments, by physical address, and the note of PVH.

use object::elf::{EM_386, EM_X86_64, ET_DYN, ET_EXEC, FileHeader32, FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind};

use crate::boot::error::ImageError;
use crate::boot::parts::Piece;

/// "Physical entry point of the kernel": Xen, xen/include/public/elfnote.h, XEN_ELFNOTE_PHYS32_ENTRY.
const XEN_ELFNOTE_PHYS32_ENTRY: u32 = 18;

/// The parts of an ELF file that boot protocols use.
#[derive(Debug)]
pub(super) struct Elf<'a> {
    pub(super) is_64: bool,
    /// Position-independent, from address 0.
    pub(super) may_lie_anywhere: bool,
    pub(super) pieces: Vec<Piece<'a>>,
    pub(super) entry: u64,
    pub(super) pvh_entry: Option<u64>,
}

pub(super) fn parse(file: &[u8]) -> Result<Elf<'_>, ImageError> {
    match FileKind::parse(file).map_err(ImageError::Elf)? {
        FileKind::Elf32 => read::<FileHeader32<Endianness>>(file),
        FileKind::Elf64 => read::<FileHeader64<Endianness>>(file),
        _ => Err(ImageError::Machine),
    }
}

fn read<Header: FileHeader<Endian = Endianness>>(file: &[u8]) -> Result<Elf<'_>, ImageError> {
    let header = Header::parse(file).map_err(ImageError::Elf)?;
    let endian = header.endian().map_err(ImageError::Elf)?;
    let machine = header.e_machine(endian);
    let kind = header.e_type(endian);
    if !matches!(machine, EM_386 | EM_X86_64) || !matches!(kind, ET_EXEC | ET_DYN) {
        return Err(ImageError::Machine);
    }
    let mut elf = Elf {
        is_64: machine == EM_X86_64 && header.is_type_64(),
        may_lie_anywhere: false,
        pieces: Vec::new(),
        entry: header.e_entry(endian).into(),
        pvh_entry: None,
    };
    for segment in header.program_headers(endian, file).map_err(ImageError::Elf)? {
        if segment.p_type(endian) == PT_LOAD {
            let data = segment.data(endian, file).map_err(|()| ImageError::Truncated)?;
            let size = segment.p_memsz(endian).into().max(data.len() as u64);
            if size != 0 {
                elf.pieces.push(Piece { start: segment.p_paddr(endian).into(), data, size });
            }
        }
        let notes = segment.notes(endian, file).map_err(ImageError::Elf)?;
        for note in notes.into_iter().flatten() {
            let note = note.map_err(ImageError::Elf)?;
            if note.name() == b"Xen" && note.n_type(endian).0 == XEN_ELFNOTE_PHYS32_ENTRY {
                // 4 bytes, or 8 of which the upper 4 are zero.
                let entry = note.desc().first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
                elf.pvh_entry = entry.map(u64::from);
            }
        }
    }
    let first = elf.pieces.iter().map(|piece| piece.start).min();
    elf.may_lie_anywhere = kind == ET_DYN && first == Some(0);
    if elf.pieces.is_empty() { Err(ImageError::Empty) } else { Ok(elf) }
}
