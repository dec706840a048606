//! Glue of a kernel like ArceOS, for counters and profiles: several processors, preemption, handlers without a frame,
//! events of tasks, and with the feature `records` precise samples and branches. `ax` stands for the kernel's own
//! crates.
#![no_std]

pub mod ax;

use pmu::Snapshot;
use pmu::apic::{ApicRegisters, Delivery, LvtEntry, NativeApic, NoApic};
use pmu::core::WriteOnce;
use pmu::core::access::RegisterBackend;
use pmu::core::thread::ThreadEvent;
use pmu::core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu::frame::CurrentFrame;
use pmu::frame::PlainFrame;
use pmu::{Kernel, Pmu, PmuError, PmuSample, X86, X86Kernel};

const PERFORMANCE_VECTOR: u8 = 0xE1;
const CALL_VECTOR: u8 = 0xE2;
const DELIVERY: Delivery = match Delivery::vector(PERFORMANCE_VECTOR) {
    Ok(delivery) => delivery,
    Err(_) => panic!("a vector of an exception"),
};

/// The hardware beside the counters.
#[cfg(feature = "records")]
pub type Records = (pmu::facilities::PreciseRecords<512>, pmu::facilities::BranchRecords);
/// The hardware beside the counters: none.
#[cfg(not(feature = "records"))]
pub type Records = ();

/// The counters and profiles of all processors.
pub static PMU: Pmu<ArceOs, { ax::CPUS }> = Pmu::new();
static APIC: WriteOnce<NativeApic<ax::Msr>> = WriteOnce::new();
static FRAMES: [CurrentFrame; ax::CPUS] = [const { CurrentFrame::new() }; ax::CPUS];

/// The kernel.
#[derive(Debug)]
pub struct ArceOs;

// SAFETY: (1) a processor keeps its number, which its per-CPU data has; (2) the guard turns preemption off, and
// handlers run with preemption off; (3) the kernel runs at privilege level 0, and skips no #GP; (4) statics are mapped
// in each address space, and nothing else uses the registers of PEBS, BTS and IBS.
unsafe impl Kernel for ArceOs {
    type Registers = ax::Msr;
    type Architecture = X86<Records, Self>;
    fn registers() -> ax::Msr {
        ax::native_msr::<Self>()
    }
    fn this_processor() -> usize {
        ax::this_cpu_id()
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        let _guard = ax::NoPreempt::new();
        act()
    }
    fn set_interrupt_masked(masked: bool) {
        let entry = LvtEntry::new(DELIVERY, masked);
        APIC.get().inspect(|apic| apic.write_performance_entry(entry));
    }
    fn interrupt(processor: usize) {
        ax::send_ipi(processor, CALL_VECTOR);
    }
    fn sampled(sample: &PmuSample<'_, Self>) {
        let branch = sample.branches().next().map(|branch| branch.from);
        sample.address().inspect(|address| ax::sampled(*address, branch));
    }
    fn now() -> u64 {
        ax::monotonic_time_nanos()
    }
}

impl X86Kernel for ArceOs {
    fn apic<M: RegisterBackend>(_: M) -> Option<impl ApicRegisters> {
        APIC.get()
    }
}

/// Called once, before the first processor is up.
pub fn init() -> Result<(), NoApic> {
    // SAFETY: the kernel maps the local APIC's page for good, and puts every processor into the same mode.
    let apic = unsafe { NativeApic::detect(ArceOs::registers(), ax::LOCAL_APIC_PAGE) }?;
    let _ = APIC.set(apic); // Set before: the same.
    ax::register_handler(PERFORMANCE_VECTOR, || {
        let frame = FRAMES.get(ax::this_cpu_id()).map(CurrentFrame::get).unwrap_or_default();
        PMU.interrupt(&frame).error.inspect(ax::warn);
    });
    ax::register_handler(CALL_VECTOR, || PMU.serve_call());
    Ok(())
}

/// Called on each processor as it comes up.
pub fn cpu_up() -> Result<(), PmuError> {
    PMU.processor_up(&Snapshot::capture(ax::cpuid(CpuIdReaderNative))).map(drop)
}

/// Called by the trap entry, in place of the dispatch of an interrupt; the kernel reschedules after that.
pub fn dispatch(trap: &ax::TrapFrame, vector: u8) {
    let (pc, processor) = (trap.rip, ax::this_cpu_id());
    let frame = PlainFrame { pc, cs: trap.cs as u16, flags: trap.rflags, processor, process: None };
    let handle = || ax::handle_irq(vector);
    FRAMES.get(processor).map_or_else(handle, |current| current.enter(&frame, handle));
}

/// Called by the scheduler's switch, with preemption off: the events of both tasks.
pub fn switch(from: &mut [ThreadEvent], to: &mut [ThreadEvent]) -> Result<(), PmuError> {
    PMU.switch(from, to)
}
