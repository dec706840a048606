//! A vendor's crate in small: `Pmu` counts, samples and profiles on a processor that is unlike x86, of which neither
//! the core nor `pmu` knows.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pmu::core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu::core::frame::PlainFrame;
use pmu::core::profile::{KProfileSource, ProfileSource, ProfileSources, SourceIndex, SourceTable};
use pmu::core::registers::{
    CounterBank, CounterLayout, EventSelect, FixedCounters, GlobalRegisters, SelectLayout,
};
use pmu::core::{CounterSet, CounterUnit, Event, EventSource, GenericEvent};
use pmu::facilities::SoftwareEvents;
use pmu::{Architecture, Kernel, Pmu, PmuSample};

use crate::toy_facility::{AddressLatches, LATCHED, LATCHING};
use crate::toy_hardware::{
    BRANCHES, COUNTERS, CYCLE_COUNTER, CYCLES, INSTRUCTIONS, Identification, NOT_KERNEL, NOT_USER,
    Register, Toy,
};

// The vendor's crate: registers by numbers of its own, and their translation.

const SELECT: u32 = 0x10;
const COUNT: u32 = 0x20;
const CYCLE_CONTROL: u32 = 0x30;
const CYCLE_COUNT: u32 = 0x40;
const CONTROL: u32 = 0x50;
const STATUS: u32 = 0x51;
const ACKNOWLEDGE: u32 = 0x52;
const END: u32 = LATCHED + COUNTERS as u32;

// Of an event select, and of the four bits by which a counter of one event is controlled.
const USER: u64 = 1 << 16;
const KERNEL: u64 = 1 << 17;
const INTERRUPT: u64 = 1 << 20;
const ENABLED: u64 = 1 << 22;
const CYCLE_KERNEL: u64 = 1 << 0;
const CYCLE_USER: u64 = 1 << 1;
const CYCLE_INTERRUPT: u64 = 1 << 3;
/// The counter of cycles in the words with a bit per counter.
const FIXED_0: u64 = 1 << 32;

static BANK: CounterBank = CounterBank {
    select: SELECT,
    value: COUNT,
    step: 1,
    indexed: 0,
    sign_extended: false,
    counts_every_number: false,
};
static FIXED: FixedCounters = FixedCounters {
    control: CYCLE_CONTROL,
    value: CYCLE_COUNT,
    step: 1,
    events: {
        let mut events = [0; _];
        events[0] = CYCLES as u16;
        events
    },
};
// SAFETY: the backend takes any value of these registers.
static GLOBAL: GlobalRegisters = unsafe {
    GlobalRegisters {
        control: RegisterAddress::new(CONTROL),
        status: RegisterAddress::new(STATUS),
        acknowledge: RegisterAddress::new(ACKNOWLEDGE),
        stop_while_serviced: false,
        loaded_for_guests: false,
        frozen: 0,
        freeze: None,
    }
};
/// In the order of `GenericEvent`.
static NAMED: [u64; GenericEvent::COUNT] =
    [CYCLES as u64, INSTRUCTIONS as u64, 0, 0, 0, BRANCHES as u64, 0];

// SAFETY: (1) the backend takes any value of the registers in `BANK` and `FIXED`; (2) the counters are those of the
// hardware.
unsafe impl CounterLayout for Identification {
    fn counters(&self) -> CounterSet {
        CounterSet::from_bits((1 << self.counters) - 1) | CounterSet::fixed(1)
    }
    fn general(&self) -> (&'static CounterBank, u8) {
        (&BANK, 32)
    }
    fn fixed(&self) -> Option<(&'static FixedCounters, u8)> {
        Some((&FIXED, 64))
    }
    fn global(&self) -> Option<&'static GlobalRegisters> {
        Some(&GLOBAL)
    }
}

impl SelectLayout for Identification {
    fn event_bits(&self) -> u64 {
        0xFF | USER | KERNEL
    }
    fn generic_events(&self) -> (&'static [u64; GenericEvent::COUNT], u8) {
        (&NAMED, u8::MAX)
    }
}

