//! Mediated PMU: a guest's state is loaded onto the host's counters before the guest runs, and saved afterwards. Read
//! first: SDM vol. 3C, "Loading Guest State" and "VM-Exit Controls", `IA32_PERF_GLOBAL_CTRL`; APM vol. 2, "Core
//! Performance Event-Select Register", GuestOnly.

mod access;
mod error;
mod interrupts;
mod registers;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use pmu_core::{CounterSet, LentCounters, MsrBackend};

pub use self::error::MediationError;
pub use self::interrupts::GuestInterrupts;
use self::registers::{AMD, Access, INTEL, Registers, pmc_index};
use crate::cpuid::CpuidRegisters;
use crate::layout::{Counters, Layout, to_global};
use crate::model::MAX_COUNTERS;
use crate::table::{Family, MAX_PER_KIND};
use crate::{Configuration, EventPolicy, IntelConfiguration, Vendor, VirtualPmu, vendors};

/// An event select's enable bit, of both vendors.
const ENABLE: u64 = 1 << 22;
/// AMD's select bit: counts in guests only.
const GUEST_ONLY: u64 = 1 << 40;
/// `IA32_PERF_CAPABILITIES`: PERF_METRICS available (SDM vol. 4, table 2-2).
const PERF_METRICS: u64 = 1 << 15;

/// The counters of the hypervisor's processor, which guests have in turn.
///
/// A guest has all of them while it is [loaded](Self::load). It accesses directly what is not
/// [intercepted](Self::intercepts): counters, global control, the status and its acknowledgement, RDPMC. Intercepted
/// accesses are answered by [`write`](Self::write), [`read`](Self::read) and [`read_pmc`](Self::read_pmc).
///
/// The host's session [lends](pmu_core::Counters::lend) its counters for that time; without a session
/// [`stop`](Self::stop) stands for that. The host does not use the features that share the status register with the
/// counters meanwhile (Processor Trace, LBR and PEBS that interrupt).
///
/// The host's execution is not counted. On Intel the processor switches the global control with the entry: the
/// hypervisor writes [`Loaded::global_control`] to the guest's field of the VMCS, with the entry control "load
/// IA32_PERF_GLOBAL_CTRL", the exit control of that name with [`LentCounters::global_control`] in the host's field, and
/// the exit control "save IA32_PERF_GLOBAL_CTRL", which keeps the guest's field up to date over its exits and gives the
/// value that [`put`](Self::put) takes. The guest's field for `IA32_DEBUGCTL` gets [`Loaded::debug_control`]. On AMD
/// the selects are marked GuestOnly, and `load` and `put` write the global control.
///
/// The NMI handler that belongs to this loop is the example of [`GuestInterrupts`].
///
/// ```
/// use pmu_core::{CounterError, Counters, EventSource, MsrBackend, Platform};
/// use pmu_virt::{GuestInterrupts, HostCounters, Loaded, VirtualPmu};
/// # use std::error::Error;
/// # enum Exit { Wrmsr(u32, u64), Interrupt, Stop }
/// # fn write_hosts_field(_: u64) {}
/// # fn guests_entry() -> u32 { 0 }
/// # fn enter_guest(_: &Loaded<'_>) -> Exit { Exit::Stop }
/// # fn saved_global_control() -> u64 { 0 }
/// # fn deliver(_: &mut VirtualPmu) {}
///
/// /// Lets the guest run, with interrupts off. `interrupts` is what an NMI's handler reaches.
/// fn run<S: EventSource, M: MsrBackend, P: Platform>(
///     host: &HostCounters,
///     session: &mut Counters<'_, S, M, P>,
///     guest: &mut VirtualPmu,
///     interrupts: &GuestInterrupts,
///     (msr, platform): (&M, &P),
///     clock: impl Fn() -> u64,
/// ) -> Result<(), Box<dyn Error>> {
///     let mut window = session.lend(clock(), |_| ())?; // a sampler takes the pending overflows here
///     write_hosts_field(window.lent().global_control()); // before `load`, which borrows it
///     let outcome = host.load(window.lent(), guest, interrupts, msr).and_then(|mut loaded| {
///         loop {
///             // Not in the handler: from Intel's version 3 on, unmasking raises an interrupt while the guest has not
///             // acknowledged the overflow.
///             if guests_entry() & 1 << 16 == 0 {
///                 platform.unmask_performance_interrupt();
///             }
///             match enter_guest(&loaded) { // first, and after a `write`, with `loaded.global_control()`
///                 Exit::Wrmsr(register, value) => {
///                     let _ = host.write(&mut loaded, guest, register, value, msr)?;
///                 }
///                 Exit::Interrupt => {} // its handler has run
///                 Exit::Stop => break,
///             }
///             interrupts.deliver_to(guest);
///             deliver(guest); // by `VirtualPmu::deliver_pmi`, which masks the guest's entry on Intel
///         }
///         host.put(loaded, saved_global_control(), guest, msr).map_err(|(_, error)| error)
///     });
///     window.end(clock())?; // also after an error
///     Ok(outcome.map(|_| ())?)
/// }
/// ```
///
/// The window cannot end while a guest is loaded, and without a window there is nothing to load it onto:
///
/// ```compile_fail,E0505
/// # use pmu_core::{Counters, EventSource, MsrBackend, Platform};
/// # use pmu_virt::{GuestInterrupts, HostCounters, VirtualPmu};
/// # fn wrong<S: EventSource, M: MsrBackend, P: Platform>(
/// #     host: &HostCounters, session: &mut Counters<'_, S, M, P>, guest: &mut VirtualPmu,
/// #     interrupts: &GuestInterrupts, msr: &M,
/// # ) {
/// let mut window = session.lend(0, |_| ()).unwrap();
/// let loaded = host.load(window.lent(), guest, interrupts, msr).unwrap();
/// window.end(0).unwrap();
/// host.put(loaded, 0, guest, msr).unwrap();
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct HostCounters {
    configuration: Configuration,
    layout: Layout,
    registers: Registers,
    /// The processor has more than a guest is offered, or may have: counters, or PERF_METRICS.
    has_more: bool,
}

