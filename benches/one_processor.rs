//! A kernel of one processor, whose registers are an array.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use pmu::apic::{ApicRegisters, Delivery, LvtEntry};
use pmu::{Architecture, Kernel, Pmu, PmuSample, X86Kernel};
use pmu_core::access::{CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate};
use pmu_core::frame::PlainFrame;
use pmu_core::interrupt::EventOverflow;
use pmu_core::profile::KProfileSource;
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_kprofile::{BasicProfile, ProfileObject, Rules};

/// Registers by the low bits of their numbers, which differ for those that a driver uses.
static FILE: [AtomicU64; 0x2000] = [const { AtomicU64::new(0) }; 0x2000];

/// Returns a register.
pub fn at(number: u32) -> &'static AtomicU64 {
    &FILE[number as usize % 0x2000]
}

/// The first general counter, and the distance to the next: Intel's, unless they are set otherwise.
pub static COUNTERS: [AtomicU32; 2] = [AtomicU32::new(0xC1), AtomicU32::new(1)];

/// The registers, each access of which is a load or a store.
pub struct Registers;

impl RegisterBackend for Registers {
    type Error = core::convert::Infallible;

    #[inline]
    fn read(&self, address: RegisterAddress) -> Result<u64, Self::Error> {
        Ok(at(address.get()).load(Relaxed))
    }

    #[inline]
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), Self::Error> {
        at(address.get()).store(value, Relaxed);
        Ok(())
    }

    #[inline]
    fn read_counter(&self, index: CounterIndex) -> Result<u64, Self::Error> {
        let [first, step] = &COUNTERS;
        Ok(at(first.load(Relaxed) + step.load(Relaxed) * index.get()).load(Relaxed))
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, Self::Error> {
        let register = at(update.register());
        let found = register.load(Relaxed);
        register.store(update.apply(found).unwrap_or(found), Relaxed);
        Ok(found)
    }
}

impl ApicRegisters for Registers {
    #[inline]
    fn write_performance_entry(&self, entry: LvtEntry) {
        FILE[0].store(entry.into(), Relaxed);
    }
    fn read_performance_entry(&self) -> Option<u32> {
        Some(FILE[0].load(Relaxed) as u32)
    }
    fn read_extended_entry(&self, _: u8) -> Option<u32> {
        Some(0x0001_0400) // masked, an NMI
    }
}

/// The kernel, with the hardware of an architecture beside its counters.
pub struct OneProcessor<A, S = ()>(PhantomData<fn() -> (A, S)>);

/// Receiver of the kernel's samples. `()` drops them.
pub trait Sampled: 'static {
    /// Takes a sample.
    #[inline]
    fn sampled(_: &EventOverflow) {}
}

impl Sampled for () {}

/// A processor's number, as per-CPU data have it.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Returns the number of this processor.
#[inline]
pub fn number() -> usize {
    NUMBER.load(Relaxed) as usize
}

// SAFETY: there is one processor, and one task.
unsafe impl<A: Architecture<Processor = Snapshot>, S: Sampled> Kernel for OneProcessor<A, S> {
    type Registers = Registers;
    type Architecture = A;
    #[inline]
    fn registers() -> Registers {
        Registers
    }
    #[inline]
    fn this_processor() -> usize {
        number()
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
    #[inline]
    fn set_interrupt_masked(masked: bool) {
        Registers.write_performance_entry(LvtEntry::new(Delivery::NON_MASKABLE, masked));
    }
    fn interrupt(_: usize) {}
    #[inline]
    fn sampled(sample: &PmuSample<'_, Self>) {
        S::sampled(sample);
    }
}

/// A kernel whose local APIC has extended entries, which are masked.
pub struct Masked;

impl X86Kernel for Masked {
    fn apic<M: RegisterBackend>(_: M) -> Option<impl ApicRegisters> {
        Some(Registers)
    }
}

const BASE: u64 = 0xFFFF_FFFF_8000_0000;
static BUCKETS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

/// Describes a processor by leaves of CPUID: EAX, EBX, ECX, EDX.
pub fn processor(leaves: &[(u32, [u32; 4])]) -> Snapshot {
    Snapshot::capture(|leaf: u32, subleaf: u32| {
        let found = leaves.iter().find(|(number, _)| *number == leaf && subleaf == 0);
        let [eax, ebx, ecx, edx] = found.map_or([0; 4], |(_, registers)| *registers);
        CpuIdResult { eax, ebx, ecx, edx }
    })
}

/// Leaf 0 of Intel's processors.
pub const INTEL: (u32, [u32; 4]) = (0, [0x1C, 0x756E_6547, 0x6C65_746E, 0x4965_6E69]);
/// Leaf 0x0A of version 4, with eight counters.
pub const VERSION_4: (u32, [u32; 4]) = (0x0A, [0x0730_0804, 0, 0, 0]);

/// Describes an Intel processor of version 4.
pub fn snapshot() -> Snapshot {
    processor(&[INTEL, VERSION_4])
}

/// The second source of the table's counts on the first counter.
pub fn request() -> BasicProfile<'static> {
    BasicProfile {
        process: None,
        base: BASE,
        size: 0x1000,
        bucket_log2: 4,
        buffer: &BUCKETS,
        source: KProfileSource::TOTAL_ISSUES,
        affinity: None,
    }
}

/// Counter 0 overflows.
pub fn overflow() -> PlainFrame {
    at(0xC1).store(5, Relaxed);
    at(0x38E).store(1, Relaxed);
    frame()
}

/// An interrupted place within the profile.
pub fn frame() -> PlainFrame {
    PlainFrame { pc: BASE + 0x123, cs: 8, flags: 2, processor: 0, process: None }
}

/// A processor comes up, with a profile of a source; then its counter 0 overflows.
pub fn profile<A: Architecture<Processor = Snapshot>, S: Sampled>(
    pmu: &'static Pmu<OneProcessor<A, S>, 4>,
) -> PlainFrame {
    pmu.processor_up(&snapshot()).unwrap();
    let object = ProfileObject::basic(Rules::LATEST, request(), &pmu.hardware()).unwrap();
    pmu.profiles().try_start(Box::leak(Box::new(object)), &mut pmu.hardware()).unwrap();
    overflow()
}
