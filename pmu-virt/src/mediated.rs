//! A guest on real counters: its PMU's state is loaded onto the host's counters before the guest runs, and put back
//! afterwards. Read first: SDM vol. 3C, "Loading Guest State" and "VM-Exit Controls", `IA32_PERF_GLOBAL_CTRL`; APM
//! vol. 2, "Core Performance Event-Select Register", GuestOnly.
#![allow(unsafe_code, reason = "names the counters' registers")]

use core::fmt;

use pmu_core::{MsrAddress, MsrBackend, MsrError, MsrFault, MsrOperation, PmcIndex};

use crate::layout::{Layout, to_global};
use crate::model::MAX_COUNTERS;
use crate::table::{Family, MAX_PER_KIND};
use crate::{
    Configuration, ConfigurationError, EventPolicy, IntelConfiguration, Vendor, VirtualPmu, vendors,
};

/// An event select's enable bit, of both vendors.
const ENABLE: u64 = 1 << 22;
/// AMD's select bit: counts in guests only.
const GUEST_ONLY: u64 = 1 << 40;

/// The counters of the processor that a hypervisor runs on, for guests that are given them in turn.
///
/// A guest has all of them while it is [loaded](Self::load): it reads and writes counters, global control, status and
/// the status' acknowledgement itself, and executes RDPMC. The hypervisor intercepts the event selects and
/// `IA32_FIXED_CTR_CTRL`, hands them to [`VirtualPmu::write`] and then to [`write_control`](Self::write_control); and
/// the register that sets the status, for [`set_status`](Self::set_status). A host that profiles switches its own
/// events out before, and has no use meanwhile of what shares the status register with the counters (Processor Trace,
/// LBR and PEBS that interrupt).
///
/// The host's execution is not counted. On Intel the processor switches the global control with the entry: the
/// hypervisor writes [`Loaded::global_control`] to the guest's field of the VMCS after `load`, with the entry control
/// "load IA32_PERF_GLOBAL_CTRL", the exit control of that name with 0 in the host's field, and the exit control "save
/// IA32_PERF_GLOBAL_CTRL", which keeps the guest's field up to date over its exits and gives the value that
/// [`put`](Self::put) takes. The guest's field for `IA32_DEBUGCTL` gets [`Loaded::debug_control`]. On AMD the selects
/// are marked GuestOnly, and `load` and `put` write the global control.
///
/// ```
/// use pmu_virt::mock::MockMsr;
/// use pmu_virt::{Configuration, FedEvents, HostCounters, IntelConfiguration, VirtualPmu};
/// # use pmu_core::{MsrAddress, MsrBackend};
/// let host = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
/// # let processor = MockMsr::<64>::new(VirtualPmu::new(host, FedEvents::NONE)?);
/// let counters = HostCounters::new(host)?;
/// let mut guest = VirtualPmu::new(counters.guest(), FedEvents::NONE)?;
/// let _ = guest.write(0x4C1, 1_000);
///
/// counters.stop(&processor)?; // Once on each processor.
/// let loaded = counters.load(&guest, &processor)?;
/// // Enter the guest with `loaded.global_control()`. It writes its counter itself.
/// # // SAFETY: a counter.
/// # processor.write(unsafe { MsrAddress::new(0x4C1) }, 2_000).unwrap();
/// let saved = loaded.global_control();
/// let put = counters.put(loaded, saved, &mut guest, &processor).map_err(|(_, error)| error)?;
/// assert!(!put.interrupt_is_coming);
/// assert_eq!(guest.read(0x4C1), pmu_virt::Read::Value(2_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HostCounters {
    configuration: Configuration,
    layout: Layout,
    registers: Registers,
}

/// The addresses of a vendor's registers: the first counter's, and their distance.
#[derive(Clone, Copy, Debug)]
struct Registers {
    select: u32,
    general: u32,
    stride: u32,
    fixed: u32,
    fixed_control: u32,
    status: u32,
    control: u32,
    status_clear: u32,
    status_set: u32,
}

