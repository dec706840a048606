//! The pages by which threads read their events in user mode, published whenever a counter may have moved.

use pmu_core::reading::{UserView, user_view};
use pmu_core::{CounterError, EventId};

use crate::kernel::pmu::{LocalState, Pmu, ProcessorMemory};
use crate::kernel::required::Kernel;

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Publishes the pages of this processor's events, as a task leaves them.
    #[inline]
    pub(super) fn publish(&'static self, local: &mut LocalState<K>) {
        if K::USER_PAGES
            && let Some(of) = self.processors.get(K::this_processor())
        {
            let counters = local.session.counters_mut();
            of.publish(|event| counters.user_view(event, K::now()));
        }
    }

    /// Publishes the pages of this processor's events in the handler of the performance interrupt.
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
    fn publish(&self, view: impl Fn(EventId) -> Result<UserView, CounterError>) {
        let clock = K::user_clock();
        for (event, tag) in self.events.with_user_rdpmc() {
            if let Some(page) = K::user_page(tag) {
                // An event that cannot be read has an empty page, and the thread makes a system call.
                let _ = page.publish(clock.as_ref(), || view(event));
            }
        }
    }

    /// Hides the pages of those events that are about to be closed.
    #[inline]
    pub(super) fn hide_pages(&self, is_closed: impl Fn(EventId) -> bool) {
        if K::USER_PAGES {
            let closed = self.events.with_user_rdpmc().filter(|(event, _)| is_closed(*event));
            closed.filter_map(|(_, tag)| K::user_page(tag)).for_each(|page| page.hide());
        }
    }
}
