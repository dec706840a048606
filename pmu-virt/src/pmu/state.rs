//! The state of a virtual processor's PMU, which an embedder can save or send to another host.

use core::fmt;

use crate::configuration::Configuration;
use crate::configuration::error::ConfigurationError;
use crate::events::feed::FedEvents;
use crate::model::RegisterFile;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::{AllowAll, EventPolicy};
use crate::registers::layout::{Layout, of_state};
use crate::registers::table::{Located, WriteAs};

/// State of a virtual processor's PMU, which an embedder can save or send to another host. The state consists of the
/// registers, a pending interrupt, and the configuration.
///
/// The state does not include the embedder's policy, the [`FedEvents`](crate::FedEvents), or the remainder of a
/// [feed](crate::Feed).
///
/// The registers are those of [`Configuration::registers`] with [`is_state`](crate::registers::RegisterInfo::is_state)
/// set. Every constructor refuses a register value that no guest can cause.
///
/// ```
/// use pmu_virt::PmuState;
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
/// let mut state = PmuState::new(configuration)?;
/// state.set_register(0x186, 0x53_00C0)?;
/// assert_eq!(state.register(0x186), Some(0x53_00C0));
/// // Bit 21, AnyThread, is not a bit of this PMU.
/// assert!(state.set_register(0x186, 0x73_00C0).is_err());
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PmuState {
    configuration: Configuration,
    registers: RegisterFile,
    pmi_pending: bool,
}

impl PmuState {
    /// Creates the state that a PMU with this configuration has after reset.
    ///
    /// # Errors
    /// The configuration contradicts itself.
    pub fn new(configuration: Configuration) -> Result<Self, ConfigurationError> {
        Ok(VirtualPmu::new(configuration, FedEvents::NONE)?.state())
    }

    /// Returns the configuration of the PMU to which the state belongs.
    pub const fn configuration(&self) -> Configuration {
        self.configuration
    }

    /// Returns whether an overflow's interrupt is pending.
    pub const fn pmi_pending(&self) -> bool {
        self.pmi_pending
    }

    /// Sets whether an overflow's interrupt is pending.
    ///
    /// # Errors
    /// `pending` is `true`, but no counter of the PMU can raise an interrupt.
    pub fn set_pmi_pending(&mut self, pending: bool) -> Result<(), StateError> {
        if pending && Layout::of(&self.configuration).counters() == 0 {
            return Err(StateError::NoInterrupt);
        }
        self.pmi_pending = pending;
        Ok(())
    }

    /// Returns the address and value of each register that has [`is_state`](crate::registers::RegisterInfo::is_state)
    /// set.
    ///
    /// ```
    /// use pmu_virt::PmuState;
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// // Registers in the form of a `kvm_msr_entry` each, as `KVM_SET_MSRS` takes them.
    /// let state = PmuState::new(Configuration::Amd(AmdConfiguration::LEGACY))?;
    /// let entries: Vec<(u32, u32, u64)> = state.registers().map(|(index, data)| (index, 0, data)).collect();
    /// assert_eq!(entries.len(), 8); // four selects, four counters
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn registers(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        of_state(Layout::of(&self.configuration))
            .map(|(_, address, index)| (address, self.registers.get(index)))
    }

    /// Returns the value of the register with this address, or `None` if the register is absent or holds no state. If
    /// the register has several addresses, the call accepts each of them.
    pub fn register(&self, address: u32) -> Option<u64> {
        self.find(address).map(|(index, _)| self.registers.get(index))
    }

    /// Sets the register with this address. If the register has several addresses, the call accepts each of them.
    ///
    /// # Errors
    /// - The register is absent, or does not hold state.
    /// - `value` sets a bit that is reserved in the register.
    pub fn set_register(&mut self, address: u32, value: u64) -> Result<(), StateError> {
        let (index, legal) = self.find(address).ok_or(StateError::NoRegister(address))?;
        match value & !legal {
            0 => self.registers.set(index, value),
            bits => return Err(StateError::Impossible { address, bits }),
        }
        Ok(())
    }

    /// Returns a register's place and its bits.
    fn find(&self, address: u32) -> Option<(usize, u64)> {
        let layout = Layout::of(&self.configuration);
        let Located { row, index, .. } = layout.find(address)?;
        let is_state = matches!(row.host_write, WriteAs::Stored);
        is_state.then(|| (index, layout.legal_of(row.family, index)))
    }

