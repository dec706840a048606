//! The places of the boot information in the guest's memory.
//!
//! Between 576 KiB and 640 KiB are the tables of a protocol, of one page each, the command line, and last the MP table.

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

/// Start of the memory above the hole for video memory and firmware.
pub(crate) const HIGH: u64 = 0x10_0000;

/// Returns the map of the memory: start, size, and whether the kernel may use it.
pub(crate) fn map(top: u64) -> [(u64, u64, bool); 3] {
    [(0, MP_TABLE, true), (MP_TABLE, HIGH - MP_TABLE, false), (HIGH, top - HIGH, true)]
}