const INTEL: Registers = Registers {
    select: 0x186,
    general: 0x4C1,
    stride: 1,
    fixed: 0x309,
    fixed_control: 0x38D,
    status: 0x38E,
    control: 0x38F,
    status_clear: 0x390,
    status_set: 0x391,
};

const AMD: Registers = Registers {
    select: 0xC001_0200,
    general: 0xC001_0201,
    stride: 2,
    fixed: 0,
    fixed_control: 0,
    status: 0xC000_0300,
    control: 0xC000_0301,
    status_clear: 0xC000_0302,
    status_set: 0xC000_0303,
};

/// A guest's state is on the counters: to be [put](HostCounters::put) back.
#[derive(Debug)]
#[must_use = "the guest's state is on the counters until it is put back"]
pub struct Loaded {
    global_control: u64,
    /// The overflows whose interrupt the guest has had, or did not want.
    known: u64,
    /// The counters that interrupt.
    interrupting: u64,
    /// Global control as it was when a put stopped the counters.
    stopped: Option<u64>,
    debug_control: u64,
    /// Whose state it is.
    configuration: Configuration,
}

impl Loaded {
    /// Returns the global control with which the guest is first entered.
    pub const fn global_control(&self) -> u64 {
        self.global_control
    }

    /// The PMU's bits of the guest's `IA32_DEBUGCTL`: whether an overflow freezes its counters.
    pub const fn debug_control(&self) -> u64 {
        self.debug_control
    }
}

/// The outcome of a [`put`](HostCounters::put).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Put {
    /// A counter overflowed whose interrupt has not come yet, and is [pending](VirtualPmu::pmi_pending) in the guest
    /// now: the processor's own, which comes on the host, is to be claimed and to be dropped.
    pub interrupt_is_coming: bool,
}

