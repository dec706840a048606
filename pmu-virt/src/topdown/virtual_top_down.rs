//! The top-down metrics of one virtual processor: creation and reset.

use crate::configuration::any_vendor::Configuration;
use crate::configuration::error::ConfigurationError;
use crate::registers::row::when;

/// Number of parts, of both levels.
pub(crate) const PARTS: usize = 8;

/// Top-down metrics of one virtual Intel processor. The processor also has a [`VirtualPmu`](crate::VirtualPmu). This
/// type is a [`GuestFacility`](crate::GuestFacility), and answers RDMSR and WRMSR of `MSR_PERF_METRICS` and of bit 48
/// of the global registers. Fixed counter 3 of the PMU counts the issue slots.
///
/// The embedder counts events within a call of [`observe`](Self::observe), and passes the [mix](crate::TopDownMix) of
/// the slots. The metrics are fractions of the slots in fixed counter 3. So a guest saves and restores the metrics
/// together with this counter.
///
/// No method allocates or panics. A copy of the value is a snapshot of the complete state, and `==` compares two
/// states.
///
/// ```
/// use pmu_virt::{
///     Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Mode, Privilege, Read, TopDownMix, VirtualPmu,
///     VirtualTopDown,
/// };
/// let slots = EventKey::fixed(3).unwrap();
/// let events = FedEvents::new(&[slots])?;
/// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
/// let mut pmu = VirtualPmu::new(configuration, events)?;
/// let mut metrics = VirtualTopDown::new(&configuration, true)?;
/// // The guest enables both: 0x38D fixed counter 3, 0x38F bits 35 and 48; and writes 0, the slots first.
/// for (register, value) in [(0x30C, 0), (0x329, 0), (0x38D, 0b11 << 12), (0x38F, 1 << 48 | 1 << 35)] {
///     let _ = pmu.write_beside(&mut metrics, register, value);
/// }
/// let mut feed = Feed::new(&events);
/// feed.add(events.find(slots).unwrap(), Privilege::User, 10_000)?;
/// let mix = TopDownMix { shares: [200, 5, 25, 25, 0, 0, 0, 0] };
/// metrics.observe(&mut pmu, &mix, |pmu| pmu.advance(&mut feed))?;
/// assert_eq!(pmu.read_pmc_beside(&metrics, 1 << 29, Mode::KERNEL), Read::Value(0x1919_05C8));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct VirtualTopDown {
    pub(crate) level_2: bool,
    /// Bit 48 of the global control, and of the overflow status.
    pub(crate) control: bool,
    pub(crate) status: bool,
    /// Width of the slots' counter, in bits.
    pub(crate) width: u8,
    /// Slots since the metrics were written, and the metrics that were written.
    pub(crate) slots: u64,
    pub(crate) written: u64,
    /// The slots of each part, in 255ths.
    pub(crate) parts: [u128; PARTS],
}

impl VirtualTopDown {
    /// Creates the state that a guest's top-down metrics have after reset. `configuration` is the configuration of the
    /// guest's PMU. `level_2` tells whether `MSR_PERF_METRICS` has the four bytes of level 2, as on Sapphire Rapids and
    /// later processors.
    ///
    /// # Errors
    /// A PMU with this configuration cannot count issue slots.
    pub fn new(configuration: &Configuration, level_2: bool) -> Result<Self, ConfigurationError> {
        match configuration {
            Configuration::Intel(intel) if intel.fixed >> 3 & 1 != 0 => Ok(Self {
                level_2,
                control: false,
                status: false,
                width: intel.fixed_width,
                slots: 0,
                written: 0,
                parts: [0; PARTS],
            }),
            _ => Err(ConfigurationError::NoSlots),
        }
    }

    /// Returns whether `MSR_PERF_METRICS` has the four bytes of level 2.
    pub const fn has_level_2(&self) -> bool {
        self.level_2
    }

    /// Returns the value of `MSR_PERF_METRICS`.
    pub fn metrics(&self) -> u64 {
        if self.slots == 0 {
            return self.written;
        }
        let slots = u128::from(self.slots);
        let share = |part: u128| ((part + slots / 2) / slots).min(255) as u8;
        u64::from_le_bytes(self.parts.map(share))
    }

    /// Returns the bits that the register has.
    pub(crate) const fn legal(&self) -> u64 {
        0xFFFF_FFFF | when(self.level_2, u64::MAX)
    }

    pub(crate) fn clear(&mut self) {
        (self.control, self.status) = (false, false);
        (self.slots, self.written, self.parts) = (0, 0, [0; PARTS]);
    }
}
