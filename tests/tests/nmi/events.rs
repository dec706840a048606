//! Opened events on a processor that is interrupted, with their expected reports and totals.

use super::world::{Accesses, World};
use core::cell::Cell;
use pmu::Watchdog;
use pmu_core::{Claim, CounterUnit, EventId};
use pmu_tests::opened::Mock;
use pmu_tests::reports::Report;
use pmu_virt::mock::{Deviation, Deviations};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege};

pub(crate) const PERIOD: u64 = 0x1000;
/// Number of further periods that pass until a late interrupt is taken.
pub(crate) const LATE: u64 = 3;
/// The source, an event that interrupts and has a total, one that is only counted, and the operation's, which
/// interrupts.
pub(crate) const SOURCE: usize = 0;
pub(crate) const SAMPLED: usize = 1;
pub(crate) const COUNTED: usize = 2;
pub(crate) const OWN: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Every running counter overflows just before this access; accesses are counted from 1, those of the
    /// interrupts too.
    pub(crate) at: u32,
    /// Number of accesses after which the interrupt is delivered.
    pub(crate) late: u32,
    /// Number of accesses by which an NMI of another source comes earlier.
    pub(crate) spurious: Option<u32>,
    /// Number of accesses after which the event that interrupts overflows, too.
    pub(crate) second: Option<u32>,
}

impl Plan {
    /// Returns the events that overflow at once, with their counts.
    pub(crate) fn events(self) -> impl Iterator<Item = (usize, u64)> {
        let now = (0..4).filter(move |event| self.second.is_none() || *event != SAMPLED);
        now.map(|event| (event, 1))
    }
}

pub(crate) struct Processor {
    pub(crate) context: String,
    pub(crate) deviations: Deviations,
    /// The keys under which an event counts: a general counter's, and a fixed one's.
    pub(crate) keys: [Vec<EventKey>; 4],
    pub(crate) fed: FedEvents,
    pub(crate) counted: [Cell<u64>; 4],
    pub(crate) told: [Cell<u64>; 4],
    /// Periods that passed within another one, and are not reported.
    pub(crate) unseen: [Cell<u64>; 4],
    /// Overflowed again while it was being reported.
    pub(crate) again: [Cell<bool>; 4],
    /// It watches the event that interrupts.
    pub(crate) watchdog: Watchdog,
    pub(crate) verdicts: Cell<u64>,
    pub(crate) ids: Cell<[Option<EventId>; 4]>,
    pub(crate) plan: Cell<Option<Plan>>,
    pub(crate) accesses: Accesses,
    pub(crate) foreign: Cell<bool>,
    pub(crate) swallow: Cell<bool>,
}

impl Processor {
    pub(crate) fn new(context: String, deviations: Deviations, keys: [Vec<EventKey>; 4]) -> Self {
        let fed = FedEvents::new(&keys.concat()).unwrap();
        Self {
            context,
            deviations,
            keys,
            fed,
            counted: Default::default(),
            told: Default::default(),
            unseen: Default::default(),
            again: Default::default(),
            watchdog: Watchdog::new(),
            verdicts: Cell::default(),
            ids: Cell::default(),
            plan: Cell::default(),
            accesses: Accesses::default(),
            foreign: Cell::default(),
            swallow: Cell::default(),
        }
    }

    pub(crate) fn runs(&self, mock: &Mock<'_>, event: usize) -> bool {
        let keys = &self.keys[event];
        mock.with_pmu(|pmu| pmu.running().any(|running| keys.contains(&running.key)))
    }

    pub(crate) fn feed_of(&self, event: usize, count: u64) -> Feed {
        let mut feed = Feed::new(&self.fed);
        for key in &self.keys[event] {
            feed.add(self.fed.find(*key).unwrap(), Privilege::Kernel, count).unwrap();
        }
        feed
    }

    /// Plays the driver's callback, which takes its time.
    pub(crate) fn callback(&self, mock: &Mock<'_>, report: Report) {
        let event = self.event_of(report).0;
        if self.deviations.contains(Deviation::OverflowsWhileServiced)
            && !self.again[event].replace(true)
        {
            self.unseen[event].set(self.unseen[event].get() + 3);
            self.happen(mock, event, 2 * PERIOD);
        }
    }

