//! Holding all other processors outside of the guest for a moment.

use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::kick::{self, Thread};

/// A kick may be lost to a thread that is just coming back from another: it gets one more.
const AGAIN: Duration = Duration::from_micros(200);

/// Where the processors' threads are.
#[derive(Debug, Default)]
pub(crate) struct Rendezvous {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The threads that are in the guest.
    inside: Vec<Thread>,
    /// How many threads want to be alone.
    waiting: usize,
}

impl Rendezvous {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread runs the guest, as soon as nobody wants to be alone.
    pub(crate) fn inside<R>(&self, run: impl FnOnce() -> R) -> R {
        let thread = kick::this_thread();
        let mut state = self
            .changed
            .wait_while(self.lock(), |state| state.waiting != 0)
            .unwrap_or_else(PoisonError::into_inner);
        state.inside.push(thread);
        drop(state);
        let result = run();
        self.lock().inside.retain(|other| *other != thread);
        self.changed.notify_all();
        result
    }

    /// Does something while no thread is in the guest; this one is not.
    pub(crate) fn alone<R>(&self, work: impl FnOnce() -> R) -> R {
        let mut state = self.lock();
        state.waiting += 1;
        while !state.inside.is_empty() {
            state.inside.iter().copied().for_each(kick::kick);
            let waited = self.changed.wait_timeout(state, AGAIN);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let result = work();
        state.waiting -= 1;
        self.changed.notify_all();
        result
    }
}
