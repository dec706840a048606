//! Top-down metrics of a virtual processor, as a facility beside the PMU.
//!
//! Fixed counter 3 of the PMU counts the issue slots. The facility divides the slots into parts.

use crate::configuration::Configuration;
use crate::configuration::cpuid::CpuidLeaf;
use crate::configuration::error::ConfigurationError;
use crate::model::Advanced;
use crate::pmu::facility::{GuestFacility, Writer};
use crate::pmu::msr::Read;
use crate::pmu::rows::{FacilityRow, Register, Rows, answers_by_rows};
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::EventPolicy;
use crate::registers::layout::RegisterKind;
use crate::registers::table::WriteAs::{Cleared, Refused, Set, Stored};
use crate::registers::table::when;

/// Number of parts, of both levels.
pub(crate) const PARTS: usize = 8;

/// Top-down metrics of one virtual Intel processor. The processor also has a [`VirtualPmu`]. This
/// type is a [`GuestFacility`], and answers RDMSR and WRMSR of `MSR_PERF_METRICS` and of bit 48
/// of the global registers. Fixed counter 3 of the PMU counts the issue slots.
///
/// The embedder counts events within a call of [`observe`](Self::observe), and passes the
/// [mix](crate::topdown::TopDownMix) of the slots. The metrics are fractions of the slots in fixed counter 3. So a
/// guest saves and restores the metrics together with this counter.
///
/// No method allocates or panics. A copy of the value is a snapshot of the complete state, and `==` compares two
/// states.
///
/// ```
/// use pmu_virt::{EventKey, FedEvents, Feed, Mode, Privilege, Read, VirtualPmu};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// use pmu_virt::topdown::{TopDownMix, VirtualTopDown};
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
    /// guest's PMU. `level_2` says whether `MSR_PERF_METRICS` has the four bytes of level 2, as on Sapphire Rapids and
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

    /// Calls `pass`, and updates the metrics. `pass` commonly calls [`VirtualPmu::advance`]. Fixed counter 3 counts
    /// issue slots during `pass`. `mix` says which share of these slots belongs to each part of the metrics, for
    /// instance to retiring. If fixed counter 3 overflows, the metrics also overflow. The overflow of the metrics sets
    /// bit 48 of the status, and raises an interrupt if the interrupt of fixed counter 3 is enabled.
    ///
    /// `pass` must not write fixed counter 3. If the processor has auto counter reload, call `observe` within
    /// [`VirtualReload::advance_by`](crate::reload::VirtualReload::advance_by). Each call of `observe` then counts only
    /// up to the next reload of a counter.
    ///
    /// # Errors
    /// Returns the error of `pass`.
    pub fn observe<P: EventPolicy, E>(
        &mut self,
        pmu: &mut VirtualPmu<P>,
        mix: &TopDownMix,
        pass: impl FnOnce(&mut VirtualPmu<P>) -> Result<Advanced, E>,
    ) -> Result<Advanced, E> {
        let before = value(pmu, SLOTS);
        let mut advanced = pass(pmu)?;
        // The counter may have wrapped within the pass, so its values alone do not tell how far it went.
        let wraps = u128::from(advanced.wraps(SLOTS_BIT)) << self.width.min(64);
        let slots = (wraps + u128::from(value(pmu, SLOTS))).saturating_sub(before.into());
        if self.control && self.count(before, slots, mix) {
            self.status = true;
            if value(pmu, FIXED_CONTROL) & INTERRUPTS != 0 {
                pmu.set_pmi_pending(true);
                advanced.pmi = true;
            }
        }
        Ok(advanced)
    }

    /// Counts the slots up to the next overflow of the slots' counter, if it runs and interrupts.
    #[cfg(feature = "mock")]
    pub(crate) fn pass_to_overflow<P: EventPolicy>(
        &mut self,
        pmu: &VirtualPmu<P>,
        mix: &TopDownMix,
    ) {
        let runs = pmu.running().any(|event| event.counter == SLOTS_BIT);
        if self.control && runs && value(pmu, FIXED_CONTROL) & INTERRUPTS != 0 {
            let before = value(pmu, SLOTS);
            let left = (1u128 << self.width.min(64)) - u128::from(before);
            self.status |= self.count(before, left, mix);
        }
    }

    /// Counts slots after the `before` slots in the counter. Returns whether the metrics overflow.
    fn count(&mut self, before: u64, slots: u128, mix: &TopDownMix) -> bool {
        if slots == 0 {
            return false;
        }
        if self.slots == 0 && self.written != 0 {
            // The fractions that were written are of the slots in the counter.
            self.slots = before;
            self.parts =
                self.written.to_le_bytes().map(|share| u128::from(before) * u128::from(share));
        }
        let range = 1u128 << self.width.min(64);
        let whole = u128::from(self.slots) + slots;
        let overflows = whole / range != u128::from(self.slots) / range;
        let counted = if self.level_2 { mix.shares.len() } else { mix.shares.len() / 2 };
        // Sums of slots, because the register's bytes are too coarse to be added to.
        for (part, share) in self.parts.iter_mut().zip(mix.shares).take(counted) {
            *part = part.saturating_add(slots * u128::from(share));
        }
        self.slots = u64::try_from(whole).unwrap_or(u64::MAX);
        overflows
    }
}

