//! One sample, as a kernel takes it.

use core::fmt;
use core::ops::Deref;

use pmu_core::Sample;
use pmu_core::frame::InterruptFrame;
use pmu_core::profile::KProfileSource;

use crate::kernel::architecture::FacilityOf;
use crate::kernel::required::Kernel;

/// One sample of a kernel's [`Pmu`](crate::Pmu), as [`Kernel::sampled`] takes it: an overflow, what the kernel's
/// [`Facilities`](crate::facilities::Facilities) recorded with it, and the frame of the handler that reports it. The
/// value derefs to the [`Sample`], which has the branches and what was recorded of the instruction, and that to the
/// [`EventOverflow`](pmu_core::interrupt::EventOverflow), which has the event, its tag and the period.
pub struct PmuSample<'s, K: Kernel> {
    sample: &'s Sample<'s, FacilityOf<K>>,
    frame: Option<&'s dyn InterruptFrame>,
    source: Option<KProfileSource>,
}

impl<'s, K: Kernel> PmuSample<'s, K> {
    #[inline(always)]
    pub(super) fn new(
        sample: &'s Sample<'s, FacilityOf<K>>,
        frame: Option<&'s dyn InterruptFrame>,
        source: Option<KProfileSource>,
    ) -> Self {
        Self { sample, frame, source }
    }

    /// Returns the frame that was passed to [`interrupt`](crate::Pmu::interrupt), [`happened`](crate::Pmu::happened) or
    /// [`clock_interrupt`](crate::Pmu::clock_interrupt). Returns `None` if another call reports the sample: a precise
    /// record that waited in memory, or the overflow of a counter whose interrupt has not come.
    #[inline]
    pub fn frame(&self) -> Option<&'s dyn InterruptFrame> {
        self.frame
    }

    /// Returns the address of the sampled instruction if the event is [precise](pmu_core::Event::precise); otherwise,
    /// the address in the [frame](Self::frame). Returns `None` if there is neither.
    pub fn address(&self) -> Option<u64> {
        let exact = self.instruction().and_then(|instruction| instruction.address);
        exact.or_else(|| self.frame.map(|frame| frame.pc()))
    }

    /// Returns the profiles' source whose interval has passed. Returns `None` if the sample is of an event that the
    /// kernel opened. The [tag](pmu_core::Event::tagged) of a source's sample is no tag of the kernel.
    #[inline]
    pub fn source(&self) -> Option<KProfileSource> {
        self.source
    }
}

impl<'s, K: Kernel> Deref for PmuSample<'s, K> {
    type Target = Sample<'s, FacilityOf<K>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        self.sample
    }
}

impl<K: Kernel> fmt::Debug for PmuSample<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address();
        f.debug_struct("PmuSample")
            .field("overflow", &**self.sample)
            .field("address", &address)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}
