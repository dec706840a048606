//! The glue of a kernel like Hermit: all that it writes for counts, profiles, precise samples with branches, and events
//! of tasks, on processors of either vendor. [`hermit`] stands for the kernel.
//!
//! - Exceptions and interrupts share one stack of the interrupt stack table, on which an NMI or a #GP would overwrite
//!   the frame of another handler. So the performance interrupt comes by a vector, whose gate keeps interrupts off, and
//!   the registers are those of `NativeMsr`, which recovers from no #GP.
//! - Each core is cooperative, and a task stays on its core. There is no preemption to turn off. Instead the scheduler
//!   asks [`may_switch`] before it switches, as a workload of [`count`] might wait for another task.
#![no_std]

pub mod hermit;

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pmu::Snapshot;
use pmu::apic::{ApicRegisters, Delivery, LocalApic, LvtEntry};
use pmu::core::access::RegisterBackend;
use pmu::core::thread::ThreadEvent;
use pmu::core::{Event, EventCount, GenericEvent, WriteOnce};
use pmu::facilities::{BranchRecords, PreciseRecords};
use pmu::frame::PlainFrame;
use pmu::kprofile::ProfileObject;
use pmu::{Kernel, Pmu, PmuError, PmuEvent, PmuSample, X86, X86Kernel};

use hermit::{ExceptionStackFrame, Registers, apic};

/// The greatest number of cores.
pub const CORES: usize = 8;

/// The vector of [`performance_interrupt`].
pub const PERFORMANCE_VECTOR: u8 = 0xE1;
/// The vector of [`call_interrupt`].
pub const CALL_VECTOR: u8 = 0xE2;
const DELIVERY: Delivery = match Delivery::vector(PERFORMANCE_VECTOR) {
    Ok(delivery) => delivery,
    Err(_) => panic!("a vector of an exception"),
};

/// The counters and profiles of all cores.
#[cfg(not(feature = "hosted"))]
pub static PMU: Pmu<Hermit, CORES> = Pmu::new();
/// The same for each host of a test.
#[cfg(feature = "hosted")]
pub static PMU: hermit::PerHost<Pmu<Hermit, CORES>> = hermit::PerHost(Pmu::new);

