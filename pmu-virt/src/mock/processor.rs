//! A mock processor, with the operations for tests.

use core::cell::{Cell, RefCell};

use pmu_core::interval::Interval;
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;

use crate::branches::configuration::BranchConfiguration;
use crate::branches::virtual_branches::VirtualBranches;
use crate::configuration::Vendor;
use crate::events::feed::Feed;
use crate::ibs::virtual_ibs::VirtualIbs;
use crate::mock::backend::{Fault, Plan, PmiFault};
use crate::mock::deviation::Deviations;
use crate::mock::trace::{Accesses, Breach, Trace};
use crate::pmu::facility::GuestFacility;
use crate::pmu::msr::Mode;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::precise::memory::GuestMemory;
use crate::precise::record::FedRecord;
use crate::precise::virtual_precise::VirtualPrecise;
use crate::reload::VirtualReload;
use crate::topdown::{TopDownMix, VirtualTopDown};

/// Status bit of frozen counters, of both vendors.
pub(crate) const FROZEN: u64 = 1 << 59;

/// The mask bit of the LVT entry.
pub(crate) const MASKED: u32 = 1 << 16;

/// Number of extended entries of the local vector table.
pub(crate) const EXTENDED_ENTRIES: usize = 4;

/// Handler of the performance interrupt, or a function that is called before an access.
type Handler<'h, const T: usize> = &'h dyn Fn(&MockMsr<'h, T>);

/// The facilities of a processor: branch records, instruction-based sampling and precise records; top-down metrics
/// and counter reload.
pub(super) type Beside = (
    (Option<VirtualBranches>, (Option<VirtualIbs>, Option<VirtualPrecise>)),
    (Option<VirtualTopDown>, Option<VirtualReload>),
);

/// Memory of the processor, and the instruction of each precise record by the record's number.
type PreciseSource<'h> = (&'h RefCell<dyn GuestMemory + 'h>, &'h dyn Fn(u64) -> FedRecord<'h>);

/// Mock of one processor, for tests of a driver. The driver accesses the mock's software PMU through the same traits as
/// a real PMU. The mock remembers the driver's last `T` accesses, refuses illegal accesses, injects faults, and
/// delivers interrupts.
///
/// The mock is both the [`RegisterBackend`](pmu_core::access::RegisterBackend) and the [`Platform`](pmu_core::Platform)
/// of the processor. Most methods take `&self`, so a test can use the mock while the driver holds a reference to the
/// mock. The mock is not `Sync`.
///
/// The mock does not enter guests. A test of [`HostCounters`](crate::mediated::HostCounters) must imitate VM entries
/// and VM exits. On Intel, the test writes `IA32_PERF_GLOBAL_CTRL` (0x38F) as a VM entry or VM exit does. On AMD, the
/// test feeds the guest's events by an [event key](crate::EventKey::of_select) that has GuestOnly set.
///
/// The mock's processor has only one core type. A test of a hybrid machine creates a mock for each core type, and sets
/// the core types in the [counter units](pmu_core::CounterUnit::set_core_type).
///
/// ```
/// use pmu_core::access::{RegisterAddress, RegisterBackend, AccessErrorKind};
/// use pmu_virt::{FedEvents, VirtualPmu};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// use pmu_virt::mock::{Fault, MockMsr};
/// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
/// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE).unwrap());
/// // SAFETY: an event select.
/// let select = unsafe { RegisterAddress::new(0x186) };
/// mock.write(select, 0x53_003C).unwrap();
/// mock.inject(Fault::At(1));
/// assert_eq!(mock.read(select), Err(AccessErrorKind::Fault));
/// assert_eq!(mock.read(select), Ok(0x53_003C));
/// assert_eq!(mock.accesses().reads, 2);
/// ```
pub struct MockMsr<'h, const T: usize = 64> {
    pub(super) pmu: RefCell<VirtualPmu>,
    pub(super) beside: RefCell<Beside>,
    /// Memory and instructions of the precise records, and the numbers of records that were written and lost.
    pub(super) precise_records: Cell<Option<PreciseSource<'h>>>,
    pub(super) written_records: Cell<u64>,
    pub(super) lost_records: Cell<u64>,
    pub(super) executed_branches: Cell<u32>,
    /// The mix of the slots that are executed.
    pub(super) mix: Cell<TopDownMix>,
    pub(super) plan: Plan,
    pub(super) trace: RefCell<Trace<T>>,
    pub(super) accesses: Cell<Accesses>,
    pub(super) strict: Cell<bool>,
    pub(super) breach: Cell<Option<Breach>>,
    pub(super) mode: Cell<Mode>,
    /// The LVT entry, and the profile timer.
    pub(super) entry: Cell<u32>,
    pub(super) extended_entries: [Cell<u32>; EXTENDED_ENTRIES],
    pub(super) timer: Cell<Option<Interval>>,
    pub(super) handler: Cell<Option<Handler<'h, T>>>,
    pub(super) handled: Cell<u32>,
    /// The handler runs; and an interrupt is latched until the handler returns.
    pub(super) handling: Cell<bool>,
    pub(super) latched: Cell<bool>,
    /// Counters that overflowed since the last delivery of an interrupt, as bits of the global status.
    pub(super) overflowed: Cell<u64>,
    pub(super) before_access: Cell<Option<Handler<'h, T>>>,
    pub(super) deviations: Deviations,
    pub(super) while_serviced: Cell<Option<Feed>>,
    /// `IA32_PEBS_ENABLE`, where there is PEBS.
    pub(super) precise: Cell<u64>,
    /// The embedder's bits of `IA32_MISC_ENABLE` and `IA32_DEBUGCTL`.
    pub(super) shared: Cell<[u64; 2]>,
}

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Creates the mock of a processor with this PMU. The mock answers an illegal access as hardware does.
    /// [`breach`](Self::breach) returns the first illegal access. The LVT entry is masked, as after reset.
    pub const fn new(pmu: VirtualPmu) -> Self {
        Self {
            pmu: RefCell::new(pmu),
            beside: RefCell::new(((None, (None, None)), (None, None))),
            precise_records: Cell::new(None),
            written_records: Cell::new(0),
            lost_records: Cell::new(0),
            mix: Cell::new(TopDownMix::RETIRING),
            executed_branches: Cell::new(0),
            plan: Plan::new(),
            trace: RefCell::new(Trace::new()),
            accesses: Cell::new(Accesses::NONE),
            strict: Cell::new(false),
            breach: Cell::new(None),
            mode: Cell::new(Mode::KERNEL),
            entry: Cell::new(1 << 16),
            extended_entries: [const { Cell::new(MASKED) }; EXTENDED_ENTRIES],
            timer: Cell::new(None),
            handler: Cell::new(None),
            handled: Cell::new(0),
            handling: Cell::new(false),
            latched: Cell::new(false),
            overflowed: Cell::new(0),
            before_access: Cell::new(None),
            deviations: Deviations::NONE,
            while_serviced: Cell::new(None),
            precise: Cell::new(0),
            shared: Cell::new([0; 2]),
        }
    }

    /// Creates the mock of a processor with this PMU. The mock panics at the first access that the manual does not
    /// allow.
    ///
    /// ```should_panic
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// use pmu_virt::mock::MockMsr;
    /// let pmu = VirtualPmu::new(Configuration::Amd(AmdConfiguration::LEGACY), FedEvents::NONE).unwrap();
    /// let mock = MockMsr::<8>::strict(pmu);
    /// // AMD's processors drop bit 63 of a select silently. A driver that sets the bit has a bug, and here it shows.
    /// # // SAFETY: an event select.
    /// # let select = unsafe { RegisterAddress::new(0xC001_0000) };
    /// let _ = mock.write(select, 1 << 63 | 0x53_0076);
    /// ```
    pub const fn strict(pmu: VirtualPmu) -> Self {
        let mut mock = Self::new(pmu);
        mock.strict = Cell::new(true);
        mock
    }

    /// Returns the deviations of the processor's platform.
    pub fn deviations(&self) -> Deviations {
        self.deviations
    }

    /// Resets the registers of the PMU and of its [facilities](crate::GuestFacility), and masks the LVT entries. A
    /// suspend of the machine has the same effect.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// mock.write(msr(0x186), 0x53_003C).unwrap();
    /// mock.lose_registers();
    /// // A driver's resume has to program the counter again.
    /// assert_eq!(mock.read(msr(0x186)), Ok(0));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn lose_registers(&self) {
        self.pmu.borrow_mut().reset();
        self.beside.borrow_mut().reset();
        // A reset masks the entries of the local vector table.
        self.entry.set(MASKED);
        self.extended_entries.iter().for_each(|entry| entry.set(MASKED));
        self.shared.set([0; 2]);
        self.precise.set(0);
    }

    /// Sets a function that the mock calls before each access, and before each change of the LVT entry's mask. The
    /// function can access registers, for instance to act as another owner of the registers.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// // Firmware that clears a driver's select before the driver's third access.
    /// let left = core::cell::Cell::new(3);
    /// let firmware = |mock: &MockMsr<8>| {
    ///     left.set(left.get() - 1);
    ///     if left.get() == 0 {
    ///         let _ = mock.with_pmu(|pmu| pmu.write(0x186, 0));
    ///     }
    /// };
    /// mock.on_access(&firmware);
    /// mock.write(msr(0x186), 0x53_003C).unwrap();
    /// assert_eq!(mock.read(msr(0x186)), Ok(0x53_003C));
    /// assert_eq!(mock.read(msr(0x186)), Ok(0));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn on_access(&self, before: Handler<'h, T>) {
        self.before_access.set(Some(before));
    }

    /// Calls `act` with the PMU. `act` reads and changes the PMU directly. The mock does not count this as an access.
    ///
    /// # Panics
    /// The call panics if `act` accesses a register through the mock.
    pub fn with_pmu<R>(&self, act: impl FnOnce(&mut VirtualPmu) -> R) -> R {
        act(&mut self.pmu.borrow_mut())
    }

    /// Returns the number of accesses of each kind, since the last [`clear`](Self::clear).
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// /// A driver whose start has to be cheap.
    /// fn start(msr: &impl RegisterBackend) {
    /// #   // SAFETY: the mock's registers are numbers.
    /// #   let at = |address| unsafe { RegisterAddress::new(address) };
    ///     for (register, value) in [(0x4C1, (1 << 48) - 1_000), (0x186, 0x53_003C), (0x38F, 1)] {
    ///         let _ = msr.write(at(register), value);
    ///     }
    /// }
    /// start(&mock);
    /// assert_eq!((mock.accesses().writes, mock.accesses().total()), (3, 3));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn accesses(&self) -> Accesses {
        self.accesses.get()
    }

    /// Returns the last `T` accesses with their values.
    pub fn trace(&self) -> Trace<T> {
        *self.trace.borrow()
    }

    /// Returns the first access that the manual does not allow, since the last [`clear`](Self::clear).
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// // The mock answers as hardware does, and notes what the driver did.
    /// assert!(mock.write(msr(0x186), 1 << 40).is_err());
    /// let breach = mock.breach().unwrap();
    /// assert_eq!(breach.to_string(), "WRMSR 0x186 of 0x10000000000: illegal bits 0x10000000000");
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn breach(&self) -> Option<Breach> {
        self.breach.get()
    }

    /// Clears the results of [`accesses`](Self::accesses), [`trace`](Self::trace) and [`breach`](Self::breach).
    pub fn clear(&self) {
        self.accesses.set(Accesses::NONE);
        *self.trace.borrow_mut() = Trace::new();
        self.breach.set(None);
    }

    /// Injects a fault into the driver's accesses from now on. The fault replaces an earlier injected fault.
    pub fn inject(&self, fault: Fault) {
        self.plan.inject(fault);
    }

    /// Injects a fault into the delivery of interrupts from now on.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::{MockMsr, PmiFault};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// let events = FedEvents::new(&[EventKey::general(0x3C, 0)])?;
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, events)?);
    /// mock.inject_pmi(PmiFault::Lost);
    /// mock.set_performance_entry(0x400);
    /// mock.write(msr(0x4C1), (1 << 48) - 1).unwrap();
    /// mock.write(msr(0x186), 0x53_003C).unwrap();
    /// let mut feed = Feed::new(&events);
    /// feed.add(events.find(EventKey::general(0x3C, 0)).unwrap(), Privilege::Kernel, 1)?;
    /// mock.advance(&mut feed);
    /// // Only a driver that reads the status now and then finds this overflow.
    /// assert_eq!((mock.interrupts(), mock.read(msr(0x38E))), (0, Ok(1)));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn inject_pmi(&self, fault: PmiFault) {
        self.plan.pmi.set(fault);
    }

    /// Makes every running counter with an enabled interrupt overflow just before a later access, and delivers the
    /// interrupt. `access` is the number of the access: 1 is the next access. If no counter overflows, the delivered
    /// interrupt is spurious. A running counter that writes [precise records](Self::with_precise) also overflows. Its
    /// overflow raises an interrupt only if the record fills the buffer up to the threshold.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// // A driver that stops a counter: the overflow comes between its read and its write.
    /// let handler = |mock: &MockMsr<8>| mock.write(msr(0x390), 1).unwrap();
    /// mock.on_interrupt(&handler);
    /// mock.set_performance_entry(0x400);
    /// mock.write(msr(0x186), 0x53_003C).unwrap();
    /// mock.interrupt_at(2);
    /// let select = mock.read(msr(0x186)).unwrap();
    /// mock.write(msr(0x186), select & !(1 << 22)).unwrap();
    /// assert_eq!((mock.interrupts(), mock.read(msr(0x38E))), (1, Ok(0)));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn interrupt_at(&self, access: u32) {
        self.plan.interrupt_in.set(access);
    }

    /// Sets the handler that the mock calls for each delivered interrupt. The handler may access registers.
    pub fn on_interrupt(&self, handler: Handler<'h, T>) {
        self.handler.set(Some(handler));
    }

    /// Returns the number of delivered interrupts.
    pub fn interrupts(&self) -> u32 {
        self.handled.get()
    }

    /// Returns the LVT entry for performance counters (LVTPC): bits 7:0 vector, bits 10:8 delivery mode, bit 16 mask.
    pub fn performance_entry(&self) -> u32 {
        self.entry.get()
    }

    /// Writes the LVT entry for performance counters (LVTPC).
    pub fn set_performance_entry(&self, entry: u32) {
        self.entry.set(entry);
    }

    /// Returns the interval of the profile timer, or `None` if the timer does not run. The driver
    /// [starts](pmu_core::Platform::start_profile_timer) the timer.
    pub fn timer(&self) -> Option<Interval> {
        self.timer.get()
    }

    /// Sets the mode in which the driver executes RDPMC from now on. The mock starts with [`Mode::KERNEL`].
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, Mode, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// use pmu_core::access::{AccessErrorKind, CounterIndex};
    /// mock.set_mode(Mode { cpl: 3, pce: false, protected: true });
    /// assert_eq!(mock.read_counter(CounterIndex::new(0)), Err(AccessErrorKind::Fault));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn set_mode(&self, mode: Mode) {
        self.mode.set(mode);
    }

    /// Runs what the test does before each access.
    pub(super) fn announce(&self) {
        if let Some(before) = self.before_access.get() {
            before(self);
        }
    }

    /// Returns the bits of a shared register that are not the PMU's.
    pub(super) fn other_bits(&self, register: u32) -> u64 {
        let [misc_enable, other] = self.shared.get();
        if register == 0x1A0 { misc_enable } else { other }
    }

    pub(super) fn set_other_bits(&self, register: u32, value: u64) {
        let [misc_enable, other] = self.shared.get();
        self.shared.set(if register == 0x1A0 { [value, other] } else { [misc_enable, value] });
    }

    /// Captures CPUID of this processor, as a driver does. The processor's only features are 64-bit mode, the PMU, and
    /// the features that the platform's deviations add. Family and model are usually those of Sapphire Rapids (Intel)
    /// or Zen 4 (AMD). Some Intel features exist only on other models: legacy [branch records](Self::with_branches),
    /// and [precise records](Self::with_precise) of a format below 4. With such a feature, family and model are those
    /// of a processor that has the feature.
    ///
    /// ```
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// // A driver detects the PMU in it.
    /// let snapshot = mock.snapshot();
    /// assert_eq!((&snapshot.vendor(), snapshot.family()), (b"GenuineIntel", 6));
    /// assert_eq!(snapshot.leaf(0x0A, 0).eax & 0xFFFF, 0x0404);
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        let configuration = self.pmu.borrow().configuration();
        let beside = *self.beside.borrow();
        let legacy = match beside.0.0.map(|branches| branches.configuration()) {
            Some(BranchConfiguration::Legacy { format }) => Some(format),
            _ => None,
        };
        let format =
            beside.0.1.1.and_then(|precise| precise.debug_store()).map(|store| store.format);
        let level_1_alone = beside.1.0.is_some_and(|metrics| !metrics.has_level_2());
        let sampling = beside.0.1.0.map(|sampling| sampling.configuration());
        let is_family_10h = sampling.is_some_and(|of| of.period_before_stop);
        let (name, signature) = match (configuration.vendor(), legacy) {
            // Depth and addresses of legacy records are told by the model alone, so this is a core with the format:
            // Sandy Bridge, Haswell, Skylake, Goldmont, Goldmont Plus.
            (Vendor::Intel, Some(3)) => (b"GenuineIntel", 0x0002_06A7),
            (Vendor::Intel, Some(4)) => (b"GenuineIntel", 0x0003_06C3),
            (Vendor::Intel, Some(5)) => (b"GenuineIntel", 0x0005_06E3),
            (Vendor::Intel, Some(6)) => (b"GenuineIntel", 0x0005_06C9),
            (Vendor::Intel, Some(_)) => (b"GenuineIntel", 0x0007_06A1),
            // No bit says whether there is level 2, so drivers go by the model: Ice Lake has level 1 alone.
            (Vendor::Intel, None) if level_1_alone => (b"GenuineIntel", 0x0007_06E5),
            // The model tells which counters write records, so this is a core with the format: Penryn, Nehalem,
            // Haswell, Skylake; later Sapphire Rapids.
            (Vendor::Intel, None) => (
                b"GenuineIntel",
                match format {
                    Some(0) => 0x0001_0676,
                    Some(1) => 0x0001_06A5,
                    Some(2) => 0x0003_06C3,
                    Some(3) => 0x0005_06E3,
                    _ => 0x0008_06F8,
                },
            ),
            // The model tells that the units have erratum 420.
            (Vendor::Amd, _) if is_family_10h => (b"AuthenticAMD", 0x0010_0F42),
            // Zen 4 can have each facility that a mock of AMD's plays.
            (Vendor::Amd, _) => (b"AuthenticAMD", 0x00A6_0F12),
        };
        let word = |at: usize| {
            let characters = name.get(at..at + 4).and_then(|word| word.try_into().ok());
            characters.map_or(0, u32::from_le_bytes)
        };
        Snapshot::capture(|leaf: u32, subleaf: u32| {
            let given = match leaf {
                0 => [1, word(0), word(8), word(4)],
                1 => [signature, 0, 0, 0],
                0x8000_0000 => [0x8000_0001, 0, 0, 0],
                0x8000_0001 => [0, 0, 1 << 2, 1 << 29],
                // Drivers extend the sign of a branch's address from the linear width: 48 bits, as of the physical
                // address.
                0x8000_0008 => [0x3030, 0, 0, 0],
                _ => [0; 4],
            };
            let answer = match configuration.cpuid_leaf(leaf, subleaf) {
                Some(own) => beside.cpuid(own).apply(given),
                None => given,
            };
            let [eax, ebx, ecx, edx] = self.deviations.declared(leaf, answer);
            CpuIdResult { eax, ebx, ecx, edx }
        })
    }
}
