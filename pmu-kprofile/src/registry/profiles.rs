//! The lists of started profiles, with their readers and their writer.

use core::ops::Range;
use core::sync::atomic::Ordering;

use heapless::Vec;
use pmu_core::frame::{ProcessId, ProcessorNumber};
use pmu_core::profile::KProfileSource;
use pmu_core::windows::{PointerWidth, Rules, WindowsVersion};

use crate::index::lookup::Index;
use crate::object::bucket::Bucket;
use crate::registry::control::ProfileError;
use crate::registry::dispatch::Lists;
use crate::registry::srcu::{ReaderCounters, Statistics};
use crate::registry::write::{WriteLock, WriterState};
use crate::sync::{AtomicUsize, Flag, UnsafeCell, array_of, const_fn};

/// The lists of started profile objects: one list per process, and the global list.
///
/// A `Profiles` has room for `N` started objects. Sources are started only on processors with an
/// [index](pmu_core::frame::ProcessorNumber::index) below `P`.
///
/// At most one task at a time starts or stops a profile. Functions with names that begin with `try_` never wait: if
/// they cannot proceed at once, they return [`Busy`](crate::ProfileError::Busy). The functions that need the feature
/// `critical-section` spin until they can proceed. In a kernel with task priorities, tasks that call these spinning
/// functions must not preempt each other.
///
/// A `Profiles` contains all of its storage and is usually a `static`. With [`Rules::LATEST`], the initial value is all
/// zeros, and takes no room in the kernel's image file. With other rules, the image file contains the whole initial
/// value.
///
/// ```
/// use pmu_kprofile::Profiles;
/// static PROFILES: Profiles<64, 4> = Profiles::new();
/// assert_eq!(PROFILES.statistics().seen, 0);
/// ```
#[repr(C)] // The snapshots first: an interrupt has their address then.
pub struct Profiles<const N: usize, const P: usize> {
    pub(super) snapshots: [Snapshot<N>; 2],
    pub(super) readers: [ReaderCounters; P],
    rules: StoredRules,
    /// The index of the snapshot that interrupts read.
    pub(super) current: AtomicUsize,
    /// The epoch of new readers, which selects the set of counters that they enter.
    pub(super) epoch: AtomicUsize,
    pub(super) started: AtomicUsize,
    /// Set while the write lock is held.
    pub(super) writing: Flag,
    /// The state that only the holder of the write lock accesses.
    pub(super) writer: UnsafeCell<WriterState>,
}

/// Rules, stored as their difference from [`Rules::LATEST`]: lists of the latest rules are zeros, which take no room in
/// an image.
struct StoredRules {
    version: u8,
    width: u8,
}

impl StoredRules {
    const LATEST: Rules = Rules::LATEST;

    const fn of(rules: Rules) -> Self {
        Self {
            version: rules.version as u8 ^ Self::LATEST.version as u8,
            width: rules.width as u8 ^ Self::LATEST.width as u8,
        }
    }

    fn get(&self) -> Rules {
        let version = usize::from(self.version ^ Self::LATEST.version as u8);
        let narrow = self.width ^ Self::LATEST.width as u8 == PointerWidth::Bits32 as u8;
        Rules {
            version: WindowsVersion::ALL.get(version).copied().unwrap_or_default(),
            width: if narrow { PointerWidth::Bits32 } else { PointerWidth::Bits64 },
        }
    }
}

/// One snapshot of the lists.
pub(super) struct Snapshot<const N: usize>(pub(super) UnsafeCell<Index<N>>);

// SAFETY: (1) readers read a snapshot under a read guard, taken before they load which snapshot is current; (2) only
// the holder of the write guard writes a snapshot, while it is not current and a grace period has passed since it was;
// (3) the pointers in it are to `Sync` objects, shared. So no write meets a read.
unsafe impl<const N: usize> Sync for Snapshot<N> {}

// SAFETY: a snapshot is numbers, and pointers to `Sync` objects; nothing in it belongs to a thread.
unsafe impl<const N: usize> Send for Snapshot<N> {}

// SAFETY: (1) a snapshot is `Sync`; (2) `writer` is accessed by the holder of the write lock alone, see
// `WriteLock`; (3) the rest are atomics, and `rules`, which is never written.
unsafe impl<const N: usize, const P: usize> Sync for Profiles<N, P> {}

// SAFETY: (1) a snapshot is `Send`; (2) `writer` holds numbers and a pointer to a `Sync` object.
unsafe impl<const N: usize, const P: usize> Send for Profiles<N, P> {}

impl<const N: usize, const P: usize> Profiles<N, P> {
    const_fn! {
        /// Creates empty lists of started profile objects, which follow [`Rules::LATEST`].
        ///
        /// `Rules::LATEST` are the rules of the latest Windows version whose behavior is known for certain. With these
        /// rules, profiles have none of the defects of earlier Windows versions.
        pub const fn new() -> Self {
            Self::with_rules(Rules::LATEST)
        }
    }

    const_fn! {
        /// Creates empty lists of started profile objects, which follow the given rules: a Windows version and a
        /// pointer width.
        ///
        /// Only objects with the same rules can be started on these lists; for other objects the error is
        /// [`OtherRules`](crate::ProfileError::OtherRules).
        ///
        /// # Examples
        /// ```
        /// use pmu_kprofile::{PointerWidth, Profiles, Rules, WindowsVersion};
        ///
        /// const RULES: Rules = Rules { version: WindowsVersion::Windows7, width: PointerWidth::Bits64 };
        /// static PROFILES: Profiles<64, 4> = Profiles::with_rules(RULES);
        /// assert_eq!(PROFILES.rules(), RULES);
        /// ```
        pub const fn with_rules(rules: Rules) -> Self {
            Self {
                rules: StoredRules::of(rules),
                snapshots: array_of!(Snapshot(UnsafeCell::new(Index::new()))),
                current: AtomicUsize::new(0),
                epoch: AtomicUsize::new(0),
                started: AtomicUsize::new(0),
                readers: array_of!(ReaderCounters::new()),
                writing: Flag::new(),
                writer: UnsafeCell::new(WriterState::NEW),
            }
        }
    }

    /// Returns the rules that these lists of started objects follow: a Windows version and a pointer width.
    pub fn rules(&self) -> Rules {
        self.rules.get()
    }

    /// Returns the number of objects that are started on these lists.
    ///
    /// # Context
    /// Any.
    pub fn started(&self) -> usize {
        // Relaxed: no other memory is read on the strength of this number.
        self.started.load(Ordering::Relaxed)
    }

    /// Returns the statistics of the dispatched profile interrupts, summed over all processors.
    ///
    /// # Context
    /// Any.
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::Profiles;
    ///
    /// /// Tells whether most interrupts came where no object counts: the ranges are too small.
    /// fn most_missed(lists: &Profiles<64, 4>) -> bool {
    ///     let counts = lists.statistics();
    ///     counts.missed > counts.seen / 2
    /// }
    /// ```
    pub fn statistics(&self) -> Statistics {
        let mut total = Statistics::default();
        self.readers.iter().for_each(|counters| counters.add_to(&mut total));
        total
    }

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

impl<const N: usize, const P: usize> core::fmt::Debug for Profiles<N, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Profiles")
            .field("rules", &self.rules())
            .field("started", &self.started())
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

impl<const N: usize, const P: usize> Default for Profiles<N, P> {
    fn default() -> Self {
        Self::new()
    }
}

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
