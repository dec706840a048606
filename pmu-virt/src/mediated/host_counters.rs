//! The counters of the hypervisor's processor, which guests use in turn.

use pmu_core::CounterSet;
use pmu_core::access::{AccessFault, RegisterBackend};
use pmu_core::lending::LentCounters;

use crate::configuration::cpuid::CpuidRegisters;
use crate::configuration::error::ConfigurationError;
use crate::configuration::features::IntelFeature;
use crate::configuration::host::HostError;
use crate::configuration::{Configuration, Vendor};
use crate::mediated::registers::{AMD, Access, INTEL, Registers};
use crate::registers::layout::Layout;
use crate::registers::table::Family;

/// `IA32_PERF_CAPABILITIES`: PERF_METRICS available (SDM vol. 4, table 2-2).
const PERF_METRICS: u64 = 1 << 15;

/// Mediated PMU: the hypervisor gives the real counters of one processor to one guest after another.
///
/// While a guest is [loaded](Self::load), only the guest uses the counters. The guest directly accesses the counters,
/// the global control and the status, and directly executes RDPMC. Some accesses must be
/// [intercepted](Self::intercepts). The hypervisor answers the intercepted accesses by [`write`](Self::write),
/// [`read`](Self::read) and [`read_counter`](Self::read_counter).
///
/// While a guest is loaded, the host's session must [lend](pmu_core::CounterSession::lend) the real counters. A host
/// without a session calls [`stop`](Self::stop), which returns the [`LentCounters`]. While a guest is loaded, the host
/// must not use features that share the status register with the counters: PEBS with interrupts, LBR with interrupts,
/// and Processor Trace.
///
/// The counters do not count while the host executes. On Intel, the processor switches the registers at VM entries and
/// VM exits. For this switch, the hypervisor sets fields and controls of the VMCS:
///
/// - The guest field of `IA32_PERF_GLOBAL_CTRL` is [`Loaded::global_control`](crate::mediated::Loaded::global_control).
///   The entry control "load IA32_PERF_GLOBAL_CTRL" is set.
/// - The host field of `IA32_PERF_GLOBAL_CTRL` is [`LentCounters::global_control`]. The exit control "load
///   IA32_PERF_GLOBAL_CTRL" is set.
/// - The exit control "save IA32_PERF_GLOBAL_CTRL" is set. Each exit then updates the guest field, and the hypervisor
///   passes the field's value to [`put`](Self::put).
/// - The guest field of `IA32_DEBUGCTL` is [`Loaded::debug_control`](crate::mediated::Loaded::debug_control).
///
/// On AMD, the event selects have GuestOnly set, so the counters count only in the guest. `load` and `put` write the
/// global control.
///
/// This example is the loop of a virtual processor. The loop also needs an NMI handler: see the example of
/// [`GuestInterrupts`](crate::mediated::GuestInterrupts).
///
/// ```
/// use pmu_core::{CounterSession, EventSource, Hardware};
/// use pmu_core::error::CounterError;
/// use pmu_virt::mediated::{GuestInterrupts, HostCounters, Loaded};
/// use pmu_virt::VirtualPmu;
/// # use std::error::Error;
/// # enum Exit { Wrmsr(u32, u64), Interrupt, Stop }
/// # fn write_hosts_field(_: u64) {}
/// # fn guests_entry() -> u32 { 0 }
/// # fn enter_guest(_: &Loaded<'_>) -> Exit { Exit::Stop }
/// # fn saved_global_control() -> u64 { 0 }
/// # fn deliver(_: &mut VirtualPmu) {}
///
/// /// Lets the guest run, with interrupts off. `interrupts` is what an NMI's handler reaches.
/// fn run<S: EventSource, H: Hardware>(
///     host: &HostCounters,
///     session: &mut CounterSession<'_, S, H>,
///     guest: &mut VirtualPmu,
///     interrupts: &GuestInterrupts,
///     hardware: &H,
///     clock: impl Fn() -> u64,
/// ) -> Result<(), Box<dyn Error>> {
///     let mut window = session.lend(clock(), |_| ())?; // a sampler takes the pending overflows here
///     write_hosts_field(window.lent().global_control()); // before `load`, which borrows it
///     let outcome = host.load(window.lent(), guest, interrupts, hardware).and_then(|mut loaded| {
///         loop {
///             // Not in the handler: from Intel's version 3 on, unmasking raises an interrupt while the guest has not
///             // acknowledged the overflow.
///             if guests_entry() & 1 << 16 == 0 {
///                 hardware.unmask_performance_interrupt();
///             }
///             match enter_guest(&loaded) { // first, and after a `write`, with `loaded.global_control()`
///                 Exit::Wrmsr(register, value) => {
///                     let _ = host.write(&mut loaded, guest, register, value, hardware)?;
///                 }
///                 Exit::Interrupt => {} // its handler has run
///                 Exit::Stop => break,
///             }
///             interrupts.deliver_to(guest);
///             deliver(guest); // by `VirtualPmu::deliver_pmi`, which masks the guest's entry on Intel
///         }
///         host.put(loaded, saved_global_control(), guest, hardware).map_err(|(_, error)| error)
///     });
///     window.end(clock())?; // also after an error
///     Ok(outcome.map(|_| ())?)
/// }
/// ```
///
/// The host cannot take back the lent counters while a guest is loaded. The compiler rejects a call of
/// [`CounterWindow::end`](pmu_core::lending::CounterWindow::end), which would take the counters back:
///
/// ```compile_fail,E0505
/// # use pmu_core::{CounterSession, EventSource, Hardware};
/// # use pmu_virt::mediated::{GuestInterrupts, HostCounters};
/// # use pmu_virt::VirtualPmu;
/// # fn wrong<S: EventSource, H: Hardware>(
/// #     host: &HostCounters, session: &mut CounterSession<'_, S, H>, guest: &mut VirtualPmu,
/// #     interrupts: &GuestInterrupts, msr: &M,
/// # ) {
/// let mut window = session.lend(0, |_| ()).unwrap();
/// let loaded = host.load(window.lent(), guest, interrupts, msr).unwrap();
/// window.end(0).unwrap();
/// host.put(loaded, 0, guest, msr).unwrap();
/// # }
/// ```
///
/// # Limitations
/// - A guest on real counters has no branch records, no precise records, no top-down metrics and no counter reload:
///   none of these is switched.
/// - After a `put` that could not exclude a second overflow, an NMI of another source is taken for an interrupt of that
///   guest.
#[derive(Clone, Debug)]
pub struct HostCounters {
    configuration: Configuration,
    layout: Layout,
    pub(super) registers: Registers,
    /// The processor has more than a guest has: further counters, or PERF_METRICS.
    pub(super) has_more: bool,
}

