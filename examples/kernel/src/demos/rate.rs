//! The rates of sources: which of them count here, and how often.

use pmu::core::EventSource;
use pmu::core::interval::IntervalLimits;
use pmu::core::profile::KProfileSource;

use crate::demos::failure::Failure;
use crate::demos::workload;
use crate::embedding::sessions::Sessions;
use crate::machine::clock;

/// Time between interrupts that intervals are chosen for.
pub const PERIOD_MS: u64 = 4;
/// Time for which a source is watched, to see whether it counts; and the number of windows in it.
pub const WATCHED_MS: u64 = 10;
const WINDOWS: usize = 9;

/// Observed rate of a source.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Events that it counted.
    pub events: u64,
    /// In so many ticks of the time-stamp counter.
    pub ticks: u64,
}

impl Rate {
    /// Watches a counter source for a while, without interrupts, and returns its rate.
    ///
    /// # Errors
    /// Those of starting, reading and stopping.
    pub fn of(source: KProfileSource, sessions: &Sessions) -> Result<Self, Failure> {
        sessions.machine().set_interval(source, IntervalLimits::EVENTS.max.into())?;
        let rate = sessions.on(0, |session| {
            session.start(source)?;
            let median = Self::median(|| session.read(source));
            session.stop(source).and(median)
        })?;
        Ok(rate)
    }

    /// Returns the median rate of short windows, of what `read` returns.
    ///
    /// A hypervisor that is busy lets a processor wait: then time passes, and events do not, and by the rate of all
    /// that time an interval would be shorter than the handler of its interrupt takes, so that nothing but
    /// interrupts would be executed from then on.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn median<E>(mut read: impl FnMut() -> Result<u64, E>) -> Result<Self, E> {
        let mut windows = [Self { events: 0, ticks: 1 }; WINDOWS];
        let (first, begin) = (read()?, clock::now());
        let mut events = first;
        for window in &mut windows {
            // A source without events for this long is taken to have none.
            if events == first && clock::now() - begin > clock::milliseconds(WATCHED_MS) {
                break;
            }
            // Without the reading: a hypervisor that executes it lets this processor wait there above all.
            let start = clock::now();
            while clock::now() - start < clock::milliseconds(WATCHED_MS) / WINDOWS as u64 {
                workload::short_turn();
            }
            let ticks = clock::now() - start;
            let before = core::mem::replace(&mut events, read()?);
            *window = Self { events: events - before, ticks };
        }
        windows.sort_unstable_by_key(|window| window.per(WATCHED_MS));
        Ok(windows[WINDOWS / 2])
    }

    /// Returns whether so many samples would take too long, at the shortest interval.
    pub fn is_rare(&self, samples: u64) -> bool {
        self.per(patience_ms(samples) / 2) < samples * u64::from(IntervalLimits::EVENTS.min)
    }

    /// Returns the interval for one interrupt per `milliseconds`, before limits.
    pub fn per(&self, milliseconds: u64) -> u64 {
        (u128::from(self.events) * u128::from(clock::milliseconds(milliseconds))
            / u128::from(self.ticks.max(1))) as u64
    }
}

/// Returns the time to wait for this many samples: their interrupts may cost much more than their interval.
pub fn patience_ms(samples: u64) -> u64 {
    samples * PERIOD_MS * 25 + 20_000
}
