//! Precise records as registers and memory: what claims write is not what the crates' recorder would. Only the decoder
//! is the crates'.
//!
//! Read first: Intel SDM vol. 3B, "PEBS and the Debug Store"; Intel's Architecture Instruction Set Extensions
//! reference, "Architectural PEBS".

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pmu::core::access::RegisterAddress;
use pmu::intel::precise::{PreciseFormat, PreciseRecords, PreciseUnit};
use spin::Mutex;

use crate::check::bench::{BY_NMI, Bench, ENABLED, MASKED, address, read, work, write};
use crate::check::handler;
use crate::demos::loops::COUNTED;
use crate::demos::precise::BRANCHES;
use crate::embedding::cpuid::snapshot;
use crate::embedding::msr::control_msr;
use crate::machine::{apic, clock};

/// SDM vol. 4, table 2-2; "Architectural PEBS" for the last three.
const DS_AREA: u32 = 0x600;
const PEBS_ENABLE: u32 = 0x3F1;
const DATA_CONFIGURATION: u32 = 0x3F2;
const BASE: u32 = 0x3F4;
const INDEX: u32 = 0x3F5;
const CFG_C: u32 = 0x1903;
/// Distance of the registers of two counters from CFG_C on.
const CFG_DISTANCE: u32 = 4;
/// `IA32_PEBS_INDEX`: the offset of the next record, and the bit of a processor that writes records.
const INDEX_OFFSET: u64 = 0x7FF_FFF0;
const INDEX_ENABLED: u64 = 1 << 32;
/// `CFG_C`: the counter writes records.
const CFG_ENABLED: u64 = 1 << 63;
/// Retired branches at privilege level 0; and in an event select: records have the groups of the configuration.
const SELECT: u64 = 0xC4 | 1 << 17 | ENABLED;
const ADAPTIVE: u64 = 1 << 34;

/// Words of the Debug Store's area: base, index, maximum, threshold of the buffer of records, and counter 0's reset.
const AREA_BASE: usize = 4;
const AREA_INDEX: usize = 5;
const AREA_MAXIMUM: usize = 6;
const AREA_THRESHOLD: usize = 7;
const AREA_RESET: usize = 8;
/// Words of the buffer: a page. Core 2 hangs with more.
const WORDS: usize = 512;
/// Size of the buffer in bytes.
pub const CAPACITY: u64 = 8 * WORDS as u64;
/// A distance that no counter passes in a claim's time.
pub const FAR: u64 = 1 << 30;

/// Time to wait for records.
const PATIENCE_MS: u64 = 5_000;
/// Time in which an interrupt would come that is not to come.
const QUIET_MS: u64 = 5;

#[repr(C, align(4096))]
struct Pages {
    area: [AtomicU64; WORDS],
    buffer: [AtomicU64; WORDS],
}

/// Memory that the processor writes to: linear addresses are physical ones.
static PAGES: Pages = Pages {
    area: [const { AtomicU64::new(0) }; WORDS],
    buffer: [const { AtomicU64::new(0) }; WORDS],
};

/// Interrupts of the present trial; and status, index and first counter, as the first of them found them.
static TAKEN: AtomicU64 = AtomicU64::new(0);
static STATUS: AtomicU64 = AtomicU64::new(0);
static FOUND: AtomicU64 = AtomicU64::new(0);
static VALUE: AtomicU64 = AtomicU64::new(0);
/// The interrupt lets the counters go on, if they are not frozen.
static GOES_ON: AtomicBool = AtomicBool::new(false);
static EXPECTED: Mutex<Option<Expected>> = Mutex::new(None);

/// The registers that the interrupt accesses, all of which were accessed before.
#[derive(Clone, Copy)]
struct Expected {
    control: RegisterAddress,
    status: RegisterAddress,
    acknowledge: RegisterAddress,
    /// Bits of the status that the interrupt acknowledges.
    bits: u64,
    value: RegisterAddress,
    is_architectural: bool,
}

/// The precise records of the processor under test.
#[derive(Clone, Copy, Debug)]
pub struct Records<'b> {
    pub bench: &'b Bench,
    pub unit: PreciseUnit,
}

/// A group of records, with its bits in `MSR_PEBS_DATA_CFG` and in CFG_C, and its words in both kinds of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub adaptive: (u64, u64),
    pub architectural: (u64, u64),
}

/// A trial: counters of branches write records of the loop of calls.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// Number of counters, from the first on.
    pub counters: usize,
    /// Branches to the first record of each, and from each record to the next.
    pub first: u64,
    pub period: u64,
    /// Bytes of records at which the processor interrupts.
    pub threshold: u64,
    pub group: Group,
    /// The interrupt lets the counters go on, if they are not frozen.
    pub goes_on: bool,
}

/// The outcome of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Interrupts, and the status at the first.
    pub interrupts: u64,
    pub status: u64,
    /// Bytes of records at the first interrupt, by the index: not below the buffer's size if the index is not in it.
    pub at_interrupt: u64,
    /// The same at the end.
    pub bytes: u64,
    /// The first counter at the first interrupt.
    pub value: u64,
    /// The time-stamp counter before and after.
    pub time: (u64, u64),
}

