//! AMD's extended entries of the local vector table, through which other hardware than the counters interrupts.
//!
//! Read first: AMD APM vol. 2, "Extended Interrupts".

use pmu::core::msr::{MsrAddress, MsrBackend};

use crate::embedding::msr::control_msr;
use crate::machine::apic;

/// Offsets of the version, whose bit 31 declares extended registers; of their features, whose bits 23:16 are the number
/// of entries; and of the first entry.
const VERSION: usize = 0x30;
const FEATURES: usize = 0x400;
const FIRST: usize = 0x500;

/// Returns an entry of this processor; `None`: there is no such entry.
pub fn read(entry: u8) -> Option<u32> {
    let entries = read_register(FEATURES)? >> 16 & 0xFF;
    if u32::from(entry) < entries { read_register(place(entry)) } else { None }
}

/// Writes an entry that [`read`] could read.
pub fn write(entry: u8, value: u32) {
    apic::write(place(entry), value);
}

const fn place(entry: u8) -> usize {
    FIRST + 16 * entry as usize
}

/// Reads a register; `None`: it is absent. In x2APIC mode an absent register faults, and a hypervisor may have
/// registers that its version does not declare. In the page of xAPIC mode an absent register has no defined value.
fn read_register(offset: usize) -> Option<u32> {
    if apic::is_x2apic() {
        // SAFETY: registers of the local APIC are only read, and no read of them writes to memory.
        let register = unsafe { MsrAddress::new(apic::number(offset)) };
        return control_msr().read(register).ok().map(|value| value as u32);
    }
    (apic::read(VERSION) >> 31 != 0).then(|| apic::read(offset))
}