static SOURCES: [ProfileSource; 2] = [
    ProfileSource::new(0, "ProfileTime", EventSelect::from_bits(0)),
    ProfileSource::new(
        0x13,
        "ProfileTotalCycles",
        EventSelect::from_bits(CYCLES as u64 | USER | KERNEL),
    ),
];
static INDEX: SourceIndex<4> = SourceIndex::new(&SOURCES);
static TABLE: SourceTable = SourceTable::new(&SOURCES, &INDEX);

#[derive(Debug)]
pub(crate) struct Board(ProfileSources<[AtomicU32; SOURCES.len()]>);

// SAFETY: nothing changes the field, another unit is by its identification, and there are no opened events.
unsafe impl EventSource for Board {
    type Processor = Identification;
    fn profile_sources(&self) -> &ProfileSources {
        &self.0
    }
    fn table(&self) -> &'static SourceTable {
        &TABLE
    }
    fn unit_of(&self, processor: &Identification) -> CounterUnit {
        CounterUnit::of(processor)
    }
    type Facility = ();
    fn facility(&self) {}
}

pub(crate) enum Toys {}

impl Architecture for Toys {
    type Processor = Identification;
    type Machine = Board;
    type Facilities = (AddressLatches, SoftwareEvents);
    const LEVEL_INTERRUPT: bool = true;
    fn detect(first: &Identification) -> Board {
        Board(ProfileSources::new("Toy", CounterUnit::of(first)))
    }
}

pub(crate) struct Registers;

impl Registers {
    /// Bits per counter in the processor's order, and in the vendor's words.
    fn bits(word: u64) -> u64 {
        let fixed = if word & FIXED_0 != 0 { u64::from(CYCLE_COUNTER) } else { 0 };
        word & 0xF | fixed
    }
    fn word(bits: u64) -> u64 {
        let fixed = if bits & u64::from(CYCLE_COUNTER) != 0 { FIXED_0 } else { 0 };
        bits & 0xF | fixed
    }
    fn set_interrupt(bit: u32, to: bool) {
        let register = match to {
            true => Register::InterruptEnableSet,
            false => Register::InterruptEnableClear,
        };
        toy().write(register, bit.into());
    }
    fn has_interrupt(bit: u32) -> bool {
        toy().read(Register::InterruptEnabled) & u64::from(bit) != 0
    }
    fn excluded(user: bool, kernel: bool) -> u32 {
        (if user { 0 } else { NOT_USER }) | if kernel { 0 } else { NOT_KERNEL }
    }
}

