//! Devices beyond the memory that `boot.s` maps.
//!
//! Read first: Intel SDM vol. 3A, "4-Level Paging and 5-Level Paging".

use core::cell::UnsafeCell;

use x86_64::registers::control::Cr3;

/// The linear address at which a device is mapped: the third entry of the page map, 1 TiB.
const BASE: u64 = 2 << 39;
/// Bits of an entry: present and writable, not cached, and a page of 2 MiB.
const PRESENT: u64 = 0b11;
const UNCACHED: u64 = 0x10;
const LARGE: u64 = 0x80;
const PAGE: u64 = 1 << 21;

#[repr(C, align(4096))]
struct Table(UnsafeCell<[u64; 512]>);

// SAFETY: written once, before other processors run.
unsafe impl Sync for Table {}

/// Maps a device of at most 1 GiB, wherever it is, and returns its linear address; once. The boot processor, before
/// others run.
pub fn map_device(address: u64, length: usize) -> Option<*mut u8> {
    static TABLES: [Table; 2] = [const { Table(UnsafeCell::new([0; 512])) }; 2];
    let first = address & !(PAGE - 1);
    let pages = (address - first + length as u64).div_ceil(PAGE);
    if pages > 512 || address >= 1 << 52 {
        return None;
    }
    let [pointers, directory] = [&TABLES[0], &TABLES[1]].map(|table| table.0.get().cast::<u64>());
    let map = Cr3::read().0.start_address().as_u64() as *mut u64;
    // SAFETY: the tables are this function's, which is called once; memory is mapped at its own address. Nothing uses
    // this entry of the page map.
    unsafe {
        for page in 0..pages {
            let entry = directory.add(page as usize);
            entry.write_volatile((first + page * PAGE) | LARGE | UNCACHED | PRESENT);
        }
        pointers.write_volatile(directory as u64 | PRESENT);
        map.add((BASE >> 39) as usize).write_volatile(pointers as u64 | PRESENT);
    }
    Some((BASE + address - first) as *mut u8)
}
