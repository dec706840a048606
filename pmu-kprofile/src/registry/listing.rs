//! The started objects, by value: for tasks that print them.

use core::ops::Range;

use heapless::Vec;
use pmu_core::frame::{ProcessId, ProcessorNumber};
use pmu_core::profile::KProfileSource;

use crate::object::bucket::Bucket;
use crate::registry::error::ProfileError;
use crate::registry::guard::Lists;
use crate::registry::profiles::Profiles;
use crate::registry::write_lock::WriteLock;

/// Description of a started object, as [`Profiles::try_list`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ListedProfile {
    /// Process that the object profiles; `None` if the object profiles all execution.
    pub process: Option<ProcessId>,
    /// Profile source.
    pub source: KProfileSource,
    /// Range of addresses that a basic object profiles; `None` for a callback object.
    pub range: Option<Range<u64>>,
    /// Size of the buckets; `None` for a callback object.
    pub bucket: Option<Bucket>,
}

impl<const N: usize, const P: usize> Profiles<N, P> {
    /// Returns descriptions of at most `M` started objects, beginning with the object at index `from`. The objects are
    /// ordered by source and process.
    ///
    /// If the result has fewer than `M` objects, there are no further started objects.
    ///
    /// ```
    /// # use pmu_kprofile::{ProfileError, Profiles};
    /// fn print(lists: &Profiles<64, 4>) -> Result<(), ProfileError> {
    ///     for profile in lists.try_list::<16>(0)? {
    ///         println!("{} {:?}", profile.source, profile.range);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// [`Busy`](ProfileError::Busy): another task is starting or stopping a profile.
    pub fn try_list<const M: usize>(
        &self,
        from: usize,
    ) -> Result<Vec<ListedProfile, M>, ProfileError> {
        self.try_read(|lists| {
            let listed = lists.objects().skip(from).take(M).map(|object| ListedProfile {
                process: object.process(),
                source: object.source(),
                range: object.range(),
                bucket: object.bucket(),
            });
            listed.collect()
        })
    }

    /// Returns the sources that run on a processor for started objects. A source that runs for several objects is
    /// returned once.
    ///
    /// # Context
    /// Task. Never waits.
    ///
    /// # Errors
    /// [`Busy`](ProfileError::Busy): another task is starting or stopping a profile.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::profile::KProfileSource;
    /// use pmu_core::frame::ProcessorNumber;
    /// use pmu_kprofile::{ProfileError, Profiles};
    ///
    /// /// Tells whether the profile timer of a processor can be stopped: no profile needs it there.
    /// fn is_timer_idle(lists: &Profiles<64, 4>, processor: ProcessorNumber) -> Result<bool, ProfileError> {
    ///     Ok(!lists.try_running_sources(processor)?.contains(&KProfileSource::TIME))
    /// }
    /// ```
    pub fn try_running_sources(
        &self,
        processor: ProcessorNumber,
    ) -> Result<Vec<KProfileSource, N>, ProfileError> {
        self.try_read(|lists| {
            let mut sources = Vec::new();
            for object in lists.objects().filter(|object| object.runs_on(processor)) {
                if !sources.contains(&object.source()) {
                    // There are no more sources than objects.
                    let _ = sources.push(object.source());
                }
            }
            sources
        })
    }

    /// Reads the lists under the write lock, so that they are not written meanwhile.
    fn try_read<R>(&self, read: impl FnOnce(Lists<'_, N>) -> R) -> Result<R, ProfileError> {
        let lock = WriteLock::try_take(self).ok_or(ProfileError::Busy)?;
        let result = read(lock.lists());
        drop(lock);
        Ok(result)
    }
}