impl RegisterBackend for Registers {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        match INTERRUPTED.take() {
            Some((0, frame)) => drop(PMU.get().unwrap().interrupt(&frame)),
            Some((later, frame)) => INTERRUPTED.set(Some((later - 1, frame))),
            None => {}
        }
        let included = |filter: u64, user, kernel| {
            let filter = filter as u32;
            let bit = |excluded, bit| if filter & excluded == 0 { bit } else { 0 };
            bit(NOT_USER, user) | bit(NOT_KERNEL, kernel)
        };
        match address.get() {
            register @ SELECT..COUNT => {
                let counter = (register - SELECT) as usize;
                let select = toy().read(Register::Select(counter));
                let modes = included(select, USER, KERNEL);
                let interrupt = if Self::has_interrupt(1 << counter) { INTERRUPT } else { 0 };
                let enabled = if modes != 0 { ENABLED } else { 0 };
                Ok(select & 0xFF | modes | interrupt | enabled)
            }
            register @ COUNT..CYCLE_CONTROL => {
                Ok(toy().read(Register::Count((register - COUNT) as usize)))
            }
            CYCLE_CONTROL => {
                let interrupts = Self::has_interrupt(CYCLE_COUNTER);
                let interrupt = if interrupts { CYCLE_INTERRUPT } else { 0 };
                Ok(included(toy().read(Register::CycleFilter), CYCLE_USER, CYCLE_KERNEL)
                    | interrupt)
            }
            CYCLE_COUNT => Ok(toy().read(Register::CycleCount)),
            CONTROL => Ok(Self::word(toy().read(Register::Enabled))),
            STATUS => Ok(Self::word(toy().read(Register::Overflow))),
            register @ LATCHED..END => {
                Ok(toy().read(Register::Latched((register - LATCHED) as usize)))
            }
            _ => Err(AccessErrorKind::Fault),
        }
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        match address.get() {
            register @ SELECT..COUNT => {
                let counter = (register - SELECT) as usize;
                let is_enabled = |mode| value & ENABLED != 0 && value & mode != 0;
                let select =
                    value & 0xFF | u64::from(Self::excluded(is_enabled(USER), is_enabled(KERNEL)));
                toy().write(Register::Select(counter), select);
                Self::set_interrupt(1 << counter, value & INTERRUPT != 0);
            }
            register @ COUNT..CYCLE_CONTROL => {
                toy().write(Register::Count((register - COUNT) as usize), value);
            }
            CYCLE_CONTROL => {
                let filter = Self::excluded(value & CYCLE_USER != 0, value & CYCLE_KERNEL != 0);
                toy().write(Register::CycleFilter, filter.into());
                Self::set_interrupt(CYCLE_COUNTER, value & CYCLE_INTERRUPT != 0);
            }
            CYCLE_COUNT => toy().write(Register::CycleCount, value),
            CONTROL => {
                toy().write(Register::EnableClear, !Self::bits(value));
                toy().write(Register::EnableSet, Self::bits(value));
            }
            ACKNOWLEDGE => toy().write(Register::OverflowClear, Self::bits(value)),
            LATCHING if LATCH_FAULTS.get() => {
                toy().write(Register::Latching, u64::MAX);
                return Err(AccessErrorKind::Fault);
            }
            LATCHING => toy().write(Register::Latching, value),
            _ => return Err(AccessErrorKind::Fault),
        }
        Ok(())
    }

    /// Reads the counter of one event: of the others, `BANK` says that this cannot read them.
    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        match index.get() {
            0x4000_0000 => Ok(toy().read(Register::CycleCount)),
            _ => Err(AccessErrorKind::Fault),
        }
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        // SAFETY: the driver's own register.
        let register = unsafe { RegisterAddress::new(update.register()) };
        let found = self.read(register)?;
        update.apply(found).map_or(Ok(()), |value| self.write(register, value))?;
        Ok(found)
    }
}

// The kernel, of two processors.

pub(crate) const PROCESSORS: usize = 2;
/// Address at which the workload is interrupted.
pub(crate) const PLACE: u64 = 0x40_1000;

thread_local! {
    static TOYS: Cell<Option<&'static [Toy; PROCESSORS]>> = const { Cell::new(None) };
    static PMU: Cell<Option<&'static ToyPmu>> = const { Cell::new(None) };
    static HERE: Cell<usize> = const { Cell::new(0) };
    static NOW: Cell<u64> = const { Cell::new(0) };
    /// The access at which the interrupt comes, and its frame.
    static INTERRUPTED: Cell<Option<(u32, PlainFrame)>> = const { Cell::new(None) };
    /// A write of `LATCHING` faults, and leaves all its bits set.
    pub(crate) static LATCH_FAULTS: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn toy() -> &'static Toy {
    &TOYS.get().unwrap()[HERE.get()]
}

pub(crate) struct ToyKernel;

pmu_tests::sampling!(ToyKernel);

pub(crate) type ToyPmu = Pmu<ToyKernel, PROCESSORS>;

