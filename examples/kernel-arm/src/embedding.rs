//! The trait [`Kernel`] and two interrupt handlers: all that a kernel on Arm writes to have [`Pmu`].

use core::convert::Infallible;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use pmu::arm::registers::{Register, UserEnable};
use pmu::arm::{ArmRegisters, Identification, NativeRegisters, SystemRegisters, frame};
use pmu::core::registers::CounterId;
use pmu::user::UserPage;
use pmu::{Arm, CounterSet, Kernel, Pmu, PmuError, PmuSample};

use crate::{gic, machine, samples, spare};

/// The counters of both processors, and all that runs on them.
pub static PMU: Pmu<Arm64, 2> = Pmu::new();

// SAFETY: this kernel runs at EL1 or EL2, and every exception ends it.
const REGISTERS: NativeRegisters = unsafe { NativeRegisters::new() };

/// This kernel: one task per processor, which is never preempted.
#[derive(Debug)]
pub enum Arm64 {}

// SAFETY: (1) affinity level 0 differs between the processors and does not change; (2) each processor has one task.
unsafe impl Kernel for Arm64 {
    type Registers = ArmRegisters<NativeRegisters>;
    type Architecture = Arm;

    fn registers() -> Self::Registers {
        ArmRegisters::new(REGISTERS)
    }

    fn this_processor() -> usize {
        machine::processor()
    }

    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }

    /// Bit 16 masks the interrupt. The rest is that of an x86 local APIC.
    fn set_interrupt_masked(masked: bool) {
        gic::set_enabled(gic::COUNTERS, !masked);
    }

    fn interrupt(processor: usize) {
        gic::call(processor);
    }

    fn sampled(sample: &PmuSample<'_, Self>) {
        if let Some(address) = sample.address() {
            samples::count(sample.tag, address);
        }
    }

    fn now() -> u64 {
        machine::now()
    }

    fn keep_waiting(turns: u64) -> bool {
        machine::yield_to_others();
        turns < 10_000_000
    }

    const USER_PAGES: bool = true;

    fn user_page(tag: u64) -> Option<&'static UserPage> {
        PAGES.get(usize::try_from(tag).ok()?)
    }

    /// All but the one that QEMU's deviation takes.
    fn counters() -> CounterSet {
        let spare = CounterId::general(spare::NUMBER as u8);
        spare.map_or(CounterSet::ALL, |spare| CounterSet::ALL.without(spare.only()))
    }
}

/// The pages of events that EL0 reads, by tag. (Here, the kernel itself reads them for EL0.)
pub static PAGES: [UserPage; 2] = [const { UserPage::new() }; 2];

/// Lets EL0 read the counters of the executing processor, or not: what a kernel does at a switch.
pub fn permit_reads_at_el0(permitted: bool) {
    let open = UserEnable::new().with_cycle_counter(permitted).with_event_counters(permitted);
    let Ok(()) = REGISTERS.write(Register::Pmuserenr, open.into_bits());
}

/// Describes the executing processor.
pub fn identify() -> Identification {
    REGISTERS.identify()
}

/// Takes the counters of the executing processor.
pub fn processor_up() -> Result<CounterSet, PmuError> {
    PMU.processor_up(&identify())
}

/// Returns the bits of the counters that are enabled, may interrupt, or have overflowed.
pub fn left() -> u64 {
    let Ok(bits) = [Register::Pmcntenset, Register::Pmintenset, Register::Pmovsclr]
        .iter()
        .try_fold(0, |bits, register| Ok::<_, Infallible>(bits | REGISTERS.read(*register)?));
    bits
}

/// Number of counter interrupts on each processor.
pub static INTERRUPTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Number of interrupts in which the watchdog found the processor stuck.
pub static STUCK: AtomicUsize = AtomicUsize::new(0);

/// Number of interrupts in which no counter of the driver's had overflowed.
pub static UNHANDLED: AtomicUsize = AtomicUsize::new(0);

/// Handles an interrupt; called from `boot.s` with `ELR_EL1` and `SPSR_EL1`.
#[unsafe(no_mangle)]
extern "C" fn interrupted(elr: u64, spsr: u64) {
    let acknowledged = gic::acknowledge();
    match acknowledged & 0x3FF {
        gic::COUNTERS => {
            let processor = machine::processor();
            INTERRUPTS[processor].fetch_add(1, Relaxed);
            let frame = frame(elr, spsr, processor);
            let handled = PMU.interrupt(&frame);
            spare::follow();
            STUCK.fetch_add(handled.is_stuck.into(), Relaxed);
            if handled.overflows == 0 || handled.error.is_some() {
                UNHANDLED.fetch_add(1, Relaxed);
            }
        }
        gic::CALL => PMU.serve_call(),
        1020.. => return, // spurious: there is nothing to end
        _ => {}
    }
    gic::end(acknowledged);
}
