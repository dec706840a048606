//! A sketch of RISC-V's counters by the SBI's PMU extension: what a vendor's crate for them would consist of. Registers
//! are calls of the firmware, a counter gets its value as it starts, and an event has 20 bits.
//!
//! Read first: RISC-V Supervisor Binary Interface Specification, "Performance Monitoring Unit Extension".

use core::cell::{Cell, RefCell};
use core::sync::atomic::AtomicU32;

use pmu::core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu::core::frame::PlainFrame;
use pmu::core::profile::{ProfileSource, ProfileSources, SourceIndex, SourceTable};
use pmu::core::registers::{
    CounterBank, CounterLayout, EventSelect, GlobalRegisters, SelectLayout,
};
use pmu::core::{CounterSet, CounterUnit, Event, EventSource, GenericEvent};
use pmu::{Architecture, Kernel, Pmu, PmuSample};

const COUNTERS: usize = 4;

/// The firmware, and the counters that it drives.
#[derive(Debug, Default)]
struct Firmware {
    counters: [Counter; COUNTERS],
    is_unmasked: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    /// Type of the event in bits 19:16, code in bits 15:0.
    event: u32,
    flags: u64,
    is_started: bool,
    value: u64,
    overflowed: bool,
}

const SET_UINH: u64 = 1 << 5;
const SET_SINH: u64 = 1 << 6;

impl Firmware {
    /// `sbi_pmu_counter_config_matching`, for one counter.
    fn config(&mut self, counter: usize, event: u32, flags: u64) {
        assert!(!self.counters[counter].is_started, "it is in use");
        (self.counters[counter].event, self.counters[counter].flags) = (event, flags);
    }

    /// `sbi_pmu_counter_start`, with an initial value or without. The overflow is cleared.
    fn start(&mut self, counter: usize, value: Option<u64>) {
        let of = &mut self.counters[counter];
        assert!(!of.is_started, "already started");
        (of.is_started, of.overflowed) = (true, false);
        of.value = value.unwrap_or(of.value);
    }

    /// `sbi_pmu_counter_stop`.
    fn stop(&mut self, counter: usize) {
        self.counters[counter].is_started = false;
    }

    fn happen(&mut self, event: u32, user: bool, times: u64) -> u64 {
        let inhibited = if user { SET_UINH } else { SET_SINH };
        let counts =
            |of: &&mut Counter| of.is_started && of.event == event && of.flags & inhibited == 0;
        let room = |of: &mut Counter| u128::from(of.value.wrapping_neg().wrapping_sub(1)) + 1;
        let left = self.counters.iter_mut().filter(counts).map(room).min();
        let happened = left.unwrap_or(u128::MAX).min(times.into()) as u64;
        for of in self.counters.iter_mut().filter(counts) {
            let (value, overflowed) = of.value.overflowing_add(happened);
            of.value = value;
            of.overflowed |= overflowed;
        }
        happened
    }

    fn is_interrupted(&self) -> bool {
        self.is_unmasked && self.counters.iter().any(|counter| counter.overflowed)
    }
}

// The vendor's crate. The firmware takes a counter's event as it configures it, and the value as it starts it: so the
// backend keeps what the driver wrote, and calls the firmware when a counter is to count.

const SELECT: u32 = 0x10;
const VALUE: u32 = 0x20;
const ENABLED: u32 = 0x30;
const OVERFLOWED: u32 = 0x31;
const ACKNOWLEDGE: u32 = 0x32;

const USER: u64 = 1 << 16;
const KERNEL: u64 = 1 << 17;
const ENABLE: u64 = 1 << 22;
/// The event's SBI type, in the bits of x86's counter mask. The event's SBI code is in bits 15:0.
const TYPE: u64 = 0xF << 24;

const CYCLES: u64 = 1;
const INSTRUCTIONS: u64 = 2;
/// Type 1: reads of the first level's data cache that miss.
const L1D_READ_MISS: u64 = 1 << 24 | 1;

static BANK: CounterBank = CounterBank {
    select: SELECT,
    value: VALUE,
    step: 1,
    indexed: 0,
    sign_extended: false,
    counts_every_number: false,
};
// SAFETY: the backend takes any value of these registers.
static GLOBAL: GlobalRegisters = unsafe {
    GlobalRegisters {
        control: RegisterAddress::new(ENABLED),
        status: RegisterAddress::new(OVERFLOWED),
        acknowledge: RegisterAddress::new(ACKNOWLEDGE),
        stop_while_serviced: false,
        loaded_for_guests: false,
        frozen: 0,
        freeze: None,
    }
};
static NAMED: [u64; GenericEvent::COUNT] = [CYCLES, INSTRUCTIONS, 0, 0, 0, 0, 0];

