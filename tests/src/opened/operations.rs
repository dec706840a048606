//! Operations on a processor on which events run, for tests that disturb them.

use crate::{Reason, enum_with_all};
use pmu_core::error::CounterError;
use pmu_core::interrupt::EventOverflow;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, Event, EventId};
use pmu_virt::{EventKey, Feed, Privilege};

use super::*;

pub const PERIOD: u64 = 0x1000;

enum_with_all! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Operation {
        Start,
        /// The counter that it needs is another event's, which moves.
        StartWithMove,
        /// The others give way.
        StartExclusive,
        Stop,
        Close,
        Read,
        /// The same period begins anew.
        ApplyPeriod,
        Rotate,
        SwitchOut,
        SwitchIn,
        TakeMore,
        GiveBack,
        OthersControl,
        OthersFixedControl,
        Reprogram,
        /// The counters are suspended, and come back.
        Suspend,
        /// The counters are lent, and come back.
        Lend,
        ShutDown,
    }
}

/// The event that is on a fixed counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFixed {
    None,
    Sampled,
    Counted,
    /// The operation's.
    Own,
}

/// Three events: 0 interrupts, and has a total; 1 has no period; 2 is the operation's, and interrupts, too. They have
/// three general counters, or one less where they take turns, and fixed counter 0 if one of them is on it.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub operation: Operation,
    pub on_fixed: OnFixed,
}

/// The events of a scene on a processor.
pub struct Case<'a, 'm> {
    pub counters: Opened<'a, 'm>,
    pub events: [EventId; 3],
    pub thread: [ThreadEvent; 1],
}

impl Scene {
    /// Returns every possible scene on a processor.
    pub fn all(processor: &Processor) -> impl Iterator<Item = Self> {
        let fixed = processor.fixed();
        let global = processor.unit.global().is_some();
        Operation::ALL.into_iter().flat_map(move |operation| {
            let all = [OnFixed::None, OnFixed::Sampled, OnFixed::Counted, OnFixed::Own];
            all.into_iter().filter_map(move |on_fixed| {
                let own_moves = matches!(operation, Operation::Rotate | Operation::StartWithMove);
                let there = match operation {
                    Operation::OthersControl => global,
                    Operation::OthersFixedControl => fixed,
                    _ => true,
                };
                let makes_sense =
                    on_fixed == OnFixed::None || fixed && !(own_moves && on_fixed == OnFixed::Own);
                (there && makes_sense).then_some(Self { operation, on_fixed })
            })
        })
    }

    /// Returns the number of each event in [`KINDS`].
    pub fn kinds(self) -> [usize; 3] {
        match self.on_fixed {
            OnFixed::None => [2, 3, 4],
            OnFixed::Sampled if self.shares_fixed() => [0, 3, 0],
            OnFixed::Sampled => [0, 3, 4],
            OnFixed::Counted => [2, 0, 4],
            OnFixed::Own => [2, 3, 0],
        }
    }

    /// Returns whether two events need the same fixed counter: the operation's counts in kernel mode.
    fn shares_fixed(self) -> bool {
        self.on_fixed == OnFixed::Sampled
            && matches!(self.operation, Operation::Rotate | Operation::StartWithMove)
    }

    fn privilege(self, place: usize) -> Privilege {
        if place == 2 && self.shares_fixed() { Privilege::Kernel } else { Privilege::User }
    }

    fn events(self, processor: &Processor) -> [Event; 3] {
        let (first, fixed) = (general(processor, 0), CounterSet::fixed(1));
        let kinds = self.kinds();
        let sampling = |place: usize| {
            let event = raw(kinds[place]).every(PERIOD).with_total().rotating();
            event.tagged(place as u64)
        };
        let modes = |event: Event| if self.shares_fixed() { event.user_only() } else { event };
        let own = if self.shares_fixed() { sampling(2).kernel_only() } else { sampling(2) };
        let (counted, alone) =
            (raw(kinds[1]).tagged(1), self.operation == Operation::StartExclusive);
        let counted = if alone { counted.rotating() } else { counted };
        let own = match self.operation {
            Operation::StartExclusive => {
                raw(kinds[2]).every(PERIOD).with_total().exclusive().tagged(2)
            }
            Operation::Rotate | Operation::StartWithMove if self.shares_fixed() => own.on(fixed),
            Operation::StartWithMove => own.on(first),
            _ => own,
        };
        let sampled = match self.operation {
            Operation::Rotate if self.shares_fixed() => sampling(0).on(fixed),
            _ => sampling(0),
        };
        [modes(sampled), counted, own]
    }

    /// Returns the session's counters before the operation.
    pub fn only(self, processor: &Processor) -> CounterSet {
        let [first, second, third] = [0, 1, 2].map(|n| general(processor, n));
        let fixed = CounterSet::fixed(1);
        match (self.operation, self.on_fixed) {
            (Operation::Rotate, OnFixed::None) => first | second,
            (Operation::Rotate, _) => first | fixed,
            (_, OnFixed::None) => first | second | third,
            _ => first | second | third | fixed,
        }
    }

