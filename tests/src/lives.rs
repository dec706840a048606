//! Lives of events: operations at random on events that are alone, in groups, and a thread's.

use pmu_core::error::CounterError;
use pmu_core::memory::EventTable;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSession, CounterUnit, EventId, EventSource, EventStatus, Hardware, Sample};

use crate::Reason;

/// The events of one processor, whose operations are logged with their outcomes.
pub struct Lives<'a, S, H> {
    /// The session that has the events.
    pub session: CounterSession<'a, S, H>,
    /// The counters on which a thread's event is switched in.
    pub unit: &'a CounterUnit,
    /// The table of the events.
    pub table: &'a EventTable,
    /// Four events that are in no group.
    pub alone: Vec<EventId>,
    /// Two groups of two.
    pub groups: Vec<EventId>,
    /// The event whose child the thread has.
    pub parent: EventId,
    /// The thread's event.
    pub thread: [ThreadEvent; 1],
    /// The handler changes periods, and so do operations.
    pub reacts: bool,
    /// The time of the last operation.
    pub now: u64,
    /// Each operation with its outcome.
    pub log: Vec<String>,
}

impl<S: EventSource, H: Hardware> Lives<'_, S, H> {
    /// Returns every opened event, with the thread's.
    pub fn events(&self) -> Vec<EventId> {
        let of_thread = match self.thread[0] {
            ThreadEvent::Opened(id) => Some(id),
            _ => None,
        };
        let groups = self.groups.iter().flat_map(|group| self.session.group_events(*group));
        let alone = self.alone.iter().copied().chain([self.parent]);
        alone.chain(groups).chain(of_thread).collect()
    }

    /// Executes operation `of.0` of 16, on the event or group `of.1`, with the number `of.2`. `note` gets the samples
    /// that it reports, `borrow` runs while the counters are lent, and `lose` makes the registers lose their contents.
    ///
    /// # Panics
    /// If an operation fails that always succeeds.
    pub fn operate(
        &mut self,
        (operation, which, number): (u64, usize, u64),
        note: impl Fn(Sample<'_, S::Facility>),
        borrow: impl Fn(),
        lose: impl Fn(),
    ) {
        self.now += 7;
        let now = self.now;
        let (event, group) = (self.alone[which % 4], self.groups[which % 2]);
        let session = &mut self.session;
        let text = |done: Result<(), CounterError>| format!("{done:?}");
        let done = match operation {
            0 | 1 => text(session.enable(event, now).reason()),
            2 => text(session.disable(event, now).reason()),
            3 => format!("{:?}", session.enable(group, now)),
            4 => format!("{:?}", session.disable(group, now)),
            5..=7 => text(session.rotate(now)),
            8 => match self.thread[0] {
                ThreadEvent::Opened(_) => {
                    format!("{:?}", session.switch_out(&mut self.thread, now, note))
                }
                _ => format!("{:?}", session.switch_in(self.unit, &mut self.thread, now)),
            },
            9 => {
                let window = session.lend(now, note).unwrap();
                borrow();
                format!("{:?}", window.end(now + 3))
            }
            10 => {
                session.suspend(now, &note).unwrap();
                lose();
                format!("{:?}", session.resume(now + 3, note).map(|_| ()))
            }
            11 => format!("{:?}", session.reprogram(note).map(|_| ())),
            // As at a tick: a throttled event reports again, and a frequency has another period.
            12 | 13 => text(session.apply_period(event, 50 + number, now, |_| panic!("pending"))),
            // Of records that wait, the next one has the former period.
            14 if self.reacts => text(self.table.set_period(event, 40 + number)),
            _ => {
                let leader = session.group_events(group).nth(which / 2 % 2).unwrap();
                let changed = match session.event_status(leader).unwrap() {
                    EventStatus::Off => session.enable(leader, now),
                    _ => session.disable(leader, now),
                };
                text(changed.map_err(CounterError::from))
            }
        };
        self.log.push(format!("{operation}, {which}, {number}: {done}"));
    }

    /// Returns the status of each event, as `status` formats it, with the event's count.
    ///
    /// # Panics
    /// If an event is not open.
    pub fn state(&mut self, status: impl Fn(EventStatus) -> String) -> String {
        let now = self.now;
        let events = self.events().into_iter().map(|event| {
            let count = self.session.read(event, now);
            format!("{}, {count:?}\n", status(self.session.event_status(event).unwrap()))
        });
        let events: String = events.collect();
        match self.thread[0] {
            ThreadEvent::SwitchedOut(event) => format!("{events}{:?}", event.count()),
            _ => events,
        }
    }
}
