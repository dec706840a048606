//! The memory of profiles, and the stack use of starting and stopping them, in the debug build in which tests run.
//!
//! Each operation runs on a painted stack of its own; the test counts the paint left at its bottom. The same program
//! always uses the same bytes, so the result does not depend on the machine's load.
//!
//! The tests measure the calls of a kernel: `Profiles`, `ThisProcessor` and a real session of a driver, all compiled
//! without optimization. The embedder's part is minimal, so that its frames do not count as the library's: the
//! registers are an array, and the platform does nothing. (The mock of `pmu-virt` and the tests' register file record
//! each access; their frames are deeper than those of the code under test.)
#![cfg(target_arch = "x86_64")]

use core::arch::asm;
use core::cell::Cell;
use core::convert::Infallible;

use pmu_core::access::{CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate};
use pmu_core::error::PlatformError;
use pmu_core::frame::ProcessorNumber;
use pmu_core::interval::Interval;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{InterfaceError, KProfileSource, Session};
use pmu_core::{CounterSet, Platform};
use pmu_intel::Emon;
use pmu_kprofile::hardware::ThisProcessor;
use pmu_kprofile::{Affinity, BasicProfile, ProfileHardware, ProfileObject, Profiles, Rules};
use pmu_tests::kprofile::{REFUSAL, buffer, leak, process, request, source};

/// Bytes that an operation may use.
const LIMIT: usize = 8 * 1024;
const TIME: KProfileSource = KProfileSource::TIME;

/// Registers from IA32_PMC0 (0xC1), IA32_PERFEVTSEL0 (0x186) and IA32_PERF_GLOBAL_STATUS (0x38E) on.
#[derive(Default)]
struct Registers([[Cell<u64>; 4]; 3]);

impl Registers {
    fn register(&self, number: u32) -> &Cell<u64> {
        match number {
            0xC1..0xC5 => &self.0[0][number as usize - 0xC1],
            0x4C1..0x4C5 => &self.0[0][number as usize - 0x4C1],
            0x186..0x18A => &self.0[1][number as usize - 0x186],
            _ => &self.0[2][(number as usize).wrapping_sub(0x38E) % 4],
        }
    }
}

impl RegisterBackend for Registers {
    type Error = Infallible;
    fn read(&self, address: RegisterAddress) -> Result<u64, Infallible> {
        Ok(self.register(address.get()).get())
    }
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), Infallible> {
        self.register(address.get()).set(value);
        Ok(())
    }
    fn read_counter(&self, index: CounterIndex) -> Result<u64, Infallible> {
        Ok(self.0[0][index.get() as usize].get())
    }
    fn update(&self, update: RegisterUpdate) -> Result<u64, Infallible> {
        let register = self.register(update.register());
        let found = register.get();
        register.set(update.apply(found).unwrap_or(found));
        Ok(found)
    }
}

struct NoPlatform;

impl Platform for NoPlatform {
    fn unmask_performance_interrupt(&self) {}
    fn mask_performance_interrupt(&self) {}
    fn start_profile_timer(&self, _: Interval) -> Result<(), PlatformError> {
        Ok(())
    }
    fn stop_profile_timer(&self) {}
}

