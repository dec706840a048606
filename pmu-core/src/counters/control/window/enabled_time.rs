//! The `enabled` time of events that stand still during a window.

use crate::counters::control::window::lend::CounterWindow;
use crate::counters::events::event::GuestMode;
use crate::counters::hooks::event_source::EventSource;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterWindow<'_, '_, S, M, P> {
    /// Adds the window's time, up to `now`, to the `enabled` times of started events. The call leaves out events that
    /// count only [outside guests](crate::Event::outside_guests). Call this before [`end`](Self::end). No register is
    /// accessed.
    ///
    /// During a window, none of the session's events is counted. The count of an event without `exclude_guest`
    /// therefore lacks the occurrences in the guest. With this call, [`EventCount::scaled`](crate::EventCount::scaled)
    /// estimates the missing part: the event's `enabled` time advances, and its `running` time does not. Without this
    /// call, neither time advances, and the scaled count covers only the time outside windows.
    ///
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventSource, Platform};
    /// # use pmu_core::lending::LentCounters;
    /// # use pmu_core::msr::MsrBackend;
    /// /// Runs a guest. Counts of events without `exclude_guest` are estimated for the guest's time.
    /// fn run_guest<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     clock: impl Fn() -> u64,
    ///     guest: impl FnOnce(&mut LentCounters),
    /// ) -> Result<(), CounterError> {
    ///     let mut window = counters.lend(clock(), |_| ())?;
    ///     guest(window.lent());
    ///     let now = clock();
    ///     window.count_as_enabled(now);
    ///     Ok(window.end(now)?)
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor on which the counters were lent.
    pub fn count_as_enabled(&mut self, now: u64) {
        for (_, entry) in self.table().opened() {
            if entry.guest_mode() != GuestMode::HostOnly {
                entry.add_time(now, false);
            }
        }
    }
}
