//! The memory that the task side and the interrupt path of a processor's sampling units share.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use pmu_core::EventId;

use crate::ibs::record::{IbsRecord, WORDS};
use crate::ibs::sampling::IbsSampling;
use crate::ibs::unit::IbsKind;

/// Memory for the sampling units of one processor. The processor's [`Ibs`](crate::ibs::Ibs) has a reference to it, in
/// the session's event source and in the interrupt handler's.
///
/// ```
/// use pmu_amd::ibs::IbsMemory;
/// static SAMPLING: IbsMemory = IbsMemory::new(); // one per processor
/// assert_eq!((SAMPLING.dropped(), SAMPLING.lost()), (0, 0));
/// ```
#[derive(Debug, Default)]
pub struct IbsMemory {
    fetch: UnitMemory,
    op: UnitMemory,
    dropped: AtomicU32,
    lost: AtomicU32,
}

/// State of one unit.
#[derive(Debug, Default)]
pub(crate) struct UnitMemory {
    /// The words of the newest sample.
    record: [AtomicU64; WORDS],
    /// The counter's value when the unit was last started or stopped.
    pub(crate) value: AtomicU32,
    /// The select for which the unit runs.
    pub(crate) select: AtomicU32,
    /// The hardware's count when the unit was started.
    pub(crate) started: AtomicU32,
    /// The hardware's period.
    pub(crate) target: AtomicU32,
    /// Number of events after a sample until the next one.
    pub(crate) reload: AtomicU32,
    /// Number of samples that were taken.
    pub(crate) samples: AtomicU32,
    /// The sample of an event that left the unit.
    pub(crate) left: LeftSample,
    state: AtomicU16,
}

/// The sample of an event that left its unit before the sample's interrupt came.
#[derive(Debug, Default)]
pub(crate) struct LeftSample {
    record: [AtomicU64; WORDS],
    period: AtomicU64,
    /// Place of the event in its table; `FORGOTTEN` if it was closed.
    event: AtomicU32,
    select: AtomicU32,
}

const FORGOTTEN: u32 = u32::MAX;

/// The unit has an interrupt.
pub(crate) const USABLE: u16 = 1 << 0;
/// The unit is started. Set before the hardware is, and cleared after the hardware has stopped.
pub(crate) const RUNNING: u16 = 1 << 1;
/// The unit is being stopped.
pub(crate) const STOPPING: u16 = 1 << 2;
/// The interrupt took a sample from a unit that was being stopped.
pub(crate) const TOOK: u16 = 1 << 3;
/// An interrupt came that may be the one of a sample without a trace.
pub(crate) const CAME: u16 = 1 << 4;
/// The unit stopped with a sample of the event that is on it. The sample is in the unit's registers.
pub(crate) const HELD: u16 = 1 << 5;
/// The sample of an event that left the unit is in memory.
pub(crate) const LEFT: u16 = 1 << 6;
/// The interrupt of a sample is yet to come although the unit has stopped.
pub(crate) const LATE: u16 = 1 << 7;
/// The sample of an event that left the unit is in the unit's registers. If it is in memory, too, the registers are
/// about to be cleared.
pub(crate) const LEFT_HELD: u16 = 1 << 9;
/// The interrupt has taken a sample, and the unit has not gone on yet.
pub(crate) const TAKEN: u16 = 1 << 10;
/// The registers are another owner's, or were.
pub(crate) const UNKNOWN: u16 = 1 << 8;

/// A unit runs, or there is a sample that is yet to be reported.
pub(crate) const ACTIVE: u16 = RUNNING | STOPPING | HELD | LEFT | LEFT_HELD | LATE;

impl IbsMemory {
    /// Creates the memory of a processor whose units do not sample.
    pub const fn new() -> Self {
        Self {
            fetch: UnitMemory::new(),
            op: UnitMemory::new(),
            dropped: AtomicU32::new(0),
            lost: AtomicU32::new(0),
        }
    }

    /// Returns whether no unit runs, and no sample waits.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.fetch.is(ACTIVE) && !self.op.is(ACTIVE)
    }

    /// Returns the number of samples that were not reported, because the event did not ask for them: the fetch or op is
    /// of another privilege level, its latency is too short, or an erratum made the sample void. The number wraps
    /// around after 2³² − 1.
    pub fn dropped(&self) -> u32 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns the number of samples that were not reported, because their registers could not be read, or had lost
    /// their contents before the interrupt. The number wraps around after 2³² − 1.
    pub fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, kind: IbsKind) -> &UnitMemory {
        match kind {
            IbsKind::Fetch => &self.fetch,
            IbsKind::Op => &self.op,
        }
    }
}