impl HostCounters {
    /// The counters of the processor that has this PMU: see [`Configuration::from_cpuid`].
    ///
    /// # Errors
    /// The status cannot be restored: there is no `IA32_PERF_GLOBAL_STATUS_SET` below version 4, and on AMD none
    /// without PerfMonV2. Or counters cannot be written in full width, or selects cannot be marked GuestOnly.
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
        Ok(Self { configuration: host, layout, registers })
    }

    /// The PMU that a guest can have: all counters of the host's, without AnyThread, which would count what is not
    /// the guest's, and without the qualifiers of a guest's own guests.
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

    /// Stops all counters of this processor by the global control: once, before a guest is first loaded, since
    /// after reset the general counters are enabled there.
    ///
    /// # Errors
    /// The register faulted.
    pub fn stop<M: MsrBackend>(&self, msr: &M) -> Result<(), MediationError> {
        Access(msr).write(self.registers.control, 0)
    }

    /// Loads a guest's state onto this processor's counters, which are [stopped](Self::stop). They do not count
    /// before the guest is entered.
    ///
    /// Context: task, and the processor is not left until [`put`](Self::put). A policy that
    /// [changes](VirtualPmu::set_policy) meanwhile is for the next load. Accesses: a write of each counter and of
    /// each general counter's select, one read and up to two writes of the status, a write of `IA32_FIXED_CTR_CTRL`
    /// where there are fixed counters; on AMD a write of the global control.
    ///
    /// # Errors
    /// The guest's PMU is not [that of the host](Self::guest), or a register faulted: no counter counts, and
    /// the guest's state is as it was.
    pub fn load<P: EventPolicy, M: MsrBackend>(
        &self,
        guest: &VirtualPmu<P>,
        msr: &M,
    ) -> Result<Loaded, MediationError> {
        if !self.accepts(&guest.configuration) {
            return Err(MediationError::NotTheHosts);
        }
        let msr = Access(msr);
        let Registers { status, status_clear, status_set, control, .. } = self.registers;
        let registers = &guest.model.registers;
        for counter in guest.counters() {
            let (_, value) = self.of_counter(counter);
            msr.write(value, registers.counter(counter))?;
            if counter < MAX_PER_KIND {
                self.write_select(guest, counter, &msr)?;
            }
        }
        self.write_fixed_control(guest, &msr)?;
        let bits = self.status_bits();
        let wanted = registers.of(Family::GlobalStatus) & bits;
        let found = msr.read(status)? & bits;
        if found & !wanted != 0 {
            msr.write(status_clear, found & !wanted)?;
        }
        if wanted & !found != 0 {
            msr.write(status_set, wanted & !found)?;
        }
        let global_control = registers.of(Family::GlobalControl);
        if self.is_amd() {
            msr.write(control, global_control)?;
        }
        Ok(Loaded {
            global_control,
            known: wanted,
            interrupting: guest.interrupting(),
            stopped: None,
            debug_control: registers.of(Family::DebugControl),
            configuration: guest.configuration,
        })
    }

    /// Sets bits of the status that a loaded guest asks for by `IA32_PERF_GLOBAL_STATUS_SET` or
    /// `PerfCntrGlobalStatusSet`: they raise no interrupt. `value` is what the guest writes, which
    /// [`VirtualPmu::check_write`] has found legal; of its bits those of counters and of the freeze are set, since
    /// nothing else that the status tells of is the guest's.
    ///
    /// # Errors
    /// The register faulted.
    pub fn set_status<M: MsrBackend>(
        &self,
        loaded: &mut Loaded,
        value: u64,
        msr: &M,
    ) -> Result<(), MediationError> {
        let value = value & self.status_bits();
        loaded.known |= value;
        Access(msr).write(self.registers.status_set, value)
    }

    /// Writes the control that a loaded guest has just written to its PMU: an event select, by its counter's number,
    /// or `IA32_FIXED_CTR_CTRL` for `None`. An event that the [policy](EventPolicy) forbids does not count.
    /// Accesses: the write; a read of the status where a counter is to interrupt from now on.
    ///
    /// # Errors
    /// The register faulted.
    pub fn write_control<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded,
        counter: Option<u8>,
        guest: &VirtualPmu<P>,
        msr: &M,
    ) -> Result<(), MediationError> {
        let msr = Access(msr);
        match counter.map(usize::from) {
            Some(counter) if counter < MAX_PER_KIND && guest.model.layout.has(counter) => {
                self.write_select(guest, counter, &msr)?;
            }
            Some(counter) => return Err(MediationError::NoCounter(counter as u8)),
            None => self.write_fixed_control(guest, &msr)?,
        }
        let interrupting = guest.interrupting();
        let new = interrupting & !loaded.interrupting;
        if new != 0 {
            // An overflow from before did not interrupt.
            loaded.known |= msr.read(self.registers.status)? & new;
        }
        loaded.interrupting = interrupting;
        Ok(())
    }

    /// Notes an interrupt of the counters that came while a guest was loaded: it is the guest's, and
    /// [pending](VirtualPmu::pmi_pending) from now on.
    ///
    /// # Errors
    /// The status could not be read. The interrupt is pending; what overflows until the state is put back is told by
    /// its own interrupt alone.
    pub fn interrupted<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded,
        guest: &mut VirtualPmu<P>,
        msr: &M,
    ) -> Result<(), MediationError> {
        guest.set_pmi_pending(true);
        let found = Access(msr).read(self.registers.status);
        loaded.known = *found.as_ref().unwrap_or(&u64::MAX);
        found.map(|_| ())
    }

    /// Puts a guest's state back from the counters, which are disarmed and whose overflows are acknowledged.
    /// `global_control` is what the processor saved when it left the guest (on AMD it is read, and this is not
    /// looked at).
    ///
    /// An overflow in the guest is an interrupt that is pending in it once: by
    /// [`interrupted`](Self::interrupted) where the processor's came before, or from here, where it is
    /// [still to come](Put::interrupt_is_coming). A guest can acknowledge an overflow and have the next one of the
    /// same counter unseen by the hypervisor: an interrupt that comes on the host afterwards and that `Put` did not
    /// announce is that one's, and [`VirtualPmu::set_pmi_pending`] makes it the guest's.
    ///
    /// Accesses: a read of the status and a write of what is set, RDPMC of each counter, a write of each select that
    /// is enabled, and of `IA32_FIXED_CTR_CTRL` where a fixed counter is; on AMD a read and a write of the global
    /// control.
    ///
    /// # Errors
    /// The loaded state is of a guest with another PMU, or a register faulted. The guest's state is as it was before,
    /// and what was loaded is given back to try again.
    pub fn put<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: Loaded,
        global_control: u64,
        guest: &mut VirtualPmu<P>,
        msr: &M,
    ) -> Result<Put, (Loaded, MediationError)> {
        let mut loaded = loaded;
        match self.read_back(&mut loaded, global_control, guest, &Access(msr)) {
            Ok(put) => Ok(put),
            Err(error) => Err((loaded, error)),
        }
    }

    fn read_back<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded,
        saved: u64,
        guest: &mut VirtualPmu<P>,
        msr: &Access<'_, M>,
    ) -> Result<Put, MediationError> {
        if loaded.configuration != guest.configuration {
            return Err(MediationError::NotTheHosts);
        }
        let own = guest.model.layout.global();
        let Registers { control, status, status_clear, fixed_control, .. } = self.registers;
        let global_control = match loaded.stopped {
            // By a put that failed later on.
            Some(stopped) => stopped,
            None if self.is_amd() => {
                let found = msr.read(control)?;
                msr.write(control, 0)?;
                *loaded.stopped.insert(found & own)
            }
            None => saved & own,
        };
        let bits = self.status_bits();
        let found = msr.read(status)? & bits;
        let mut registers = guest.model.registers;
        let enabled = guest.model.enabled();
        for counter in guest.counters() {
            let value = msr.read_pmc(pmc_index(counter))?;
            *registers.counter_mut(counter) = value & guest.model.layout.mask(counter);
            if counter < MAX_PER_KIND && enabled >> counter & 1 != 0 {
                msr.write(self.of_counter(counter).0, 0)?;
            }
        }
        if enabled >> MAX_PER_KIND != 0 {
            msr.write(fixed_control, 0)?;
        }
        // Last of all: a put that fails before finds it again.
        if found != 0 {
            msr.write(status_clear, found)?;
        }
        let others = registers.of(Family::GlobalStatus) & !bits;
        *registers.of_mut(Family::GlobalStatus) = found | others;
        *registers.of_mut(Family::GlobalControl) = global_control;
        guest.model.registers = registers;
        guest.model.budget_is_stale = true;
        let interrupt_is_coming = found & loaded.interrupting & !loaded.known != 0;
        guest.model.pmi_pending |= interrupt_is_coming;
        Ok(Put { interrupt_is_coming })
    }

    /// Returns whether a guest with this PMU can be given these counters: it has all of them, in their widths.
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

    /// The bits of the status that are the guest's.
    fn status_bits(&self) -> u64 {
        let frozen = if self.is_amd() { 0 } else { Layout::FROZEN };
        self.layout.global() | frozen
    }

    fn is_amd(&self) -> bool {
        self.configuration.vendor() == Vendor::Amd
    }

    /// The registers of the counter with this place, 0–15: its select, and its value.
    const fn of_counter(&self, counter: usize) -> (u32, u32) {
        let Registers { select, general, stride, fixed, .. } = self.registers;
        match counter {
            0..MAX_PER_KIND => {
                (select + stride * counter as u32, general + stride * counter as u32)
            }
            _ => (0, fixed + (counter - MAX_PER_KIND) as u32),
        }
    }

    fn write_select<P: EventPolicy, M: MsrBackend>(
        &self,
        guest: &VirtualPmu<P>,
        counter: usize,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        let mut select = guest.model.registers.select(counter);
        if guest.model.enabled() >> counter & 1 == 0 {
            select &= !ENABLE;
        }
        if self.is_amd() {
            select |= GUEST_ONLY;
        }
        msr.write(self.of_counter(counter).0, select)
    }

    fn write_fixed_control<P: EventPolicy, M: MsrBackend>(
        &self,
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
        msr.write(self.registers.fixed_control, control)
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// The counters that there are, by their places.
    fn counters(&self) -> impl Iterator<Item = usize> + use<P> {
        let counters = self.model.layout.counters();
        (0..MAX_COUNTERS).filter(move |counter| counters >> counter & 1 != 0)
    }

    /// The counters that interrupt, in the layout of the global status.
    fn interrupting(&self) -> u64 {
        to_global(self.model.interrupting())
    }
}

