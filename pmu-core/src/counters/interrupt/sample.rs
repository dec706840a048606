//! One sample, as the interrupt path reports it.

use core::ops::Deref;

use crate::branches::filter::PackedFilter;
use crate::branches::record::Branch;
use crate::branches::sampled::Branches;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::shared::entry::EventEntry;
use crate::precise::sample::PreciseSample;

/// One sample of an event: the overflow, and what the source's [facilities](crate::EventSource::Facility) recorded with
/// it. The value derefs to the [`EventOverflow`], so `sample.event`, `sample.tag`, `sample.period` and `sample.counter`
/// are the overflow's.
///
/// ```
/// # use pmu_core::{EventOverflow, Sample};
/// # fn push(_tag: u64, _events: u64) {}
/// fn report<F>(sample: Sample<'_, F>) {
///     push(sample.tag, sample.period);
///     let _: EventOverflow = *sample;
/// }
/// ```
#[derive(Debug)]
pub struct Sample<'s, F = ()> {
    overflow: EventOverflow,
    facility: &'s F,
    /// The branches that the event asked for.
    branches: PackedFilter,
}

impl<'s, F> Sample<'s, F> {
    #[inline(always)]
    pub(crate) fn new<S: EventSource>(
        source: &S,
        overflow: EventOverflow,
        facility: &'s F,
    ) -> Self {
        let entry = if S::Facility::OFFERS { source.opened().entry(overflow.event) } else { None };
        Self {
            overflow,
            facility,
            branches: entry.map_or(PackedFilter::NONE, EventEntry::branches),
        }
    }

    /// Returns the source's facility, which has [collected](crate::facility::Facility::collect) what belongs to the
    /// sample.
    #[inline]
    pub const fn facility(&self) -> &'s F {
        self.facility
    }
}

impl<F: EventFacility> Sample<'_, F> {
    /// Returns the last branches before the sample, the newest first, if the event [asked](crate::Event::with_branches)
    /// for branches. The branches that the processor copies into a precise record
    /// ([`SampleParts::branches`](crate::precise::SampleParts::branches)) are in the record, and not here.
    ///
    /// ```
    /// use pmu_core::facility::EventFacility;
    /// use pmu_core::Sample;
    /// # fn push(_tag: u64, _from: u64, _to: u64) {}
    /// fn report<F: EventFacility>(sample: Sample<'_, F>) {
    ///     for branch in sample.branches() {
    ///         push(sample.tag, branch.from, branch.to);
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn branches(&self) -> impl Iterator<Item = Branch> {
        // A flattened option would take the room of two iterators on the interrupt's stack.
        let mut branches = self.branch_records().map(Branches::iter);
        core::iter::from_fn(move || branches.as_mut()?.next())
    }

    /// Returns the address of the sampled instruction: the exact one if the event is [precise](crate::Event::precise).
    /// Otherwise returns `interrupted`, the address in the interrupt's frame.
    pub fn address(&self, interrupted: u64) -> u64 {
        self.instruction().and_then(|sample| sample.address).unwrap_or(interrupted)
    }

    /// Returns what the processor recorded of the sampled instruction, if the event is
    /// [precise](crate::Event::precise).
    pub fn instruction(&self) -> Option<PreciseSample> {
        self.facility.instruction()
    }

    /// Returns the branch records of the sample, with what else is known of them. Returns `None` if the event did not
    /// ask for branches, or if the processor did not record them.
    ///
    /// An overflow of a source, which is no opened event, has the branches that a
    /// [`BranchRecorder`](crate::branch_recording::BranchRecorder) records meanwhile.
    pub fn branch_records(&self) -> Option<&Branches<'_>> {
        let records = self.facility.branches().filter(|_| self.facility.is_newest())?;
        let are_its = match self.branches.get() {
            Some(filter) => records.are_of(filter),
            None => self.event.row().is_some() && records.are_of_recorder(),
        };
        are_its.then_some(records)
    }
}

impl<F> Deref for Sample<'_, F> {
    type Target = EventOverflow;

    #[inline]
    fn deref(&self) -> &EventOverflow {
        &self.overflow
    }
}