/// A guest's state on the counters, until it is [put](HostCounters::put) back. It borrows the lent counters, whose
/// window ends afterwards.
///
/// Dropped, the guest's state is as it was when it was loaded, and the end of the window disarms the counters.
#[derive(Debug)]
#[must_use = "the guest's state is on the counters until it is put back"]
pub struct Loaded<'w> {
    lent: &'w mut LentCounters,
    interrupts: &'w GuestInterrupts,
    /// Identity of the load, which the guest has, too.
    number: u64,
    global_control: u64,
    debug_control: u64,
    /// The general counters whose selects were written with a bit set; in the first fixed one's place, their control.
    programmed: Counters,
    /// The status bits that are no counter's: the host's, as they were found, and the guest's.
    others: [u64; 2],
    /// The counters that hold something of the guest's.
    dirty: Counters,
    /// A put has stopped the counters.
    stopped: bool,
    /// Outcome of a put that has saved the guest, with the status that it found, before an access of it failed.
    saved: Option<(Put, u64)>,
}

impl Loaded<'_> {
    /// Returns the global control with which the guest is entered: first, and after an intercepted write of it.
    pub const fn global_control(&self) -> u64 {
        self.global_control
    }

    /// Returns the PMU's bits of the guest's `IA32_DEBUGCTL`: the bit by which an overflow freezes its counters.
    pub const fn debug_control(&self) -> u64 {
        self.debug_control
    }
}

/// The outcome of a [`put`](HostCounters::put).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Put {
    /// A counter overflowed whose interrupt has not come yet. It is now [pending](VirtualPmu::pmi_pending) in the
    /// guest; the processor's own, which still comes, is [claimed](HostCounters::interrupted) and dropped.
    pub interrupt_is_coming: bool,
}

/// Identity of the load that a guest is in; 0: none. A copy of the guest is in none.
#[derive(Debug, Default)]
pub(crate) struct LoadNumber {
    number: u64,
    /// The guest was reset since.
    reset: bool,
}

impl Clone for LoadNumber {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl LoadNumber {
    /// Notes that the guest was reset: what is on the counters is not its state any more.
    pub(crate) const fn reset(&mut self) {
        self.reset = true;
    }

    /// Returns the number of a new load.
    fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self { number: LAST.fetch_add(1, Relaxed).wrapping_add(1), reset: false }
    }
}