/// RDPMC's operand, of both vendors.
const fn pmc_index(counter: usize) -> PmcIndex {
    match counter {
        0..MAX_PER_KIND => PmcIndex::new(counter as u32),
        _ => PmcIndex::new(1 << 30 | (counter - MAX_PER_KIND) as u32),
    }
}

/// The backend, with faults that name their register.
struct Access<'m, M>(&'m M);

impl<M: MsrBackend> Access<'_, M> {
    fn read(&self, register: u32) -> Result<u64, MediationError> {
        self.0.read(address(register)).map_err(|error| fault(MsrOperation::Read, register, &error))
    }

    fn write(&self, register: u32, value: u64) -> Result<(), MediationError> {
        let written = self.0.write(address(register), value);
        written.map_err(|error| fault(MsrOperation::Write, register, &error))
    }

    fn read_pmc(&self, index: PmcIndex) -> Result<u64, MediationError> {
        let read = self.0.read_pmc(index);
        read.map_err(|error| fault(MsrOperation::ReadPmc, index.get(), &error))
    }
}

fn address(register: u32) -> MsrAddress {
    // SAFETY: every address of this module is that of an event select, a counter, or their global control or status
    // ([`INTEL`], [`AMD`]), of which no value makes the processor write to memory.
    unsafe { MsrAddress::new(register) }
}

