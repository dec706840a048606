//! A means to hold all other processors outside of the guest for a moment.

use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::vcpu::kick::{self, Thread};

/// A thread that is just returning from a kick may miss another one: it gets one more after this time.
const AGAIN: Duration = Duration::from_micros(200);

/// Record of the processors' threads in the guest.
#[derive(Debug, Default)]
pub(crate) struct Rendezvous {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The threads that are in the guest.
    inside: Vec<Thread>,
    /// Number of threads that want to be alone.
    waiting: usize,
}

impl Rendezvous {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the guest on this thread, as soon as no thread wants to be alone.
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

    /// Calls `work` while no thread is in the guest; the caller's thread is outside.
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
