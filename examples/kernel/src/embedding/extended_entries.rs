//! The local APIC, through whose extended entries other hardware than the counters interrupts on AMD's processors: the
//! crates' [`NativeApic`], with registers whose faults are caught.

use pmu::apic::NativeApic;
use pmu::core::x86::FixupMsr;

use crate::embedding::msr::control_msr;
use crate::machine::apic;

/// Returns this processor's local APIC; `None`: it is disabled.
pub fn native_apic() -> Option<NativeApic<FixupMsr>> {
    // SAFETY: (1) the registers are mapped, uncached, at their own address in the kernel's only address space;
    // (2) each processor stays in the mode in which `apic::initialize` enabled its local APIC.
    unsafe { NativeApic::detect(control_msr(), Some(apic::BASE)) }.ok()
}
