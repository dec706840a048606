//! The counters of a processor, in atomics: an access is one instruction, so that a signal's handler
//! finds them as an interrupt finds a processor's.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use pmu_core::Platform;
use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::error::PlatformError;
use pmu_core::interval::Interval;

/// Number of sources whose events happen.
pub const SOURCES: usize = 3;
/// The general counters, and after them the fixed ones.
const GENERAL: usize = 6;
const COUNTERS: usize = GENERAL + FIXED.len();
/// The events of the fixed counters.
const FIXED: [u64; 3] = [0xC0, 0x3C, 0x0300];
const MASK: u64 = (1 << 48) - 1;
/// Number of events that may pass uncounted while an overflow is serviced.
const SLACK: u64 = 64;
const FROZEN: u64 = 1 << 59;

/// Vendor and kind of the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Intel, of this version.
    Intel(u32),
    /// AMD's legacy counters.
    Legacy,
    /// AMD's core extension, with PerfMonV2 or without.
    Core(bool),
}

/// The driver's reports of one event, beside its actual counts.
#[derive(Debug, Default)]
struct Book {
    /// Counted by any counter, ever.
    counted: AtomicU64,
    /// Counted since the last overflow.
    since: AtomicU64,
    /// Events counted at its overflow.
    expected: AtomicU64,
    overflows: AtomicU64,
    told: AtomicU64,
}

/// One processor, on which `N` events happen.
#[derive(Debug)]
pub struct Chip<const N: usize = SOURCES> {
    kind: Kind,
    selects: [AtomicU64; GENERAL],
    fixed_control: AtomicU64,
    values: [AtomicU64; COUNTERS],
    control: AtomicU64,
    status: AtomicU64,
    debug_control: AtomicU64,
    /// The mask bit of the LVT entry.
    masked: AtomicBool,
    /// An interrupt was raised and waits to be delivered.
    pending: AtomicBool,
    events: [u64; N],
    books: [Book; N],
    /// Reports of overflows that did not happen, or with other counts.
    wrong: AtomicU32,
}

