//! The machine's profile interface, and the hardware beside its counters, of any vendor.

use core::sync::atomic::AtomicU32;

use pmu_amd::{Amd64, Zen};
use pmu_core::access::RegisterBackend;
use pmu_core::branches::BranchUnit;
use pmu_core::error::{NoFacility, NoInterface};
use pmu_core::profile::{DefaultInterface, ProfileSources, SourceTable};
use pmu_core::windows::Rules;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterUnit, EventSource};
use pmu_intel::precise::PreciseUnit;
use pmu_intel::topdown::TopDownUnit;
use pmu_intel::{ArchitecturalPerfmon, Emon};

/// Counters and profile interface of a machine, detected by CPUID.
///
/// One type stands for all vendors. So a kernel can keep the machine in one static, and its interrupt handler needs no
/// generics. `Machine` implements [`EventSource`](pmu_core::EventSource). The method `unit` describes the counters of
/// the boot processor, and the method `unit_of` describes the counters of a given processor.
///
/// ```
/// use pmu::Machine;
/// use pmu::core::EventSource;
/// use pmu::Snapshot;
/// use pmu::core::x86::dump::CpuidDump;
/// use pmu::KProfileSource;
///
/// let dump = CpuidDump::parse(
///     "   0x00000000 0x00: eax=0x0000000a ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
///         0x0000000a 0x00: eax=0x07300404 ebx=0x00000000 ecx=0x00000000 edx=0x00000603",
/// )?;
/// let machine = Machine::detect(&Snapshot::capture(&dump));
/// assert!(machine.query(KProfileSource::TOTAL_CYCLES).is_supported());
///
/// // A processor without counters: time remains, and the reason is known.
/// let nothing = Machine::detect(&Snapshot::capture(&CpuidDump::parse(
///     "   0x00000000 0x00: eax=0x00000001 ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
/// )?));
/// assert!(nothing.query(KProfileSource::TIME).is_supported());
/// assert!(nothing.why_time_only().unwrap().to_string().contains("no profile interface"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Events`](pmu_core::Events) adds a processor's opened events to the machine's profile sources. The session and the
/// interrupt's handler have the same:
///
/// ```
/// use pmu::Machine;
/// use pmu::core::{CounterSet, Event, EventSource, Events, GenericEvent};
/// use pmu::core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
/// use pmu::core::profile::{KProfileSource, Session};
/// use pmu::core::registers::MAX_COUNTERS;
/// # use pmu_virt::{FedEvents, VirtualPmu};
/// # use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// # use pmu_virt::mock::MockMsr;
/// # let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
/// # let processor = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
/// # let (this, hardware) = (&processor.snapshot(), &processor);
/// static EVENTS: EventTable<[EventEntry; 8]> = EventTable::new();
/// static MEMORY: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new();
/// let machine = Machine::detect(this);
/// let both = Events::new(&machine, &EVENTS);
/// let mut session = Session::take(both, this, CounterSet::ALL, hardware, &MEMORY)?;
/// session.start(KProfileSource::BRANCH_MISPREDICTIONS)?;
/// session.counters_mut().start(machine.unit(), &[Event::generic(GenericEvent::Instructions)], 0)?;
/// assert!(session.is_running(KProfileSource::BRANCH_MISPREDICTIONS));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// # Context
/// Detect the machine once, in a task.
///
/// # Limitations
/// On a hybrid processor, the sources of a session are those of the boot core whose events the session's own core has,
/// too. The session has the counters that both cores have; `Events` on the own core's `CounterUnit` has all of
/// that core. An event without a bit in leaf 0x0A is taken to mean the same on each core whose selects have room for
/// it.
#[derive(Debug)]
pub struct Machine {
    kind: Kind,
    counters: fn(&Snapshot) -> CounterUnit,
    /// A variable per source of AMD's table, the longest.
    sources: ProfileSources<[AtomicU32; pmu_amd::SOURCES.len()]>,
}

const _: () = assert!(pmu_intel::SOURCES.len() <= pmu_amd::SOURCES.len());

/// The profile interface that a machine has.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Emon(ArchitecturalPerfmon),
    Amd64,
    Zen(&'static SourceTable),
    TimeOnly(NoInterface),
}

impl Machine {
    /// Detects the machine from the boot processor, which `snapshot` describes. The machine has the same profile
    /// sources as Windows.
    ///
    /// On AMD, Windows has no source that counts cycles. On Zen, most of Windows' sources do not count the events in
    /// their names. A kernel can get other sources in two ways:
    /// - [`detect_zen`](Self::detect_zen) returns a machine on which each source counts the event in its name. This
    ///   machine also has a source that counts cycles.
    /// - [`AddedSources::add_event`](pmu_core::profile::AddedSources::add_event) turns an event, such as cycles, into a
    ///   source.
    pub fn detect(snapshot: &Snapshot) -> Self {
        let kind = Kind::of(Emon::detect(snapshot), Amd64::detect(snapshot));
        Self::of(snapshot, kind, counters)
    }

