//! A kernel's image: its format, its place in memory, and the start of its first processor.

pub(crate) mod cpio;
mod elf;
mod linux;
mod multiboot;
mod pvh;

use core::fmt;

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// The boot protocols' data lies between 576 KiB and 640 KiB: the tables of a protocol (one page each), the command
/// line, and last the MP table.
pub(crate) mod low {
    /// The protocol's main table.
    pub(crate) const INFO: u64 = 0x9_0000;
    /// Its list of modules.
    pub(crate) const MODULES: u64 = 0x9_1000;
    /// Its map of the memory.
    pub(crate) const MAP: u64 = 0x9_2000;
    /// Segment descriptors, and page tables for the first 4 GiB.
    pub(crate) const GDT: u64 = 0x9_3000;
    pub(crate) const PAGE_TABLES: u64 = 0x9_4000;
    pub(crate) const COMMAND_LINE: u64 = 0x9_E000;
    /// The last KiB of base memory.
    pub(crate) const MP_TABLE: u64 = 0x9_FC00;
}

/// Start of the memory above the hole for video memory and firmware.
const HIGH: u64 = 0x10_0000;

/// Reason why a file is not a bootable kernel.
#[derive(Debug)]
pub(crate) enum ImageError {
    /// Not an ELF file, or a broken one.
    Elf(object::Error),
    /// An ELF file for another machine, or not an executable.
    Machine,
    /// Nothing to load.
    Empty,
    /// A segment is not in the file.
    Truncated,
    /// The multiboot header requires unsupported features (its bits), or contradicts the file.
    Multiboot(&'static str, u32),
    /// A 32-bit ELF file without a header of either protocol.
    NoProtocol,
    /// Begins outside of every segment.
    Entry(u64),
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elf(error) => write!(f, "not an ELF file: {error}"),
            Self::Machine => f.write_str("not an executable for x86"),
            Self::Truncated => f.write_str("a segment ends beyond the file"),
            Self::Empty => f.write_str("the ELF file has nothing to load"),
            Self::Multiboot(what, bits) => write!(f, "multiboot header: {what} ({bits:#x})"),
            Self::NoProtocol => f.write_str("neither a multiboot header nor a PVH note"),
            Self::Entry(entry) => write!(f, "the entry point {entry:#x} is in no segment"),
        }
    }
}

/// Data that does not fit in the guest's memory.
#[derive(Debug)]
pub(crate) struct MemoryError {
    what: &'static str,
    start: u64,
    size: u64,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, start, size } = self;
        write!(f, "{what} of {size} bytes at {start:#x} does not fit in the guest's memory")
    }
}

/// A piece of the image: `data`, and zeros up to `size`.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    start: u64,
    data: &'a [u8],
    size: u64,
}

/// Boot protocol of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Multiboot,
    Pvh,
    /// Linux' 64-bit boot protocol.
    Linux,
}

/// A kernel that can be booted.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    protocol: Protocol,
    pieces: Vec<Piece<'a>>,
    entry: u64,
}

/// Parameters of a guest beside its kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) command_line: &'a str,
    pub(crate) initrd: Option<&'a [u8]>,
}

/// The first processor's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// 32-bit protected mode with flat segments, without paging.
    Protected { eip: u32, eax: u32, ebx: u32 },
    /// Long mode with the first 4 GiB mapped to themselves.
    Long { rip: u64, rsi: u64 },
}

/// Place of the initial RAM disk.
#[derive(Clone, Copy, Debug)]
struct Module {
    start: u64,
    size: u64,
}

