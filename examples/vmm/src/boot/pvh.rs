//! Xen's "x86/HVM direct boot ABI", which Linux, FreeBSD and QEMU know as PVH.

use linux_loader::loader::elf::start_info::{
    hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::boot::layout::{self, map};
use crate::boot::parts::{Module, Start};

/// "xEn3" with the high bit of "E" set.
const MAGIC: u32 = 0x336E_C578;
/// E820's types of memory.
const RAM: u32 = 1;
const RESERVED: u32 = 2;

pub(super) fn start(
    memory: &GuestMemoryMmap,
    entry: u64,
    module: Option<Module>,
    top: u64,
) -> Result<Start, GuestMemoryError> {
    if let Some(Module { start, size }) = module {
        let module = hvm_modlist_entry { paddr: start, size, ..Default::default() };
        memory.write_obj(module, GuestAddress(layout::MODULES))?;
    }
    let map = map(top).map(|(addr, size, usable)| hvm_memmap_table_entry {
        addr,
        size,
        type_: if usable { RAM } else { RESERVED },
        reserved: 0,
    });
    for (place, entry) in (0..).zip(map) {
        let size = size_of::<hvm_memmap_table_entry>() as u64;
        memory.write_obj(entry, GuestAddress(layout::MAP + place * size))?;
    }
    let info = hvm_start_info {
        magic: MAGIC,
        version: 1,
        nr_modules: module.is_some().into(),
        modlist_paddr: layout::MODULES,
        cmdline_paddr: layout::COMMAND_LINE,
        memmap_paddr: layout::MAP,
        memmap_entries: map.len() as u32,
        rsdp_paddr: layout::ACPI,
        ..Default::default()
    };
    memory.write_obj(info, GuestAddress(layout::INFO))?;
    Ok(Start::Protected { eip: entry as u32, eax: 0, ebx: layout::INFO as u32 })
}