impl HostCounters {
    /// Describes the counters of a processor whose PMU has the configuration `host`. A configuration does not tell
    /// whether an Intel processor has PERF_METRICS. So on Intel, the hypervisor must always
    /// [intercept](Self::intercepts) RDPMC and the global registers. [`from_cpuid`](Self::from_cpuid) requires these
    /// intercepts only if the processor has PERF_METRICS, or more counters than a guest can have.
    ///
    /// # Errors
    /// The configuration `host` is invalid, or lacks one of the features that a switch from guest to guest needs:
    ///
    /// - a register that sets bits of the status: `IA32_PERF_GLOBAL_STATUS_SET` (version 4 or later) or
    ///   `PerfCntrGlobalStatusSet` (PerfMonV2);
    /// - full-width writes, on Intel;
    /// - event selects with GuestOnly, on AMD.
    pub const fn new(host: Configuration) -> Result<Self, MediationError> {
        if let Err(error) = host.check() {
            return Err(MediationError::Configuration(error));
        }
        let registers = match host {
            Configuration::Intel(intel) if intel.version < 4 => {
                return Err(MediationError::NoStatusSet);
            }
            // A legacy write is 32 bits, sign-extended: most values of a guest's counter cannot be loaded by it.
            Configuration::Intel(intel) if !intel.has(IntelFeature::FullWidthWrites) => {
                return Err(MediationError::NoFullWidthWrites);
            }
            Configuration::Intel(_) => INTEL,
            // VMRUN does not switch the global control: by GuestOnly alone, the counters leave out the host's
            // instructions between `load` and `put`.
            Configuration::Amd(amd) if !amd.guest_host => return Err(MediationError::NoGuestOnly),
            Configuration::Amd(_) => AMD,
            Configuration::Hidden(_) => return Err(MediationError::NoStatusSet),
        };
        let layout = Layout::of(&host);
        // AMD's legacy counters and the core extension have no global registers, and so no status to set.
        if layout.global() == 0 {
            return Err(MediationError::NoStatusSet);
        }
        let has_more = matches!(host, Configuration::Intel(_));
        Ok(Self { configuration: host, layout, registers, has_more })
    }

    /// Describes the counters of a processor, from its CPUID and its `IA32_PERF_CAPABILITIES`. The arguments have the
    /// same meaning as those of [`Configuration::from_cpuid`].
    ///
    /// Guests get at most eight general and eight fixed counters. If the processor has PERF_METRICS, or more counters
    /// than a guest can have, the hypervisor must also [intercept](Self::intercepts) RDPMC and the global registers.
    ///
    /// # Errors
    /// - [`Host`](MediationError::Host): CPUID describes no PMU that a guest can have.
    /// - The errors of [`new`](Self::new).
    ///
    /// ```
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mediated::HostCounters;
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