    /// Detects the machine as [`detect`](Self::detect) does, except on a Zen processor. On Zen, the machine has the
    /// sources of [`Zen`], not the sources of [`Amd64`]. [`Zen`] has fewer sources, and each counts the event in its
    /// name.
    ///
    /// ```
    /// use pmu::Machine;
    /// use pmu::core::EventSource;
    /// use pmu::Snapshot;
    /// use pmu::core::x86::dump::CpuidDump;
    /// use pmu::KProfileSource;
    ///
    /// let zen_3 = Snapshot::capture(&CpuidDump::parse(
    ///     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    ///         0x00000001 0x00: eax=0x00a20f10 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    ///         0x80000000 0x00: eax=0x80000001 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    ///         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00800000 edx=0x20000000",
    /// )?);
    /// let select = |machine: Machine| {
    ///     let row = machine.row(KProfileSource::DCACHE_MISSES)?;
    ///     Some(machine.sources()[row].select().select_bits())
    /// };
    /// assert_eq!(select(Machine::detect(&zen_3)), Some(0x3_0041)); // K8's: it counts nothing here
    /// assert_eq!(select(Machine::detect_zen(&zen_3)), Some(0x3_FF44)); // fills of the data cache
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn detect_zen(snapshot: &Snapshot) -> Self {
        match Zen::detect(snapshot) {
            Some(zen) => Self::of(snapshot, Kind::Zen(zen.table()), counters),
            None => Self::detect(snapshot),
        }
    }

    /// Detects the machine as the HAL of a given Windows version does.
    ///
    /// If the HAL of that version does not support the processor, `ProfileTime` is the only profile source, but the
    /// counters can still count events. If the HAL uses only AMD's four legacy counters, the machine has only these
    /// four counters: see [`Amd64::detect_as_of`].
    ///
    /// ```
    /// use pmu::Machine;
    /// use pmu::core::EventSource;
    /// use pmu::KProfileSource;
    /// use pmu::core::windows::{PointerWidth, Rules, WindowsVersion};
    /// # use pmu_virt::{FedEvents, VirtualPmu};
    /// # use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// # use pmu_virt::mock::MockMsr;
    /// # let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// # let processor = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// # let this = &processor.snapshot(); // an Intel processor
    /// let version = WindowsVersion::WindowsXp;
    /// let xp = Machine::detect_as_of(this, Rules { version, width: PointerWidth::Bits64 });
    /// assert!(!xp.query(KProfileSource::TOTAL_CYCLES).is_supported());
    /// assert!(xp.why_time_only().is_some() && !xp.unit().counters().is_empty()); // any event can be opened
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn detect_as_of(snapshot: &Snapshot, rules: Rules) -> Self {
        let (emon, amd64) =
            (Emon::detect_as_of(snapshot, rules), Amd64::detect_as_of(snapshot, rules));
        let has_four = amd64.is_ok() && rules.version.has_four_amd_counters();
        let counters = if has_four { pmu_amd::legacy_counters } else { counters };
        Self::of(snapshot, Kind::of(emon, amd64), counters)
    }

    #[inline(never)] // 560 bytes of the glue, at `opt-level` 3.
    fn of(snapshot: &Snapshot, kind: Kind, counters: fn(&Snapshot) -> CounterUnit) -> Self {
        let name = match kind {
            Kind::Emon(_) => "Emon",
            Kind::Amd64 => "Amd64",
            Kind::Zen(_) => "Zen",
            Kind::TimeOnly(_) => "Default",
        };
        Self { kind, counters, sources: ProfileSources::new(name, counters(snapshot)) }
    }

    /// Creates a machine without counters, whose only source is `ProfileTime`. A kernel uses it in place of a machine
    /// whose counters do not answer.
    ///
    /// ```
    /// use pmu::Machine;
    /// use pmu::core::EventSource;
    /// use pmu::core::error::NoInterface;
    /// use pmu::KProfileSource;
    /// static TIME_ONLY: Machine = Machine::without_counters(NoInterface::Unresponsive);
    /// assert!(TIME_ONLY.query(KProfileSource::TIME).is_supported());
    /// assert_eq!(TIME_ONLY.unit().why_absent(), Some(NoInterface::Unresponsive));
    /// ```
    pub const fn without_counters(reason: NoInterface) -> Self {
        let sources = ProfileSources::new("Default", CounterUnit::absent(reason));
        Self { kind: Kind::TimeOnly(reason), counters: |_| CounterUnit::NONE, sources }
    }