impl HostCounters {
    /// Creates the counters of a processor that has this PMU. A configuration does not tell whether an Intel processor
    /// has PERF_METRICS: RDPMC and the global registers are [intercepted](Self::intercepts) there.
    /// [`from_cpuid`](Self::from_cpuid) knows.
    ///
    /// # Errors
    /// The status cannot be restored (no `IA32_PERF_GLOBAL_STATUS_SET` below version 4, no `PerfCntrGlobalStatusSet`
    /// before AMD's PerfMonV2), counters cannot be written in full width, or selects cannot be marked GuestOnly.
    pub const fn new(host: Configuration) -> Result<Self, MediationError> {
        if let Err(error) = host.check() {
            return Err(MediationError::Configuration(error));
        }
        let registers = match host {
            Configuration::Intel(intel) if intel.version < 4 => {
                return Err(MediationError::NoStatusSet);
            }
            Configuration::Intel(intel) if !intel.full_width_writes => {
                return Err(MediationError::NoFullWidthWrites);
            }
            Configuration::Intel(_) => INTEL,
            Configuration::Amd(amd) if !amd.guest_host => return Err(MediationError::NoGuestOnly),
            Configuration::Amd(_) => AMD,
            Configuration::Hidden(_) => return Err(MediationError::NoStatusSet),
        };
        let layout = vendors::layout(&host);
        if layout.global() == 0 {
            return Err(MediationError::NoStatusSet);
        }
        let has_more = matches!(host, Configuration::Intel(_));
        Ok(Self { configuration: host, layout, registers, has_more })
    }

