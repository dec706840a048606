//! Hardware of a virtual processor that shares registers and the interrupt with the PMU.

use crate::configuration::cpuid::CpuidLeaf;
use crate::events::feed::{FedEventsError, Feed};
use crate::model::Advanced;
use crate::pmu::msr::{Mode, Read, Write, Written};
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::EventPolicy;
use crate::registers::layout::RegisterInfo;
use crate::registers::table::from_global;

/// Origin of a register write: the guest's WRMSR, or the host when it restores a virtual processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Writer {
    /// The guest executes WRMSR.
    Guest,
    /// The host restores a register by [`VirtualPmu::host_write_beside`].
    Host,
}

/// Emulated hardware that a virtual processor has in addition to the PMU, such as
/// [`VirtualBranches`](crate::branches::VirtualBranches). A facility has its own registers, adds bits to registers of
/// the PMU, and declares itself by bits in CPUID.
///
/// Use `Option<F>` for a facility that some guests do not have. For `None`, the answers to accesses and CPUID are those
/// of a processor without the facility.
///
/// # For embedders
/// - Answer each access by [`VirtualPmu::read_beside`] and [`VirtualPmu::write_beside`].
/// - Pass each [leaf](crate::configuration::Configuration::cpuid_leaves) of CPUID through [`cpuid`](Self::cpuid).
/// - Count events by [`VirtualPmu::advance_beside`]. A processor without precise records can also use
///   [`VirtualPmu::advance`]. If `advance` returns a result in which [`Advanced::pmi`](crate::Advanced::pmi) is `true`,
///   call [`pmi_raised`](Self::pmi_raised) before the guest runs.
/// - Call [`reset`](Self::reset) together with [`VirtualPmu::reset`]. INIT does not change a facility.
///
/// ```
/// use pmu_virt::{FedEvents, GuestFacility, Read, VirtualPmu, Write};
/// use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
/// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
/// let mut branches = Some(VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL)?);
/// // IA32_DEBUGCTL: bit 11 is the branch records', bit 12 the counters'.
/// let written = pmu.write_beside(&mut branches, 0x1D9, 1 << 12 | 1 << 11);
/// assert!(matches!(written.answer, Write::Shared { .. }));
/// assert!(matches!(pmu.read_beside(&branches, 0x1D9), Read::Shared { value: 0x1800, .. }));
/// // Leaf 0x1C declares the records.
/// let leaf = configuration.cpuid_leaf(0x1C, 0).map(|leaf| branches.cpuid(leaf).apply([0; 4]));
/// assert_eq!(leaf.map(|[eax, ..]| eax & 0xFF), Some(0b1111)); // 8, 16, 24 or 32 records
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub trait GuestFacility {
    /// Returns the facility's answer to RDMSR. If no bit of the register belongs to the facility, the answer is
    /// [`Read::Unhandled`]. If only some bits belong to the facility, the answer is [`Read::Shared`]. The PMU or the
    /// embedder then adds the other bits.
    fn read(&self, address: u32) -> Read;

    /// Returns the facility's answer to RDPMC with this value of ECX. If the facility has no counter with this index,
    /// the answer is [`Read::Unhandled`]. The facility does not check whether the guest may execute RDPMC:
    /// [`VirtualPmu::read_pmc_beside`] checks this.
    fn read_counter(&self, ecx: u32) -> Read {
        let _ = ecx;
        Read::Unhandled
    }

    /// Returns the answer that [`write`](Self::write) would return, but writes nothing.
    fn check_write(&self, writer: Writer, address: u32, value: u64) -> Written;

    /// Writes the facility's bits of a register. The call changes nothing if the WRMSR faults, or if no bit of the
    /// register belongs to the facility.
    fn write(&mut self, writer: Writer, address: u32, value: u64) -> Written;

    /// Adds the bits that declare the facility to `leaf`, a CPUID leaf of the PMU, and returns the result.
    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf;

    /// Returns the facility's registers. The call leaves out each register that
    /// [`Configuration::registers`](crate::configuration::Configuration::registers) lists with
    /// [`exists`](RegisterInfo::exists) set. To save a virtual processor, first save the PMU's registers. Then save
    /// each register that this call returns with [`is_state`](RegisterInfo::is_state) set. Restore all registers in the
    /// order in which they were saved.
    fn registers(&self) -> impl Iterator<Item = RegisterInfo>;

    /// Tells the facility that an overflow raised an interrupt. For example, branch records freeze in this call if the
    /// guest has set FREEZE_LBRS_ON_PMI, bit 11 of `IA32_DEBUGCTL`.
    fn pmi_raised(&mut self) {}

    /// Returns the bitmap of the counters whose overflows the facility handles in place of the PMU. Each counter has
    /// the bit number that it has in the global status. An overflow of these counters sets no bit of the global status,
    /// and raises no interrupt.
    fn own_counters(&self) -> u64 {
        0
    }

    /// Tells the facility that some of its [own counters](Self::own_counters) overflowed. `counters` is the bitmap of
    /// the overflowed counters.
    fn overflowed(&mut self, counters: u64) {
        let _ = counters;
    }

    /// Puts the facility into its state after RESET or power-up.
    fn reset(&mut self);
}

