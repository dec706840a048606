//! A kernel that can be booted, by any of the protocols.

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::boot::apic::ApicWriters;
use crate::boot::error::{ImageError, MemoryError};
use crate::boot::layout::{self, HIGH};
use crate::boot::parts::{Module, Piece, Start};
use crate::boot::{elf, linux, multiboot, pvh};

const PAGE: u64 = 0x1000;

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
    file: &'a [u8],
}

/// Parameters of a guest beside its kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) command_line: &'a str,
    pub(crate) initrd: Option<&'a [u8]>,
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
            (None, None) if elf.is_64 && elf.may_lie_anywhere => {
                return Err(ImageError::PositionIndependent);
            }
            (None, None) if elf.is_64 => (Protocol::Linux, elf.pieces, elf.entry),
            (None, None) => return Err(ImageError::NoProtocol),
        };
        let holds_entry = |piece: &Piece| entry.wrapping_sub(piece.start) < piece.size;
        if !pieces.iter().any(holds_entry) {
            return Err(ImageError::Entry(entry));
        }
        Ok(Self { protocol, pieces, entry, file })
    }

    /// Returns the kernel's functions that write the local APIC's registers, if it is Linux with symbols.
    pub(crate) fn apic_writers(&self) -> Option<ApicWriters> {
        ApicWriters::find(self.file)
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
            if end > top || piece.start < HIGH && end > layout::INFO {
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
        start.map_err(|_| MemoryError {
            what: "the boot information",
            start: layout::INFO,
            size: 0,
        })
    }

    /// Loads the initial RAM disk above the kernel, where QEMU does: by multiboot behind it, otherwise at the end of
    /// the memory. A loader that comes as the kernel, with the kernel as its module, allocates behind both.
    fn load_initrd(
        &self,
        memory: &GuestMemoryMmap,
        initrd: &[u8],
        top: u64,
    ) -> Result<Module, MemoryError> {
        let size = initrd.len() as u64;
        let kernel_end = self.pieces.iter().map(|piece| piece.start + piece.size).max();
        let floor = kernel_end.unwrap_or(0).max(HIGH);
        let start = match self.protocol {
            // As QEMU leaves it: loaders use the page behind their end.
            Protocol::Multiboot => floor.next_multiple_of(PAGE) + PAGE,
            Protocol::Pvh | Protocol::Linux => top.saturating_sub(size) & !(PAGE - 1),
        };
        let error = MemoryError { what: "the initial RAM disk", start, size };
        if start < floor || memory.write_slice(initrd, GuestAddress(start)).is_err() {
            return Err(error);
        }
        Ok(Module { start, size })
    }
}

fn command_line(memory: &GuestMemoryMmap, line: &str) -> Result<(), MemoryError> {
    let start = layout::COMMAND_LINE;
    let size = line.len() as u64 + 1;
    let fits = start + size <= layout::MP_TABLE;
    // The terminating zero is there already.
    if !fits || memory.write_slice(line.as_bytes(), GuestAddress(start)).is_err() {
        return Err(MemoryError { what: "the command line", start, size });
    }
    Ok(())
}