impl Trial {
    /// One counter, and an interrupt at each record.
    pub const SINGLE: Self = Self {
        counters: 1,
        first: 10_007,
        period: 10_007,
        threshold: 1,
        group: Group { adaptive: (0, 0), architectural: (0, 0) },
        goes_on: false,
    };
}

impl<'b> Records<'b> {
    /// Detects the records; `None`: the processor has none, or none of branches.
    pub fn of(bench: &'b Bench) -> Option<Self> {
        let unit = PreciseUnit::detect(&snapshot(), &control_msr()).ok()?;
        bench.global()?;
        let can = unit.can_record(BRANCHES) && unit.counters().bits() & bench.bit(0) != 0;
        can.then_some(Self { bench, unit })
    }

    pub fn is_architectural(&self) -> bool {
        self.unit.format() == PreciseFormat::Architectural
    }

    /// Returns the bit of the status by which records interrupt.
    pub fn status_bit(&self) -> u64 {
        if self.is_architectural() { 1 << 54 } else { 1 << 62 }
    }

    /// Returns the size of a record with this group, in bytes.
    pub fn size(&self, group: Group) -> u64 {
        match self.unit.format() {
            PreciseFormat::Adaptive => 32 + 8 * group.adaptive.1,
            PreciseFormat::Architectural => (64 + 8 * group.architectural.1).next_multiple_of(16),
            format => format.record_size().unwrap_or(0) as u64,
        }
    }

    /// Writes the registers of the records, and reads them back. Returns how many do not hold what was written.
    pub fn refused(&self) -> u64 {
        self.bench.end();
        let general = (0..self.bench.general()).map(|place| self.bench.bit(place));
        let (can, cannot): (u64, u64) = general.fold((0, 0), |(can, cannot), bit| {
            if self.unit.counters().bits() & bit != 0 {
                (can | bit, cannot)
            } else {
                (can, cannot | bit)
            }
        });
        let holds = |register, value| {
            write(to_memory(register), value) && read(to_memory(register)) == Some(value)
        };
        let mut refused = 0;
        if self.is_architectural() {
            refused += u64::from(!holds(BASE, buffer()));
            for place in (0..32).filter(|place| can >> place & 1 != 0) {
                let register = CFG_C + CFG_DISTANCE * place;
                refused +=
                    u64::from(!holds(register, 0xFFFF_0000)) + u64::from(!holds(register, 0));
            }
        } else {
            refused += u64::from(!holds(DS_AREA, area()));
            refused += u64::from(!holds(PEBS_ENABLE, can));
            refused += u64::from(cannot != 0 && holds(PEBS_ENABLE, cannot));
        }
        self.end();
        refused
    }

    /// Runs a trial until it interrupts, or `is_over`, and stops it. Returns `None` if neither came in time, or the
    /// processor refused a register.
    pub fn run(&self, trial: &Trial, mut is_over: impl FnMut(&Self) -> bool) -> Option<Found> {
        let before = now();
        let set = self.set_up(trial);
        if set {
            apic::write_performance_entry(BY_NMI);
            self.set_control(trial);
        }
        let begin = clock::now();
        let is_late = || clock::now() - begin > clock::milliseconds(PATIENCE_MS);
        let mut came = false;
        while set && !came && !is_late() {
            (COUNTED[2].run)();
            came = TAKEN.load(Relaxed) != 0 || is_over(self);
        }
        if came {
            // In this time a second interrupt would come.
            work_with_calls(QUIET_MS);
        }
        self.bench.halt();
        let bytes = self.offset();
        self.end();
        came.then(|| Found {
            interrupts: TAKEN.load(Relaxed),
            status: STATUS.load(Relaxed),
            at_interrupt: FOUND.load(Relaxed),
            bytes,
            value: VALUE.load(Relaxed),
            time: (before, now()),
        })
    }

