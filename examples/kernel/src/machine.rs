//! The machine, without its PMU: boot, processors, interrupts, the local APIC, clocks, ring 3, and the serial line.
//! Uses none of the crates; what it calls in the floors above is registered with it.

pub mod acpi;
pub mod apic;
pub mod boot;
pub mod clock;
pub mod interrupts;
pub mod paging;
pub mod processor;
pub mod report;
pub mod ring3;
pub mod screen;
pub mod serial;
pub mod smp;
pub mod thread;
pub mod vectors;