/// Distribution of a program's issue slots over the parts of the top-down metrics. Each part has a share in units of
/// 1/255. The first four shares belong to level 1, and their sum is 255. The last four shares belong to level 2. Each
/// part of level 2 is contained in a part of level 1, so its share is at most the share of that part. The shares are in
/// the order of the bytes of `MSR_PERF_METRICS`.
///
/// ```
/// use pmu_virt::topdown::TopDownMix;
/// // Three fifths retire, and the rest waits for memory.
/// let mix = TopDownMix { shares: [153, 0, 0, 102, 0, 0, 0, 102] };
/// assert!(mix.is_whole());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TopDownMix {
    /// The shares. Level 1: retiring, bad speculation, front-end bound, back-end bound. Level 2: heavy operations,
    /// branch mispredictions, fetch latency, memory bound.
    pub shares: [u8; 8],
}

impl TopDownMix {
    /// Every slot retires.
    pub const RETIRING: Self = Self { shares: [255, 0, 0, 0, 0, 0, 0, 0] };

    /// Returns whether the shares are consistent: the sum of level 1 is 255, and no part of level 2 has a larger share
    /// than the part of level 1 to which it belongs.
    ///
    /// ```
    /// use pmu_virt::topdown::TopDownMix;
    /// assert!(TopDownMix::RETIRING.is_whole());
    /// assert!(!TopDownMix { shares: [100, 0, 0, 100, 0, 0, 0, 0] }.is_whole()); // 55 slots of 255 are missing
    /// ```
    pub fn is_whole(&self) -> bool {
        let [level_1 @ .., a, b, c, d] = self.shares;
        let sum: u32 = level_1.iter().map(|share| u32::from(*share)).sum();
        sum == 255 && level_1.iter().zip([a, b, c, d]).all(|(part, of)| of <= *part)
    }
}

const METRICS: usize = 0;
const CAPABILITIES: usize = 1;
const CONTROL: usize = 2;
const STATUS: usize = 3;

/// Bit of `IA32_PERF_CAPABILITIES`: there is the register.
const AVAILABLE: u64 = 1 << 15;

/// Bit of the global registers.
const BIT: u64 = 1 << 48;

/// Type of RDPMC's ECX.
const RDPMC: u32 = 1 << 29;

type Row = FacilityRow<VirtualTopDown>;

impl Rows for VirtualTopDown {
    const KIND: RegisterKind = RegisterKind::TopDownMetrics;

    #[rustfmt::skip]
    const ROWS: &'static [Row] = &[
        Row::new(0x329, METRICS, "MSR_PERF_METRICS", "SDM vol. 3B, Performance Metrics").legal(Self::legal),
        Row::shared(0x345, CAPABILITIES, |_, _| AVAILABLE).write(Refused, Stored),
        Row::shared(0x38E, STATUS, |_, _| BIT),
        Row::shared(0x38F, CONTROL, |_, _| BIT),
        Row::shared(0x390, STATUS, |_, _| BIT).write(Cleared, Cleared),
        Row::shared(0x391, STATUS, |_, _| BIT).write(Set, Set),
    ];

    fn held(&self, register: &Register<Self>) -> u64 {
        match register.row.value {
            METRICS => self.metrics(),
            CAPABILITIES => AVAILABLE,
            CONTROL => when(self.control, BIT),
            _ => when(self.status, BIT),
        }
    }

    fn hold(&mut self, _: Writer, register: &Register<Self>, value: u64) {
        match register.row.value {
            METRICS => (self.slots, self.written, self.parts) = (0, value, [0; PARTS]),
            CAPABILITIES => {}
            CONTROL => self.control = value != 0,
            _ => self.status = value != 0,
        }
    }
}

impl GuestFacility for VirtualTopDown {
    answers_by_rows!();

    fn read_counter(&self, ecx: u32) -> Read {
        if ecx == RDPMC { Read::Value(self.metrics()) } else { Read::Unhandled }
    }

    /// Returns `leaf` unchanged, because no CPUID bit declares top-down metrics. A bit of `IA32_PERF_CAPABILITIES`
    /// declares the metrics.
    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        leaf
    }

    fn reset(&mut self) {
        self.clear();
    }
}

/// `IA32_FIXED_CTR3`, and its bits in the global registers and in the control of the fixed counters.
const SLOTS: u32 = 0x30C;
const SLOTS_BIT: u8 = 35;
const FIXED_CONTROL: u32 = 0x38D;
const INTERRUPTS: u64 = 1 << 15;

fn value<P: EventPolicy>(pmu: &VirtualPmu<P>, register: u32) -> u64 {
    match pmu.read(register) {
        Read::Value(value) => value,
        _ => 0,
    }
}
