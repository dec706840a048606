//! One sample, as the interrupt path reports it.

use core::ops::Deref;

use crate::counters::interrupt::overflow::EventOverflow;

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
}

impl<'s, F> Sample<'s, F> {
    #[inline]
    pub(crate) const fn new(overflow: EventOverflow, facility: &'s F) -> Self {
        Self { overflow, facility }
    }

    /// Returns the source's facility, which has [collected](crate::Facility::collect) what belongs to the sample.
    #[inline]
    pub const fn facility(&self) -> &'s F {
        self.facility
    }
}

impl<F> Deref for Sample<'_, F> {
    type Target = EventOverflow;

    #[inline]
    fn deref(&self) -> &EventOverflow {
        &self.overflow
    }
}
