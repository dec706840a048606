//! The deepest stack of an interrupt, and of each operation of the control path: they run on a painted stack, on each
//! of their paths. And the memory of a processor.
//!
//! Prints its measurements; its exit status is not 0 where one exceeds its limit.
#![no_std]
#![no_main]

mod bare;
mod control;
mod machine;
mod stack;

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, Ordering};

use machine::{Apic, FAULTY, Frame, Msr, register};
use pmu::Machine;
use pmu_core::error::CounterError;
use pmu_core::frame::{ProcessId, ProcessorNumber};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::registers::EventSelect;
use pmu_core::x86::Snapshot;
use pmu_core::{
    CounterSession, CounterSet, CounterUnit, Event, EventSource, Events, GenericEvent, Platform,
    service,
};
use pmu_intel::Emon;
use pmu_kprofile::hardware::ThisProcessor;
use pmu_kprofile::trace::{Hook, TraceCallback, TraceRing};
use pmu_kprofile::{BasicProfile, PointerWidth, ProfileObject, Profiles, Rules};

const COUNTERS: usize = 8;
/// Bytes of stack that an interrupt may take.
const STACK_LIMIT: usize = 568;
/// Beside opened events of a machine.
const STACK_LIMIT_OF_EVENTS: usize = 600;
/// Bytes that a processor's counters and session may take.
const STATE_LIMIT: usize = 8 * COUNTERS + 104;
const STATE: usize = size_of::<CounterMemory<[CounterSlot; COUNTERS]>>()
    + size_of::<Session<'_, &Emon, (Msr, Apic)>>();

const SOURCES: [KProfileSource; 4] = [
    KProfileSource::TOTAL_CYCLES,
    KProfileSource::TOTAL_ISSUES,
    KProfileSource::BRANCH_INSTRUCTIONS,
    KProfileSource::BRANCH_MISPREDICTIONS,
];

static MEMORY: CounterMemory<[CounterSlot; COUNTERS]> = CounterMemory::new();
static PROFILES: Profiles<64, 1> = Profiles::new();
static BUFFER: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
static RINGS: [TraceRing<2>; 1] = [const { TraceRing::new() }; 1];
static TRACE: TraceCallback<2> =
    TraceCallback::new(Hook::PmcInterrupt, PointerWidth::Bits64, &RINGS);

static EVENTS: EventTable<[EventEntry; 4]> = EventTable::new();
/// With fixed counters.
static COUNTERS_OF_EVENTS: CounterMemory<[CounterSlot; COUNTERS + 3]> = CounterMemory::new();

/// The machine and its profile interface, once they are known.
struct Detected<T>(UnsafeCell<Option<T>>);
// SAFETY: the program has one thread.
unsafe impl<T> Sync for Detected<T> {}
static MACHINE: Detected<Machine> = Detected(UnsafeCell::new(None));
static EMON: Detected<Emon> = Detected(UnsafeCell::new(None));

fn machine() -> Option<&'static Machine> {
    // SAFETY: it is written once, before this is called.
    unsafe { (*MACHINE.0.get()).as_ref() }
}

fn emon() -> Option<&'static Emon> {
    // SAFETY: it is written once, before this is called.
    unsafe { (*EMON.0.get()).as_ref() }
}

/// The handler of the performance interrupt.
fn performance_interrupt() {
    let Some(emon) = emon() else { return };
    let frame = Frame { pc: 0x1009, process: ProcessId::new(7) };
    let serviced = service(emon, &(Msr, Apic), &MEMORY, |sample| {
        if let Some(overflow) = emon.overflow(&sample) {
            PROFILES.interrupt(&frame, overflow.source);
        }
    });
    if let Ok(serviced) = serviced {
        OVERFLOWS.fetch_add(serviced.overflows, Ordering::Relaxed);
    }
}

