//! The pages by which threads read their events in user mode, published whenever a counter may have moved.

use pmu_core::reading::{UserView, user_view};
use pmu_core::{CounterError, EventId};

use crate::kernel::pmu::{LocalState, Pmu, ProcessorMemory};
use crate::kernel::required::Kernel;

/// The tags of the events that have pages on a processor, of at most `E`.
pub(super) struct Pages<const E: usize> {
    tags: [u64; E],
    count: usize,
}

impl<const E: usize> Pages<E> {
    const NONE: Self = Self { tags: [0; E], count: 0 };

    fn tags(&self) -> impl Iterator<Item = u64> {
        self.tags.iter().take(self.count).copied()
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Returns the pages of this processor's events.
    #[inline]
    pub(super) fn pages(&'static self) -> Pages<E> {
        let of = self.processors.get(K::this_processor()).filter(|_| K::USER_PAGES);
        of.map_or(Pages::NONE, ProcessorMemory::pages)
    }

    /// Hides the pages of this processor's events.
    #[inline]
    pub(super) fn hide_pages(&'static self) {
        self.pages().tags().for_each(hide::<K>);
    }

    /// Publishes the pages of this processor's events, as a use of the session leaves them, and hides those of the
    /// events that it closed. While the processor is suspended, all are hidden.
    ///
    /// They are hidden after the events are closed, because an interrupt publishes the pages of open ones.
    #[inline]
    pub(super) fn publish(&'static self, local: Option<&mut LocalState<K>>, before: &Pages<E>) {
        if !K::USER_PAGES {
            return;
        }
        let Some(of) = self.processors.get(K::this_processor()) else { return };
        if let Some(local) = local {
            let counters = local.session.counters_mut();
            of.publish(|event| counters.user_view(event, K::now()));
            // Events that left: their pages would show a counter that another event has by now.
            before.tags().filter(|tag| !of.has_page(*tag)).for_each(hide::<K>);
        } else {
            of.pages().tags().chain(before.tags()).for_each(hide::<K>);
        }
    }

    /// Publishes the pages of this processor's events, after the handler of the performance interrupt has serviced the
    /// counters.
    #[inline]
    pub(super) fn publish_in_interrupt(&'static self) {
        if K::USER_PAGES
            && let Some((events, memory)) = self.events_of(K::this_processor())
            && let Some(of) = self.processors.get(K::this_processor())
        {
            let msr = K::msr();
            of.publish(|event| user_view(&events, &msr, memory, event, K::now()));
        }
    }
}

impl<K: Kernel, const E: usize> ProcessorMemory<K, E> {
    /// Returns the events that have pages now.
    fn pages(&self) -> Pages<E> {
        let mut pages = Pages::NONE;
        for (place, (_, tag)) in pages.tags.iter_mut().zip(self.events.with_user_rdpmc()) {
            *place = tag;
            pages.count += 1;
        }
        pages
    }

    fn has_page(&self, tag: u64) -> bool {
        self.events.with_user_rdpmc().any(|(_, of)| of == tag)
    }

    fn publish(&self, view: impl Fn(EventId) -> Result<UserView, CounterError>) {
        let clock = K::user_clock();
        for (event, tag) in self.events.with_user_rdpmc() {
            if let Some(page) = K::user_page(tag) {
                // An event that cannot be read has an empty page, and the thread makes a system call.
                let _ = page.publish(clock.as_ref(), || view(event));
            }
        }
    }
}

/// Lets the thread make a system call.
fn hide<K: Kernel>(tag: u64) {
    if let Some(page) = K::user_page(tag) {
        page.hide();
    }
}