impl<F: GuestFacility> GuestFacility for Option<F> {
    fn read(&self, address: u32) -> Read {
        self.as_ref().map_or(Read::Unhandled, |facility| facility.read(address))
    }

    fn read_counter(&self, ecx: u32) -> Read {
        self.as_ref().map_or(Read::Unhandled, |facility| facility.read_counter(ecx))
    }

    fn check_write(&self, writer: Writer, address: u32, value: u64) -> Written {
        let facility = self.as_ref();
        facility.map_or(Written::UNHANDLED, |facility| facility.check_write(writer, address, value))
    }

    fn write(&mut self, writer: Writer, address: u32, value: u64) -> Written {
        let facility = self.as_mut();
        facility.map_or(Written::UNHANDLED, |facility| facility.write(writer, address, value))
    }

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.as_ref().map_or(leaf, |facility| facility.cpuid(leaf))
    }

    fn registers(&self) -> impl Iterator<Item = RegisterInfo> {
        self.as_ref().into_iter().flat_map(F::registers)
    }

    fn pmi_raised(&mut self) {
        if let Some(facility) = self {
            facility.pmi_raised();
        }
    }

    fn own_counters(&self) -> u64 {
        self.as_ref().map_or(0, F::own_counters)
    }

    fn overflowed(&mut self, counters: u64) {
        if let Some(facility) = self {
            facility.overflowed(counters);
        }
    }

    fn reset(&mut self) {
        if let Some(facility) = self {
            facility.reset();
        }
    }
}

/// A pair of facilities acts as one facility. Both facilities may have bits in the same register or CPUID leaf, but
/// must not share a bit. A member of a pair can itself be a pair.
impl<A: GuestFacility, B: GuestFacility> GuestFacility for (A, B) {
    fn read(&self, address: u32) -> Read {
        self.0.read(address).above(|| self.1.read(address))
    }

    fn read_counter(&self, ecx: u32) -> Read {
        self.0.read_counter(ecx).above(|| self.1.read_counter(ecx))
    }

    fn check_write(&self, writer: Writer, address: u32, value: u64) -> Written {
        let first = self.0.check_write(writer, address, value);
        first.above(|| self.1.check_write(writer, address, value))
    }

