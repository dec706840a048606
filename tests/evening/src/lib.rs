//! The README's kernel. Each part between two anchors is in the README and in the guide as it is here; the test
//! `documents` compares the README's, and counts their lines.
#![no_std]
#![allow(missing_docs, dead_code, reason = "the README explains it")]

#[macro_use]
mod kernel;

use kernel::{PreemptionOff, TrapFrame, processor_number, wrmsr};

// ANCHOR: step-1, The kernel's duties
use pmu::facilities::{BranchRecords, PreciseRecords};
use pmu::{Kernel, NativeMsr, PmuSample, X86, native_msr};
struct Bare;

// SAFETY: (1) each processor keeps its number; (2) the guard keeps preemption off, and handlers run with it off;
// (3) all of this kernel runs at privilege level 0, and no #GP is skipped; (4) statics are mapped in each address space,
// and nothing else uses the registers of PEBS, BTS and IBS.
unsafe impl Kernel for Bare {
    type Registers = NativeMsr;
    type Architecture = X86<(PreciseRecords<8192>, BranchRecords)>; // 64 KiB of records per processor; `()`: neither
    fn registers() -> NativeMsr {
        native_msr::<Self>()
    }
    fn this_processor() -> usize {
        processor_number() // here, also the x2APIC ID
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        let _guard = PreemptionOff::new();
        act()
    }
    fn set_interrupt_masked(masked: bool) {
        wrmsr(0x834, u64::from(masked) << 16 | 0x400); // LVTPC: an NMI
    }
    fn interrupt(processor: usize) {
        wrmsr(0x830, (processor as u64) << 32 | 0xF0); // the vector of `call_interrupt`
    }
    fn sampled(sample: &PmuSample<'_, Self>) {
        for branch in sample.branches().take(1) {
            log_in_nmi!("{:x?} after a branch from {:#x}", sample.address(), branch.from);
        }
    }
}
// ANCHOR_END: step-1
// ANCHOR: step-2, A count
use pmu::core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu::{Event, GenericEvent, Pmu, PmuError, Snapshot};
static PMU: Pmu<Bare, 8> = Pmu::new(); // at most 8 processors

fn instructions_per_cycle(workload: fn()) -> Result<(), PmuError> {
    PMU.processor_up(&Snapshot::capture(CpuIdReaderNative))?; // on each processor, as it comes up
    let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
    let [instructions, cycles] = PMU.count(&events, workload)?; // of one group, so comparable; the workload is pinned
    println!("{} instructions in {} cycles", instructions.value, cycles.value);
    Ok(())
}
// ANCHOR_END: step-2
// ANCHOR: step-3, A profile
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use pmu::frame::PlainFrame;
use pmu::{BranchFilter, Claim, Precision};
static BUCKETS: [AtomicU32; 0x1_0000] = [const { AtomicU32::new(0) }; 0x1_0000];

fn non_maskable_interrupt(trap: &TrapFrame) -> Claim {
    let frame = PlainFrame::new(trap.rip, trap.cs as u16, trap.rflags, processor_number());
    let interrupted = PMU.interrupt(&frame); // which calls `sampled`
    if let Some(error) = interrupted.error {
        log_in_nmi!("performance counters: {error}");
    }
    interrupted.claim // `NotOurs`: look for other owners of the NMI
}

fn call_interrupt() {
    PMU.serve_call();
    wrmsr(0x80B, 0); // end of interrupt
}

fn profile(functions: &[(Range<u64>, &str)], workload: fn()) -> Result<(), PmuError> {
    let (Some(first), Some(last)) = (functions.first(), functions.last()) else { return Ok(()) };
    let cycles = Event::generic(GenericEvent::Cycles).every(1_000_003);
    let precise = cycles.precise(Precision::ZeroSkidRequested).with_branches(BranchFilter::KERNEL);
    let profile = |event| PMU.profile(event, first.0.start..last.0.end, &BUCKETS, workload);
    let profile = profile(precise).or_else(|_| profile(cycles))?; // if it has no precise samples or branches
    for (addresses, name) in functions {
        let hits = profile.hits().filter(|(bucket, _)| addresses.contains(&bucket.start));
        println!("{:8} {name}", hits.map(|(_, count)| count).sum::<u32>());
    }
    Ok(())
}
// ANCHOR_END: step-3
// ANCHOR: step-4, Events of threads
use pmu::ThreadEvent;
const NO_EVENTS: [ThreadEvent; 4] = [ThreadEvent::Unused; 4]; // for new threads

fn count_instructions(this_thread: &mut [ThreadEvent; 4]) -> Result<(), PmuError> {
    let event = PMU.thread_event(&Event::generic(GenericEvent::Instructions))?;
    Bare::pinned(|| {
        this_thread[0] = event; // an unused place: what is in is switched out first
        PMU.switch(&mut [], this_thread)
    })
}

fn instructions_so_far(this_thread: &[ThreadEvent; 4]) -> Result<u64, PmuError> {
    Bare::pinned(|| PMU.read_thread(&this_thread[0])).map(|count| count.value)
}

fn switch(from: &mut [ThreadEvent; 4], to: &mut [ThreadEvent; 4]) -> Result<(), PmuError> {
    PMU.switch(from, to)
}
// ANCHOR_END: step-4
