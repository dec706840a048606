//! Errors of images.

use core::fmt;

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
    /// A 64-bit ELF file without a header of either protocol, which may lie anywhere: Linux' is no such file.
    PositionIndependent,
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
            Self::PositionIndependent => f.write_str(
                "position-independent, and neither a multiboot header nor a PVH note: its loader is the kernel, and \
                 this file is the module (--initrd)",
            ),
            Self::Entry(entry) => write!(f, "the entry point {entry:#x} is in no segment"),
        }
    }
}

/// Data that does not fit in the guest's memory.
#[derive(Debug)]
pub(crate) struct MemoryError {
    pub(crate) what: &'static str,
    pub(crate) start: u64,
    pub(crate) size: u64,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, start, size } = self;
        write!(f, "{what} of {size} bytes at {start:#x} does not fit in the guest's memory")
    }
}
