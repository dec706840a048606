//! The source and the process by which an index finds an object.

/// The interrupts that concern an object, by their source and their process; 0 for all processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) source: u32,
    pub(crate) process: u64,
}