// SAFETY: each test has one thread, and a `Pmu` of its own; processors take turns.
unsafe impl Kernel for ToyKernel {
    type Registers = Registers;
    type Architecture = Toys;
    fn registers() -> Registers {
        Registers
    }
    fn this_processor() -> usize {
        HERE.get()
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
    fn set_interrupt_masked(masked: bool) {
        toy().is_unmasked.set(!masked);
    }
    fn interrupt(processor: usize) {
        on(processor, || PMU.get().unwrap().serve_call());
    }
    fn sampled(sample: &PmuSample<'_, Self>) {
        sampled(sample);
    }
    fn now() -> u64 {
        NOW.get()
    }
}

pub(crate) fn on<R>(processor: usize, act: impl FnOnce() -> R) -> R {
    let before = HERE.replace(processor);
    let result = act();
    HERE.set(before);
    result
}

/// Returns a machine whose processors are up. The first processors have latches of addresses.
pub(crate) fn machine_with(latching: usize) -> &'static ToyPmu {
    let pmu = Box::leak(Box::new(Pmu::new()));
    TOYS.set(Some(Box::leak(Box::default())));
    PMU.set(Some(pmu));
    for processor in 0..PROCESSORS {
        let this = Identification { counters: COUNTERS, latches: processor < latching };
        let counters = on(processor, || pmu.processor_up(&this)).unwrap();
        assert_eq!(counters.len(), COUNTERS + 1, "{counters:?}");
    }
    pmu
}

fn machine() -> &'static ToyPmu {
    machine_with(PROCESSORS)
}

