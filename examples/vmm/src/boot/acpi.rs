//! ACPI's tables, by which a guest finds its processors and interrupt controllers, and how to switch the machine off
//! and to reset it: as little as a kernel that needs ACPI boots with.
//!
//! Read first: ACPI Specification 6.5, sections "Root System Description Pointer (RSDP)", "System Description Table
//! Header", "Fixed ACPI Description Table (FADT)", "Multiple APIC Description Table (MADT)", "Generic Address
//! Structure", and "\_Sx (System States)".

use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::boot::layout;

const LOCAL_APIC: u32 = 0xFEE0_0000;
const IO_APIC: u32 = 0xFEC0_0000;
/// The interrupt of ACPI itself, which this machine never raises.
const SCI: u16 = 9;
/// Ports of the events and of the control register of power management, as in QEMU's chip sets.
const POWER_EVENTS: u16 = 0x600;
const POWER: u16 = 0x604;
/// The chip set's reset control register, and the value that resets the machine.
const RESET_CONTROL: u8 = 0xF9;
const RESET_CONTROL_HIGH: u8 = 0x0C;
const RESET: u8 = 0x06;

/// `Name (\_S5_, Package () {0, 0, 0, 0})`: the machine is off in sleep type 0. ACPI Machine Language: NameOp, name,
/// PackageOp, length, number of elements, and four times ZeroOp.
const OFF: [u8; 12] = *b"\x08_S5_\x12\x06\x04\0\0\0\0";

const HEADER: usize = 36;
/// Distance between tables.
const STEP: u64 = 0x400;
const ROOT_TABLE: u64 = layout::ACPI + 0x40;
const LONG_ROOT_TABLE: u64 = layout::ACPI + 0x80;
const PROCESSORS: u64 = layout::ACPI + STEP;
const FIXED: u64 = layout::ACPI + 2 * STEP;
const DEFINITIONS: u64 = layout::ACPI + 3 * STEP;

/// Writes the tables of a machine with `processors`, whose numbers are their APIC IDs. The root pointer is at
/// [`layout::ACPI`], where a kernel without a boot protocol's pointer searches for it.
pub(crate) fn write(memory: &GuestMemoryMmap, processors: u8) -> Result<(), GuestMemoryError> {
    let tables = [PROCESSORS, FIXED];
    let short = tables.iter().flat_map(|at| (*at as u32).to_le_bytes()).collect::<Vec<_>>();
    let long = tables.iter().flat_map(|at| at.to_le_bytes()).collect::<Vec<_>>();
    let parts = [
        (layout::ACPI, root_pointer()),
        (ROOT_TABLE, table(b"RSDT", 1, &short)),
        (LONG_ROOT_TABLE, table(b"XSDT", 1, &long)),
        (PROCESSORS, table(b"APIC", 1, &controllers(processors))),
        (FIXED, table(b"FACP", 3, &fixed())),
        (DEFINITIONS, table(b"DSDT", 1, &OFF)),
    ];
    parts.iter().try_for_each(|(at, bytes)| memory.write_slice(bytes, GuestAddress(*at)))
}

fn root_pointer() -> Vec<u8> {
    let mut bytes = Vec::from(*b"RSD PTR \0PMUVMM\x02");
    bytes.extend((ROOT_TABLE as u32).to_le_bytes());
    bytes.extend(36_u32.to_le_bytes());
    bytes.extend(LONG_ROOT_TABLE.to_le_bytes());
    bytes.extend([0; 4]);
    // The first checksum is of the first 20 bytes, the second of all.
    bytes[8] = missing(&bytes[..20]);
    bytes[32] = missing(&bytes);
    bytes
}

/// Returns a table with its header.
fn table(signature: &[u8; 4], revision: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(*signature);
    bytes.extend(((HEADER + content.len()) as u32).to_le_bytes());
    bytes.extend([revision, 0]);
    bytes.extend(b"PMUVMMSOFT-PMU\x01\0\0\0PMU \x01\0\0\0");
    bytes.extend(content);
    bytes[9] = missing(&bytes);
    bytes
}

