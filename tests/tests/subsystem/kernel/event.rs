//! An event as its owner knows it: by a number, which is the tag of all that counts it.

use core::cell::RefCell;

use pmu::core::Event;
use pmu::core::interrupt::EventOverflow;
use pmu::core::memory::EventTable;
use pmu::core::thread::Tick;
use pmu::perf::{PerfEvent, PerfEventAttr};
use pmu::user::UserPage;

/// Nanoseconds from tick to tick.
pub(crate) const TICK: u64 = 4_000_000;
/// Greatest number of interrupts of an event from tick to tick.
pub(crate) const MAX_PER_TICK: u32 = 20;

/// The same, as the counters' session takes it.
pub(crate) const PER_TICK: Tick = Tick::new(250, 250 * MAX_PER_TICK);

/// A sample: the period that ended, and the counts of the event's group by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) period: u64,
    pub(crate) counts: Vec<(usize, u64)>,
}

/// An event that was opened. The interrupt's handler changes it, too.
pub(crate) struct Opened {
    pub(crate) attr: PerfEventAttr,
    pub(crate) samples: RefCell<Vec<Sample>>,
    pub(crate) page: UserPage,
    /// The event of which this is a new task's.
    pub(crate) parent: Option<usize>,
}

impl Opened {
    /// Opens an event by perf's text.
    pub(crate) fn parse(text: &str) -> Self {
        Self::new(PerfEvent::parse(text, &()).unwrap().attr, None)
    }

    pub(crate) fn new(attr: PerfEventAttr, parent: Option<usize>) -> Self {
        Self { attr, samples: RefCell::default(), page: UserPage::new(), parent }
    }

    /// Returns the event. As in Linux, user mode reads the counters of a task's events alone.
    pub(crate) fn event(&self, number: usize, of_task: bool) -> Event {
        let event = self.attr.event(&()).unwrap().tagged(number as u64);
        if of_task { event.with_user_reads() } else { event }
    }

    /// Takes an overflow, in the handler: the sample, the next period, and the limit.
    pub(crate) fn overflowed(
        &self,
        table: &EventTable,
        overflow: EventOverflow,
        counts: Vec<(usize, u64)>,
        now: u64,
    ) {
        self.samples.borrow_mut().push(Sample { period: overflow.period, counts });
        table.account_sample(overflow.event, true, || now);
    }
}
