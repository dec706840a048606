//! Linux' 64-bit boot protocol: Documentation/arch/x86/boot.rst, "64-bit Boot Protocol", and
//! zero-page.rst.

use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::boot::layout::{self, map};
use crate::boot::parts::{Module, Start};

/// "HdrS", and the number of a boot loader without a number.
const HEADER_MAGIC: u32 = 0x5372_6448;
const UNDEFINED_LOADER: u8 = 0xFF;
/// The 64-bit entry exists since this version.
const VERSION: u16 = 0x020C;
const LOADED_HIGH: u8 = 1;
/// E820's types of memory.
const RAM: u32 = 1;
const RESERVED: u32 = 2;

/// Flat segments at the protocol's selectors: 0x10 code, 0x18 data.
const SEGMENTS: [u64; 4] = [0, 0, 0x00AF_9B00_0000_FFFF, 0x00CF_9300_0000_FFFF];

pub(super) fn start(
    memory: &GuestMemoryMmap,
    entry: u64,
    module: Option<Module>,
    top: u64,
) -> Result<Start, GuestMemoryError> {
    let mut zero_page = boot_params { acpi_rsdp_addr: layout::ACPI, ..Default::default() };
    zero_page.hdr.header = HEADER_MAGIC;
    zero_page.hdr.boot_flag = 0xAA55;
    zero_page.hdr.version = VERSION;
    zero_page.hdr.type_of_loader = UNDEFINED_LOADER;
    zero_page.hdr.loadflags = LOADED_HIGH;
    zero_page.hdr.cmd_line_ptr = layout::COMMAND_LINE as u32;
    zero_page.hdr.cmdline_size = (layout::MP_TABLE - layout::COMMAND_LINE) as u32;
    if let Some(module) = module {
        zero_page.hdr.ramdisk_image = module.start as u32;
        zero_page.hdr.ramdisk_size = module.size as u32;
    }
    for (entry, (addr, size, usable)) in zero_page.e820_table.iter_mut().zip(map(top)) {
        *entry = boot_e820_entry { addr, size, r#type: if usable { RAM } else { RESERVED } };
        zero_page.e820_entries += 1;
    }
    memory.write_obj(zero_page, GuestAddress(layout::INFO))?;
    for (place, segment) in (0..).zip(SEGMENTS) {
        memory.write_obj(segment, GuestAddress(layout::GDT + place * 8))?;
    }
    page_tables(memory)?;
    Ok(Start::Long { rip: entry, rsi: layout::INFO })
}

/// Maps the first 4 GiB to their own address, in pages of 2 MiB: a PML4, a PDPT and four page directories.
fn page_tables(memory: &GuestMemoryMmap) -> Result<(), GuestMemoryError> {
    const PRESENT_WRITABLE: u64 = 0b11;
    const LARGE: u64 = 1 << 7;
    let table = |number: u64| layout::PAGE_TABLES + number * 0x1000;
    memory.write_obj(table(1) | PRESENT_WRITABLE, GuestAddress(table(0)))?;
    for gib in 0..4 {
        let directory = table(2 + gib);
        memory.write_obj(directory | PRESENT_WRITABLE, GuestAddress(table(1) + gib * 8))?;
        for page in 0..512 {
            let entry = gib << 30 | page << 21 | LARGE | PRESENT_WRITABLE;
            memory.write_obj(entry, GuestAddress(directory + page * 8))?;
        }
    }
    Ok(())
}
