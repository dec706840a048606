//! All that the crates ask of a kernel: register access, the interrupt's frame, the platform, some static
//! memory, and two handlers. This is all that connects them to it; `sessions` and what follows use it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pmu::core::{
    CounterMemory, CounterSlot, DefaultInterface, EventEntry, EventTable, FixupMsr, InterruptFrame,
    MAX_COUNTERS, NativeMsr, NoInterface, ProcessId, ProcessorNumber, Report,
};
use pmu::intel::debug_store::{ControlAreaMemory, ProcessorProfileControl};
use pmu::{Delivery, LocalApic, Machine};
use pmu_kprofile::Profiles;
use spin::Once;

use crate::apic::XApic;
use crate::interrupts::{PERFORMANCE, TrapFrame};
use crate::processor::{self, MAX_PROCESSORS};
use crate::serial::{Mark, mark};
use crate::{clock, thread, watchdog};

// ---- 1. Static memory: it lives as long as the kernel, and interrupts find everything here.

/// The machine, decided once, from the boot processor.
pub static MACHINE: Once<Machine> = Once::new();
/// The machine in place of one whose counters do not answer, though CPUID declares them: it profiles by time.
pub static TIME_ONLY: Machine =
    Machine::TimeOnly(DefaultInterface::new(), NoInterface::NoPerformanceMonitoring);

/// The started profiles: at most 8.
pub static PROFILES: Profiles<8, MAX_PROCESSORS> = Profiles::new();

/// Each processor's counters.
pub static COUNTERS: [CounterMemory<[CounterSlot; MAX_COUNTERS]>; MAX_PROCESSORS] =
    [const { CounterMemory::new() }; MAX_PROCESSORS];
/// Each processor's events beside the profile sources.
pub static EVENTS: [EventTable<[EventEntry; 8]>; MAX_PROCESSORS] =
    [const { EventTable::new() }; MAX_PROCESSORS];

/// The boot processor's Debug Store area, whose index stamps context switches.
pub static DEBUG_STORE: ProcessorProfileControl<'_> = ProcessorProfileControl::new(Some(&AREA));
static AREA: ControlAreaMemory = ControlAreaMemory::new();

// ---- 2. Register access. What is asked of a register for the first time, in task context, may turn
// out not to exist: `FixupMsr` makes its #GP an error, with a line in `interrupts::handle`. The
// interrupt path touches only registers that are proven, and a #GP there would let the next NMI in too
// early: it uses the instructions as they are.

/// Returns the backend of the control path.
pub fn control_msr() -> FixupMsr {
    // SAFETY: this kernel's handler of #GP and #UD asks `FaultFixup` first, on every processor.
    unsafe { FixupMsr::new() }
}

/// Returns the backend of the interrupt path.
fn interrupt_msr() -> NativeMsr {
    // SAFETY: all of this kernel runs at privilege level 0, and its #GP handler resumes no access but
    // `FixupMsr`'s.
    unsafe { NativeMsr::new() }
}

// ---- 3. The interrupt's frame.

struct Interrupted<'f>(&'f TrapFrame);

impl InterruptFrame for Interrupted<'_> {
    fn pc(&self) -> u64 {
        self.0.rip
    }

    fn cs(&self) -> u16 {
        self.0.cs as u16
    }

    fn flags(&self) -> u64 {
        self.0.rflags
    }

    fn processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(processor::number() as u16)
    }

    /// Returns `None`: this kernel has no processes.
    fn process(&self) -> Option<ProcessId> {
        None
    }

    fn thread(&self) -> u32 {
        thread::current()
    }

    fn timestamp(&self) -> u64 {
        clock::now()
    }
}

// ---- 4. The one promise of `PerProcessor`, and the platform: the local APIC's performance entry, and its timer as
// the profile timer.

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

/// The platform of sessions and of the interrupt's handler.
pub type Apic = LocalApic<XApic, XApic>;

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
    LocalApic::new(XApic, delivery, XApic)
}

// ---- 5. The handlers.

/// Performance interrupts in which no counter had overflowed.
pub static SPURIOUS: AtomicU64 = AtomicU64::new(0);
/// Instructions of `FixupMsr` that were undefined opcodes: RDPMC in an emulator without counters. The crates execute
/// none, so this kernel could do without its handler of #UD.
pub static UNDEFINED: AtomicU64 = AtomicU64::new(0);
/// The boot processor's next performance interrupt is to be marked for the monitor.
pub static MARK_NEXT: AtomicBool = AtomicBool::new(false);

/// Handles the performance interrupt, as NMI or by its vector: finds the counters that overflowed, and reports what was
/// executing.
pub fn performance_interrupt(frame: &TrapFrame) {
    let Some(machine) = MACHINE.get() else { return };
    let number = processor::number();
    let marked = number == 0 && MARK_NEXT.load(Ordering::Relaxed);
    if marked {
        mark(Mark::Interrupt);
    }
    let (msr, counters) = (interrupt_msr(), &COUNTERS[number]);
    let machine = machine.with_events(&EVENTS[number]);
    let serviced = machine.service(&msr, &apic(), counters, |report| match report {
        Report::Source(overflow) => {
            PROFILES.interrupt(&Interrupted(frame), overflow.source);
        }
        Report::Event(overflow) => watchdog::interrupt(number, overflow.event),
    });
    if marked {
        mark(Mark::Rest);
        MARK_NEXT.store(false, Ordering::Relaxed);
    }
    if serviced.is_ok_and(|serviced| serviced.overflows == 0) {
        SPURIOUS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Handles the profile timer's interrupt.
pub fn timer_interrupt(frame: &TrapFrame) {
    PROFILES.timer_interrupt(&Interrupted(frame));
}
