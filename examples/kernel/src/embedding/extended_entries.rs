//! AMD's extended entries of the local vector table, through which other hardware than the counters interrupts: those
//! of the crates' [`NativeApic`], with registers whose faults are caught.

use pmu::apic::{ApicRegisters, NativeApic};
use pmu::core::msr::FixupMsr;

use crate::embedding::msr::control_msr;
use crate::machine::apic;

/// Returns an entry of this processor; `None`: there is no such entry.
pub fn read(entry: u8) -> Option<u32> {
    native()?.read_extended_entry(entry)
}

/// Writes an entry that [`read`] could read.
pub fn write(entry: u8, value: u32) {
    if let Some(apic) = native() {
        apic.write_extended_entry(entry, value);
    }
}

fn native() -> Option<NativeApic<FixupMsr>> {
    // SAFETY: (1) the registers are mapped, uncached, at their own address in the kernel's only address space;
    // (2) each processor stays in the mode in which `apic::initialize` enabled its local APIC.
    unsafe { NativeApic::detect(control_msr(), Some(apic::BASE)) }.ok()
}