    /// Returns the reason why `ProfileTime` is the machine's only source; `None` if the machine has other sources. The
    /// counters may count any event nevertheless: examples are processors of Hygon, with counters like AMD's, and
    /// processors of Zhaoxin, with counters like Intel's.
    pub const fn why_time_only(&self) -> Option<NoInterface> {
        match self.kind {
            Kind::TimeOnly(why) => Some(why),
            Kind::Emon(_) | Kind::Amd64 | Kind::Zen(_) => None,
        }
    }

    /// Returns CPUID leaf 0x0A of the boot processor if the machine has the sources of Intel's Emon interface. Returns
    /// `None` if it has others. The [`name`](EventSource::name) tells which: `Emon`, `Amd64`, `Zen` or `Default`.
    ///
    /// ```
    /// # use pmu::Machine;
    /// /// Returns whether the sources of a machine count architectural events, which mean the same on each processor.
    /// fn is_architectural(machine: &Machine) -> bool {
    ///     machine.perfmon().is_some_and(|perfmon| perfmon.version() >= 2)
    /// }
    /// # let _ = is_architectural;
    /// ```
    pub const fn perfmon(&self) -> Option<&ArchitecturalPerfmon> {
        match &self.kind {
            Kind::Emon(perfmon) => Some(perfmon),
            Kind::Amd64 | Kind::Zen(_) | Kind::TimeOnly(_) => None,
        }
    }
}

impl Kind {
    /// Returns that of the interface of Windows' that was detected.
    fn of(emon: Result<Emon, NoInterface>, amd64: Result<Amd64, NoInterface>) -> Self {
        match (emon, amd64) {
            // They are of different vendors: at most one was detected.
            (Ok(emon), _) => Self::Emon(*emon.perfmon()),
            (_, Ok(_)) => Self::Amd64,
            // At least one of the two says that the processor is another vendor's. The other one's reason counts.
            (Err(intel), Err(amd)) => Self::TimeOnly(intel.or(amd)),
        }
    }
}

/// Returns the counters of a processor, of any known vendor.
fn counters(processor: &Snapshot) -> CounterUnit {
    let mut unit = pmu_intel::counters(processor);
    if let Some(NoInterface::OtherVendor(_)) = unit.why_absent() {
        unit = pmu_amd::counters(processor);
    }
    unit
}

// SAFETY: the unit is a field that nothing changes; that of another processor is what its CPUID declares; there is no
// table of opened events.
unsafe impl EventSource for Machine {
    type Processor = Snapshot;
    type Facility = ();

    fn facility(&self) {}

    #[inline]
    fn profile_sources(&self) -> &ProfileSources {
        &self.sources
    }

    #[inline(never)] // 192 bytes of the glue.
    fn table(&self) -> &'static SourceTable {
        match self.kind {
            Kind::Emon(_) => Emon::TABLE,
            Kind::Amd64 => Amd64::TABLE,
            Kind::Zen(table) => table,
            Kind::TimeOnly(_) => DefaultInterface::TABLE,
        }
    }

    fn unit_of(&self, processor: &Snapshot) -> CounterUnit {
        (self.counters)(processor)
    }

    fn is_declared(&self, row: usize) -> bool {
        self.table().rows().get(row).is_some_and(|source| match (self.kind, source.event_bit()) {
            (Kind::Emon(perfmon), Some(bit)) => perfmon.has_event(bit),
            _ => true,
        })
    }

    fn requires_memory(&self) -> bool {
        matches!(self.kind, Kind::Amd64 | Kind::Zen(_))
    }
}