    /// Returns the event of a report, and its period.
    #[track_caller]
    pub(crate) fn event_of(&self, report: Report) -> (usize, u64) {
        match report {
            Report::Source(overflow) => (SOURCE, overflow.events),
            Report::Event(overflow) => {
                let place = self.ids.get().iter().position(|id| *id == Some(overflow.event));
                (place.unwrap_or_else(|| panic!("{}: {overflow:?}", self.context)), overflow.period)
            }
        }
    }

    /// Returns whether a total is exact. If the counters run while they are serviced, periods that pass between
    /// reading and loading are not in the total of an event that interrupts.
    pub(crate) fn fits(&self, event: usize, value: u64, unit: &CounterUnit) -> bool {
        let counted = self.counted[event].get();
        // The last processor has counters that should freeze, and do not.
        let run = unit.global().is_none_or(|global| !global.stop_while_serviced)
            || self.deviations.contains(Deviation::NarrowAcknowledge);
        let lossy = event != COUNTED && run;
        let most = if lossy { self.unseen[event].get() } else { 0 };
        (0..=most).any(|lost| value + lost * PERIOD == counted)
    }

    /// Lets the rest of the plan happen. Returns whether there was any.
    pub(crate) fn end(&self, mock: &Mock<'_>) -> bool {
        let Some(plan) = self.plan.take() else { return false };
        self.accesses.deliver_late(mock);
        let access = self.accesses.made();
        let left = plan.at > access;
        if left {
            self.overflow_all(mock, plan.events(), 0);
        }
        if plan.second.is_some_and(|after| plan.at + after > access) {
            self.happen(mock, SAMPLED, 1);
        }
        left
    }

    pub(crate) fn claimed(&self, claim: Claim) {
        let claims = claim.interrupts() + u32::from(self.foreign.take());
        if claims > 1 {
            self.swallow.set(true);
        }
        assert!(
            claims > 0 || self.swallow.take(),
            "{}: an NMI that no handler claims",
            self.context
        );
    }

    /// No tick comes: the watched event has one period, and is late at each further one.
    pub(crate) fn is_late(&self, event: EventId) -> bool {
        let watched = self.ids.get()[SAMPLED].and_then(EventId::index) == event.index();
        watched && self.verdicts.replace(1) > 0
    }

    #[track_caller]
    pub(crate) fn told(&self, report: Report) {
        if let Report::Event(overflow) = report
            && self.watchdog.is_stuck(overflow.event) != self.is_late(overflow.event)
        {
            panic!("{}: {overflow:?}: the watchdog", self.context);
        }
        let (event, period) = self.event_of(report);
        assert_eq!(period, PERIOD, "{}: {event}", self.context);
        self.told[event].set(self.told[event].get() + 1);
    }
}

impl World<64> for Processor {
    type Plan = Plan;

    fn accesses(&self) -> &Accesses {
        &self.accesses
    }

    fn plan(&self) -> Option<Plan> {
        self.plan.get()
    }

    fn disturb(&self, mock: &Mock<'_>, plan: Plan, access: u32) {
        let Plan { at, late, spurious, second } = plan;
        if access == at {
            self.overflow_all(mock, plan.events(), late);
        }
        if second.is_some_and(|after| access == at + after) {
            self.happen(mock, SAMPLED, 1);
        }
        if spurious.is_some_and(|before| access + before == at) {
            self.foreign.set(true);
            mock.interrupt_from_elsewhere();
        }
    }

    /// Some more events pass, if interrupts come late.
    fn pass(&self, mock: &Mock<'_>, event: usize, count: u64) -> (u64, bool) {
        let counted = |more: u64| {
            if self.runs(mock, event) {
                self.counted[event].set(self.counted[event].get() + more);
            }
        };
        let mut feed = self.feed_of(event, count);
        let runs = self.runs(mock, event);
        let advanced = mock.pass(&mut feed);
        let left = feed.count(self.fed.find(self.keys[event][0]).unwrap(), Privilege::Kernel);
        if runs {
            self.counted[event].set(self.counted[event].get() + count - left);
        }
        if advanced.pmi && self.deviations.contains(Deviation::ServicesLate) {
            counted(LATE * PERIOD);
            self.unseen[event].set(self.unseen[event].get() + LATE + 1);
            let passed = mock.pass(&mut self.feed_of(event, LATE * PERIOD));
            assert_eq!(passed.overflowed, 0, "a counter wraps once");
        }
        (left, advanced.pmi)
    }
}