enum Register<'c> {
    Plain(&'c AtomicU64),
    Counter(&'c AtomicU64),
    Status,
    Acknowledge,
}

impl<const N: usize> Chip<N> {
    /// Creates a processor on which these events, by the bits of their selects, happen.
    pub fn new(kind: Kind, selects: [u64; N]) -> Self {
        Self {
            kind,
            selects: Default::default(),
            fixed_control: AtomicU64::new(0),
            values: Default::default(),
            control: AtomicU64::new(0),
            status: AtomicU64::new(0),
            debug_control: AtomicU64::new(0),
            masked: AtomicBool::new(true),
            pending: AtomicBool::new(false),
            events: selects.map(event),
            books: core::array::from_fn(|_| Book::default()),
            wrong: AtomicU32::new(0),
        }
    }

    fn has_global(&self) -> bool {
        matches!(self.kind, Kind::Intel(2..) | Kind::Core(true))
    }

    fn register(&self, number: u32) -> Option<Register<'_>> {
        use Register::*;
        let (select, value, step, status, control, acknowledge) = match self.kind {
            Kind::Intel(_) => (0x186, 0xC1, 1, 0x38E, 0x38F, 0x390),
            Kind::Legacy => (0xC001_0000, 0xC001_0004, 1, 0, 0, 0),
            Kind::Core(_) => (0xC001_0200, 0xC001_0201, 2, 0xC000_0300, 0xC000_0301, 0xC000_0302),
        };
        let counters = if self.kind == Kind::Legacy { 4 } else { GENERAL };
        let of = |first: u32| {
            let distance = number.wrapping_sub(first);
            let place = (distance / step) as usize;
            (distance.is_multiple_of(step) && place < counters).then_some(place)
        };
        if let Some(select) = of(select).and_then(|place| self.selects.get(place)) {
            Some(Plain(select))
        } else if let Some(value) = of(value).and_then(|place| self.values.get(place)) {
            Some(Counter(value))
        } else if self.has_fixed() && number == 0x38D {
            Some(Plain(&self.fixed_control))
        } else if self.has_fixed() && (0x309..0x309 + FIXED.len() as u32).contains(&number) {
            Some(Plain(&self.values[GENERAL + (number - 0x309) as usize]))
        } else if !self.has_global() {
            None
        } else if number == status {
            Some(Status)
        } else if number == control {
            Some(Plain(&self.control))
        } else if number == acknowledge {
            Some(Acknowledge)
        } else {
            (number == 0x1D9).then_some(Plain(&self.debug_control))
        }
    }

    fn has_fixed(&self) -> bool {
        matches!(self.kind, Kind::Intel(2..))
    }

    /// Returns a counter's bit in the global registers.
    fn bit(counter: usize) -> u64 {
        if counter < GENERAL { 1 << counter } else { 1 << (32 + counter - GENERAL) }
    }

    /// A fixed counter's bits of their control.
    fn fixed_bits(&self, counter: usize) -> u64 {
        self.fixed_control.load(SeqCst) >> (4 * (counter - GENERAL)) & 0xF
    }

    fn counts(&self, counter: usize) -> bool {
        let enabled = match self.selects.get(counter) {
            Some(select) => select.load(SeqCst) >> 22 & 1 != 0,
            None => self.fixed_bits(counter) & 0b11 != 0,
        };
        enabled
            && (!self.has_global() || self.control.load(SeqCst) & Self::bit(counter) != 0)
            && self.status.load(SeqCst) & FROZEN == 0
    }

    fn interrupts(&self, counter: usize) -> bool {
        match self.selects.get(counter) {
            Some(select) => select.load(SeqCst) >> 20 & 1 != 0,
            None => self.fixed_bits(counter) & 0b1000 != 0,
        }
    }

    /// Returns the counters that count an event, one bit each.
    fn counting(&self, place: usize) -> u32 {
        let event_of = |counter: usize| match self.selects.get(counter) {
            Some(select) => event(select.load(SeqCst)),
            None => FIXED[counter - GENERAL],
        };
        let counting = (0..COUNTERS)
            .filter(|counter| self.counts(*counter) && event_of(*counter) == self.events[place]);
        counting.fold(0, |set, counter| set | 1 << counter)
    }

    /// Returns for each event whether it is counted.
    pub fn counted(&self) -> [bool; N] {
        core::array::from_fn(|place| self.counting(place) != 0)
    }

    /// Number of times that an event happened while a counter counted it.
    pub fn total(&self, place: usize) -> u64 {
        self.books[place].counted.load(SeqCst)
    }

    /// Number of times that an event happens until a counter overflows; `None`: it is not counted.
    pub fn room(&self, place: usize) -> Option<u64> {
        let counting = self.counting(place);
        let counters = (0..COUNTERS).filter(|counter| counting >> counter & 1 != 0);
        counters.map(|counter| MASK + 1 - self.values[counter].load(SeqCst)).min()
    }

    /// Returns the global control register, and whether the counters are frozen.
    pub fn global(&self) -> (u64, bool) {
        (self.control.load(SeqCst), self.status.load(SeqCst) & FROZEN != 0)
    }

    /// Lets up to `count` of an event happen, until a counter overflows, and returns the remainder; 0, if it is not
    /// counted. Not to be called while the chip itself is being accessed.
    pub fn happen(&self, place: usize, count: u64) -> u64 {
        let (book, counting) = (&self.books[place], self.counting(place));
        let Some(room) = self.room(place) else { return 0 };
        let passed = count.min(room);
        book.counted.fetch_add(passed, SeqCst);
        book.since.fetch_add(passed, SeqCst);
        for counter in (0..COUNTERS).filter(|counter| counting >> counter & 1 != 0) {
            let value = self.values[counter].load(SeqCst) + passed;
            self.values[counter].store(value & MASK, SeqCst);
            if value <= MASK {
                continue;
            }
            book.expected.store(book.since.swap(0, SeqCst), SeqCst);
            book.overflows.fetch_add(1, SeqCst);
            if self.has_global() {
                self.status.fetch_or(Self::bit(counter), SeqCst);
            }
            if !self.interrupts(counter) {
                continue;
            }
            if self.debug_control.load(SeqCst) >> 12 & 1 != 0 {
                match self.kind {
                    Kind::Intel(4..) => _ = self.status.fetch_or(FROZEN, SeqCst),
                    _ => self.control.store(0, SeqCst),
                }
            }
            self.pending.store(true, SeqCst);
        }
        count - passed
    }

    /// Raises an interrupt without an overflow.
    pub fn raise(&self) {
        self.pending.store(true, SeqCst);
    }

    /// Delivers the interrupt that was raised, if there is one. One that finds the LVT entry masked is lost.
    pub fn deliver(&self) -> bool {
        let raised = self.pending.swap(false, SeqCst);
        let delivered = raised && !self.masked.load(SeqCst);
        if delivered && matches!(self.kind, Kind::Intel(_)) {
            self.masked.store(true, SeqCst);
        }
        delivered
    }

    /// Records the driver's report of an overflow after `events` events.
    pub fn told(&self, place: usize, events: u64) {
        let Some(book) = self.books.get(place) else {
            self.wrong.fetch_add(1, SeqCst);
            return;
        };
        let told = book.told.fetch_add(1, SeqCst) + 1;
        let error = book.expected.load(SeqCst).abs_diff(events);
        if told > book.overflows.load(SeqCst) || error > SLACK {
            self.wrong.fetch_add(1, SeqCst);
        }
    }

    /// Returns the number of a source's overflows that were not reported.
    pub fn untold(&self, source: usize) -> u64 {
        let book = &self.books[source];
        book.overflows.load(SeqCst) - book.told.load(SeqCst)
    }

    /// Returns the number of reported overflows of each source.
    pub fn tellings(&self) -> [u64; N] {
        core::array::from_fn(|source| self.books[source].told.load(SeqCst))
    }

    /// Returns the number of reports of overflows that did not happen, or with other counts.
    pub fn wrong(&self) -> u32 {
        self.wrong.load(SeqCst)
    }

    /// Drops a stopped source's unreported overflows, as a stop may, and returns their number.
    pub fn forgive(&self, source: usize) -> u64 {
        let (book, untold) = (&self.books[source], self.untold(source));
        book.told.fetch_add(untold, SeqCst);
        book.since.store(0, SeqCst);
        untold
    }
}

