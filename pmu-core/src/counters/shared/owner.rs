//! The owner of a processor's counters.
//!
//! ```text
//!               take                    publish                     lend
//!   Untaken ──────────► Initializing ───────────► Taken ─────────────────────► Lent
//!      ▲                     ▲        unpublish    │ ▲ ▲       take back         │  an interrupt comes
//!      │                     └─────────────────────┤ │ └─────────────────────────┤
//!      │  give back                                │ │          take back        ▼
//!      └───────────────────────────────────────────┘ └─────────────────── LentInterrupted
//! ```
//!
//! A session gives its counters back from any state. While they are initialized, an interrupt is the session's; while
//! they are lent, it is the borrower's.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The owner of a processor's counters. Tasks change it; an interrupt only notes that it came while they were lent.
#[derive(Debug)]
pub(crate) struct Owner(AtomicU8);

const UNTAKEN: u8 = 0;

const INITIALIZING: u8 = 1;

const TAKEN: u8 = 2;

/// Taken, and lent to a borrower. Greater values are lent, too.
const LENT: u8 = 3;

/// Lent, and an interrupt came while the counters were lent.
const LENT_INTERRUPTED: u8 = 4;

impl Owner {
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(UNTAKEN))
    }

    /// Returns `false` if a session has the counters.
    pub(crate) fn take(&self) -> bool {
        // Pairs with the release in `give_back`, which may have run on another processor.
        self.0.compare_exchange(UNTAKEN, INITIALIZING, Acquire, Relaxed).is_ok()
    }

    pub(crate) fn publish(&self) {
        self.0.store(TAKEN, Relaxed);
    }

    pub(crate) fn unpublish(&self) {
        self.0.store(INITIALIZING, Relaxed);
    }

    /// Returns whether the counters are taken, but not published: their owner programs them, or is to give them back.
    pub(crate) fn is_initializing(&self) -> bool {
        self.0.load(Relaxed) == INITIALIZING
    }

    pub(crate) fn lend(&self) {
        // An interrupt that came in a window that did not end stays noted.
        self.0.fetch_max(LENT, Relaxed);
    }

    pub(crate) fn is_lent(&self) -> bool {
        self.0.load(Relaxed) >= LENT
    }

    /// Notes in an interrupt that it came while the counters are lent.
    pub(crate) fn note_interrupt(&self) {
        self.0.store(LENT_INTERRUPTED, Relaxed);
    }

    /// Returns whether an interrupt came while the counters were lent.
    pub(crate) fn take_back(&self) -> bool {
        self.0.swap(TAKEN, Relaxed) == LENT_INTERRUPTED
    }

    pub(crate) fn give_back(&self) {
        self.0.store(UNTAKEN, Release);
    }
}