    /// Returns the counter that the operation takes beside them.
    pub fn more(self, processor: &Processor) -> CounterSet {
        if self.operation == Operation::TakeMore { general(processor, 3) } else { CounterSet::NONE }
    }

    /// Prepares the scene: events 0 and 1 run; 2 does where the operation ends it. `passed` of each had happened.
    pub fn prepare<'a, 'm>(
        self,
        processor: &'a Processor,
        passed: u64,
        mock: &'m Mock<'m>,
        memory: &'a Memory,
        table: &'a Table,
    ) -> Case<'a, 'm> {
        let operation = self.operation;
        let mut counters = processor.take_only(self.only(processor), mock, memory, table);
        let events =
            self.events(processor).map(|event| counters.open(&processor.unit, &[event]).unwrap());
        let mut thread = [ThreadEvent::Unused];
        counters.enable(events[2], 0).unwrap();
        self.happen(mock, 2, passed);
        let stops = matches!(
            operation,
            Operation::Stop
                | Operation::Close
                | Operation::Read
                | Operation::ApplyPeriod
                | Operation::SwitchOut
        );
        if operation == Operation::SwitchIn {
            thread = [ThreadEvent::Opened(events[2])];
            counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
        } else if !stops {
            counters.disable(events[2], 0).unwrap();
        }
        counters.enable(events[0], 0).unwrap();
        counters.enable(events[1], 0).unwrap();
        if operation == Operation::Rotate {
            counters.enable(events[2], 0).unwrap();
            assert_eq!(counters.counter_of(events[2]), None);
        }
        (0..2).for_each(|place| self.happen(mock, place, passed));
        Case { counters, events, thread }
    }

    pub fn operate(
        self,
        processor: &Processor,
        case: &mut Case<'_, '_>,
        mut overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), CounterError> {
        let Case { counters, events, thread } = case;
        match self.operation {
            Operation::Start | Operation::StartWithMove | Operation::StartExclusive => {
                counters.enable(events[2], 1).reason()
            }
            Operation::Stop => counters.disable(events[2], 1).reason(),
            Operation::Close => counters.close(events[2], 1).map(|_| ()).reason(),
            Operation::Read => counters.read(events[2], 1).map(|_| ()),
            Operation::ApplyPeriod => counters.apply_period(events[2], PERIOD, 1, overflowed),
            Operation::Rotate => counters.rotate(1),
            Operation::SwitchOut => {
                thread[0] = ThreadEvent::Opened(events[2]);
                counters.switch_out(thread, 1, |sample| overflowed(*sample)).reason()
            }
            Operation::SwitchIn => {
                let outcome = counters.switch_in(&processor.unit, thread, 1);
                if let ThreadEvent::Opened(event) = thread[0] {
                    events[2] = event;
                }
                outcome.reason()
            }
            Operation::TakeMore => {
                counters.take_more(&processor.unit, self.more(processor)).map(|_| ())
            }
            Operation::GiveBack => counters.give_back(general(processor, 2)),
            Operation::OthersControl => {
                counters.set_others_control(general(processor, 3).bits(), true)
            }
            Operation::OthersFixedControl => counters.set_others_fixed_control(0xF0, 0xB0),
            Operation::Reprogram => counters.reprogram(|sample| overflowed(*sample)).map(|_| ()),
            Operation::Suspend => counters
                .suspend(1, |sample| overflowed(*sample))
                .and_then(|()| counters.resume(1, |sample| overflowed(*sample)).map(|_| ())),
            Operation::Lend => {
                counters.lend(1, |sample| overflowed(*sample)).and_then(|window| Ok(window.end(1)?))
            }
            Operation::ShutDown => counters.shut_down(),
        }
    }

    /// Lets `count` of an event happen.
    pub fn happen(self, mock: &Mock<'_>, place: usize, count: u64) {
        mock.advance(&mut self.happened(place, count));
    }

    pub fn happened(self, place: usize, count: u64) -> Feed {
        happened_at(self.kinds()[place], self.privilege(place), count)
    }

    /// Returns the number of an event in `feed`.
    pub fn left(self, place: usize, feed: &Feed) -> u64 {
        let (event, unit_mask) = KINDS[self.kinds()[place]];
        let key = EventKey::general(event.into(), unit_mask);
        feed.count(fed_events().find(key).unwrap(), self.privilege(place))
    }

    /// Returns whether an event is counted, by its counter's registers.
    pub fn counts(self, mock: &Mock<'_>, place: usize) -> bool {
        let (event, unit_mask) = KINDS[self.kinds()[place]];
        let key = EventKey::general(event.into(), unit_mask);
        let user = self.privilege(place) == Privilege::User;
        mock.with_pmu(|pmu| {
            pmu.running().any(|running| {
                running.key == key && if user { running.user } else { running.kernel }
            })
        })
    }
}

/// Returns the processor's general counter number `after`.
pub fn general(processor: &Processor, after: usize) -> CounterSet {
    let mut general = (processor.unit.counters() & CounterSet::GENERAL).iter();
    general.nth(after).map_or(CounterSet::NONE, |counter| counter.only())
}