    /// Returns the configuration that a guest can have. On Intel, this is the host's configuration without AnyThread.
    /// With AnyThread, a guest's counters would also count the events of other hardware threads. On AMD, this is the
    /// host's configuration without GuestOnly and HostOnly, which only a guest that itself runs guests needs.
    pub const fn guest(&self) -> Configuration {
        match self.configuration {
            Configuration::Intel(mut intel) => {
                intel.set(IntelFeature::AnyThread, false);
                Configuration::Intel(intel)
            }
            Configuration::Amd(mut amd) => {
                amd.guest_host = false;
                Configuration::Amd(amd)
            }
            hidden => hidden,
        }
    }

    /// Stops all counters of the processor that executes the call, by clearing the global control register. Returns the
    /// counters as [`LentCounters`], for [`load`](Self::load). A host without a [session](pmu_core::CounterSession)
    /// calls this method once on each processor. The call is necessary because the reset value of the global control
    /// enables the general counters.
    ///
    /// # Errors
    /// The access to the global control failed.
    ///
    /// ```
    /// use pmu_virt::{FedEvents, Read, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mediated::{GuestInterrupts, HostCounters};
    /// use pmu_virt::mock::MockMsr;
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
    /// # let processor = MockMsr::<64>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// let host = HostCounters::new(configuration)?;
    /// let mut guest = VirtualPmu::new(host.guest(), FedEvents::NONE)?;
    /// let _ = guest.write(0x4C1, 1_000);
    ///
    /// let (mut lent, interrupts) = (host.stop(&processor)?, GuestInterrupts::new());
    /// let loaded = host.load(&mut lent, &mut guest, &interrupts, &processor)?;
    /// // Enter the guest with `loaded.global_control()`. The guest then writes its own counter.
    /// # // SAFETY: a counter.
    /// # processor.write(unsafe { RegisterAddress::new(0x4C1) }, 2_000).unwrap();
    /// let saved = loaded.global_control();
    /// let put = host.put(loaded, saved, &mut guest, &processor).map_err(|(_, error)| error)?;
    /// assert!(!put.interrupt_is_coming);
    /// assert_eq!(guest.read(0x4C1), Read::Value(2_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop<M: RegisterBackend>(&self, msr: &M) -> Result<LentCounters, MediationError> {
        Access(msr).write(self.registers.control, 0)?;
        Ok(LentCounters::unowned(CounterSet::from_bits(self.layout.global()), 0))
    }

    /// Returns the status bits that belong to counters: their overflows, and the freeze of all.
    pub(super) fn counter_bits(&self) -> u64 {
        // The PMU of an AMD guest never freezes, so this bit is not the guest's there.
        let frozen = if self.is_amd() { 0 } else { Layout::FROZEN };
        self.layout.global() | frozen
    }

    /// Returns the status bits that both the guest and the host have, each in its turn.
    pub(super) fn status_bits(&self) -> u64 {
        self.counter_bits() | self.layout.legal(Family::GlobalStatus)
    }

    pub(super) fn is_amd(&self) -> bool {
        self.configuration.vendor() == Vendor::Amd
    }
}

/// Reason why [`HostCounters`](crate::mediated::HostCounters) cannot be created, why a guest was not loaded or saved,
/// or why a guest's access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum MediationError {
    /// The host's configuration is invalid.
    #[error("{0}")]
    Configuration(#[source] ConfigurationError),
    /// No [`Configuration`](crate::configuration::Configuration) can describe the host's PMU, or CPUID declares no PMU.
    #[error("{0}")]
    Host(#[source] HostError),
    /// The host lacks the register that sets bits of the global status. Intel's processors have this register from
    /// version 4 of architectural performance monitoring on. AMD's processors have the register with PerfMonV2.
    #[error("the host's status cannot be set")]
    NoStatusSet,
    /// The host's counters lack full-width writes.
    #[error("the host's counters lack full-width writes")]
    NoFullWidthWrites,
    /// The host's event selects have no GuestOnly bit. The field
    /// [`AmdConfiguration::guest_host`](crate::configuration::AmdConfiguration::guest_host) declares this bit.
    #[error("the host's event selects have no GuestOnly")]
    NoGuestOnly,
    /// The guest's PMU does not have exactly the counters of the host.
    /// [`HostCounters::guest`](crate::mediated::HostCounters::guest) returns a configuration that a guest can have.
    #[error("the guest's PMU is not the host's")]
    NotTheHosts,
    /// A counter of the guest writes [precise records](crate::precise::VirtualPrecise). The host's counters cannot
    /// write precise records for a guest.
    #[error("a counter of the guest writes precise records")]
    PreciseRecords,
    /// The host has not [lent](pmu_core::CounterSession::lend) every counter of the guest. The value is the set of the
    /// counters that are not lent.
    #[error("the counters {:#X} are not lent", .0.bits())]
    NotLent(CounterSet),
    /// The [`Loaded`](crate::mediated::Loaded) value belongs to another guest, or the guest's PMU was restored after
    /// [`HostCounters::load`](crate::mediated::HostCounters::load).
    #[error("another guest is loaded")]
    NotTheLoaded,
    /// An access to a register of the host failed.
    #[error("{0}")]
    Access(#[source] AccessFault),
}
