//! Stands for the kernel: registers, local APIC, per-core block, time and log. On bare metal each does what little it
//! can; with the feature `hosted`, a test answers.
#![allow(missing_docs, reason = "a stand-in")]

use core::sync::atomic::AtomicU32;

/// The per-core block, with a word for the glue.
#[derive(Debug)]
pub struct CoreLocal {
    pub core_id: u32,
    /// The number of calls of `pinned` that the core is in.
    pub pinned: AtomicU32,
}

impl CoreLocal {
    pub const fn new(core_id: u32) -> Self {
        Self { core_id, pinned: AtomicU32::new(0) }
    }
}

/// The frame that the processor pushes, as handlers get it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExceptionStackFrame {
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// The local APIC, whose registers have the numbers of x2APIC mode in either mode.
pub mod apic {
    pub const EOI: u32 = 0x80B;
    pub const COMMAND: u32 = 0x830;
    pub const EXTENDED_FEATURES: u32 = 0x840;

    #[cfg(not(feature = "hosted"))]
    pub use super::bare::{destination, read, write};
    #[cfg(feature = "hosted")]
    pub use super::hosted::{destination, read, write};

    pub fn eoi() {
        write(EOI, 0);
    }
}

#[cfg(not(feature = "hosted"))]
pub use bare::{Registers, core, cpuid, log, native_msr, timer_ticks, virtual_to_physical};
#[cfg(feature = "hosted")]
pub use hosted::{
    Host, PerHost, Registers, core, cpuid, install, log, native_msr, timer_ticks,
    virtual_to_physical,
};

#[cfg(not(feature = "hosted"))]
mod bare {
    use core::arch::asm;
    use core::fmt::Display;
    use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

    use pmu::core::x86::raw_cpuid::CpuIdReader;
    use pmu::core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative;

    use super::{CoreLocal, apic};

    pub use pmu::{NativeMsr as Registers, native_msr};

    /// Address at which the local APIC's registers are mapped; 0 in x2APIC mode.
    static XAPIC: AtomicUsize = AtomicUsize::new(0);
    /// Identifiers of the cores' local APICs.
    static IDS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
    /// Distance from the image's virtual addresses to its physical ones.
    static IMAGE: AtomicU64 = AtomicU64::new(0);

    pub fn core() -> &'static CoreLocal {
        let block: *const CoreLocal;
        // SAFETY: the base of GS is the core's block, whose first word is its address.
        unsafe { asm!("mov {}, qword ptr gs:[0]", out(reg) block, options(nostack, readonly)) };
        // SAFETY: the block lives as long as the kernel.
        unsafe { &*block }
    }

    #[inline(never)]
    pub fn read(register: u32) -> u32 {
        let page = XAPIC.load(Relaxed);
        if page == 0 {
            let low: u32;
            // SAFETY: the local APIC has the register, by the caller's promise to the kernel.
            unsafe { asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") _) };
            return low;
        }
        // SAFETY: the page is mapped there for good, and its registers are 32 bits wide.
        unsafe { address(page, register).read_volatile() }
    }

    #[inline(never)]
    pub fn write(register: u32, value: u64) {
        let page = XAPIC.load(Relaxed);
        let (low, high) = (value as u32, (value >> 32) as u32);
        if page == 0 {
            // SAFETY: the local APIC has the register, and a vector in it has a handler.
            unsafe { asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high) };
            return;
        }
        // SAFETY: the page is mapped there for good, and its registers are 32 bits wide.
        unsafe {
            if register == apic::COMMAND {
                address(page, register).byte_add(16).write_volatile(high << 24);
            }
            address(page, register).write_volatile(low);
        }
    }

    /// Returns bits 63:32 of a command for a core.
    pub fn destination(core: usize) -> u64 {
        IDS.get(core).map_or(0, |id| u64::from(id.load(Relaxed)) << 32)
    }

    fn address(page: usize, register: u32) -> *mut u32 {
        (page + ((register as usize & 0xFF) << 4)) as *mut u32
    }

    pub fn virtual_to_physical(address: usize) -> Option<u64> {
        (address as u64).checked_add(IMAGE.load(Relaxed))
    }

    pub fn timer_ticks() -> u64 {
        // SAFETY: it reads a counter.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    pub fn cpuid() -> impl CpuIdReader {
        CpuIdReaderNative
    }

    pub fn log(what: &impl Display) {
        let _ = what;
    }
}

#[cfg(feature = "hosted")]
mod hosted {
    extern crate std;

    use core::any::Any;
    use core::cell::Cell;
    use core::fmt;
    use core::ops::Deref;
    use std::boxed::Box;

    use pmu::Snapshot;
    use pmu::core::access::{
        AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
    };
    use pmu::core::x86::raw_cpuid::CpuIdReader;

    use super::CoreLocal;

    /// The answers of a test, of the core on which the test is.
    pub trait Host {
        fn core(&self) -> &CoreLocal;
        fn msr(&self) -> &dyn RegisterBackend<Error = AccessErrorKind>;
        fn read_apic(&self, register: u32) -> u32;
        fn write_apic(&self, register: u32, value: u64);
        fn timer_ticks(&self) -> u64;
        fn virtual_to_physical(&self, address: usize) -> Option<u64>;
        fn snapshot(&self) -> Snapshot;
        fn log(&self, what: &dyn fmt::Display);
    }

    std::thread_local! {
        static HOST: Cell<Option<&'static dyn Host>> = const { Cell::new(None) };
        static STATIC: Cell<Option<&'static dyn Any>> = const { Cell::new(None) };
    }

    pub fn install(host: &'static dyn Host) {
        HOST.set(Some(host));
        STATIC.set(None);
    }

    fn host() -> &'static dyn Host {
        HOST.get().expect("a test installs it")
    }

    /// The kernel's static, of which each host has one of its own.
    #[derive(Debug)]
    pub struct PerHost<T>(pub fn() -> T);

    impl<T: 'static> Deref for PerHost<T> {
        type Target = T;
        fn deref(&self) -> &T {
            let made = STATIC.get().unwrap_or_else(|| Box::leak(Box::new((self.0)())));
            STATIC.set(Some(made));
            made.downcast_ref().expect("the kernel has one static")
        }
    }

    #[derive(Clone, Copy, Debug)]
    pub struct Registers(());

    pub fn native_msr<K>() -> Registers {
        Registers(())
    }

    impl RegisterBackend for Registers {
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

    pub fn core() -> &'static CoreLocal {
        host().core()
    }

    pub fn read(register: u32) -> u32 {
        host().read_apic(register)
    }

    pub fn write(register: u32, value: u64) {
        host().write_apic(register, value);
    }

    pub fn destination(core: usize) -> u64 {
        (core as u64) << 32
    }

    pub fn virtual_to_physical(address: usize) -> Option<u64> {
        host().virtual_to_physical(address)
    }

    pub fn timer_ticks() -> u64 {
        host().timer_ticks()
    }

    pub fn cpuid() -> impl CpuIdReader {
        let snapshot = host().snapshot();
        move |leaf: u32, subleaf: u32| snapshot.leaf(leaf, subleaf)
    }

    pub fn log(what: &impl fmt::Display) {
        host().log(what);
    }
}