/// Interrupts as long as the line is active.
pub(crate) fn interrupt(user: bool, mut sampled: impl FnMut(&PmuSample<'_, ToyKernel>)) {
    let mut interrupts = 0;
    while toy().is_interrupted() {
        let frame = PlainFrame::new(PLACE, if user { 0x33 } else { 0x10 }, 0, HERE.get());
        let interrupted = sampling(&mut sampled, || PMU.get().unwrap().interrupt(&frame));
        assert_eq!(interrupted.error, None);
        interrupts += 1;
        assert!(interrupts < 3, "the line stays active");
    }
}

/// Executes so many branches, each of four instructions and ten cycles. Each overflow interrupts at once; returns the
/// tags of those of opened events.
fn execute(user: bool, branches: u64) -> Vec<u64> {
    let mut tags = vec![];
    NOW.set(NOW.get() + 10 * branches);
    for (event, each) in [(BRANCHES, 1), (INSTRUCTIONS, 4), (CYCLES, 10)] {
        let mut left = each * branches;
        while left != 0 {
            left -= toy().happen(event, user, left);
            interrupt(user, |event| tags.push(event.tag));
        }
    }
    tags
}

pub(crate) fn shut_down(pmu: &'static ToyPmu) {
    for processor in 0..PROCESSORS {
        on(processor, || {
            pmu.processor_down().unwrap();
            assert!(toy().is_idle(), "processor {processor}: {:x?}", toy());
        });
    }
}

/// Counters of 32 bits wrap, and their counts go on.
#[test]
fn a_pmu_counts_on_registers_that_are_unlike_x86() {
    let pmu = machine();
    let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
    let work = 3_000_000_000;
    let counted = pmu.count(&events, || drop(execute(true, work))).unwrap();
    assert_eq!(counted.map(|count| count.value), [4 * work, 10 * work]);
    // By privilege; the fifth event is on the counter of cycles.
    let of = |event| Event::raw(EventSelect::from_bits(u64::from(event)));
    let events = [
        of(BRANCHES).user_only(),
        of(BRANCHES).kernel_only(),
        of(INSTRUCTIONS),
        of(CYCLES).kernel_only(),
        of(CYCLES),
    ];
    let counted = pmu.count(&events, || {
        execute(true, 700);
        execute(false, 50);
    });
    assert_eq!(counted.unwrap().map(|count| count.value), [700, 50, 3_000, 500, 7_500]);
    assert!(pmu.count(&[of(BRANCHES); 5], || unreachable!()).is_err());
    shut_down(pmu);
}

/// Samples of an event of the processor's, and a frequency that the tick adapts to.
#[test]
fn a_pmu_samples_on_registers_that_are_unlike_x86() {
    let pmu = machine();
    let opened = Event::generic(GenericEvent::Branches).every(10_000).with_total().tagged(7);
    let event = pmu.start(&opened).unwrap();
    let other = pmu.start(&Event::generic(GenericEvent::Cycles).every(300_000).tagged(9)).unwrap();
    let tags = execute(true, 123_456);
    let of = |tag| tags.iter().filter(|found| **found == tag).count();
    assert_eq!((of(7), of(9), tags.len()), (12, 4, 16));
    assert_eq!(pmu.read(event).unwrap().value, 123_456);
    // A suspend keeps what was counted before.
    pmu.processor_suspended().unwrap();
    toy().lose_registers();
    pmu.processor_resumed().unwrap();
    assert_eq!(execute(false, 6_544), [7]);
    assert_eq!(pmu.read(event).unwrap().value, 130_000);
    for event in [event, other] {
        pmu.disable(event).unwrap();
        pmu.close(event).unwrap();
    }
    shut_down(pmu);
}

/// The delivery does not mask the interrupt, but `Pmu` masks a level that it cannot serve. It would stay masked.
#[test]
fn a_level_that_was_masked_while_nothing_served_it_is_unmasked_again() {
    let pmu = machine();
    let event = pmu.start(&Event::generic(GenericEvent::Branches).every(10_000).tagged(7)).unwrap();
    assert_eq!(execute(true, 10_000), [7]);
    let frame = PlainFrame::new(PLACE, 0x33, 0, 0);
    for access in 0..60 {
        pmu.processor_suspended().unwrap();
        INTERRUPTED.set(Some((access, frame)));
        pmu.processor_resumed().unwrap();
        INTERRUPTED.set(None);
        assert!(toy().is_unmasked.get(), "{access}");
    }
    assert_eq!(execute(true, 20_000), [7, 7]);
    pmu.close(event).unwrap();
    shut_down(pmu);
}

/// By an event, and by a source of the vendor's table, on both processors.
#[test]
fn a_pmu_profiles_on_registers_that_are_unlike_x86() {
    let pmu = machine();
    let buckets = [const { AtomicU32::new(0) }; 16];
    let by_event = pmu.profile(
        Event::generic(GenericEvent::Cycles).every(50_000),
        PLACE..PLACE + 64,
        &buckets,
        || (0..PROCESSORS).for_each(|processor| drop(on(processor, || execute(true, 26_000)))),
    );
    assert_eq!(by_event.map(|profile| profile.hits().map(|(_, hits)| hits).sum()), Ok(2 * 5));
    buckets.iter().for_each(|bucket| bucket.store(0, Relaxed));
    let by_source = pmu.profile(KProfileSource::TOTAL_CYCLES, PLACE..PLACE + 64, &buckets, || {
        on(1, || execute(false, 65_536));
    });
    // The interval is 0x1_0000 cycles.
    assert_eq!(by_source.map(|profile| profile.hits().map(|(_, hits)| hits).sum()), Ok(10));
    shut_down(pmu);
}

/// A thread's events go with it to another processor.
#[test]
fn a_thread_counts_on_registers_that_are_unlike_x86() {
    let pmu = machine();
    let mut events = [pmu.thread_event(&Event::generic(GenericEvent::Instructions)).unwrap()];
    for (processor, work) in [(0, 100), (1, 20), (0, 3)] {
        on(processor, || {
            pmu.switch(&mut [], &mut events).unwrap();
            execute(true, work);
            pmu.switch(&mut events, &mut []).unwrap();
            execute(true, 1_000); // another thread's
        });
    }
    assert_eq!(pmu.read_thread(&events[0]).unwrap().value, 4 * 123);
    shut_down(pmu);
}

/// Cycles without a touch.
#[test]
fn a_watchdog_bites_on_registers_that_are_unlike_x86() {
    let pmu = machine();
    pmu.watch(100_000, 3).unwrap();
    let frame = PlainFrame::new(PLACE, 0x10, 0, 0);
    let mut stuck = 0;
    let mut turn = |touches: bool| {
        for _ in 0..5 {
            if touches {
                pmu.touch();
            }
            let mut left = 100_000;
            while left != 0 {
                left -= toy().happen(CYCLES, false, left);
                if toy().is_interrupted() {
                    stuck += u32::from(pmu.interrupt(&frame).is_stuck);
                }
            }
        }
        stuck
    };
    assert_eq!(turn(true), 0);
    assert_eq!(turn(false), 1);
    pmu.unwatch().unwrap();
    shut_down(pmu);
}