fn fault(operation: MsrOperation, register: u32, error: &impl MsrError) -> MediationError {
    MediationError::Access(MsrFault { operation, register, kind: error.kind() })
}

/// Reason for which a guest was not given counters, or its state not put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum MediationError {
    /// There is no such host.
    Configuration(ConfigurationError),
    /// The host has no register that sets bits of the status: Intel below version 4, AMD before PerfMonV2.
    NoStatusSet,
    /// The host's counters cannot be written in full width.
    NoFullWidthWrites,
    /// The host's event selects have no GuestOnly: [`AmdConfiguration::guest_host`](crate::AmdConfiguration::guest_host).
    NoGuestOnly,
    /// The guest's PMU is not one that has all of the host's counters: see [`HostCounters::guest`]. Or it is another
    /// than the one that was loaded.
    NotTheHosts,
    /// The guest has no general counter with this number.
    NoCounter(u8),
    /// An access failed.
    Access(MsrFault),
}

impl fmt::Display for MediationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(error) => error.fmt(f),
            Self::NoStatusSet => f.write_str("the host's status cannot be set"),
            Self::NoFullWidthWrites => f.write_str("the host's counters lack full-width writes"),
            Self::NoGuestOnly => f.write_str("the host's event selects have no GuestOnly"),
            Self::NotTheHosts => f.write_str("the guest's PMU is not the host's"),
            Self::NoCounter(counter) => write!(f, "the guest has no general counter {counter}"),
            Self::Access(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for MediationError {}
