//! Stands for the kernel's own crates: registers, per-CPU data, preemption, interrupts, time and log. On bare metal
//! each does what little it can; with the feature `hosted`, a test answers.
#![allow(missing_docs, reason = "a stand-in")]

use core::fmt::Display;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

use pmu::core::x86::raw_cpuid::CpuIdReader;

pub const CPUS: usize = 4;

/// Address at which the local APIC's registers are mapped.
pub const LOCAL_APIC_PAGE: Option<usize> = Some(0xFFFF_8000_FEE0_0000);

#[derive(Clone, Copy, Debug)]
pub struct TrapFrame {
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
}

#[cfg(not(feature = "hosted"))]
pub use bare::*;
#[cfg(feature = "hosted")]
pub use hosted::*;

/// The handlers, which get no frame.
static HANDLERS: [AtomicPtr<()>; 256] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 256];

pub fn register_handler(vector: u8, handler: fn()) {
    HANDLERS[usize::from(vector)].store(handler as *mut (), Relaxed);
}

pub fn handle_irq(vector: u8) {
    let handler = HANDLERS[usize::from(vector)].load(Relaxed);
    if !handler.is_null() {
        // SAFETY: only `register_handler` stores here.
        unsafe { core::mem::transmute::<*mut (), fn()>(handler)() };
    }
}

pub fn warn(what: &impl Display) {
    let _ = what;
}

#[derive(Debug)]
pub struct NoPreempt;

impl NoPreempt {
    #[expect(clippy::new_without_default, reason = "as the kernel's")]
    pub fn new() -> Self {
        preempt(-1);
        Self
    }
}

impl Drop for NoPreempt {
    fn drop(&mut self) {
        preempt(1);
    }
}

#[cfg(not(feature = "hosted"))]
mod bare {
    use core::arch::asm;
    use core::sync::atomic::AtomicI64;

    use super::{CPUS, CpuIdReader, Relaxed};

    pub use pmu::{NativeMsr as Msr, native_msr};

    static PREEMPT: [AtomicI64; CPUS] = [const { AtomicI64::new(0) }; CPUS];

    /// A variable of the per-CPU area, which the kernel reads in one instruction, inlined (`percpu`'s
    /// `read_current_raw`).
    pub fn this_cpu_id() -> usize {
        let id: usize;
        // SAFETY: the base of GS is the processor's area, and the number is at its start.
        unsafe { asm!("mov {}, qword ptr gs:[0]", out(reg) id, options(nostack, readonly)) };
        id
    }

    pub fn send_ipi(cpu: usize, vector: u8) {
        // SAFETY: the vector has a handler.
        unsafe {
            asm!("wrmsr", in("ecx") 0x830, in("eax") u32::from(vector), in("edx") cpu as u32)
        };
    }

    pub fn monotonic_time_nanos() -> u64 {
        // SAFETY: it reads a counter.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    /// The kernel's guard calls functions of the scheduler, which another crate has (`kernel_guard`'s `KernelGuardIf`).
    /// The functions count in the current task; the one that turns preemption on may reschedule.
    #[inline(never)]
    pub(super) fn preempt(change: i64) {
        if let Some(count) = PREEMPT.get(this_cpu_id()) {
            count.fetch_add(change, Relaxed);
        }
    }

    /// The kernel's log of samples.
    pub fn sampled(address: u64, branch: Option<u64>) {
        let _ = (address, branch);
    }

    pub fn cpuid(native: impl CpuIdReader) -> impl CpuIdReader {
        native
    }
}

#[cfg(feature = "hosted")]
mod hosted {
    extern crate std;

    use core::cell::Cell;

    use pmu::Snapshot;
    use pmu::core::access::{
        AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
    };

    use super::CpuIdReader;

    /// The answers of a test, of the processor on which the test is.
    pub trait Host {
        fn this_cpu_id(&self) -> usize;
        fn msr(&self) -> &dyn RegisterBackend<Error = AccessErrorKind>;
        fn send_ipi(&self, cpu: usize, vector: u8);
        fn now(&self) -> u64;
        fn preempt(&self, change: i64);
        fn sampled(&self, address: u64, branch: Option<u64>);
        fn snapshot(&self) -> Snapshot;
    }

    std::thread_local! {
        static HOST: Cell<Option<&'static dyn Host>> = const { Cell::new(None) };
    }

    pub fn install(host: &'static dyn Host) {
        HOST.set(Some(host));
    }

    fn host() -> &'static dyn Host {
        HOST.get().expect("a test installs it")
    }

    #[derive(Clone, Copy, Debug)]
    pub struct Msr(());

    pub fn native_msr<K>() -> Msr {
        Msr(())
    }

    impl RegisterBackend for Msr {
        type Error = AccessErrorKind;
        fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
            host().msr().read(address)
        }
        fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
            host().msr().write(address, value)
        }
        fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
            host().msr().read_counter(index)
        }
        fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
            host().msr().update(update)
        }
    }

    pub fn this_cpu_id() -> usize {
        host().this_cpu_id()
    }

    pub fn send_ipi(cpu: usize, vector: u8) {
        host().send_ipi(cpu, vector);
    }

    pub fn monotonic_time_nanos() -> u64 {
        host().now()
    }

    pub(super) fn preempt(change: i64) {
        host().preempt(change);
    }

    pub fn sampled(address: u64, branch: Option<u64>) {
        host().sampled(address, branch);
    }

    pub fn cpuid(_native: impl CpuIdReader) -> impl CpuIdReader {
        let snapshot = host().snapshot();
        move |leaf: u32, subleaf: u32| snapshot.leaf(leaf, subleaf)
    }
}
