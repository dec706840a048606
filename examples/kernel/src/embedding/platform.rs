//! The kernel's duties: its registers, the number of a processor, the local APIC's LVT entry of the performance
//! interrupt, and its timer as the profile timer.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

use pmu::apic::{ApicRegisters, Delivery, LvtEntry};
use pmu::core::CounterSet;
use pmu::core::access::RegisterBackend;
use pmu::core::error::PlatformError;
use pmu::core::interval::Interval;
use pmu::core::x86::FixupMsr;
use pmu::core::x86::Snapshot;
use pmu::facilities::{BranchRecords, PreciseRecords};
use pmu::{Machine, PmuSample, X86Kernel};

use crate::embedding::extended_entries::native_apic;
use crate::embedding::interrupt;
use crate::embedding::memory::{MAX_RECORDS, PRECISE_WORDS};
use crate::embedding::msr::control_msr;
use crate::machine::smp::CALL_MS;
use crate::machine::vectors::PERFORMANCE;
use crate::machine::{apic, clock, processor, smp};

/// This kernel, as the crates ask for it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl X86Kernel for Kernel {
    fn apic<M: RegisterBackend>(_: M) -> Option<impl ApicRegisters> {
        native_apic()
    }
}

// SAFETY: (1) GS points at the processor's own number, in every context; (2) no task moves to another processor, and
// there is one on each; (3) the kernel's statics are mapped, writable, in its only address space, in which linear
// addresses are physical ones; (4) only the claims of `check` write the registers of the Debug Store themselves, and no
// event is open then; (5) a processor that comes back after INIT is not up, and there is no suspend; (6) no session
// has a source of `Pmu::events_of`.
unsafe impl pmu::Kernel for Kernel {
    type Registers = FixupMsr;
    type Architecture = pmu::X86<(PreciseRecords<PRECISE_WORDS>, BranchRecords<MAX_RECORDS>), Self>;

    fn registers() -> FixupMsr {
        control_msr()
    }

    fn this_processor() -> usize {
        processor::number()
    }

    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }

    fn set_interrupt_masked(masked: bool) {
        let by_vector = IS_BY_VECTOR.load(Relaxed);
        let delivery = if by_vector { BY_VECTOR } else { Delivery::NON_MASKABLE };
        apic::write_performance_entry(LvtEntry::new(delivery, masked).into());
    }

    fn sampled(sample: &PmuSample<'_, Self>) {
        interrupt::sampled(sample);
    }

    fn physical_address(first: *const (), _: usize) -> Option<u64> {
        Some(first.expose_provenance() as u64)
    }

    fn interrupt(processor: usize) {
        smp::call(processor);
    }

    fn keep_waiting(turns: u64) -> bool {
        if turns <= 1 {
            BEGIN.store(clock::now(), Relaxed);
        }
        // A call may have been slept over: see `smp::run_on`.
        if turns.is_multiple_of(1 << 20) {
            (1..smp::processors()).for_each(smp::call);
        }
        clock::now() - BEGIN.load(Relaxed) <= clock::milliseconds(CALL_MS)
    }

    fn now() -> u64 {
        clock::now()
    }

    /// Detects Windows' own tables, whose sources this kernel judges itself.
    fn detect(first: &Snapshot) -> Machine {
        Machine::detect(first)
    }

    fn counters() -> CounterSet {
        CounterSet::from_bits(COUNTERS.load(Relaxed))
    }

    fn start_timer(interval: Interval) -> Result<(), PlatformError> {
        let hertz = clock::speeds().apic.ok_or(PlatformError::NoTimer)?;
        // The interval is in units of 100 ns.
        let ticks = u32::try_from(hertz * u64::from(interval.get()) / 10_000_000);
        let ticks = ticks.ok().filter(|ticks| *ticks > 0).ok_or(PlatformError::NoTimer)?;
        apic::start_timer(ticks);
        Ok(())
    }

    fn stop_timer() {
        apic::stop_timer();
    }
}

/// The time at which the present wait began.
static BEGIN: AtomicU64 = AtomicU64::new(0);

/// Delivery of the performance interrupt by its vector.
pub const BY_VECTOR: Delivery = match Delivery::vector(PERFORMANCE) {
    Ok(delivery) => delivery,
    Err(_) => panic!("a vector of an exception"),
};

static IS_BY_VECTOR: AtomicBool = AtomicBool::new(false);
static COUNTERS: AtomicU64 = AtomicU64::new(CounterSet::GENERAL.bits());

/// Sets the delivery for the processors that come up from now on. None is up at present.
pub fn set_delivery(delivery: Delivery) {
    IS_BY_VECTOR.store(delivery == BY_VECTOR, Relaxed);
}

/// Sets the counters that processors take as they come up from now on.
pub fn set_counters(counters: CounterSet) {
    COUNTERS.store(counters.bits(), Relaxed);
}
