//! A kernel's image: its format, its place in memory, and the start of its first processor.
//!
//! Uses nothing else of the monitor. The fuzz targets compile this folder, because an image is untrusted bytes.

pub(crate) mod acpi;
pub(crate) mod apic;
pub(crate) mod cpio;
mod elf;
pub(crate) mod error;
pub(crate) mod image;
pub(crate) mod layout;
mod linux;
pub(crate) mod mptable;
mod multiboot;
pub(crate) mod parts;
mod pvh;
