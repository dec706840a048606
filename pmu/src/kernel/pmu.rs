//! The type.

use core::sync::atomic::{AtomicBool, AtomicU64};
use core::{fmt, ptr};

use pmu_core::branch_recording::BranchError;
use pmu_core::error::{CounterError, EventsError, NoFacility};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::profile::{AddedSlot, AddedSources, InterfaceError, Session};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterUnit, EventId, Events, WriteOnce};
use pmu_kprofile::hardware::Mailbox;
use pmu_kprofile::{CreateError, ProfileError, Profiles};

use crate::kernel::architecture::{FacilitiesOf, MachineOf, ProcessorOf};
use crate::kernel::facilities::{Facilities, FacilityOnDemand};
use crate::kernel::required::{Kernel, KernelHooks};
use crate::per_processor::{Busy, OnProcessor, PerProcessor};
use crate::perf::{PerfError, errno};
use crate::watchdog::Watchdog;

/// The performance-monitoring units of all processors of a machine. A kernel `K` keeps this value in a static.
///
/// A `Pmu` combines the objects that a kernel would otherwise create and connect itself: the
/// [`Machine`](crate::Machine), the memory of each processor's counters and events, the sessions, the mailbox for
/// requests between processors, and the lists of profiles. The machine has at most `P` processors. Each processor can
/// have `E` events open at a time: those of the kernel, of the thread that runs, of [`count`](Self::count), and the
/// watchdog's. At most `N` profiles can be started at a time. The first profile of an event adds a source to the
/// machine. An added source is never removed. At most `N` sources can be added.
///
/// | operation | |
/// |---|---|
/// | [`processor_up`](Self::processor_up), [`processor_down`](Self::processor_down) | on the processor that comes up, or goes down |
/// | [`processor_suspended`](Self::processor_suspended), [`processor_resumed`](Self::processor_resumed) | on the processor, before and after a suspend |
/// | [`interrupt`](Self::interrupt), [`serve_call`](Self::serve_call) | in the handlers of the performance interrupt, and of [`Kernel::interrupt`] |
/// | [`sample_read`](Self::sample_read), [`stop_reporting`](Self::stop_reporting) | the counts of a sample's group; no more samples of its event |
/// | [`tick`](Self::tick) | in the timer tick of each processor |
/// | [`open`](Self::open), [`open_group`](Self::open_group), [`open_member`](Self::open_member); [`start`](Self::start), [`start_group`](Self::start_group); [`enable`](Self::enable), [`disable`](Self::disable), [`read`](Self::read), [`read_group`](Self::read_group), [`status`](Self::status), [`reset`](Self::reset), [`set_period`](Self::set_period), [`close`](Self::close), [`close_member`](Self::close_member) | events of a processor |
/// | [`perf_event`](Self::perf_event) | the event for which attributes of perf stand |
/// | [`thread_event`](Self::thread_event), [`thread_group`](Self::thread_group), [`thread_member`](Self::thread_member), [`switch`](Self::switch), [`with_thread`](Self::with_thread), [`read_thread`](Self::read_thread) | events of threads |
/// | [`happened`](Self::happened), [`clock_interrupt`](Self::clock_interrupt) | what software events count, with [`SoftwareEvents`](crate::facilities::SoftwareEvents) |
/// | [`lend`](Self::lend) | the counters in the hands of a guest |
/// | [`events_of`](Self::events_of) | the events and the memory of a processor, for handlers and for other processors |
/// | [`count`](Self::count) | counts of events while a function runs |
/// | [`count_slots`](Self::count_slots) | issue slots of a function, with [`TopDownParts`](crate::facilities::TopDownParts) |
/// | [`top_down`](Self::top_down) | events of the issue slots, for threads and for the processor, with [`TopDownParts`](crate::facilities::TopDownParts) |
/// | [`profile`](Self::profile), [`sample`](Self::sample) | where and when an event happens, on every processor |
/// | [`source`](Self::source) | the source for a profile object that the kernel creates itself |
/// | [`record_branches`](Self::record_branches), [`branch_recorder`](Self::branch_recorder) | the last branches before a moment that the kernel chooses, with [`BranchRecords`](crate::facilities::BranchRecords) |
/// | [`before_idle`](Self::before_idle), [`after_idle`](Self::after_idle) | around the idle loop's wait, with [`BranchRecords`](crate::facilities::BranchRecords): Zen 3's branch sampling |
/// | [`trace_branches`](Self::trace_branches), [`drain_branches`](Self::drain_branches), [`branch_trace_memory`](Self::branch_trace_memory) | every taken branch of a processor, with [`BranchTraces`](crate::facilities::BranchTraces) |
/// | [`report_samples`](Self::report_samples) | precise samples that wait in memory |
/// | [`precise_records`](Self::precise_records) | the memory of the executing processor's precise records, with [`PreciseRecords`](crate::facilities::PreciseRecords) |
/// | [`watch`](Self::watch), [`watch_by`](Self::watch_by), [`unwatch`](Self::unwatch), [`touch`](Self::touch) | the watchdog of a processor |
/// | [`with`](Self::with), [`machine`](Self::machine), [`profiles`](Self::profiles), [`hardware`](Self::hardware) | the objects that the `Pmu` combines, for operations that `Pmu` itself does not have, such as [`freeze_on_interrupt`](pmu_core::CounterSession::freeze_on_interrupt) |
///
/// ```
/// use pmu::{Event, GenericEvent, Pmu, PmuError, Snapshot};
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::*;
///
/// static PMU: Pmu<MyKernel, 8> = Pmu::new();
///
/// fn instructions_per_cycle(this_processor: &Snapshot, workload: fn()) -> Result<(u64, u64), PmuError> {
///     PMU.processor_up(this_processor)?;
///     let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
///     let [instructions, cycles] = PMU.count(&events, workload)?; // a group: counted at the same time
///     Ok((instructions.value, cycles.value))
/// }
/// ```
///
/// # Context
/// Call every operation in task context, and one that takes a [`PmuEvent`](crate::PmuEvent) on the event's processor,
/// unless the operation says otherwise. Each call is [pinned](Kernel::pinned) by itself while it uses the executing
/// processor's session. A task that can migrate is pinned around calls that belong together.
pub struct Pmu<K: Kernel, const P: usize, const E: usize = 8, const N: usize = 16> {
    machine: WriteOnce<MachineOf<K>>,
    pub(super) added: AddedSources<[AddedSlot; N]>,
    /// A task adds a source.
    pub(super) is_adding: AtomicBool,
    pub(super) processors: [ProcessorMemory<K, E>; P],
    pub(super) sessions: PerProcessor<LocalState<K>, KernelHooks<K>, P>,
    pub(super) mailbox: Mailbox<P>,
    pub(super) profiles: Profiles<N, P>,
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Creates a `Pmu`. No processor is up yet. The value is all zeros, so a static of this type is in `.bss` and takes
    /// no room in the kernel's image.
    pub const fn new() -> Self {
        Self {
            machine: WriteOnce::new(),
            added: AddedSources::new(),
            is_adding: AtomicBool::new(false),
            processors: [const { ProcessorMemory::new() }; P],
            sessions: PerProcessor::new(),
            mailbox: Mailbox::new(),
            profiles: Profiles::new(),
        }
    }