/// The counters that the firmware drives.
struct Counters;

// SAFETY: the backend takes any value of the registers in `BANK`.
unsafe impl CounterLayout for Counters {
    fn counters(&self) -> CounterSet {
        CounterSet::from_bits((1 << COUNTERS) - 1)
    }
    fn general(&self) -> (&'static CounterBank, u8) {
        (&BANK, 64)
    }
    fn global(&self) -> Option<&'static GlobalRegisters> {
        Some(&GLOBAL)
    }
}

impl SelectLayout for Counters {
    fn event_bits(&self) -> u64 {
        0xFFFF | TYPE | USER | KERNEL
    }
    fn generic_events(&self) -> (&'static [u64; GenericEvent::COUNT], u8) {
        (&NAMED, u8::MAX)
    }
}

static SOURCES: [ProfileSource; 1] =
    [ProfileSource::new(0, "ProfileTime", EventSelect::from_bits(0))];
static INDEX: SourceIndex<4> = SourceIndex::new(&SOURCES);
static TABLE: SourceTable = SourceTable::new(&SOURCES, &INDEX);

#[derive(Debug)]
struct Board(ProfileSources<[AtomicU32; SOURCES.len()]>);

// SAFETY: nothing changes the field, all processors are alike, and there are no opened events.
unsafe impl EventSource for Board {
    type Processor = ();
    fn profile_sources(&self) -> &ProfileSources {
        &self.0
    }
    fn table(&self) -> &'static SourceTable {
        &TABLE
    }
    fn unit_of(&self, _: &()) -> CounterUnit {
        *self.unit()
    }
    type Facility = ();
    fn facility(&self) {}
}

enum Sbi {}

impl Architecture for Sbi {
    type Processor = ();
    type Machine = Board;
    type Facilities = ();
    const LEVEL_INTERRUPT: bool = true;
    fn detect(_: &()) -> Board {
        Board(ProfileSources::new("SBI", CounterUnit::of(&Counters)))
    }
}

/// Selects and enable word of the executing processor, as the driver wrote them. In a kernel, each access is made with
/// interrupts off.
#[derive(Debug, Default)]
struct Written {
    selects: [u64; COUNTERS],
    enabled: u64,
}

thread_local! {
    static FIRMWARE: RefCell<Firmware> = RefCell::default();
    static WRITTEN: RefCell<Written> = RefCell::default();
    static PMU: Cell<Option<&'static Pmu<SbiKernel, 1>>> = const { Cell::new(None) };
}

struct Calls;

impl Calls {
    /// Lets a counter count what was written, or stand still.
    fn settle(firmware: &mut Firmware, written: &Written, counter: usize) {
        let select = written.selects[counter];
        let is_started = firmware.counters[counter].is_started;
        if is_started {
            firmware.stop(counter);
        }
        if select & ENABLE != 0 && written.enabled >> counter & 1 != 0 {
            let inhibit = |mode, flag| if select & mode == 0 { flag } else { 0 };
            let event = (select & TYPE) >> 24 << 16 | select & 0xFFFF;
            let flags = inhibit(USER, SET_UINH) | inhibit(KERNEL, SET_SINH);
            firmware.config(counter, event as u32, flags);
            firmware.start(counter, None);
        }
    }
}

