//! The naive model of an opened event: what was counted while it had a counter, its times, and its reports.

use core::cell::Cell;

use pmu_core::{Event, EventCount};

use pmu_tests::opened::raw;

/// Greatest number of events that a run opens.
pub(crate) const MAX_EVENTS: usize = 400;

/// Reports of each event, by its number, as the interrupts' handlers add them up; and the sum of their periods.
pub(crate) struct Told([Cell<(u64, u64)>; MAX_EVENTS]);

impl Told {
    pub(crate) const fn new() -> Self {
        Self([const { Cell::new((0, 0)) }; MAX_EVENTS])
    }

    /// Adds a report, and returns their number.
    pub(crate) fn add(&self, number: u64, period: u64) -> u64 {
        let cell = &self.0[number as usize];
        let (reports, sum) = cell.get();
        cell.set((reports + 1, sum + period));
        reports + 1
    }

    /// Returns the number of reports, and the sum of their periods.
    pub(crate) fn of(&self, number: usize) -> (u64, u64) {
        self.0[number].get()
    }
}

/// Returns the period that the handler sets after so many reports of an event whose frequency is kept; the same for
/// the model.
pub(crate) fn next_period(number: u64, reports: u64) -> u64 {
    0x1000 + (number.wrapping_mul(0x9E37) ^ reports.wrapping_mul(0x1_79B9)) % 0x1800
}

/// Privileges that an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Modes {
    All,
    User,
    Kernel,
}

/// One opened event, as it is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// Number of its kind.
    pub(crate) kind: usize,
    pub(crate) modes: Modes,
    /// Its period as it was opened; 0: it is only counted.
    pub(crate) period: u64,
    /// The handler sets another period at each report.
    pub(crate) has_frequency: bool,
    pub(crate) has_total: bool,
    pub(crate) rotates: bool,
    /// The only type of core that counts it; `None`: any.
    pub(crate) core_type: Option<u32>,
    pub(crate) started: bool,
    /// It was started elsewhere, and found no counter here.
    pub(crate) refused: bool,
    pub(crate) count: EventCount,
    /// Events until the next report, and the period that it ends.
    pub(crate) left: u64,
    pub(crate) current: u64,
    pub(crate) reports: (u64, u64),
    /// After a register did not answer, the remainder of its period is not known: the sum of the reported periods then,
    /// and what was counted since.
    pub(crate) uncertain: Option<(u64, u64)>,
}

/// Longest period of an event.
pub(crate) const MAX_PERIOD: u64 = 0x2800;

impl Expected {
    /// Returns the event as it is opened. The handler learns from its tag which event it is, and whether to keep a
    /// frequency.
    pub(crate) fn event(&self, number: usize) -> Event {
        let mut event = raw(self.kind).tagged((number as u64) << 1 | u64::from(self.has_frequency));
        event = match self.modes {
            Modes::All => event,
            Modes::User => event.user_only(),
            Modes::Kernel => event.kernel_only(),
        };
        if self.period != 0 {
            event = event.every(self.period);
        }
        if self.has_total {
            event = event.with_total();
        }
        if self.core_type.is_none() {
            event = event.on_any_core_type();
        }
        if self.rotates { event.rotating() } else { event }
    }

    /// Returns whether so many reports, and the sum of their periods, are right.
    pub(crate) fn agrees_with(&self, told: (u64, u64)) -> bool {
        match self.uncertain {
            None => told == self.reports,
            Some(_) if self.period == 0 => told == (0, 0),
            // Neither lost nor invented, as far as is known: the period that began before, and the present one.
            Some((before, since)) => (told.1 - before).abs_diff(since) <= MAX_PERIOD,
        }
    }

    /// Compares the count with which an event was closed, or switched out. What has no total tells its times only here:
    /// after a register did not answer, they are at most those of the model.
    pub(crate) fn check_times(&self, count: EventCount, context: &str) {
        let context = format!("{context}: {self:?}");
        match (self.wants_total(), self.uncertain) {
            (true, _) => assert_eq!(count, self.count, "{context}"),
            (false, None) => {
                assert_eq!(
                    EventCount { value: self.count.value, ..count },
                    self.count,
                    "{context}"
                );
            }
            (false, Some(_)) => {
                assert!(count.enabled <= self.count.enabled, "{context}: {count:?}");
                assert!(count.running <= self.count.running, "{context}: {count:?}");
            }
        }
    }

    /// Takes over what is there after a register did not answer: nothing more than what happened.
    pub(crate) fn lose(&mut self, count: EventCount, told: (u64, u64)) {
        let before = self.count;
        assert!(count.value <= before.value || !self.wants_total(), "{self:?}: {count:?}");
        assert!(count.enabled <= before.enabled && count.running <= count.enabled, "{self:?}");
        assert!(told.0 <= self.reports.0 || self.uncertain.is_some(), "{self:?}: {told:?}");
        self.count = count;
        self.uncertain = Some((told.1, 0));
    }

    /// Returns whether it is started where it is.
    pub(crate) fn is_on(&self) -> bool {
        self.started && !self.refused
    }

    /// Returns whether its total can be read.
    pub(crate) fn wants_total(&self) -> bool {
        self.has_total || self.period == 0
    }

    /// Adds what its counter counted in user and kernel mode.
    pub(crate) fn counted(&mut self, number: usize, [user, kernel]: [u64; 2]) {
        let count = match self.modes {
            Modes::All => user + kernel,
            Modes::User => user,
            Modes::Kernel => kernel,
        };
        self.count.value += count;
        if let Some((_, since)) = &mut self.uncertain {
            *since += count;
        }
        if self.period == 0 {
            return;
        }
        let mut rest = count;
        while rest >= self.left {
            rest -= self.left;
            self.reports.0 += 1;
            self.reports.1 += self.current;
            if self.has_frequency {
                self.current = next_period(number as u64, self.reports.0);
            }
            self.left = self.current;
        }
        self.left -= rest;
    }
}