    /// Sets the registers that are state, in their order, to what `values` has for each address.
    pub(crate) fn set_all<E>(
        &mut self,
        mut values: impl FnMut(u32) -> Result<u64, E>,
        refused: impl Fn(StateError) -> E,
    ) -> Result<(), E> {
        let layout = Layout::of(&self.configuration);
        for (row, address, index) in of_state(layout) {
            let value = values(address)?;
            match value & !layout.legal_of(row.family, index) {
                0 => self.registers.set(index, value),
                bits => return Err(refused(StateError::Impossible { address, bits })),
            }
        }
        Ok(())
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// Returns the present state of the PMU.
    pub fn state(&self) -> PmuState {
        PmuState {
            configuration: self.configuration,
            registers: self.model.registers,
            pmi_pending: self.model.pmi_pending,
        }
    }

    /// Creates a PMU in this state, under the embedder's policy. `configuration` is the configuration that the guest
    /// sees in CPUID. `state` must have the same configuration.
    ///
    /// ```
    /// use pmu_virt::{FedEvents, StateError, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::policy::AllowAll;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let state = VirtualPmu::new(configuration, FedEvents::NONE)?.state();
    /// let back = VirtualPmu::from_state(&state, configuration, FedEvents::NONE, AllowAll)?;
    /// assert_eq!(back.state(), state);
    /// let other = Configuration::Intel(IntelConfiguration::new(2, 8, 3));
    /// let refused = VirtualPmu::from_state(&state, other, FedEvents::NONE, AllowAll);
    /// assert_eq!(refused.unwrap_err(), StateError::OtherConfiguration(configuration));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The state has a different configuration.
    pub fn from_state(
        state: &PmuState,
        configuration: Configuration,
        events: FedEvents,
        policy: P,
    ) -> Result<Self, StateError> {
        // A forged state must not choose the guest's PMU.
        if state.configuration != configuration {
            return Err(StateError::OtherConfiguration(state.configuration));
        }
        let mut pmu = Self::with_policy(state.configuration, events, policy)
            .map_err(StateError::Configuration)?;
        pmu.model.registers = state.registers;
        pmu.model.pmi_pending = state.pmi_pending;
        // Events and policy are not in the state, and may be other ones here.
        pmu.model.derive(&pmu.policy);
        Ok(pmu)
    }
}

/// Formats the [`PmuState`], but not the events and the policy that the embedder has chosen.
#[cfg(feature = "defmt")]
impl<P: EventPolicy> defmt::Format for VirtualPmu<P> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{}", self.state());
    }
}

impl VirtualPmu<AllowAll> {
    /// Creates a PMU in this state, under the policy that allows every event.
    ///
    /// # Errors
    /// The errors of [`from_state`](Self::from_state).
    ///
    /// ```
    /// use pmu_virt::{FedEvents, PmuState, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let here = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let sent = here.state().to_bytes();
    /// let there = VirtualPmu::restore(&PmuState::from_bytes(&sent)?, configuration, FedEvents::NONE)?;
    /// assert_eq!(there.state(), here.state());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn restore(
        state: &PmuState,
        configuration: Configuration,
        events: FedEvents,
    ) -> Result<Self, StateError> {
        Self::from_state(state, configuration, events, AllowAll)
    }
}

impl fmt::Debug for PmuState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PmuState")
            .field("configuration", &self.configuration)
            .field("pmi_pending", &self.pmi_pending)
            .field("registers", &Registers(self))
            .finish()
    }
}

struct Registers<'s>(&'s PmuState);

impl fmt::Debug for Registers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (address, value) in self.0.registers() {
            map.entry(&format_args!("{address:#X}"), &format_args!("{value:#X}"));
        }
        map.finish()
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for PmuState {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{} pmi_pending {=bool}", self.configuration, self.pmi_pending);
        for (address, value) in self.registers() {
            defmt::write!(f, "; {=u32:#X}: {=u64:#X}", address, value);
        }
    }
}

/// Reason why a [`PmuState`](crate::PmuState) is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum StateError {
    /// The state's configuration has fields that contradict each other.
    #[error("{0}")]
    Configuration(ConfigurationError),
    /// The state's configuration differs from the guest's configuration. The value is the state's configuration.
    #[error("state of another PMU: {0:?}")]
    OtherConfiguration(Configuration),
    /// No register at this address belongs to the [saved state](crate::registers::RegisterInfo::is_state) of the PMU.
    #[error("no register {0:#X} holds state")]
    NoRegister(u32),
    /// The value of a register has reserved bits set.
    #[error("register {address:#X} has no bits {bits:#X}")]
    Impossible {
        /// The register's address.
        address: u32,
        /// The reserved bits that are set.
        bits: u64,
    },
    /// An interrupt is pending in a PMU without a counter.
    #[error("an interrupt is pending, and there is no counter")]
    NoInterrupt,
}