    fn write(&mut self, writer: Writer, address: u32, value: u64) -> Written {
        // Both are asked before either is written: a #GP leaves no trace.
        let written = self.check_write(writer, address, value);
        if written.answer != Write::GeneralProtection {
            let _ = self.0.write(writer, address, value);
            let _ = self.1.write(writer, address, value);
        }
        written
    }

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.1.cpuid(self.0.cpuid(leaf))
    }

    fn registers(&self) -> impl Iterator<Item = RegisterInfo> {
        self.0.registers().chain(self.1.registers())
    }

    fn pmi_raised(&mut self) {
        self.0.pmi_raised();
        self.1.pmi_raised();
    }

    fn own_counters(&self) -> u64 {
        self.0.own_counters() | self.1.own_counters()
    }

    fn overflowed(&mut self, counters: u64) {
        self.0.overflowed(counters);
        self.1.overflowed(counters);
    }

    fn reset(&mut self) {
        self.0.reset();
        self.1.reset();
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// Answers the guest's RDMSR on a processor with a [facility](GuestFacility) in addition to the PMU. On a processor
    /// without a facility, use [`read`](Self::read).
    ///
    /// ```
    /// use pmu_virt::{FedEvents, Read, VirtualPmu};
    /// use pmu_virt::branches::VirtualBranches;
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let pmu = VirtualPmu::new(Configuration::Intel(IntelConfiguration::new(5, 8, 4)), FedEvents::NONE)?;
    /// // Hidden branch records: their registers fault.
    /// let hidden: Option<VirtualBranches> = None;
    /// assert_eq!(pmu.read_beside(&hidden, 0x14CE), Read::GeneralProtection);
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn read_beside(&self, facility: &impl GuestFacility, address: u32) -> Read {
        facility.read(address).above(|| self.read(address))
    }

    /// Answers the guest's RDPMC on a processor with a [facility](GuestFacility) in addition to the PMU. On a processor
    /// without a facility, use [`read_counter`](Self::read_counter).
    ///
    /// ```
    /// use pmu_virt::{FedEvents, Mode, Read, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::topdown::VirtualTopDown;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let metrics = VirtualTopDown::new(&configuration, true).unwrap();
    /// assert_eq!(pmu.read_pmc_beside(&metrics, 1 << 29, Mode::KERNEL), Read::Value(0));
    /// assert_eq!(pmu.read_counter(1 << 29, Mode::KERNEL), Read::GeneralProtection);
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn read_pmc_beside(&self, facility: &impl GuestFacility, ecx: u32, mode: Mode) -> Read {
        match facility.read_counter(ecx) {
            Read::Unhandled => self.read_counter(ecx, mode),
            _ if !mode.allows_rdpmc() => Read::GeneralProtection,
            answer => answer,
        }
    }

    /// Answers the guest's WRMSR on a processor with a [facility](GuestFacility) in addition to the PMU. If the PMU or
    /// the facility refuses the value, the call changes no register. On a processor without a facility, use
    /// [`write`](Self::write).
    ///
    /// ```
    /// use pmu_virt::{FedEvents, Read, VirtualPmu, Write};
    /// use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let mut branches = VirtualBranches::new(&configuration, BranchConfiguration::AMD)?;
    /// // DBG_EXTN_CFG.LBRV2EN.
    /// assert_eq!(pmu.write_beside(&mut branches, 0xC000_010F, 1 << 6).answer, Write::Done);
    /// assert_eq!(pmu.read_beside(&branches, 0xC000_010F), Read::Value(1 << 6));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn write_beside(
        &mut self,
        facility: &mut impl GuestFacility,
        address: u32,
        value: u64,
    ) -> Written {
        self.write_both(facility, Writer::Guest, address, value)
    }

    /// Writes a register on behalf of the host, to restore a virtual processor with a [facility](GuestFacility) in
    /// addition to the PMU. On a processor without a facility, use [`host_write`](Self::host_write).
    pub fn host_write_beside(
        &mut self,
        facility: &mut impl GuestFacility,
        address: u32,
        value: u64,
    ) -> Written {
        self.write_both(facility, Writer::Host, address, value)
    }

    fn write_both(
        &mut self,
        facility: &mut impl GuestFacility,
        writer: Writer,
        address: u32,
        value: u64,
    ) -> Written {
        let own = facility.check_write(writer, address, value);
        let (rest, mask) = match own.answer {
            Write::Done | Write::GeneralProtection => {
                // The PMU is not asked: it lacks a register that is the facility's as a whole, and would refuse the
                // write.
                let written = facility.write(writer, address, value);
                self.attach(facility);
                return written;
            }
            Write::Unhandled => (value, 0),
            // The PMU keeps what it holds in place of the facility's bits.
            Write::Shared { mask } => match self.read(address) {
                Read::Value(held) | Read::Shared { value: held, .. } => {
                    (value & !mask | held & mask, mask)
                }
                _ => (value & !mask, mask),
            },
        };
        // The PMU comes first, because it may still refuse the write: the facility has been asked already.
        let mut written = match writer {
            Writer::Guest => self.write(address, rest),
            Writer::Host => self.host_write(address, rest),
        };
        if mask != 0 {
            written.illegal |= own.illegal;
            match &mut written.answer {
                Write::GeneralProtection => return written,
                Write::Done => {}
                Write::Shared { mask: others } => *others |= mask,
                // Of AMD's DebugCtl, the PMU has no bit. The rest is the embedder's.
                Write::Unhandled => written.answer = Write::Shared { mask },
            }
            let _ = facility.write(writer, address, value);
            self.attach(facility);
        }
        written
    }

    /// Counts the events of a feed as [`advance`](Self::advance) does, on a processor with a [facility](GuestFacility)
    /// in addition to the PMU. If an overflow raises an interrupt, the PMU calls
    /// [`pmi_raised`](GuestFacility::pmi_raised) of the facility. If one of the facility's
    /// [own counters](GuestFacility::own_counters) overflows, the PMU calls [`overflowed`](GuestFacility::overflowed)
    /// of the facility.
    ///
    /// ```
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, Read, VirtualPmu};
    /// use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let mut pmu = VirtualPmu::new(configuration, events)?;
    /// let mut branches = VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL)?;
    /// // The branch records freeze at the interrupt in 1,000 cycles.
    /// for (address, value) in [(0x1D9, 1 << 11), (0x4C1, (1 << 48) - 1_000), (0x186, 0x53_003C)] {
    ///     let _ = pmu.write_beside(&mut branches, address, value);
    /// }
    /// let mut feed = Feed::new(&events);
    /// feed.add(events.find(CYCLES).unwrap(), Privilege::User, 1_000)?;
    /// assert!(pmu.advance_beside(&mut branches, &mut feed)?.pmi);
    /// assert_eq!(pmu.read_beside(&branches, 0x38E), Read::Value(1 << 58 | 1));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The events of the feed differ from the [events](Self::events) of this PMU.
    pub fn advance_beside(
        &mut self,
        facility: &mut impl GuestFacility,
        feed: &mut Feed,
    ) -> Result<Advanced, FedEventsError> {
        let advanced = self.advance(feed)?;
        if advanced.records != 0 {
            facility.overflowed(advanced.records);
        }
        if advanced.pmi {
            facility.pmi_raised();
        }
        Ok(advanced)
    }

    /// Tells the PMU which counters are the facility's [own counters](GuestFacility::own_counters). An overflow of
    /// these counters then raises no interrupt. Call `attach` after the PMU or the facility was restored.
    /// [`write_beside`](Self::write_beside) itself calls `attach` after the facility has changed.
    pub fn attach(&mut self, facility: &impl GuestFacility) {
        let recorded = from_global(facility.own_counters()) & self.model.layout.counters();
        // Most writes of a facility's registers change nothing here, and leave the budget fresh.
        if recorded != self.model.recorded {
            self.model.recorded = recorded;
            self.model.budget_is_stale = true;
        }
    }
}