    /// Returns the records that the last trial wrote in so many bytes.
    pub fn written(&self, bytes: u64) -> PreciseRecords<'static> {
        let words = PAGES.buffer.get(..bytes as usize / 8).unwrap_or_default();
        PreciseRecords::from_words(self.unit.format(), words)
    }

    /// Returns the bytes of records, by the index.
    pub fn offset(&self) -> u64 {
        offset(self.is_architectural())
    }

    fn set_up(&self, trial: &Trial) -> bool {
        let bench = self.bench;
        handler::leave_to(interrupt);
        apic::write_performance_entry(BY_NMI | MASKED);
        self.end();
        for number in [&TAKEN, &STATUS, &FOUND, &VALUE] {
            number.store(0, Relaxed);
        }
        GOES_ON.store(trial.goes_on, Relaxed);
        PAGES.buffer.iter().for_each(|word| word.store(0, Relaxed));
        let (Some(global), Some(first)) = (bench.global(), bench.counter(0)) else { return false };
        *EXPECTED.lock() = Some(Expected {
            control: global.control,
            status: global.status,
            acknowledge: global.acknowledge,
            bits: self.status_bit() | self.unit.counters().bits(),
            value: first.value_register(),
            is_architectural: self.is_architectural(),
        });
        let bits = (0..trial.counters).fold(0, |bits, place| bits | bench.bit(place));
        let mut set = match self.is_architectural() {
            true => self.set_registers(trial),
            false => self.set_area(trial, bits),
        };
        let is_adaptive =
            self.unit.format() == PreciseFormat::Adaptive && trial.group.adaptive.0 != 0;
        for place in 0..trial.counters {
            let Some(counter) = bench.counter(place) else { return false };
            bench.preload(place, trial.first);
            let adaptive = if is_adaptive { ADAPTIVE } else { 0 };
            set &= write(counter.control().register(), SELECT | adaptive);
        }
        set
    }

    fn set_area(&self, trial: &Trial, counters: u64) -> bool {
        let base = buffer();
        for (place, word) in [
            (AREA_BASE, base),
            (AREA_INDEX, base),
            (AREA_MAXIMUM, base + CAPACITY),
            (AREA_THRESHOLD, base + trial.threshold),
        ] {
            PAGES.area[place].store(word, Relaxed);
        }
        for place in 0..trial.counters {
            let mask = self.bench.counter(place).map_or(0, |counter| counter.mask());
            PAGES.area[AREA_RESET + place].store(trial.period.wrapping_neg() & mask, Relaxed);
        }
        let group = trial.group.adaptive.0;
        write(to_memory(DS_AREA), area())
            && (group == 0 || write(address(DATA_CONFIGURATION), group))
            && write(to_memory(PEBS_ENABLE), counters)
    }

    fn set_registers(&self, trial: &Trial) -> bool {
        let reload = trial.period.wrapping_neg() & u64::from(u32::MAX);
        let control = reload | trial.group.architectural.0 | CFG_ENABLED;
        let threshold = trial.threshold.next_multiple_of(16) >> 4 << 36;
        let counters = (0..trial.counters as u32).map(|place| CFG_C + CFG_DISTANCE * place);
        write(to_memory(BASE), buffer())
            && counters.into_iter().all(|register| write(to_memory(register), control))
            && write(to_memory(INDEX), threshold | INDEX_ENABLED)
    }

    fn set_control(&self, trial: &Trial) {
        let bits = (0..trial.counters).fold(0, |bits, place| bits | self.bench.bit(place));
        if let Some(global) = self.bench.global() {
            write(global.control, bits);
        }
    }

    /// Stops everything, and acknowledges it.
    pub fn end(&self) {
        self.bench.end();
        if self.is_architectural() {
            for place in 0..2 {
                write(to_memory(CFG_C + CFG_DISTANCE * place), 0);
            }
            write(to_memory(INDEX), 0);
        } else {
            write(to_memory(PEBS_ENABLE), 0);
            write(to_memory(DS_AREA), 0);
        }
        if let Some(global) = self.bench.global() {
            write(global.acknowledge, self.status_bit());
        }
    }
}

/// Handles the interrupt: takes a note of what it finds, and stops the counters.
fn interrupt() {
    // Task context holds it only while the interrupt is masked.
    let Some(expected) = EXPECTED.try_lock().and_then(|expected| *expected) else { return };
    let goes_on = GOES_ON.load(Relaxed);
    if !goes_on {
        write(expected.control, 0);
    }
    if TAKEN.load(Relaxed) == 0 {
        STATUS.store(read(expected.status).unwrap_or(0), Relaxed);
        FOUND.store(offset(expected.is_architectural), Relaxed);
        VALUE.store(read(expected.value).unwrap_or(0), Relaxed);
    }
    TAKEN.fetch_add(1, Relaxed);
    if !goes_on {
        // Intel's processors raise another interrupt where a bit of the status is left as the entry is unmasked.
        write(expected.acknowledge, expected.bits);
        let entry = apic::performance_entry();
        apic::write_performance_entry(entry & !MASKED);
    }
}

/// Executes the loop of calls for so many milliseconds.
fn work_with_calls(milliseconds: u64) {
    let begin = clock::now();
    while clock::now() - begin < clock::milliseconds(milliseconds) {
        (COUNTED[2].run)();
    }
    work(1);
}

fn offset(is_architectural: bool) -> u64 {
    match is_architectural {
        true => read(to_memory(INDEX)).unwrap_or(0) & INDEX_OFFSET,
        false => PAGES.area[AREA_INDEX].load(Relaxed).wrapping_sub(buffer()),
    }
}

fn area() -> u64 {
    PAGES.area.as_ptr() as u64
}

fn buffer() -> u64 {
    PAGES.buffer.as_ptr() as u64
}

fn now() -> u64 {
    // SAFETY: every processor of 64 bits has the time-stamp counter, and nothing keeps privilege level 0 from it.
    unsafe { _rdtsc() }
}

/// Returns the address of a register by which the processor writes to memory.
fn to_memory(register: u32) -> RegisterAddress {
    // SAFETY: (1) this file names no memory but `PAGES`, a static that is mapped, writable, in the kernel's only
    // address space, at its physical address; (2) the area's words and the index keep the processor in `PAGES.buffer`;
    // (3) one processor tries the claims, and nothing else writes these registers meanwhile.
    unsafe { RegisterAddress::new(register) }
}