impl UnitMemory {
    const fn new() -> Self {
        Self {
            record: [const { AtomicU64::new(0) }; WORDS],
            value: AtomicU32::new(0),
            select: AtomicU32::new(0),
            started: AtomicU32::new(0),
            target: AtomicU32::new(0),
            reload: AtomicU32::new(0),
            samples: AtomicU32::new(0),
            left: LeftSample {
                record: [const { AtomicU64::new(0) }; WORDS],
                period: AtomicU64::new(0),
                event: AtomicU32::new(0),
                select: AtomicU32::new(0),
            },
            state: AtomicU16::new(0),
        }
    }

    pub(crate) fn state(&self) -> u16 {
        // Pairs with the release in `update`: the words that the other side stored before it set a bit are seen.
        self.state.load(Ordering::Acquire)
    }

    /// Returns whether one of these bits is set.
    pub(crate) fn is(&self, state: u16) -> bool {
        self.state() & state != 0
    }

    /// Clears and sets bits of the state. Returns the state before.
    #[inline(never)] // 528 bytes of the Hermit-like glue.
    pub(crate) fn change(&self, clear: u16, set: u16) -> u16 {
        self.update(|state| state & !clear | set)
    }

    /// Changes the state. Returns the state before.
    pub(crate) fn update(&self, change: impl Fn(u16) -> u16) -> u16 {
        let change = |state: u16| Some(change(state));
        // The other side interrupts this one, so the loop ends after as many turns as there are interrupts.
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        // The closure always gives a value, so the update cannot fail.
        before.unwrap_or_else(|state| state)
    }

    /// Keeps a sample, with the value that the control register had.
    pub(crate) fn keep(&self, record: &IbsRecord, control: u64) {
        store(&self.record, record, control);
    }

    /// Returns the control register's value of the newest sample.
    pub(crate) fn sampled_control(&self) -> u64 {
        let [control, ..] = &self.record;
        control.load(Ordering::Relaxed)
    }

    /// Returns the newest sample.
    pub(crate) fn record(&self, kind: IbsKind) -> IbsRecord {
        load(&self.record, kind, self.select.load(Ordering::Relaxed))
    }
}

impl LeftSample {
    /// Notes whose sample it is. `period`: the period that it ends.
    pub(crate) fn describe(&self, event: EventId, period: u64, select: u32) {
        let place = event.index().map_or(FORGOTTEN, |place| place as u32);
        self.event.store(place, Ordering::Relaxed);
        self.period.store(period, Ordering::Relaxed);
        self.select.store(select, Ordering::Relaxed);
    }

    pub(crate) fn keep(&self, record: &IbsRecord, control: u64) {
        store(&self.record, record, control);
    }

    /// Returns the event, unless it was closed, and the period.
    pub(crate) fn event(&self) -> Option<(EventId, u64)> {
        let place = self.event.load(Ordering::Relaxed);
        let event = (place != FORGOTTEN).then(|| EventId::of_index(place as usize));
        event.map(|event| (event, self.period.load(Ordering::Relaxed)))
    }

    pub(crate) fn select(&self) -> u32 {
        self.select.load(Ordering::Relaxed)
    }

    /// Notes that an event was closed.
    pub(crate) fn forget(&self, event: EventId) {
        let place = event.index().map(|place| place as u32);
        if place == Some(self.event.load(Ordering::Relaxed)) {
            self.event.store(FORGOTTEN, Ordering::Relaxed);
        }
    }

    pub(crate) fn record(&self, kind: IbsKind) -> IbsRecord {
        load(&self.record, kind, self.select())
    }
}

fn store(words: &[AtomicU64; WORDS], record: &IbsRecord, control: u64) {
    for (kept, word) in words.iter().zip(record.words(control)) {
        // Relaxed: the bits of the state order the words.
        kept.store(word, Ordering::Relaxed);
    }
}

fn load(words: &[AtomicU64; WORDS], kind: IbsKind, select: u32) -> IbsRecord {
    let words = words.each_ref().map(|word| word.load(Ordering::Relaxed));
    IbsRecord::from_words(kind, words, IbsSampling::of_select(select).physical_addresses())
}