impl<'a> Image<'a> {
    /// Detects the boot protocol of `file`. As in QEMU, a multiboot header wins over a PVH note.
    pub(crate) fn parse(file: &'a [u8]) -> Result<Self, ImageError> {
        let elf = elf::parse(file)?;
        let (protocol, pieces, entry) = match (multiboot::find(file)?, elf.pvh_entry) {
            (Some(header), _) => match header.piece(file)? {
                Some((piece, entry)) => (Protocol::Multiboot, vec![piece], entry),
                None => (Protocol::Multiboot, elf.pieces, elf.entry),
            },
            (None, Some(entry)) => (Protocol::Pvh, elf.pieces, entry),
            (None, None) if elf.is_64 => (Protocol::Linux, elf.pieces, elf.entry),
            (None, None) => return Err(ImageError::NoProtocol),
        };
        let holds_entry = |piece: &Piece| entry.wrapping_sub(piece.start) < piece.size;
        if !pieces.iter().any(holds_entry) {
            return Err(ImageError::Entry(entry));
        }
        Ok(Self { protocol, pieces, entry })
    }

    /// Returns the protocol's name.
    pub(crate) fn protocol(&self) -> &'static str {
        match self.protocol {
            Protocol::Multiboot => "multiboot",
            Protocol::Pvh => "PVH",
            Protocol::Linux => "Linux' 64-bit boot protocol",
        }
    }

    /// Loads everything into the guest's memory.
    pub(crate) fn load(
        &self,
        memory: &GuestMemoryMmap,
        request: &Request<'_>,
    ) -> Result<Start, MemoryError> {
        let top = memory.last_addr().0 + 1;
        for piece in &self.pieces {
            let end = piece.start.saturating_add(piece.size);
            let error = MemoryError { what: "a segment", start: piece.start, size: piece.size };
            if end > top || piece.start < HIGH && end > low::INFO {
                return Err(error);
            }
            // The memory beyond the data is zero, for it is new.
            if memory.write_slice(piece.data, GuestAddress(piece.start)).is_err() {
                return Err(error);
            }
        }
        let module = match request.initrd {
            Some(initrd) => Some(self.load_initrd(memory, initrd, top)?),
            None => None,
        };
        command_line(memory, request.command_line)?;
        let start = match self.protocol {
            Protocol::Multiboot => multiboot::start(memory, self.entry, module, top),
            Protocol::Pvh => pvh::start(memory, self.entry, module, top),
            Protocol::Linux => linux::start(memory, self.entry, module, top),
        };
        // All of it is below 640 KiB, and there are 2 MiB of memory.
        start.map_err(|_| MemoryError { what: "the boot information", start: low::INFO, size: 0 })
    }

    /// Loads the initial RAM disk at the end of the memory, above the kernel.
    fn load_initrd(
        &self,
        memory: &GuestMemoryMmap,
        initrd: &[u8],
        top: u64,
    ) -> Result<Module, MemoryError> {
        let size = initrd.len() as u64;
        let kernel_end = self.pieces.iter().map(|piece| piece.start + piece.size).max();
        let floor = kernel_end.unwrap_or(0).max(HIGH);
        let start = top.saturating_sub(size) & !0xFFF;
        let error = MemoryError { what: "the initial RAM disk", start, size };
        if start < floor || memory.write_slice(initrd, GuestAddress(start)).is_err() {
            return Err(error);
        }
        Ok(Module { start, size })
    }
}

fn command_line(memory: &GuestMemoryMmap, line: &str) -> Result<(), MemoryError> {
    let start = low::COMMAND_LINE;
    let size = line.len() as u64 + 1;
    let fits = start + size <= low::MP_TABLE;
    // The terminating zero is there already.
    if !fits || memory.write_slice(line.as_bytes(), GuestAddress(start)).is_err() {
        return Err(MemoryError { what: "the command line", start, size });
    }
    Ok(())
}

/// Returns the map of the memory: start, size, and whether the kernel may use it.
fn map(top: u64) -> [(u64, u64, bool); 3] {
    [
        (0, low::MP_TABLE, true),
        (low::MP_TABLE, HIGH - low::MP_TABLE, false),
        (HIGH, top - HIGH, true),
    ]
}
