//! Tables of Intel's MultiProcessor Specification, version 1.4, by which a guest without ACPI finds its processors
//! and the wiring of its interrupts.

use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::boot::layout;

const LOCAL_APIC: u32 = 0xFEE0_0000;
const IO_APIC: u32 = 0xFEC0_0000;
/// Versions that KVM's APICs report.
const LOCAL_APIC_VERSION: u8 = 0x14;
const IO_APIC_VERSION: u8 = 0x11;

/// Writes the floating pointer and the table for `processors`, whose numbers are their APIC IDs.
pub(crate) fn write(memory: &GuestMemoryMmap, processors: u8) -> Result<(), GuestMemoryError> {
    let table = layout::MP_TABLE + 16;
    let mut pointer = Vec::from(*b"_MP_");
    pointer.extend((table as u32).to_le_bytes());
    // Length in units of 16 bytes, revision 1.4, checksum, and five feature bytes: virtual wire mode.
    pointer.extend([1, 4, 0, 0, 0, 0, 0, 0]);
    set_checksum(&mut pointer, 10);
    memory.write_slice(&pointer, GuestAddress(layout::MP_TABLE))?;
    memory.write_slice(&configuration(processors), GuestAddress(table))
}

fn configuration(processors: u8) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut count: u16 = 0;
    let mut entry = |bytes: &[u8]| {
        entries.extend_from_slice(bytes);
        count += 1;
    };
    for id in 0..processors {
        // Flags: enabled (0), boot processor (1). Signature and features are left to CPUID.
        let flags = if id == 0 { 0b11 } else { 0b01 };
        let mut processor = [0; 20];
        processor[..4].copy_from_slice(&[0, id, LOCAL_APIC_VERSION, flags]);
        entry(&processor);
    }
    entry(b"\x01\x00ISA   ");
    let [a, b, c, d] = IO_APIC.to_le_bytes();
    // KVM's I/O APIC has the ID 0; enabled.
    entry(&[2, 0, IO_APIC_VERSION, 1, a, b, c, d]);
    // Interrupts: type INT, conforming polarity and trigger, bus 0, line, to I/O APIC 0. KVM wires
    // the PIT's line 0 to input 2 as well, where the specification has it.
    for line in (0..16).filter(|line| *line != 2) {
        let input = if line == 0 { 2 } else { line };
        entry(&[3, 0, 0, 0, 0, line, 0, input]);
    }
    // Local interrupts: ExtINT at LINT0, NMI at LINT1, of all local APICs.
    entry(&[4, 3, 0, 0, 0, 0, 0xFF, 0]);
    entry(&[4, 1, 0, 0, 0, 0, 0xFF, 1]);

    let mut table = Vec::from(*b"PCMP");
    table.extend((44 + entries.len() as u16).to_le_bytes());
    table.extend([4, 0]); // Revision 1.4, checksum.
    table.extend(b"PMU     SOFTWARE PMU");
    table.extend([0; 6]); // No OEM table.
    table.extend(count.to_le_bytes());
    table.extend(LOCAL_APIC.to_le_bytes());
    table.extend([0; 4]); // No extended table.
    table.extend(entries);
    set_checksum(&mut table, 7);
    table
}

/// Sets the checksum, by which all bytes add up to zero.
fn set_checksum(bytes: &mut [u8], place: usize) {
    let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[place] = sum.wrapping_neg();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_table_fits_and_adds_up_to_zero() {
        let table = configuration(16);
        assert_eq!(table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        assert!(16 + table.len() <= 1024);
        // The header's length field, and the number of entries: 16 + 1 + 1 + 15 + 2.
        assert_eq!(usize::from(u16::from_le_bytes([table[4], table[5]])), table.len());
        assert_eq!(u16::from_le_bytes([table[34], table[35]]), 35);
    }
}
