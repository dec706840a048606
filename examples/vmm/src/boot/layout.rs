//! The places of the boot information in the guest's memory.
//!
//! Between 576 KiB and 640 KiB are the tables of a protocol, the command line, and last the MP table; ACPI's tables are
//! where a firmware's are. The page behind that of the protocol's main table is free, as in QEMU: loaders put there
//! what they allocate.

/// The page of the protocol's main table.
pub(crate) const INFO: u64 = 0x9_0000;
/// Its list of modules, and its map of the memory, in the same page where the main table does not fill it.
pub(crate) const MODULES: u64 = INFO + 0x400;
pub(crate) const MAP: u64 = INFO + 0x800;
/// Segment descriptors, and page tables for the first 4 GiB.
pub(crate) const GDT: u64 = 0x9_3000;
pub(crate) const PAGE_TABLES: u64 = 0x9_4000;
pub(crate) const COMMAND_LINE: u64 = 0x9_E000;
/// The last KiB of base memory.
pub(crate) const MP_TABLE: u64 = 0x9_FC00;

/// ACPI's root pointer and tables, where a kernel searches for them: ACPI Specification 6.5, "Finding the RSDP on IA-PC
/// Systems".
pub(crate) const ACPI: u64 = 0xE_0000;

/// Start of the memory above the hole for video memory and firmware.
pub(crate) const HIGH: u64 = 0x10_0000;

/// Returns the map of the memory: start, size, and whether the kernel may use it.
pub(crate) fn map(top: u64) -> [(u64, u64, bool); 3] {
    [(0, MP_TABLE, true), (MP_TABLE, HIGH - MP_TABLE, false), (HIGH, top - HIGH, true)]
}
