//! All that the crates ask of a kernel: register access, the interrupt's frame, the platform, some static
//! memory, and two handlers. This is all that connects them to it; `sessions` and what follows use it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pmu_amd::Amd64;
use pmu_core::{
    CounterMemory, CounterSlot, DefaultInterface, EventEntry, EventTable, FixupMsr, InterruptFrame,
    Interval, MAX_COUNTERS, NativeMsr, Platform, ProcessId, ProcessorNumber, ProfileInterface,
    Report, TimerUnavailable, WithEvents,
};
use pmu_intel::Emon;
use pmu_intel::debug_store::{ControlAreaMemory, ProcessorProfileControl};
use pmu_kprofile::Profiles;
use spin::Once;

use crate::interrupts::{PERFORMANCE, TrapFrame};
use crate::processor::{self, MAX_PROCESSORS};
use crate::serial::{Mark, mark};
use crate::{apic, clock, thread, watchdog};

// ---- 1. Static memory: it lives as long as the kernel, and interrupts find everything here.

/// The machine's interface, if it is Intel's. Decided once, from the boot processor.
pub static INTEL: Once<Emon> = Once::new();
/// The machine's interface, if it is AMD's.
pub static AMD: Once<Amd64> = Once::new();
/// The interface of every other machine: it profiles by time.
pub static TIME_ONLY: DefaultInterface = DefaultInterface::new();

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

// ---- 4. The platform: the local APIC's performance entry, and its timer as the profile timer.

/// The local APIC's way to deliver the performance interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// As NMI: it comes even where interrupts are off.
    Nmi,
    /// By a vector.
    Vector,
}

impl Delivery {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nmi => "NMI",
            Self::Vector => "vector",
        }
    }

    const fn entry(self) -> u32 {
        match self {
            Self::Nmi => 0b100 << 8,
            Self::Vector => PERFORMANCE as u32,
        }
    }
}

static PERFORMANCE_ENTRY: AtomicU32 = AtomicU32::new(Delivery::Nmi.entry());

/// Sets the delivery of the interrupt from its next unmasking on, on every processor.
pub fn set_delivery(delivery: Delivery) {
    PERFORMANCE_ENTRY.store(delivery.entry(), Ordering::Relaxed);
}

/// The local APIC of the processor that executes the call.
#[derive(Clone, Copy, Debug)]
pub struct LocalApic;

impl Platform for LocalApic {
    fn unmask_performance_interrupt(&self) {
        apic::set_performance_entry(PERFORMANCE_ENTRY.load(Ordering::Relaxed));
    }

    fn start_profile_timer(&self, interval: Interval) -> Result<(), TimerUnavailable> {
        let hertz = clock::speeds().apic.ok_or(TimerUnavailable)?;
        // The interval is in units of 100 ns.
        let ticks = u32::try_from(hertz * u64::from(interval.get()) / 10_000_000);
        match ticks {
            Ok(ticks @ 1..) => {
                apic::start_timer(ticks);
                Ok(())
            }
            _ => Err(TimerUnavailable),
        }
    }

    fn stop_profile_timer(&self) {
        apic::stop_timer();
    }
}

// ---- 5. The handlers.

/// Performance interrupts in which no counter had overflowed.
pub static SPURIOUS: AtomicU64 = AtomicU64::new(0);
/// The boot processor's next performance interrupt is to be marked for the monitor.
pub static MARK_NEXT: AtomicBool = AtomicBool::new(false);

/// Handles the performance interrupt, as NMI or by its vector.
pub fn performance_interrupt(frame: &TrapFrame) {
    if let Some(emon) = INTEL.get() {
        service(emon, frame);
    } else if let Some(amd64) = AMD.get() {
        service(amd64, frame);
    }
}

/// Finds the counters that overflowed, and reports what was executing.
fn service(interface: &impl ProfileInterface, frame: &TrapFrame) {
    let number = processor::number();
    let marked = number == 0 && MARK_NEXT.load(Ordering::Relaxed);
    if marked {
        mark(Mark::Interrupt);
    }
    let interface = WithEvents::new(interface, &EVENTS[number]);
    let serviced =
        interface.service(&interrupt_msr(), &LocalApic, &COUNTERS[number], |report| match report {
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