impl RegisterBackend for Calls {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        WRITTEN.with_borrow(|written| {
            FIRMWARE.with_borrow(|firmware| match address.get() {
                register @ SELECT..VALUE => Ok(written.selects[(register - SELECT) as usize]),
                register @ VALUE..ENABLED => {
                    Ok(firmware.counters[(register - VALUE) as usize].value)
                }
                ENABLED => Ok(written.enabled),
                OVERFLOWED => Ok(firmware
                    .counters
                    .iter()
                    .rev()
                    .fold(0, |bits, counter| bits << 1 | u64::from(counter.overflowed))),
                _ => Err(AccessErrorKind::Fault),
            })
        })
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        WRITTEN.with_borrow_mut(|written| {
            FIRMWARE.with_borrow_mut(|firmware| {
                match address.get() {
                    register @ SELECT..VALUE => {
                        let counter = (register - SELECT) as usize;
                        written.selects[counter] = value;
                        Self::settle(firmware, written, counter);
                    }
                    register @ VALUE..ENABLED => {
                        let counter = (register - VALUE) as usize;
                        // A counter that runs goes on with the value. One that stands still keeps it.
                        let runs = firmware.counters[counter].is_started;
                        if runs {
                            firmware.stop(counter);
                        }
                        firmware.start(counter, Some(value));
                        if !runs {
                            firmware.stop(counter);
                        }
                    }
                    ENABLED => {
                        written.enabled = value;
                        (0..COUNTERS).for_each(|counter| Self::settle(firmware, written, counter));
                    }
                    // A start clears the overflow.
                    ACKNOWLEDGE => {
                        for counter in (0..COUNTERS).filter(|counter| value >> counter & 1 != 0) {
                            let runs = firmware.counters[counter].is_started;
                            firmware.stop(counter);
                            firmware.start(counter, None);
                            if !runs {
                                firmware.stop(counter);
                            }
                        }
                    }
                    _ => return Err(AccessErrorKind::Fault),
                }
                Ok(())
            })
        })
    }

    fn read_counter(&self, _: CounterIndex) -> Result<u64, AccessErrorKind> {
        Err(AccessErrorKind::Fault)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        // SAFETY: the driver's own register.
        let register = unsafe { RegisterAddress::new(update.register()) };
        let found = self.read(register)?;
        update.apply(found).map_or(Ok(()), |value| self.write(register, value))?;
        Ok(found)
    }
}

struct SbiKernel;

pmu_tests::sampling!(SbiKernel);

// SAFETY: each test has one thread, and a `Pmu` of its own.
unsafe impl Kernel for SbiKernel {
    type Registers = Calls;
    type Architecture = Sbi;
    fn registers() -> Calls {
        Calls
    }
    fn this_processor() -> usize {
        0
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
    fn set_interrupt_masked(masked: bool) {
        FIRMWARE.with_borrow_mut(|firmware| firmware.is_unmasked = !masked);
    }
    fn interrupt(_: usize) {}
    fn sampled(sample: &PmuSample<'_, Self>) {
        sampled(sample);
    }
}

/// Lets an event happen; its select says which. Returns the samples.
fn happen(event: u64, user: bool, times: u64) -> u32 {
    let (mut left, mut samples) = (times, 0);
    while left != 0 {
        let event = (event >> 24 << 16 | event & 0xFFFF) as u32;
        left -= FIRMWARE.with_borrow_mut(|firmware| firmware.happen(event, user, left));
        while FIRMWARE.with_borrow(Firmware::is_interrupted) {
            let frame = PlainFrame::new(0x8020_0000, if user { 3 } else { 0 }, 0, 0);
            let _ = sampling(|_| samples += 1, || PMU.get().unwrap().interrupt(&frame));
        }
    }
    samples
}

#[test]
fn an_event_of_20_bits_is_counted_and_sampled_by_calls_of_the_firmware() {
    let pmu: &Pmu<SbiKernel, 1> = Box::leak(Box::new(Pmu::new()));
    PMU.set(Some(pmu));
    assert_eq!(pmu.processor_up(&()).unwrap().len(), COUNTERS);
    let misses = Event::raw(EventSelect::from_bits(L1D_READ_MISS));
    let instructions = Event::generic(GenericEvent::Instructions);
    let events = [misses, misses.user_only(), instructions.kernel_only()];
    let counted = pmu.count(&events, || {
        happen(L1D_READ_MISS, true, 70);
        happen(L1D_READ_MISS, false, 5);
        happen(L1D_READ_MISS & 0xFFFF, true, 1_000); // type 0: cycles
        happen(INSTRUCTIONS, false, 300);
        happen(INSTRUCTIONS, true, 20);
    });
    assert_eq!(counted.unwrap().map(|count| count.value), [75, 70, 300]);
    let sampling = pmu.start(&misses.every(10_000).with_total()).unwrap();
    let counting = pmu.start(&Event::generic(GenericEvent::Cycles)).unwrap();
    assert_eq!(happen(L1D_READ_MISS, true, 123_456), 12);
    assert_eq!(happen(CYCLES, true, 1 << 40), 0);
    let read = |event| pmu.read(event).unwrap().value;
    assert_eq!([read(sampling), read(counting)], [123_456, 1 << 40]);
    for event in [sampling, counting] {
        pmu.close(event).unwrap();
    }
    pmu.processor_down().unwrap();
    assert!(
        FIRMWARE
            .with_borrow(|firmware| firmware.counters.iter().all(|counter| !counter.is_started))
    );
}