impl Machine {
    /// Detects the branch records of the processor that executes the call, on a machine of any vendor. `processor` is
    /// the snapshot of that processor. [`BranchUnit::offers`] of the result tells what each record contains, and which
    /// filters the processor has.
    ///
    /// The kernel stores one result per processor, for the interrupt handler. On a hybrid machine, the results of
    /// different core types may differ.
    ///
    /// ```
    /// # use pmu::Machine;
    /// # use pmu::core::branches::BranchUnit;
    /// # use pmu::core::access::RegisterBackend;
    /// # use pmu::Snapshot;
    /// /// Returns the description of this processor's branch records, if the records can be a call stack.
    /// fn call_stacks(machine: &Machine, this: &Snapshot, msr: &impl RegisterBackend) -> Option<BranchUnit> {
    ///     machine.branches_of(this, msr).ok().filter(|unit| unit.offers().call_stack)
    /// }
    /// ```
    ///
    /// The samples of profile sources have the branches that a recorder records, if the events have the records as
    /// their facility:
    ///
    /// ```
    /// use pmu::Machine;
    /// use pmu::core::{CounterSet, Events, service};
    /// use pmu::core::branch_recording::BranchRecorder;
    /// use pmu::core::branches::{BranchFilter, BranchMemory, BranchSlot, Branches};
    /// use pmu::core::memory::{CounterMemory, CounterSlot, EventTable};
    /// use pmu::core::profile::{KProfileSource, Session};
    /// use pmu::core::registers::MAX_COUNTERS;
    /// # use pmu_virt::{FedEvents, Privilege, VirtualPmu};
    /// # use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
    /// # use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// # use pmu_virt::mock::MockMsr;
    /// # let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// # let branches = VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL)?;
    /// # let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// # let processor = MockMsr::<8>::new(pmu).with_branches(branches);
    /// # let (this, hardware) = (&processor.snapshot(), &processor);
    /// static COUNTERS: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new();
    /// static RECORDS: BranchMemory<[BranchSlot; 32]> = BranchMemory::new();
    /// let machine = Machine::detect(this);
    /// let unit = machine.branches_of(this, &hardware)?;
    /// let source = Events::new(&machine, EventTable::none()).with(Branches::new(&unit, &RECORDS));
    /// let mut session = Session::take(source, this, CounterSet::GENERAL, hardware, &COUNTERS)?;
    /// session.start(KProfileSource::BRANCH_MISPREDICTIONS)?;
    /// let mut recorder = BranchRecorder::take(&unit, hardware, &RECORDS)?;
    /// recorder.start(BranchFilter::USER)?;
    /// # processor.branch(&FedBranch::new(0x40_1000, 0x40_2000, FedBranchKind::Conditional, Privilege::User));
    /// # processor.interrupt_at(1);
    /// // In the interrupt's handler:
    /// let mut last = None;
    /// service(&source, &hardware, &COUNTERS, |sample| last = sample.branches().next())?;
    /// assert_eq!(last.map(|branch| (branch.from, branch.to)), Some((0x40_1000, 0x40_2000)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The processor has no supported branch records. The error is the reason.
    pub fn branches_of<M: RegisterBackend>(
        &self,
        processor: &Snapshot,
        msr: &M,
    ) -> Result<BranchUnit, NoFacility> {
        branches(processor, msr)
    }

    /// Detects the top-down counters of the processor that executes the call. `processor` is the snapshot of that
    /// processor. The top-down counters divide issue slots into four categories: retiring, bad speculation, front-end
    /// bound and back-end bound. On a hybrid machine, the kernel calls this on each type of core.
    ///
    /// A kernel with a [`Pmu`](crate::Pmu) chooses [`TopDownParts`](crate::facilities::TopDownParts) instead. The event
    /// source of any other kernel's session has a [`TopDown`](pmu_intel::topdown::TopDown) of the result.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The processor has no top-down counters. The error is the reason.
    pub fn top_down_of<M: RegisterBackend>(
        &self,
        processor: &Snapshot,
        msr: &M,
    ) -> Result<TopDownUnit, NoFacility> {
        TopDownUnit::of(processor, msr)
    }

    /// Detects Intel's precise records (PEBS) of the processor that executes the call. `processor` is the snapshot of
    /// that processor.
    ///
    /// A kernel with a [`Pmu`](crate::Pmu) chooses [`PreciseRecords`](crate::facilities::PreciseRecords) instead. Any
    /// other kernel stores one result per processor, and makes a [`Pebs`](pmu_intel::precise::Pebs) with it. The event
    /// source of the processor's session has the `Pebs`, and so has the interrupt handler's:
    ///
    /// ```
    /// # use pmu::Machine;
    /// # use pmu::core::{Claim, CounterUnit, Events, Hardware, service};
    /// # use pmu::core::memory::CounterMemory;
    /// use pmu::intel::precise::Pebs;
    /// # fn push(_address: u64, _tag: u64) {}
    /// /// The kernel's handler of the performance interrupt, with the event source of the processor's session.
    /// fn handler<H: Hardware>(
    ///     events: &Events<'_, CounterUnit, Option<Pebs<'static>>>,
    ///     (hardware, counters): (&H, &CounterMemory),
    /// ) -> Claim {
    ///     let serviced = service(events, hardware, counters, |sample| {
    ///         if let Some(address) = sample.instruction().and_then(|instruction| instruction.address) {
    ///             push(address, sample.tag);
    ///         }
    ///     });
    ///     serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim)
    /// }
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The processor has no supported precise records. The error is the reason.
    pub fn precise_of<M: RegisterBackend>(
        &self,
        processor: &Snapshot,
        msr: &M,
    ) -> Result<PreciseUnit, NoFacility> {
        PreciseUnit::detect(processor, msr)
    }
}

/// Returns the branch records of a processor, of any known vendor.
pub(crate) fn branches<M: RegisterBackend>(
    processor: &Snapshot,
    msr: &M,
) -> Result<BranchUnit, NoFacility> {
    match pmu_intel::branches(processor, msr) {
        Err(NoFacility::OtherVendor(_)) => pmu_amd::branches(processor),
        branches => branches,
    }
}
