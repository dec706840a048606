//! The type.

use core::fmt;
use core::sync::atomic::AtomicBool;

use pmu_core::profile::{AddedSlot, AddedSources};
use pmu_core::{Snapshot, WriteOnce};
use pmu_kprofile::Profiles;
use pmu_kprofile::hardware::Mailbox;

use crate::kernel::duties::Duties;
use crate::kernel::of_processor::{Here, OfProcessor};
use crate::kernel::required::Kernel;
use crate::kernel::sources::MachineSources;
use crate::machine::Machine;
use crate::per_processor::PerProcessor;

/// The performance-monitoring units of all processors of a machine. A kernel `K` keeps this value in a static.
///
/// A `Pmu` combines the objects that a kernel would otherwise create and connect itself: the [`Machine`], the memory of
/// each processor's counters and events, the sessions, the mailbox for requests between processors, and the lists of
/// profiles. The machine has at most `P` processors. Each processor can have `E` events open at a time. At most `N`
/// profiles can be started at a time. The first profile of an event adds a source to the machine. An added source is
/// never removed. At most `N` sources can be added.
///
/// | operation | |
/// |---|---|
/// | [`processor_up`](Self::processor_up), [`processor_down`](Self::processor_down) | on the processor that comes up, or goes down |
/// | [`processor_suspended`](Self::processor_suspended), [`processor_resumed`](Self::processor_resumed) | on the processor, before and after a suspend |
/// | [`interrupt`](Self::interrupt), [`serve_call`](Self::serve_call) | in the handlers of the performance interrupt, and of [`Kernel::interrupt`] |
/// | [`interrupt_with`](Self::interrupt_with), [`interrupt_reporting`](Self::interrupt_reporting) | in the handler of the performance interrupt, for a kernel that opens events |
/// | [`tick`](Self::tick) | in the timer tick of each processor |
/// | [`open`](Self::open), [`open_group`](Self::open_group); [`enable`](Self::enable), [`disable`](Self::disable), [`read`](Self::read), [`reset`](Self::reset), [`set_period`](Self::set_period), [`close`](Self::close) | events of a processor |
/// | [`thread_event`](Self::thread_event), [`thread_group`](Self::thread_group), [`switch`](Self::switch), [`read_thread`](Self::read_thread) | events of threads |
/// | [`lend`](Self::lend) | the counters in the hands of a guest |
/// | [`events_of`](Self::events_of) | the events and the memory of a processor, for handlers and for other processors |
/// | [`count`](Self::count) | counts of events while a function runs |
/// | [`count_slots`](Self::count_slots) | issue slots of a function, with [`TopDownParts`](crate::TopDownParts) |
/// | [`top_down`](Self::top_down) | events of the issue slots, for threads and for the processor, with [`TopDownParts`](crate::TopDownParts) |
/// | [`profile`](Self::profile), [`sample`](Self::sample) | where and when an event happens, on every processor |
/// | [`source`](Self::source) | the source for a profile object that the kernel creates itself |
/// | [`record_branches`](Self::record_branches), [`branch_recorder`](Self::branch_recorder) | the last branches before a moment that the kernel chooses, with [`BranchRecords`](crate::BranchRecords) |
/// | [`precise_records`](Self::precise_records) | the memory of the executing processor's precise records, with [`PreciseRecords`](crate::PreciseRecords) |
/// | [`watch`](Self::watch), [`unwatch`](Self::unwatch), [`touch`](Self::touch) | the watchdog of a processor |
/// | [`with`](Self::with), [`machine`](Self::machine), [`profiles`](Self::profiles), [`hardware`](Self::hardware) | the objects that the `Pmu` combines, for operations that `Pmu` itself does not have, such as [`report_samples`](pmu_core::CounterSession::report_samples) |
///
/// ```
/// use pmu::core::{Event, GenericEvent, Snapshot};
/// use pmu::{Pmu, PmuError};
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
pub struct Pmu<K: Kernel, const P: usize, const E: usize = 8, const N: usize = 16> {
    machine: WriteOnce<Machine>,
    sources: WriteOnce<MachineSources<K>>,
    pub(super) added: AddedSources<[AddedSlot; N]>,
    /// A task adds a source.
    pub(super) is_adding: AtomicBool,
    pub(super) processors: [OfProcessor<K, E>; P],
    pub(super) sessions: PerProcessor<Here<K>, Duties<K>, P>,
    pub(super) mailbox: Mailbox<P>,
    pub(super) profiles: Profiles<N, P>,
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Creates a `Pmu`. No processor is up yet. The value is all zeros, so a static of this type is in `.bss` and takes
    /// no room in the kernel's image.
    pub const fn new() -> Self {
        Self {
            machine: WriteOnce::new(),
            sources: WriteOnce::new(),
            added: AddedSources::new(),
            is_adding: AtomicBool::new(false),
            processors: [const { OfProcessor::new() }; P],
            sessions: PerProcessor::new(),
            mailbox: Mailbox::new(),
            profiles: Profiles::new(),
        }
    }

    /// Returns the machine; `None` before the first [`processor_up`](Self::processor_up).
    ///
    /// # Context
    /// Any.
    pub fn machine(&'static self) -> Option<&'static Machine> {
        self.machine.get()
    }

    /// Returns the lists of started profiles. With these lists, the kernel starts the profile objects that it creates
    /// itself.
    pub const fn profiles(&'static self) -> &'static Profiles<N, P> {
        &self.profiles
    }

    /// Returns the machine's sources with the added ones; `None` before the first
    /// [`processor_up`](Self::processor_up).
    #[inline]
    pub(super) fn sources(&'static self) -> Option<&'static MachineSources<K>> {
        self.sources.get()
    }

    /// Returns the same, and decides which machine this is if no processor did.
    #[inline(never)]
    pub(super) fn detect(&'static self, this: &Snapshot) -> &'static MachineSources<K> {
        loop {
            if let Some(sources) = self.sources.get() {
                return sources;
            }
            // Another processor may be at the same point, for some instructions.
            let machine = self.machine.get().or_else(|| self.machine.set(K::detect(this)).ok());
            if let Some(machine) = machine {
                let _ = self.sources.set(MachineSources::new(machine, &self.added));
            }
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