/// Returns the byte with which all add up to zero.
fn missing(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)).wrapping_neg()
}

/// Returns the interrupt controllers: those of the processors, and KVM's I/O APIC.
fn controllers(processors: u8) -> Vec<u8> {
    let mut bytes = Vec::from(LOCAL_APIC.to_le_bytes());
    // There are two 8259s, too.
    bytes.extend(1_u32.to_le_bytes());
    for id in 0..processors {
        bytes.extend([0, 8, id, id, 1, 0, 0, 0]);
    }
    bytes.extend([1, 12, 0, 0]);
    bytes.extend(IO_APIC.to_le_bytes());
    bytes.extend([0; 4]);
    // Interrupts that differ from the bus: the timer's line 0 is input 2, and ACPI's is level-triggered (3:2 = 11) and
    // active high (1:0 = 01).
    for (line, input, flags) in [(0, 2, 0), (SCI as u8, SCI as u8, 0b1101)] {
        bytes.extend([2, 10, 0, line, input, 0, 0, 0, flags, 0]);
    }
    // NMI at LINT1 of all processors.
    bytes.extend([4, 6, 0xFF, 0, 0, 1]);
    bytes
}

/// Returns the content of the FADT of revision 3. There is no system management mode, so ACPI is always enabled; and no
/// power-management timer.
fn fixed() -> [u8; 244 - HEADER] {
    let mut bytes = [0; 244 - HEADER];
    let mut put = |at: usize, field: &[u8]| {
        bytes[at - HEADER..at - HEADER + field.len()].copy_from_slice(field);
    };
    put(40, &(DEFINITIONS as u32).to_le_bytes());
    put(46, &SCI.to_le_bytes());
    put(56, &u32::from(POWER_EVENTS).to_le_bytes());
    put(64, &u32::from(POWER).to_le_bytes());
    // Lengths of both blocks.
    put(88, &[4, 2]);
    // Latencies of C2 and C3 beyond which there are none; and the RTC's register of the century.
    put(96, &[101, 0, 0xE9, 3]);
    put(108, &[0x32]);
    // The machine has ISA devices and an 8042.
    put(109, &[0b11, 0]);
    // WBINVD works (0), C1 works (2), buttons are absent (4, 5), and the reset register is there (10).
    put(112, &(1_u32 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 10).to_le_bytes());
    // In the space of ports, 8 bits wide.
    put(116, &[1, 8, 0, 1, RESET_CONTROL, RESET_CONTROL_HIGH]);
    put(128, &[RESET]);
    put(140, &DEFINITIONS.to_le_bytes());
    put(148, &[1, 32, 0, 2]);
    put(152, &u64::from(POWER_EVENTS).to_le_bytes());
    put(172, &[1, 16, 0, 2]);
    put(176, &u64::from(POWER).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    #[test]
    fn each_table_adds_up_to_zero_and_ends_before_the_next() {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write(&memory, 16).unwrap();
        let read = |at: u64, size: usize| {
            let mut bytes = vec![0; size];
            memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
            bytes
        };
        let root = read(layout::ACPI, 36);
        assert_eq!((&root[..8], sum(&root[..20]), sum(&root)), (&b"RSD PTR "[..], 0, 0));
        let places = [
            (ROOT_TABLE, b"RSDT", LONG_ROOT_TABLE),
            (LONG_ROOT_TABLE, b"XSDT", PROCESSORS),
            (PROCESSORS, b"APIC", FIXED),
            (FIXED, b"FACP", DEFINITIONS),
            (DEFINITIONS, b"DSDT", DEFINITIONS + STEP),
        ];
        for (at, signature, end) in places {
            let length = u32::from_le_bytes(*read(at, 8).last_chunk().unwrap());
            let table = read(at, length as usize);
            assert_eq!((&table[..4], sum(&table)), (&signature[..], 0));
            assert!(at + u64::from(length) <= end, "{at:#x}");
        }
    }
}
