//! A list that is set once, and cleared before it is set again.

use core::mem;
use core::sync::atomic::{AtomicU32, Ordering};

use pmu_core::profile::NtStatus;

/// A list that is set once.
pub(super) struct OnceList<const N: usize> {
    /// [`UNSET`], [`SETTING`], or 2 more than the length.
    state: AtomicU32,
    items: [AtomicU32; N],
}

const UNSET: u32 = 0;
const SETTING: u32 = 1;
const SET: u32 = 2;

impl<const N: usize> OnceList<N> {
    pub(super) const fn new() -> Self {
        Self { state: AtomicU32::new(UNSET), items: [const { AtomicU32::new(0) }; N] }
    }

    /// Begins to set the list.
    pub(super) fn begin(&self) -> Result<Setting<'_, N>, NtStatus> {
        if self.change(UNSET, SETTING) {
            Ok(Setting(self))
        } else {
            Err(NtStatus::WMI_ALREADY_ENABLED)
        }
    }

    /// Begins to clear the list; `None` if it is not set.
    pub(super) fn clear(&self) -> Option<Setting<'_, N>> {
        let state = self.state.load(Ordering::Acquire);
        (state >= SET && self.change(state, SETTING)).then_some(Setting(self))
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns the items; none while the list is not set.
    pub(super) fn items(&self) -> impl Iterator<Item = u32> {
        let length = self.state.load(Ordering::Acquire).saturating_sub(SET);
        self.items.iter().take(length as usize).map(|item| item.load(Ordering::Relaxed))
    }
}

/// The right to set a list, which is not set until then. Dropped, also by unwinding, it leaves the list unset.
pub(super) struct Setting<'l, const N: usize>(&'l OnceList<N>);

impl<const N: usize> Setting<'_, N> {
    pub(super) fn end(self, items: &[u32]) {
        let list = self.0;
        mem::forget(self);
        list.items.iter().zip(items).for_each(|(to, item)| to.store(*item, Ordering::Relaxed));
        list.state.store(SET + items.len() as u32, Ordering::Release);
    }
}

impl<const N: usize> Drop for Setting<'_, N> {
    fn drop(&mut self) {
        self.0.state.store(UNSET, Ordering::Release);
    }
}
