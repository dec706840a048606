//! The registers of a virtual processor, to be kept or to be moved to another host.

use core::fmt;

use crate::layout::Layout;
use crate::model::MAX_PER_KIND;
use crate::{
    AllowAll, Configuration, ConfigurationError, EventPolicy, FedEvents, VirtualPmu, intel,
};

/// All that a guest can have set, and what it sees. The embedder's policy and the events that it
/// feeds are not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PmuState {
    /// [`PmuState::VERSION`] when it was taken.
    pub version: u16,
    /// The PMU.
    pub configuration: Configuration,
    /// The event selects.
    pub selects: [u64; MAX_PER_KIND],
    /// The general counters.
    pub general: [u64; MAX_PER_KIND],
    /// The fixed counters.
    pub fixed: [u64; MAX_PER_KIND],
    /// `IA32_FIXED_CTR_CTRL`.
    pub fixed_control: u64,
    /// `IA32_PERF_GLOBAL_CTRL`, `PerfCntrGlobalCtl`.
    pub global_control: u64,
    /// `IA32_PERF_GLOBAL_STATUS`, `PerfCntrGlobalStatus`.
    pub global_status: u64,
    /// The PMU's bits of `IA32_DEBUGCTL`.
    pub debug_control: u64,
    /// An interrupt waits to be delivered.
    pub pmi_pending: bool,
}

impl PmuState {
    /// The version of what the fields mean.
    pub const VERSION: u16 = 1;

    fn check(&self) -> Result<Layout, StateError> {
        // Every field by name: a new one is a new thing to check.
        let Self {
            version,
            configuration,
            selects,
            general,
            fixed,
            fixed_control,
            global_control,
            global_status,
            debug_control,
            pmi_pending,
        } = *self;
        if version != Self::VERSION {
            return Err(StateError::Version(version));
        }
        configuration.check().map_err(StateError::Configuration)?;
        let layout = Layout::of(&configuration);
        for place in 0..MAX_PER_KIND {
            let (has_general, has_fixed) = (layout.has(place), layout.has(MAX_PER_KIND + place));
            let (wide, wide_fixed) = (layout.mask(place), layout.mask(MAX_PER_KIND + place));
            for (register, value, legal) in [
                ("event select", selects[place], if has_general { layout.select } else { 0 }),
                ("general counter", general[place], if has_general { wide } else { 0 }),
                ("fixed counter", fixed[place], if has_fixed { wide_fixed } else { 0 }),
            ] {
                possible(register, value, legal)?;
            }
        }
        // CondChgd can only be cleared: nothing here sets it.
        let status = layout.status & !intel::bits::STATUS_CONDITION_CHANGED;
        possible("fixed control", fixed_control, layout.fixed_control)?;
        possible("global control", global_control, layout.global)?;
        possible("global status", global_status, layout.global | status)?;
        possible("debug control", debug_control, layout.debug_control)?;
        possible("pending interrupt", pmi_pending.into(), (layout.counters != 0).into())?;
        Ok(layout)
    }
}

fn possible(register: &'static str, value: u64, legal: u64) -> Result<(), StateError> {
    match value & !legal {
        0 => Ok(()),
        bits => Err(StateError::Impossible { register, bits }),
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// The state now.
    pub fn state(&self) -> PmuState {
        let model = &self.model;
        let [general, fixed] = model.values;
        PmuState {
            version: PmuState::VERSION,
            configuration: self.configuration,
            selects: model.selects,
            general,
            fixed,
            fixed_control: model.fixed_control,
            global_control: model.global_control,
            global_status: model.global_status,
            debug_control: model.debug_control,
            pmi_pending: model.pmi_pending,
        }
    }

    /// A PMU in this state, under the embedder's policy. `configuration` is what this guest's CPUID was
    /// told; the state does not choose.
    ///
    /// # Errors
    /// No guest with that PMU could have brought it into this state. The state may come from anywhere.
    pub fn from_state(
        state: &PmuState,
        configuration: Configuration,
        events: FedEvents,
        policy: P,
    ) -> Result<Self, StateError> {
        state.check()?;
        if state.configuration != configuration {
            return Err(StateError::OtherConfiguration(state.configuration));
        }
        let mut pmu = Self::with_policy(state.configuration, events, policy)
            .map_err(StateError::Configuration)?;
        let model = &mut pmu.model;
        model.selects = state.selects;
        model.values = [state.general, state.fixed];
        model.fixed_control = state.fixed_control;
        model.global_control = state.global_control;
        model.global_status = state.global_status;
        model.debug_control = state.debug_control;
        model.pmi_pending = state.pmi_pending;
        model.derive(&pmu.policy);
        Ok(pmu)
    }
}

/// As its [`PmuState`]: everything else follows from that and from what the embedder chose.
#[cfg(feature = "defmt")]
impl<P: EventPolicy> defmt::Format for VirtualPmu<P> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{}", self.state());
    }
}

impl VirtualPmu<AllowAll> {
    /// The same, where everything may be counted.
    ///
    /// # Errors
    /// See [`from_state`](Self::from_state).
    pub fn restore(
        state: &PmuState,
        configuration: Configuration,
        events: FedEvents,
    ) -> Result<Self, StateError> {
        Self::from_state(state, configuration, events, AllowAll)
    }
}

/// Why a state cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum StateError {
    /// Another version than [`PmuState::VERSION`].
    Version(u16),
    /// There is no such PMU.
    Configuration(ConfigurationError),
    /// The state is of another PMU than the guest has.
    OtherConfiguration(Configuration),
    /// A register holds bits that it does not have, or is not there.
    Impossible {
        /// Which register.
        register: &'static str,
        /// The bits that cannot be.
        bits: u64,
    },
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => {
                write!(f, "state of version {version}, not {}", PmuState::VERSION)
            }
            Self::Configuration(error) => error.fmt(f),
            Self::OtherConfiguration(other) => write!(f, "state of another PMU: {other:?}"),
            Self::Impossible { register, bits } => {
                write!(f, "{register} has no bits {bits:#X}")
            }
        }
    }
}

impl core::error::Error for StateError {}