    /// Creates the counters of the processor whose CPUID and `IA32_PERF_CAPABILITIES` these are, as
    /// [`Configuration::from_cpuid`] takes them. Of more general or fixed counters than eight, the first eight are
    /// offered to guests. Where the processor has more than a guest, more is [intercepted](Self::intercepts): RDPMC,
    /// and the global registers.
    ///
    /// # Errors
    /// [`Host`](MediationError::Host), and those of [`new`](Self::new).
    ///
    /// ```
    /// use pmu_virt::{Configuration, FedEvents, HostCounters, IntelConfiguration, VirtualPmu};
    /// // Ten general counters: leaf 0x0A of version 5.
    /// let many = |leaf, _subleaf| match leaf {
    ///     0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
    ///     0x0A => [0x0730_0A05, 0, 0b1111, 48 << 5 | 1 << 15],
    ///     _ => [0; 4],
    /// };
    /// let host = HostCounters::from_cpuid(many, 1 << 13)?;
    /// assert_eq!(host.guest(), Configuration::Intel(IntelConfiguration::new(5, 8, 4)));
    /// let guest = VirtualPmu::new(host.guest(), FedEvents::NONE)?;
    /// assert!(host.intercepts_rdpmc() && host.intercepts(&guest, 0x38F));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_cpuid(
        cpuid: impl Fn(u32, u32) -> CpuidRegisters,
        capabilities: u64,
    ) -> Result<Self, MediationError> {
        let first = Configuration::first_from_cpuid(cpuid, capabilities);
        let (host, left_out) = first.map_err(MediationError::Host)?;
        let has_metrics = host.vendor() == Vendor::Intel && capabilities & PERF_METRICS != 0;
        Ok(Self { has_more: left_out || has_metrics, ..Self::new(host)? })
    }

    /// Returns the PMU that a guest can have: the counters of the host's, without AnyThread, which would count other
    /// threads, and without the qualifiers for a guest's own guests.
    pub const fn guest(&self) -> Configuration {
        match self.configuration {
            Configuration::Intel(mut intel) => {
                intel.any_thread = false;
                Configuration::Intel(intel)
            }
            Configuration::Amd(mut amd) => {
                amd.guest_host = false;
                Configuration::Amd(amd)
            }
            hidden => hidden,
        }
    }

    /// Stops all counters of this processor by the global control, where no session of the host's lives: after reset
    /// the general counters are enabled there. Once on each processor is enough; what it returns is for that processor.
    ///
    /// # Errors
    /// The register faulted.
    ///
    /// ```
    /// use pmu_virt::mock::MockMsr;
    /// use pmu_virt::{Configuration, FedEvents, GuestInterrupts, HostCounters, IntelConfiguration, Read, VirtualPmu};
    /// # use pmu_core::{MsrAddress, MsrBackend};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
    /// # let processor = MockMsr::<64>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// let host = HostCounters::new(configuration)?;
    /// let mut guest = VirtualPmu::new(host.guest(), FedEvents::NONE)?;
    /// let _ = guest.write(0x4C1, 1_000);
    ///
    /// let (mut lent, interrupts) = (host.stop(&processor)?, GuestInterrupts::new());
    /// let loaded = host.load(&mut lent, &mut guest, &interrupts, &processor)?;
    /// // Enter the guest with `loaded.global_control()`. It writes its counter itself.
    /// # // SAFETY: a counter.
    /// # processor.write(unsafe { MsrAddress::new(0x4C1) }, 2_000).unwrap();
    /// let saved = loaded.global_control();
    /// let put = host.put(loaded, saved, &mut guest, &processor).map_err(|(_, error)| error)?;
    /// assert!(!put.interrupt_is_coming);
    /// assert_eq!(guest.read(0x4C1), Read::Value(2_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop<M: MsrBackend>(&self, msr: &M) -> Result<LentCounters, MediationError> {
        Access(msr).write(self.registers.control, 0)?;
        Ok(LentCounters::unowned(CounterSet::from_bits(self.layout.global()), 0))
    }

    /// Loads a guest's state onto this processor's counters, which are lent. They do not count before the guest is
    /// entered. `interrupts` are the guest's; what is pending there becomes pending in the guest.
    ///
    /// A policy that [changes](VirtualPmu::set_policy) meanwhile takes effect at the next load. Accesses: a write of
    /// each counter and of each general counter's select, one read and up to two writes of the status, a write of
    /// `IA32_FIXED_CTR_CTRL` where there are fixed counters; on AMD a write of the global control.
    ///
    /// # Context
    /// Task. The caller stays on the processor until [`put`](Self::put).
    ///
    /// # Errors
    /// The guest's PMU is not [that of the host](Self::guest), or some of its counters are not lent. A register
    /// faulted: no counter counts, nothing is armed, and the guest's state is as it was. Where it cannot be disarmed
    /// either, the window's end does that.
    pub fn load<'w, P: EventPolicy, M: MsrBackend>(
        &self,
        lent: &'w mut LentCounters,
        guest: &mut VirtualPmu<P>,
        interrupts: &'w GuestInterrupts,
        msr: &M,
    ) -> Result<Loaded<'w>, MediationError> {
        if !self.accepts(&guest.configuration) {
            return Err(MediationError::NotTheHosts);
        }
        let needed = CounterSet::from_bits(guest.model.layout.global());
        let missing = needed.without(lent.counters());
        if !missing.is_empty() {
            return Err(MediationError::NotLent(missing));
        }
        lent.set_programmed(true);
        interrupts.deliver_to(guest);
        let registers = &guest.model.registers;
        let mut loaded = Loaded {
            lent,
            interrupts,
            number: 0,
            global_control: registers.of(Family::GlobalControl),
            debug_control: registers.of(Family::DebugControl),
            programmed: 0,
            others: [0; 2],
            dirty: guest.model.layout.counters(),
            stopped: false,
            saved: None,
        };
        let access = Access(msr);
        if let Err(error) = self.write_state(&mut loaded, guest, &access) {
            if self.take_away(&mut loaded, &access).is_ok() {
                loaded.lent.set_programmed(false);
            }
            return Err(error);
        }
        guest.load = LoadNumber::new();
        loaded.number = guest.load.number;
        Ok(loaded)
    }

    fn write_state<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        guest: &VirtualPmu<P>,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        let Registers { status, status_clear, status_set, control, .. } = self.registers;
        let registers = &guest.model.registers;
        for counter in guest.counters() {
            msr.write(self.registers.counter(counter), registers.counter(counter))?;
            if counter < MAX_PER_KIND {
                self.write_select(loaded, guest, counter, msr)?;
            }
        }
        self.write_fixed_control(loaded, guest, msr)?;
        let (bits, counters) = (self.status_bits(), self.counter_bits());
        let wanted = registers.of(Family::GlobalStatus) & bits;
        let found = msr.read(status)? & bits;
        loaded.others = [found, wanted].map(|status| status & !counters);
        loaded.note_status();
        if found & !wanted != 0 {
            msr.write(status_clear, found & !wanted)?;
        }
        if wanted & !found != 0 {
            msr.write(status_set, wanted & !found)?;
        }
        // Before the first overflow that the guest can have.
        loaded.interrupts.load(wanted, guest.interrupting());
        if self.is_amd() {
            let entered = loaded.lent.global_control() | loaded.global_control;
            msr.write(control, entered).inspect_err(|_| {
                loaded.interrupts.put(0);
            })?;
        }
        Ok(())
    }

    /// Saves a guest's state from the counters, disarms and clears them, and acknowledges their overflows: of what was
    /// loaded, whatever was done with the guest since. `global_control` is the value that the processor saved when it
    /// left the guest (ignored on AMD, where the register is read). The state of a guest that was
    /// [reset](VirtualPmu::reset) while it was loaded stays as it is.
    ///
    /// An overflow in the guest becomes pending in it once: by [`interrupted`](Self::interrupted) if the processor's
    /// interrupt came before, otherwise here, and the interrupt is [still to come](Put::interrupt_is_coming). A guest
    /// can acknowledge an overflow, and the same counter overflow again, unseen by the hypervisor. Its interrupt then
    /// comes on the host without the announcement of `Put`, and is the guest's by `interrupted`, too.
    ///
    /// Accesses: a read of the status and a write of what is set, RDPMC of each counter; a write of each counter, of
    /// each select, and of `IA32_FIXED_CTR_CTRL`, that is not 0; on AMD a read and a write of the global control.
    ///
    /// # Errors
    /// The loaded state is another guest's, or a register faulted. `loaded` is returned for another attempt, and
    /// nothing is lost until then.
    pub fn put<'w, P: EventPolicy, M: MsrBackend>(
        &self,
        mut loaded: Loaded<'w>,
        global_control: u64,
        guest: &mut VirtualPmu<P>,
        msr: &M,
    ) -> Result<Put, (Loaded<'w>, MediationError)> {
        if let Err(error) = loaded.check(guest) {
            return Err((loaded, error));
        }
        let msr = Access(msr);
        let saved = self.read_back(&mut loaded, global_control, guest, &msr);
        match saved.and_then(|put| self.take_away(&mut loaded, &msr).map(|()| put)) {
            Ok(put) => {
                loaded.lent.set_programmed(false);
                guest.load = LoadNumber::default();
                Ok(put)
            }
            Err(error) => Err((loaded, error)),
        }
    }

    /// Saves the guest's state, once.
    fn read_back<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        saved: u64,
        guest: &mut VirtualPmu<P>,
        msr: &Access<'_, M>,
    ) -> Result<Put, MediationError> {
        if let Some((put, _)) = loaded.saved {
            return Ok(put);
        }
        let Registers { control, status, .. } = self.registers;
        let (layout, mut registers) = (&guest.model.layout, guest.model.registers);
        if !self.is_amd() {
            loaded.global_control = saved & layout.global();
        } else if !loaded.stopped {
            loaded.global_control = msr.read(control)? & layout.global();
            msr.write(control, loaded.lent.global_control())?;
            loaded.stopped = true;
        }
        let found = msr.read(status)?;
        let mut dirty = 0;
        for counter in guest.counters() {
            let value = msr.read_pmc(pmc_index(counter))? & layout.mask(counter);
            *registers.counter_mut(counter) = value;
            dirty |= Counters::from(value != 0) << counter;
        }
        loaded.dirty = dirty;
        let [_, guests] = loaded.others;
        *registers.of_mut(Family::GlobalStatus) = found & (self.counter_bits() | guests);
        *registers.of_mut(Family::GlobalControl) = loaded.global_control;
        let put = Put { interrupt_is_coming: loaded.interrupts.put(found) };
        loaded.interrupts.deliver_to(guest);
        if guest.load.reset {
            guest.set_pmi_pending(false);
        } else {
            guest.model.registers = registers;
            guest.model.budget_is_stale = true;
            guest.model.pmi_pending |= put.interrupt_is_coming;
        }
        loaded.saved = Some((put, found));
        Ok(put)
    }

    /// Disarms and clears the counters, acknowledges their overflows, and restores the host's bits of the status.
    fn take_away<M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        let Registers { status, status_clear, status_set, fixed_control, .. } = self.registers;
        for counter in places(loaded.programmed & 0xFF) {
            msr.write_retrying(self.registers.select(counter), 0)?;
        }
        if loaded.programmed >> MAX_PER_KIND != 0 {
            msr.write_retrying(fixed_control, 0)?;
        }
        for counter in places(loaded.dirty) {
            msr.write_retrying(self.registers.counter(counter), 0)?;
        }
        let found = match loaded.saved {
            Some((_, found)) => found,
            None => msr.read(status)?,
        };
        let [hosts, guests] = loaded.others;
        let left = found & (self.counter_bits() | guests & !hosts);
        if left != 0 {
            msr.write_retrying(status_clear, left)?;
        }
        if hosts & !found != 0 {
            msr.write_retrying(status_set, hosts & !found)?;
        }
        Ok(())
    }

    /// Returns whether a guest with this PMU can have these counters: it has all of them, in their widths.
    fn accepts(&self, guest: &Configuration) -> bool {
        match (self.guest(), guest) {
            (Configuration::Intel(host), Configuration::Intel(guest)) => {
                let same = IntelConfiguration {
                    general: host.general,
                    general_width: host.general_width,
                    fixed: host.fixed,
                    fixed_width: host.fixed_width,
                    ..*guest
                };
                let both = Configuration::Intel(host).intersect(&Configuration::Intel(same));
                guest.version >= 4 && *guest == same && both == Ok(Configuration::Intel(same))
            }
            (host, guest) => host == *guest,
        }
    }

    /// Returns the bits of the status that are the counters': their overflows, and the freeze of all.
    fn counter_bits(&self) -> u64 {
        let frozen = if self.is_amd() { 0 } else { Layout::FROZEN };
        self.layout.global() | frozen
    }

    /// Returns the bits of the status that a guest's PMU has, and the host's has, too: both have them in turn.
    fn status_bits(&self) -> u64 {
        self.counter_bits() | self.layout.legal(Family::GlobalStatus)
    }

    fn is_amd(&self) -> bool {
        self.configuration.vendor() == Vendor::Amd
    }

    fn write_select<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        guest: &VirtualPmu<P>,
        counter: usize,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        let mut select = guest.model.registers.select(counter);
        if guest.model.enabled() >> counter & 1 == 0 {
            select &= !ENABLE;
        } else if self.is_amd() {
            select |= GUEST_ONLY;
        }
        loaded.programmed |= Counters::from(select != 0) << counter;
        msr.write(self.registers.select(counter), select)
    }

    fn write_fixed_control<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        guest: &VirtualPmu<P>,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        if guest.model.layout.counters() >> MAX_PER_KIND == 0 {
            return Ok(());
        }
        let mut control = guest.model.registers.of(Family::FixedControl);
        for counter in 0..MAX_PER_KIND {
            if guest.model.enabled() >> (MAX_PER_KIND + counter) & 1 == 0 {
                control &= !(0b11 << (4 * counter));
            }
        }
        loaded.programmed |= Counters::from(control != 0) << MAX_PER_KIND;
        msr.write(self.registers.fixed_control, control)
    }
}

impl Loaded<'_> {
    /// Tells the lender which status bits are the guest's alone.
    const fn note_status(&mut self) {
        let [hosts, guests] = self.others;
        self.lent.set_status(guests & !hosts);
    }

    /// Checks that this is what was loaded of the guest.
    fn check<P>(&self, guest: &VirtualPmu<P>) -> Result<(), MediationError> {
        if guest.load.number == self.number { Ok(()) } else { Err(MediationError::NotTheLoaded) }
    }
}

/// Returns the places of these counters.
fn places(counters: Counters) -> impl Iterator<Item = usize> {
    (0..MAX_COUNTERS).filter(move |counter| counters >> counter & 1 != 0)
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// Returns the counters that exist, by their places.
    fn counters(&self) -> impl Iterator<Item = usize> + use<P> {
        places(self.model.layout.counters())
    }

    /// Returns the counters that interrupt, in the layout of the global status.
    fn interrupting(&self) -> u64 {
        to_global(self.model.interrupting())
    }
}