    /// Returns the machine; `None` before the first [`processor_up`](Self::processor_up).
    ///
    /// # Context
    /// Any.
    pub fn machine(&'static self) -> Option<&'static MachineOf<K>> {
        self.machine.get()
    }

    /// Returns the lists of started profiles. With these lists, the kernel starts the profile objects that it creates
    /// itself.
    ///
    /// # Context
    /// Any.
    pub const fn profiles(&'static self) -> &'static Profiles<N, P> {
        &self.profiles
    }

    /// Returns what the counters of a processor count.
    #[inline]
    pub(super) fn events(
        &'static self,
        of: &'static ProcessorMemory<K, E>,
        machine: &'static MachineOf<K>,
    ) -> PmuEvents<K> {
        let facility = FacilityOnDemand(&of.facilities);
        Events::new(machine, &of.events).adding(&self.added).with(facility)
    }

    /// Returns the machine, and decides which one this is if no processor did.
    #[inline(never)] // 64 bytes of the glue.
    pub(super) fn detect(&'static self, this: &ProcessorOf<K>) -> &'static MachineOf<K> {
        loop {
            // If another processor was first, its value is as good: it has the same machine.
            if let Some(machine) = self.machine.get() {
                return machine;
            }
            let _ = self.machine.set(K::detect(this));
        }
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Default for Pmu<K, P, E, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> fmt::Debug for Pmu<K, P, E, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pmu").field("machine", &self.machine).finish_non_exhaustive()
    }
}

/// The [`Session`] that a [`Pmu`](crate::Pmu) has for each processor. The session controls the counters of the
/// machine's profile sources, of [added](pmu_core::profile::AddedSources) sources, and of
/// [opened](pmu_core::CounterSession::open) events.
pub type PmuSession<K> = Session<'static, PmuEvents<K>, (<K as Kernel>::Registers, KernelHooks<K>)>;

/// The sources, the opened events and the [facilities](crate::facilities::Facilities) of one processor of a [`Pmu`].
pub type PmuEvents<K> = Events<'static, MachineOf<K>, FacilityOnDemand<K>, &'static AddedSources>;

/// Memory that the interrupt and the tasks of one processor share.
pub(super) struct ProcessorMemory<K: Kernel, const E: usize> {
    pub(super) counters: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(super) events: EventTable<[EventEntry; E]>,
    pub(super) facilities: FacilitiesOf<K>,
    pub(super) watchdog: Watchdog,
    /// The processor has a session.
    pub(super) is_up: AtomicBool,
    /// The lists of started profiles are out of date for this processor, which came up or went down.
    pub(super) is_unlisted: AtomicBool,
    /// A request came while the session was in use: whoever uses the session serves the request afterwards.
    pub(super) is_asked: AtomicBool,
    /// Time for which the timer of the clocks is set; 0: none.
    pub(super) clock_timer: AtomicU64,
}

impl<K: Kernel, const E: usize> ProcessorMemory<K, E> {
    pub(super) const fn new() -> Self {
        Self {
            counters: CounterMemory::new(),
            events: EventTable::new(),
            facilities: Facilities::NEW,
            watchdog: Watchdog::new(),
            is_up: AtomicBool::new(false),
            is_unlisted: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            clock_timer: AtomicU64::new(0),
        }
    }

    /// Returns the tag of the watchdog's event: an address, which no event of the kernel has. So the watchdog does not
    /// take an event for its own that the kernel opened at the place of a closed one.
    #[inline]
    pub(super) fn watchdog_tag(&self) -> u64 {
        ptr::from_ref(&self.watchdog).addr() as u64
    }

    /// Returns the watchdog's event, if it is open.
    pub(super) fn watched(&self, local: &mut LocalState<K>) -> Option<EventId> {
        let event = self.watchdog.watched()?;
        let tag = local.session.counters_mut().event_tag(event);
        (tag == Ok(self.watchdog_tag())).then_some(event)
    }
}

/// State of one processor that only its tasks use.
pub(super) struct LocalState<K: Kernel> {
    pub(super) session: PmuSession<K>,
    /// This processor's counters: to make the description takes some hundred instructions of CPUID's leaves.
    pub(super) unit: CounterUnit,
    /// The session is suspended, and is not used until it is resumed.
    pub(super) is_suspended: bool,
}

// SAFETY: (1) as for a session, which is not `Send` so that it stays on its processor: what it holds is sent (`Msr`),
// or shared (the machine, the counters' memory); (2) a unit is plain data.
unsafe impl<K: Kernel> OnProcessor for LocalState<K> {}

/// Reason why an operation of [`Pmu`](crate::Pmu) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PmuError {
    /// [`processor_up`](crate::Pmu::processor_up) was not called on this processor, or the call failed.
    #[error("this processor's counters were not taken")]
    NotUp,
    /// [`processor_up`](crate::Pmu::processor_up) was already called on this processor.
    #[error("this processor's counters were taken before")]
    IsUp,
    /// The processor is suspended: [`processor_suspended`](crate::Pmu::processor_suspended) was called, and
    /// [`processor_resumed`](crate::Pmu::processor_resumed) was not called yet.
    #[error("this processor's counters are suspended")]
    Suspended,
    /// The event belongs to the processor of this number, and the operation must be called there.
    #[error("the event is processor {0}'s")]
    OtherProcessor(usize),
    /// This processor's session is in use, or the [`Pmu`](crate::Pmu) has no slot for this processor.
    #[error("{0}")]
    Session(#[source] Busy),
    /// A profile source could not be started or stopped, or `Pmu` could not take or release ownership of the
    /// processor's counters.
    #[error("{0}")]
    Interface(#[source] InterfaceError),
    /// An event could not be opened, enabled, disabled or read.
    #[error("{0}")]
    Counters(#[source] CounterError),
    /// A group of events could not be opened, enabled or read, or some events of a thread could not be switched in or
    /// out.
    #[error("{0}")]
    Events(#[source] EventsError),
    /// The profile object could not be created.
    #[error("{0}")]
    Create(#[source] CreateError),
    /// The profile could not be started or stopped.
    #[error("{0}")]
    Profile(#[source] ProfileError),
    /// The processor has no branch records, or an operation on its branch records failed.
    #[error("{0}")]
    Branches(#[source] BranchError),
    /// The processor has no precise records that it can use, does not divide issue slots, or cannot trace branches.
    #[error("{0}")]
    Facility(#[source] NoFacility),
    /// A clock is to be sampled, and the kernel has [no timer](crate::Kernel::CLOCK_TIMER) for that.
    #[error("there is no timer for the samples of clocks")]
    NoClockTimer,
    /// The attributes of perf are no event of a counter.
    #[error("{0}")]
    Perf(#[source] PerfError),
}

impl PmuError {
    /// Returns the `errno` value with which Linux' `perf_event_open` and `ioctl` refuse the operation, as a positive
    /// number: that of [`perf::errno`](crate::perf::errno()) for an error of the counters; `ENODEV` (19) for a
    /// processor that is not up; `EBUSY` (16) for a session or for branch records that are in use, lent or suspended;
    /// `EIO` (5) for branch records whose registers fail; `EOPNOTSUPP` (95) for hardware that the processor lacks;
    /// otherwise `EINVAL` (22).
    ///
    /// Source: `perf_event_open(2)`, "Errors".
    ///
    /// ```
    /// # use pmu::PmuError;
    /// # use pmu::core::error::CounterError;
    /// assert_eq!(PmuError::NotUp.errno(), 19);
    /// assert_eq!(PmuError::from(CounterError::NoCounterForEvent).errno(), 22);
    /// ```
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Counters(reason)
            | Self::Interface(InterfaceError::Counters(reason))
            | Self::Profile(ProfileError::Hardware {
                error: InterfaceError::Counters(reason),
                ..
            }) => errno(*reason),
            Self::Events(error) => errno(error.reason),
            Self::Perf(error) => error.errno(),
            Self::NotUp | Self::Session(Busy::NoSlot { .. }) => 19,
            Self::Suspended | Self::IsUp | Self::Session(_) => 16,
            Self::Branches(BranchError::MemoryInUse | BranchError::Lent) => 16,
            Self::Branches(
                BranchError::NotRecording(_)
                | BranchError::StateUnknown(_)
                | BranchError::Xsaves(_),
            ) => 5,
            Self::Branches(_) | Self::Facility(_) | Self::NoClockTimer => 95,
            Self::OtherProcessor(_) | Self::Interface(_) | Self::Create(_) | Self::Profile(_) => 22,
        }
    }
}

macro_rules! from {
    ($($variant:ident $error:ty,)*) => {
        $(impl From<$error> for PmuError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

from! {
    Session Busy,
    Interface InterfaceError,
    Counters CounterError,
    Events EventsError,
    Create CreateError,
    Profile ProfileError,
    Branches BranchError,
    Facility NoFacility,
    Perf PerfError,
}