/// Returns the bits of a select that name the event.
fn event(select: u64) -> u64 {
    select & 0xF_0000_FFFF
}

impl<const N: usize> RegisterBackend for Chip<N> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        match self.register(address.get()) {
            Some(Register::Plain(register) | Register::Counter(register)) => {
                Ok(register.load(SeqCst))
            }
            Some(Register::Status) => Ok(self.status.load(SeqCst)),
            _ => Err(AccessErrorKind::Fault),
        }
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        match self.register(address.get()) {
            Some(Register::Plain(register)) => register.store(value, SeqCst),
            Some(Register::Counter(register)) => {
                let intel = matches!(self.kind, Kind::Intel(_));
                let value = if intel { i64::from(value as i32) as u64 } else { value };
                register.store(value & MASK, SeqCst);
            }
            Some(Register::Acknowledge) => _ = self.status.fetch_and(!value, SeqCst),
            _ => return Err(AccessErrorKind::Fault),
        }
        Ok(())
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let Some(Register::Plain(register)) = self.register(update.register()) else {
            return Err(AccessErrorKind::Fault);
        };
        let found = register.load(SeqCst);
        if let Some(value) = update.apply(found) {
            register.store(value, SeqCst);
        }
        Ok(found)
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        let number = (index.get() & !(1 << 30)) as usize;
        let counter = match index.get() >> 30 {
            0 => self.values[..GENERAL].get(number),
            _ => self.values[GENERAL..].get(number),
        };
        counter.map(|value| value.load(SeqCst)).ok_or(AccessErrorKind::Fault)
    }
}

impl<const N: usize> Platform for Chip<N> {
    fn unmask_performance_interrupt(&self) {
        self.masked.store(false, SeqCst);
    }

    fn mask_performance_interrupt(&self) {
        self.masked.store(true, SeqCst);
    }

    fn start_profile_timer(&self, _: Interval) -> Result<(), PlatformError> {
        Ok(())
    }

    fn stop_profile_timer(&self) {}
}