/// The same of the machine, with opened events beside its sources.
fn interrupt_of_events() {
    let Some(machine) = machine() else { return };
    let frame = Frame { pc: 0x1009, process: ProcessId::new(7) };
    let both = Events::new(machine, &EVENTS);
    let serviced =
        service(&both, &(Msr, Apic), &COUNTERS_OF_EVENTS, |sample| match both.overflow(&sample) {
            Some(overflow) => _ = PROFILES.interrupt(&frame, overflow.source),
            None => _ = PERIODS.fetch_add(1, Ordering::Relaxed),
        });
    if let Ok(serviced) = serviced {
        OVERFLOWS.fetch_add(serviced.overflows, Ordering::Relaxed);
    }
}

/// The handler of the profile timer's interrupt.
fn timer_interrupt() {
    PROFILES.timer_interrupt(&Frame { pc: 0x1009, process: ProcessId::new(7) });
}

static OVERFLOWS: AtomicU32 = AtomicU32::new(0);
/// Those of opened events.
static PERIODS: AtomicU32 = AtomicU32::new(0);

/// Opens events of each kind and starts them: with a period and a total, and only counted, on a fixed counter.
fn open<S: EventSource, P: Platform>(
    unit: &CounterUnit,
    counters: &mut CounterSession<'_, S, (Msr, P)>,
) -> Result<(), CounterError> {
    let raw = Event::raw(EventSelect::from_bits(0x01D1)).with_total().rotating();
    let instructions = Event::generic(GenericEvent::Instructions);
    for event in [raw.every(1 << 40), instructions, raw.every(0x1000).tagged(7)] {
        let event = counters.open(unit, &[event])?;
        counters.enable(event, 0)?;
    }
    Ok(())
}

/// Profiles everything, and raises the interrupts: the overflows of `status`, in the bits of IA32_PERF_GLOBAL_STATUS,
/// with a register that faults meanwhile (0: none). Returns the deepest stack of a handler, or the number of the
/// failed step.
fn interrupt<I: EventSource<Processor = Snapshot>>(
    mut session: Session<'_, I, (Msr, Apic)>,
    performance_interrupt: fn(),
    status: u64,
    faulty: u32,
) -> Result<usize, i32> {
    let mut hardware = ThisProcessor::new(&mut session, ProcessorNumber::from_index(0));
    let object = |source, process| {
        let request = BasicProfile {
            process,
            base: 0x1000,
            size: 0x40,
            bucket_log2: 2,
            buffer: &BUFFER,
            source,
            affinity: None,
        };
        ProfileObject::basic(Rules::LATEST, request, &hardware).map_err(|_| 3)
    };
    let timed = object(KProfileSource::TIME, None)?;
    let [cycles, issues, branches, mispredictions] =
        SOURCES.map(|source| object(source, ProcessId::new(7)));
    let [cycles, issues, branches, mispredictions] = [cycles?, issues?, branches?, mispredictions?];
    let traced = ProfileObject::callback(Rules::LATEST, SOURCES[0], &TRACE).map_err(|_| 4)?;
    let objects = [&timed, &cycles, &issues, &branches, &mispredictions, &traced];
    let mut started = Ok(());
    for object in objects {
        // SAFETY: the objects are stopped below, before they go out of scope; what they count in is
        // static. A failing stop could only be one of the hardware, which stops the object all the same.
        started = started.and(unsafe { PROFILES.start_borrowed(object, &mut hardware) });
    }
    if let Some(register) = register(0x38E) {
        register.store(status, Ordering::Relaxed);
    }
    FAULTY.store(faulty, Ordering::Relaxed);
    let deepest = stack::depth_of(&mut || performance_interrupt());
    let deepest = deepest.max(stack::depth_of(&mut || timer_interrupt()));
    FAULTY.store(0, Ordering::Relaxed);
    for object in objects {
        let _ = PROFILES.stop(object, &mut hardware);
    }
    let shut_down = session.shut_down();
    started.map_err(|_| 5)?;
    // A counter that faulted stays so.
    if faulty == 0 { shut_down.map_err(|_| 6).map(|()| deepest) } else { Ok(deepest) }
}