/// Receives a sample, in the handler or in the scheduler.
pub type Report = fn(&PmuSample<'_, Hermit>);
static REPORT: WriteOnce<Report> = WriteOnce::new();

/// The kernel.
#[derive(Debug)]
pub struct Hermit;

// SAFETY: (1) a core keeps its number, which its block has; (2) a task stays on its core, and no other one takes its
// place in `pinned` or in a handler, as the scheduler asks `may_switch`; (3) the kernel runs at privilege level 0, and a
// #GP of its own ends it; (4) of precise records: there is one address
// space, no other driver of the Debug Store, no suspend and no session but the `Pmu`'s; `NativeMsr` writes once; the
// image, which has the static, is physically contiguous.
unsafe impl Kernel for Hermit {
    type Registers = Registers;
    type Architecture = X86<(PreciseRecords<512>, BranchRecords), Self>;
    fn registers() -> Registers {
        hermit::native_msr::<Self>()
    }
    fn this_processor() -> usize {
        hermit::core().core_id as usize
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        let pinned = &hermit::core().pinned;
        pinned.fetch_add(1, Relaxed);
        let result = act();
        pinned.fetch_sub(1, Relaxed);
        result
    }
    fn set_interrupt_masked(masked: bool) {
        Apic.write_performance_entry(LvtEntry::new(DELIVERY, masked));
    }
    fn interrupt(processor: usize) {
        apic::write(apic::COMMAND, apic::destination(processor) | u64::from(CALL_VECTOR));
    }
    fn sampled(sample: &PmuSample<'_, Self>) {
        REPORT.get().inspect(|report| report(sample));
    }
    fn physical_address(first: *const (), _bytes: usize) -> Option<u64> {
        hermit::virtual_to_physical(first.addr())
    }
    fn now() -> u64 {
        hermit::timer_ticks()
    }
}

impl X86Kernel for Hermit {
    fn apic<M: RegisterBackend>(_: M) -> Option<impl ApicRegisters> {
        Some(Apic)
    }
}

/// The kernel's own functions for the local APIC.
struct Apic;

impl ApicRegisters for Apic {
    fn write_performance_entry(&self, entry: LvtEntry) {
        apic::write(LocalApic::<()>::X2APIC_MSR, entry.into());
    }
    fn read_performance_entry(&self) -> Option<u32> {
        Some(apic::read(LocalApic::<()>::X2APIC_MSR))
    }
    fn read_extended_entry(&self, number: u8) -> Option<u32> {
        // The version's bit 31, which declares the register, is clear under KVM.
        let entries = apic::read(apic::EXTENDED_FEATURES) >> 16 & 0xFF;
        let register = LocalApic::<()>::X2APIC_EXTENDED_MSR + u32::from(number);
        (u32::from(number) < entries).then(|| apic::read(register))
    }
    fn write_extended_entry(&self, number: u8, entry: u32) {
        apic::write(LocalApic::<()>::X2APIC_EXTENDED_MSR + u32::from(number), entry.into());
    }
}

/// Called on each core as it boots. `report` gets the samples of all events.
pub fn core_up(report: Report) -> Result<(), PmuError> {
    let _ = REPORT.set(report); // The boot processor's stays.
    PMU.processor_up(&Snapshot::capture(hermit::cpuid())).map(drop)
}

/// The handler of [`PERFORMANCE_VECTOR`].
pub fn performance_interrupt(frame: ExceptionStackFrame) {
    let (pc, cs, flags) = (frame.rip, frame.cs as u16, frame.rflags);
    let processor = Hermit::this_processor();
    let context = PlainFrame { pc, cs, flags, processor, process: None };
    let interrupted = PMU.interrupt(&context);
    interrupted.error.inspect(hermit::log);
    apic::eoi();
}

/// The handler of [`CALL_VECTOR`].
pub fn call_interrupt(_frame: ExceptionStackFrame) {
    PMU.serve_call();
    apic::eoi();
}

/// Called by the handler of each core's timer, before it switches.
pub fn timer_tick() {
    let _ = PMU.tick().inspect_err(hermit::log);
}

/// One round of the idle task, which waits in `halt`. No handler switches from there: the idle task does afterwards.
pub fn idle(halt: &mut dyn FnMut()) {
    Hermit::pinned(|| {
        let _ = PMU.before_idle().inspect_err(hermit::log);
        halt();
        let _ = PMU.after_idle().inspect_err(hermit::log);
    });
}

/// Returns whether the scheduler may switch on this core now. Otherwise the task runs on.
pub fn may_switch() -> bool {
    hermit::core().pinned.load(Relaxed) == 0
}

/// Counts this core's instructions and cycles during a workload, which waits for no task of the core.
pub fn count(workload: &mut dyn FnMut()) -> Result<[EventCount; 2], PmuError> {
    PMU.count(&[GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic), workload)
}

/// Counts the samples of an event on all cores by their addresses, during a workload.
pub fn profile<'b>(
    event: Event,
    range: Range<u64>,
    buckets: &'b [AtomicU32],
    workload: &mut dyn FnMut(),
) -> Result<ProfileObject<'b>, PmuError> {
    PMU.profile(event, range, buckets, workload)
}

/// Opens an event of this core and starts it.
pub fn start(event: &Event) -> Result<PmuEvent, PmuError> {
    let event = PMU.open(event)?;
    PMU.enable(event).map(|()| event)
}

/// Closes an event of this core.
pub fn stop(event: PmuEvent) -> Result<(), PmuError> {
    PMU.close(event)
}

/// The events of a task, which are a field of the task.
pub type TaskEvents = [ThreadEvent; 4];

/// Those of a new task.
pub const NO_EVENTS: TaskEvents = [ThreadEvent::Unused; 4];

/// Makes an event for an unused place of a task that does not run. The event counts from the next switch to it on.
pub fn task_event(event: &Event) -> Result<ThreadEvent, PmuError> {
    PMU.thread_event(event)
}

/// Returns the count of a task that runs on this core, or of one that does not run.
pub fn task_count(event: &ThreadEvent) -> Result<u64, PmuError> {
    Hermit::pinned(|| PMU.read_thread(event)).map(|count| count.value)
}

/// Called by the scheduler as it switches tasks.
pub fn switch(from: &mut TaskEvents, to: &mut TaskEvents) {
    let switched = PMU.switch(from, to);
    let _ = switched.inspect_err(hermit::log);
}
