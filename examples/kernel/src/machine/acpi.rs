//! ACPI's tables, for a clock of known frequency: the power-management timer, or the HPET.
//!
//! Read first: ACPI Specification 6.5, §5.2.5 "RSDP", §5.2.7 "RSDT", §5.2.8 "XSDT", §5.2.9 "FADT", §4.8.3.3 "PM Timer";
//! IA-PC HPET Specification 1.0a, §3.2.4 "The ACPI 2.0 HPET Description Table".

use core::slice;

use crate::machine::boot::number;
use crate::machine::clock::Reference;

/// The end of the memory that is mapped at its own address.
const MAPPED: usize = 1 << 32;
/// The greatest length of a table that is read.
const LONGEST: usize = 1 << 20;
const HEADER: usize = 36;

/// Returns the clock that ACPI describes.
///
/// # Safety
/// - ACPI's root pointer is at this address, below 4 GiB, and nothing has overwritten the tables.
pub unsafe fn reference(root_pointer: usize) -> Option<Reference> {
    // SAFETY: as promised; revision 2 and above has 36 bytes, others 20.
    let root = unsafe { slice::from_raw_parts(root_pointer as *const u8, 36) };
    let revision = *root.get(15)?;
    let long = number::<8>(root, 24).filter(|address| revision >= 2 && *address != 0);
    let (list, entry) = match long {
        Some(address) => (address as usize, 8),
        None => (number::<4>(root, 16)? as usize, 4),
    };
    // SAFETY: the root pointer's table, and those that it lists.
    unsafe {
        let entries = table(list)?.get(HEADER..)?;
        let address = |bytes: &[u8]| match entry {
            8 => number::<8>(bytes, 0),
            _ => number::<4>(bytes, 0),
        };
        let mut tables = entries.chunks_exact(entry).filter_map(address);
        let of = |signature: &[u8], at: u64| {
            table(at as usize).filter(|table| table.starts_with(signature))
        };
        let fixed = tables.clone().find_map(|at| of(b"FACP", at)).and_then(timer);
        fixed.or_else(|| tables.find_map(|at| of(b"HPET", at)).and_then(hpet))
    }
}

/// Returns the bytes of a table whose checksum is right.
///
/// # Safety
/// - There is a table of ACPI at this address.
unsafe fn table(address: usize) -> Option<&'static [u8]> {
    if !(1..MAPPED - LONGEST).contains(&address) {
        return None;
    }
    // SAFETY: as promised, mapped, and at least a header.
    let header = unsafe { slice::from_raw_parts(address as *const u8, HEADER) };
    let length = number::<4>(header, 4)? as usize;
    if !(HEADER..LONGEST).contains(&length) {
        return None;
    }
    // SAFETY: as promised; it says how long it is.
    let table = unsafe { slice::from_raw_parts(address as *const u8, length) };
    let sum = table.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
    (sum == 0).then_some(table)
}

/// Returns the power-management timer of the FADT, where it has one.
fn timer(table: &[u8]) -> Option<Reference> {
    /// Flags: the timer has 32 bits, not 24; and the hardware-reduced ACPI has no timer.
    const LONG: u64 = 1 << 8;
    const REDUCED: u64 = 1 << 20;
    let flags = number::<4>(table, 112)?;
    let port = u16::try_from(number::<4>(table, 76)?).ok()?;
    let bits = if flags & LONG != 0 { 32 } else { 24 };
    (port != 0 && flags & REDUCED == 0).then_some(Reference::Acpi { port, bits })
}

/// Returns the HPET, where its registers are in memory below 4 GiB.
fn hpet(table: &[u8]) -> Option<Reference> {
    const MEMORY: u8 = 0;
    let address = number::<8>(table, 44)? as usize;
    let good = *table.get(40)? == MEMORY && (0x1000..MAPPED - 0x1000).contains(&address);
    good.then_some(Reference::Hpet { address })
}