/// Returns the deepest stack of all paths of the handlers: with sources alone, and with opened events of a machine.
fn measure(machine: &'static Machine, emon: &'static Emon) -> Result<[usize; 2], i32> {
    let mut deepest = [0; 2];
    for status in [0, 1, 0xF, 0xFF | 0x7 << 32] {
        for faulty in [0, 0x38E, 0x38F, 0x390, 0x4C1, 0xC1, 0x186, 0x309] {
            let taken = Session::take(emon, &snapshot(), CounterSet::GENERAL, (Msr, Apic), &MEMORY)
                .map_err(|_| 2)?;
            let depth = interrupt(taken, performance_interrupt, status & 0xF, faulty)?;
            deepest[0] = deepest[0].max(depth);
            let both = Events::new(machine, &EVENTS);
            let (all, memory) = (CounterSet::ALL, &COUNTERS_OF_EVENTS);
            let mut taken =
                Session::take(both, &snapshot(), all, (Msr, Apic), memory).map_err(|_| 8)?;
            open(EventSource::unit(machine), taken.counters_mut()).map_err(|_| 9)?;
            let depth = interrupt(taken, interrupt_of_events, status, faulty)?;
            deepest[1] = deepest[1].max(depth);
        }
    }
    let counted = BUFFER.get(2).map_or(0, |bucket| bucket.load(Ordering::Relaxed));
    let records = RINGS.first().map(TraceRing::drain).map_or(0, Iterator::count);
    // The profiles were hit, the ring filled, and overflows seen: the measurement covered the intended paths.
    let [overflows, periods] = [&OVERFLOWS, &PERIODS].map(|count| count.load(Ordering::Relaxed));
    let meant = counted > 21 && records == 2 && overflows > 4 && periods > 4;
    if meant { Ok(deepest) } else { Err(7) }
}

/// Captures the processor's CPUID, with leaf 0x0A of a Skylake without its second thread, so that every machine has it.
fn snapshot() -> Snapshot {
    Snapshot::capture(|leaf: u32, subleaf: u32| {
        let own = core::arch::x86_64::__cpuid_count(leaf, subleaf);
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            0x0A => (0x0730_0804, 0, 0, 0x603),
            _ => (own.eax, own.ebx, own.ecx, own.edx),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    })
}

extern "C" fn main() -> i32 {
    // SAFETY: it has not been read yet.
    unsafe {
        *MACHINE.0.get() = Some(Machine::detect(&snapshot()));
        *EMON.0.get() = Emon::detect(&snapshot()).ok();
    }
    let (Some(machine), Some(emon)) = (machine(), emon()) else { return 1 };
    match measure(machine, emon) {
        Ok([of_sources, of_events]) => {
            print("deepest interrupt stack, bytes: ", of_sources);
            print("the same beside opened events of a machine: ", of_events);
            print("state of a processor with 8 counters, bytes: ", STATE);
            let exceeds = [
                of_sources > STACK_LIMIT,
                of_events > STACK_LIMIT_OF_EVENTS,
                STATE > STATE_LIMIT,
                !control_path_fits(machine),
            ];
            exceeds
                .into_iter()
                .enumerate()
                .fold(0, |all, (bit, is)| all | i32::from(is) << (bit + 4))
        }
        Err(what) => what,
    }
}

/// Measures the operations of the control path, and returns whether each keeps within its limit.
fn control_path_fits(machine: &'static Machine) -> bool {
    let covered = control::measure(machine, &snapshot()).is_some();
    print("operations of the control path, all of them (1) or not: ", covered.into());
    control::OPERATIONS.iter().fold(covered, |fits, operation| {
        write(operation.name);
        print(", bytes of stack: ", operation.deepest());
        fits && operation.deepest() <= operation.limit
    })
}

fn print(what: &str, number: usize) {
    let digit = |number: usize| b'0' + (number % 10) as u8;
    let digits = [digit(number / 1000), digit(number / 100), digit(number / 10), digit(number)];
    for text in [what.as_bytes(), &digits, b"\n"] {
        write_bytes(text);
    }
}

fn write(text: &str) {
    write_bytes(text.as_bytes());
}

fn write_bytes(text: &[u8]) {
    // SAFETY: the system call `write` reads the bytes of a slice.
    unsafe {
        asm!(
            "syscall",
            inout("rax") 1usize => _,
            in("rdi") 1usize,
            in("rsi") text.as_ptr(),
            in("rdx") text.len(),
            out("rcx") _,
            out("r11") _,
        );
    }
}
