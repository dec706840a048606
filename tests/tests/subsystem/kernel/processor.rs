//! A processor: its static memory, the handler of its interrupt, and its session.

use core::cell::{Cell, RefCell};

use pmu::Watchdog;
use pmu::core::error::CounterError;
use pmu::core::interrupt::EventOverflow;
use pmu::core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu::core::reading::{sample_read, user_view};
use pmu::core::registers::MAX_COUNTERS;
use pmu::core::{CounterSession, CounterSet, CounterUnit, EventId, Events, service};
use pmu::user::UserClock;
use pmu_tests::opened::{Mock, Processor};

use super::event::{Opened, PER_TICK};

pub(crate) type Session = CounterSession<'static, Events<'static>, &'static Mock<'static>>;

/// Memory that all handlers reach.
pub(crate) struct Shared {
    /// The events by their numbers. That of number 0 is each processor's watchdog.
    pub(crate) events: RefCell<Vec<&'static Opened>>,
    /// The time-stamp counter, and the clock that counts it.
    pub(crate) tsc: Cell<u64>,
    pub(crate) clock: UserClock,
}

impl Shared {
    pub(crate) fn now(&self) -> u64 {
        self.clock.time(self.tsc.get())
    }

    pub(crate) fn event(&self, number: usize) -> &'static Opened {
        self.events.borrow()[number]
    }
}

/// Memory of one processor, which a kernel has in a static.
pub(crate) struct PerProcessor {
    /// The boot processor's counters.
    machine: &'static CounterUnit,
    shared: &'static Shared,
    pub(crate) memory: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(crate) table: EventTable<[EventEntry; 24]>,
    pub(crate) watchdog: Watchdog,
    /// Number of times that the watchdog found the processor stuck.
    pub(crate) stuck: Cell<u32>,
    /// Events whose pages are read here.
    pub(crate) here: RefCell<Vec<(usize, EventId)>>,
    /// Interrupts that no handler claimed.
    pub(crate) unknown: Cell<u32>,
    /// The next interrupt may be one that was claimed before.
    swallows: Cell<bool>,
}

impl PerProcessor {
    pub(crate) fn source(&self) -> Events<'_> {
        Events::new(self.machine, &self.table)
    }

    /// Handles the performance interrupt.
    fn interrupt(&self, mock: &Mock<'_>) {
        let report = |overflow| self.overflowed(mock, overflow);
        // A register that faulted is the next operation's to tell.
        let serviced = service(&self.source(), mock, &self.memory, |sample| report(*sample));
        let claims = serviced.map_or(1, |serviced| serviced.claim.interrupts());
        // After a claim of several interrupts, the next one that nothing claims is one of them.
        if claims == 0 && !self.swallows.take() {
            self.unknown.set(self.unknown.get() + 1);
        } else if claims > 1 {
            self.swallows.set(true);
        }
        self.publish(|id, now| user_view(&self.source(), mock, &self.memory, id, now));
    }

    /// Takes an overflow, in the interrupt or in an operation of a task.
    pub(crate) fn overflowed(&self, mock: &Mock<'_>, overflow: EventOverflow) {
        if overflow.tag == 0 {
            let stuck = u32::from(self.watchdog.is_stuck(overflow.event));
            return self.stuck.set(self.stuck.get() + stuck);
        }
        let (source, now) = (self.source(), self.shared.now());
        let group = sample_read(&source, mock, &self.memory, overflow.event, now);
        let counts = group.into_iter().flatten().map(|read| {
            let count = read.count.map_or(0, |count| count.value);
            (read.tag as usize, count)
        });
        let event = self.shared.event(overflow.tag as usize);
        event.overflowed(&self.table, overflow, counts.collect(), now);
    }

    /// Publishes the page of each event that is read here.
    fn publish<E>(&self, view: impl Fn(EventId, u64) -> Result<pmu::core::reading::UserView, E>) {
        let (clock, now) = (Some(&self.shared.clock), self.shared.now());
        for (number, id) in self.here.borrow().iter() {
            let _ = self.shared.event(*number).page.publish(clock, || view(*id, now));
        }
    }
}

/// A processor that is online.
pub(crate) struct Cpu {
    pub(crate) per: &'static PerProcessor,
    pub(crate) mock: &'static Mock<'static>,
    pub(crate) unit: CounterUnit,
    pub(crate) session: Session,
    /// Its own events.
    pub(crate) own: Vec<(usize, EventId)>,
    /// The task that runs.
    pub(crate) task: Option<usize>,
    pub(crate) watched: EventId,
}

impl Cpu {
    /// Brings a processor up for the first time: its memory lives as long as the kernel.
    pub(crate) fn new(
        machine: &'static CounterUnit,
        processor: &Processor,
        mock: &'static Mock<'static>,
        shared: &'static Shared,
    ) -> Self {
        let per: &'static PerProcessor = Box::leak(Box::new(PerProcessor {
            machine,
            shared,
            memory: CounterMemory::new(),
            table: EventTable::new(),
            watchdog: Watchdog::new(),
            stuck: Cell::new(0),
            here: RefCell::default(),
            unknown: Cell::new(0),
            swallows: Cell::new(false),
        }));
        mock.on_interrupt(Box::leak(Box::new(|mock: &Mock<'_>| per.interrupt(mock))));
        Self::online(per, mock, processor)
    }

    /// Brings the processor up: takes its counters, and starts its watchdog.
    pub(crate) fn online(
        per: &'static PerProcessor,
        mock: &'static Mock<'static>,
        processor: &Processor,
    ) -> Self {
        let unit = processor.unit;
        let (source, all) = (per.source(), CounterSet::ALL);
        let mut session = CounterSession::take(source, &unit, all, mock, &per.memory).unwrap();
        if processor.freezing {
            // Some hypervisors ignore the request; the counters are stopped by the driver then.
            let freezes = session.freeze_on_interrupt();
            assert!(matches!(freezes, Ok(()) | Err(CounterError::FreezeUnsupported)));
        }
        // Ten seconds of a very slow core.
        let event = Watchdog::event(&unit, 1_000, 10).unwrap();
        let watched = session.open(&unit, &[event]).unwrap();
        per.watchdog.watch(watched);
        session.enable(watched, per.shared.now()).unwrap();
        // Samples are limited from the first tick on.
        session.tick(PER_TICK, per.shared.now(), |_| panic!("no event has counted")).unwrap();
        Self { per, mock, unit, session, own: vec![], task: None, watched }
    }

    /// Returns to user mode: the pages are those of the events that are here.
    pub(crate) fn to_user_mode(&self, task: impl Iterator<Item = (usize, EventId)>) {
        *self.per.here.borrow_mut() = self.own.iter().copied().chain(task).collect();
        self.per.publish(|id, now| self.session.user_view(id, now));
    }
}
