//! The parts of which an image consists, and where it starts.

/// A piece of the image: `data`, and zeros up to `size`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) start: u64,
    pub(crate) data: &'a [u8],
    pub(crate) size: u64,
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
pub(crate) struct Module {
    pub(crate) start: u64,
    pub(crate) size: u64,
}
