//! The one promise of `PerProcessor`, and the platform: the local APIC's LVT entry of the performance interrupt, and
//! its timer as the profile timer.

use core::sync::atomic::{AtomicBool, Ordering};

use pmu::core::{Interval, TimerUnavailable};
use pmu::{ApicRegisters, Delivery, LocalApic, ProfileTimer};

use crate::machine::vectors::PERFORMANCE;
use crate::machine::{apic, clock, processor};

/// This kernel, as the crates ask for it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

// SAFETY: (1) GS points at the processor's own number, in every context; (2) no task moves to another processor, and
// there is one on each.
unsafe impl ::pmu::Processors for Kernel {
    fn this_processor() -> usize {
        processor::number()
    }
}

/// The registers of the local APIC of the processor that executes the call.
#[derive(Clone, Copy, Debug)]
pub struct Registers;

impl ApicRegisters for Registers {
    fn write_performance_entry(&self, entry: u32) {
        apic::write_performance_entry(entry);
    }
}

/// The local APIC's timer as the profile timer.
impl ProfileTimer for Registers {
    fn start(&self, interval: Interval) -> Result<(), TimerUnavailable> {
        let hertz = clock::speeds().apic.ok_or(TimerUnavailable)?;
        // The interval is in units of 100 ns.
        let ticks = u32::try_from(hertz * u64::from(interval.get()) / 10_000_000);
        let ticks = ticks.ok().filter(|ticks| *ticks > 0).ok_or(TimerUnavailable)?;
        apic::start_timer(ticks);
        Ok(())
    }

    fn stop(&self) {
        apic::stop_timer();
    }
}

/// The platform of sessions and of the interrupt's handler.
pub type Apic = LocalApic<Registers, Registers>;

/// Delivery of the performance interrupt by its vector.
pub const BY_VECTOR: Delivery = match Delivery::vector(PERFORMANCE) {
    Ok(delivery) => delivery,
    Err(_) => panic!("a vector of an exception"),
};

static IS_BY_VECTOR: AtomicBool = AtomicBool::new(false);

/// Sets the delivery for the sessions that are initialized from now on. There are none at present.
pub fn set_delivery(delivery: Delivery) {
    IS_BY_VECTOR.store(delivery == BY_VECTOR, Ordering::Relaxed);
}

/// Returns the platform with the present delivery.
pub fn apic() -> Apic {
    let is_by_vector = IS_BY_VECTOR.load(Ordering::Relaxed);
    let delivery = if is_by_vector { BY_VECTOR } else { Delivery::NON_MASKABLE };
    LocalApic::new(Registers, delivery, Registers)
}