/// Calls a function on a painted stack, and returns the number of bytes written there.
fn depth_of<F: FnOnce()>(function: F) -> usize {
    const SIZE: usize = 1 << 20;
    const PAINT: u64 = 0xA5A5_5A5A_C3C3_3C3C;
    extern "C" fn call<F: FnOnce()>(function: *mut Option<F>) {
        // SAFETY: it points to the one below, which lives until this returns.
        if let Some(function) = unsafe { (*function).take() } {
            function();
        }
    }
    let mut stack = vec![PAINT; SIZE / size_of::<u64>()];
    let mut function = Some(function);
    // SAFETY: (1) `call` runs on a stack of its own, from its 16-byte aligned top; (2) it returns to this one, whose
    // address is kept in a register that a callee preserves; (3) it does not unwind: it is `extern "C"`.
    unsafe {
        let top = stack.as_mut_ptr_range().end;
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {call}",
            "mov rsp, r12",
            top = in(reg) top as usize & !15,
            call = in(reg) call::<F> as extern "C" fn(*mut Option<F>),
            in("rdi") &raw mut function,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    assert!(function.is_none(), "it was not called");
    let painted = stack.iter().take_while(|word| **word == PAINT).count();
    SIZE - painted * size_of::<u64>()
}

/// Runs an operation, checks its stack use against the limit, and returns its result.
#[track_caller]
fn within_limit<R>(what: &str, operation: impl FnOnce() -> R) -> R {
    let mut answer = None;
    let depth = depth_of(|| answer = Some(operation()));
    println!("{what}: {depth} bytes of stack");
    assert!(depth <= LIMIT, "{what} uses {depth} bytes of stack; {LIMIT} are the limit");
    assert!(depth > 256, "{what} was not measured");
    answer.expect("it returned")
}

fn object(
    from: KProfileSource,
    affinity: Option<Affinity>,
    hardware: &impl ProfileHardware,
) -> &'static ProfileObject<'static> {
    let asked = BasicProfile { source: from, process: process(7), affinity, ..request(buffer(16)) };
    leak(ProfileObject::basic(Rules::LATEST, asked, hardware).unwrap())
}

/// Takes every path through a start and a stop, with lists of some length.
fn through_a_session<const N: usize>(lists: &'static Profiles<N, 1>) {
    let (emon, registers) = (Emon::declared(), Registers::default());
    let memory: CounterMemory<[CounterSlot; 4]> = CounterMemory::new();
    let processor = pmu_tests::intel_processor(1, 4);
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&registers, NoPlatform), &memory)
            .unwrap();
    let mut hardware = ThisProcessor::new(&mut session, ProcessorNumber::default());
    for from in [TIME, KProfileSource::BRANCH_MISPREDICTIONS] {
        // Each source alone, beside an object of the same source, and beside one of another.
        let objects = [from, from, KProfileSource::TOTAL_CYCLES]
            .map(|from| object(from, Some(Affinity::ALL), &hardware));
        for object in objects {
            let start = || lists.start(object, &mut hardware);
            within_limit(&format!("start of {} on lists for {N}", object.source()), start).unwrap();
        }
        let again = || lists.start(objects[0], &mut hardware);
        within_limit("a start that is refused", again).unwrap_err();
        for object in objects {
            let stop = || lists.stop(object, &mut hardware);
            within_limit(&format!("stop of {} on lists for {N}", object.source()), stop).unwrap();
        }
    }
    // As many sources as there are counters, and one more.
    let sources = [0x19, 0x1A, 0x1B, 0x1C, 0x1D].map(source);
    let objects = sources.map(|from| object(from, None, &hardware));
    for object in &objects[..4] {
        lists.start(object, &mut hardware).unwrap();
    }
    let start = || lists.start(objects[4], &mut hardware);
    within_limit("a start that the hardware refuses", start).unwrap_err();
    let end = || lists.stop_process(process(7).unwrap(), &mut hardware);
    within_limit("the end of a process", end).unwrap();
    session.shut_down().unwrap();
}

#[test]
fn start_and_stop_of_a_debug_build_fit_8_kib_of_stack() {
    static SMALL: Profiles<8, 1> = Profiles::new();
    static LARGE: Profiles<1024, 1> = Profiles::new();
    through_a_session(&SMALL);
    through_a_session(&LARGE);
}

/// The hardware of many processors, which does nothing.
struct Hardware(Affinity);

impl ProfileHardware for Hardware {
    fn this_processor(&self) -> ProcessorNumber {
        ProcessorNumber::default()
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        self.0
    }
    fn supports(&self, _: KProfileSource) -> bool {
        true
    }
    fn start(&mut self, on: ProcessorNumber, _: KProfileSource) -> Result<(), InterfaceError> {
        if on.index() == 1999 { Err(REFUSAL) } else { Ok(()) }
    }
    fn stop(&mut self, _: ProcessorNumber, _: KProfileSource) -> Result<(), InterfaceError> {
        Ok(())
    }
}

/// The number of processors must not matter.
#[test]
fn following_processors_in_a_debug_build_fits_8_kib_of_stack() {
    static LISTS: Profiles<64, 2048> = Profiles::new();
    let mut hardware = Hardware(Affinity::first(1000));
    let objects = [0x19, 0x1A].map(|from| object(source(from), Some(Affinity::ALL), &hardware));
    for object in objects {
        within_limit("start on 1,000 processors", || LISTS.start(object, &mut hardware)).unwrap();
    }
    hardware.0 = Affinity::ALL;
    let update = || LISTS.update_processors(&mut hardware);
    within_limit("update_processors", update).unwrap_err();
    let restart = || LISTS.restart_processor(ProcessorNumber::from_index(70), &mut hardware);
    within_limit("restart_processor", restart).unwrap();
    let other = object(source(0x1B), None, &hardware);
    let start = || LISTS.start(other, &mut hardware);
    within_limit("a start that is undone on 1,999 processors", start).unwrap_err();
    for object in objects {
        within_limit("stop on 2,047 processors", || LISTS.stop(object, &mut hardware)).unwrap();
    }
}

/// The README's figures.
#[test]
fn lists_take_512_bytes_for_each_object_and_64_for_each_processor() {
    let of_objects = [8, 64, 1024].map(|n| 512 * n);
    let by_objects = [
        size_of::<Profiles<8, 64>>(),
        size_of::<Profiles<64, 64>>(),
        size_of::<Profiles<1024, 64>>(),
    ];
    for (size, of_objects) in by_objects.into_iter().zip(of_objects) {
        // The remainder is the lists' own: a few words, and their alignment.
        let own = size - of_objects - 64 * 64;
        assert!(own <= 512, "{size} bytes, of which {own} are unowned");
    }
    let more = size_of::<Profiles<64, 65>>() - size_of::<Profiles<64, 64>>();
    assert_eq!(more, 64);
    let object = size_of::<ProfileObject<'_>>();
    // Two sets of processors, and the other members.
    let sets = 2 * size_of::<Affinity>();
    assert!((sets..sets + 128).contains(&object), "{object} bytes");
    assert_eq!(sets, 512);
}
