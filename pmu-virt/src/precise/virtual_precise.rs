//! The precise records of one virtual processor: creation, programming and reset.

use crate::configuration::any_vendor::Configuration;
use crate::configuration::error::ConfigurationError;
use crate::precise::configuration::{PreciseConfiguration, PreciseRecords};

/// Precise records and branch trace store of one virtual Intel processor. The precise records are PEBS or architectural
/// PEBS. The processor also has a [`VirtualPmu`](crate::VirtualPmu). This type is a
/// [`GuestFacility`](crate::GuestFacility), and answers RDMSR and WRMSR of the registers of the precise records and of
/// the branch trace store.
///
/// If a counter that writes records overflows, the PMU raises no interrupt. Instead, the counter's record becomes
/// [due](Self::due). The embedder then passes the next instruction that causes the counter's event to
/// [`record`](Self::record). This call writes the record to the [guest's memory](crate::precise::GuestMemory). The
/// guest's memory also contains the index and the limits of a Debug Store buffer. `record` reads the index and the
/// limits again for each record.
///
/// No method allocates or panics. A copy of the value is a snapshot of the complete state, and `==` compares two
/// states. [`to_bytes`](Self::to_bytes) saves the state.
///
/// ```
/// # use pmu_virt::precise::{GuestFault, GuestMemory};
/// use pmu_virt::precise::{FedRecord, PreciseConfiguration, VirtualPrecise};
/// use pmu_virt::{Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege, VirtualPmu};
/// # struct Ram([u8; 0x1000]);
/// # impl GuestMemory for Ram {
/// #     fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault> {
/// #         bytes.copy_from_slice(&self.0[linear as usize..][..bytes.len()]);
/// #         Ok(())
/// #     }
/// #     fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault> {
/// #         self.0[linear as usize..][..bytes.len()].copy_from_slice(bytes);
/// #         Ok(())
/// #     }
/// #     fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault> {
/// #         self.write(physical, bytes)
/// #     }
/// # }
/// const BRANCHES: EventKey = EventKey::general(0xC4, 0);
/// let events = FedEvents::new(&[BRANCHES])?;
/// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
/// let mut pmu = VirtualPmu::new(configuration, events)?;
/// let mut precise = VirtualPrecise::new(&configuration, PreciseConfiguration::debug_store(4))?;
/// # let mut ram = Ram([0; 0x1000]);
/// // The guest's area at 0x100: a buffer from 0x400 to 0x800, an interrupt at each record, a period of 1,000.
/// let period = 1_000u64.wrapping_neg();
/// for (offset, word) in [(0x20, 0x400), (0x28, 0x400), (0x30, 0x800), (0x38, 0x401), (0x40, period)] {
///     ram.write(0x100 + offset, &word.to_le_bytes())?;
/// }
/// // IA32_DS_AREA, IA32_PEBS_ENABLE, and the event without an interrupt of its own.
/// for (address, value) in [(0x600, 0x100), (0x3F1, 1), (0x4C1, (1 << 48) - 1_000), (0x186, 0x43_00C4)] {
///     let _ = pmu.write_beside(&mut precise, address, value);
/// }
/// let mut feed = Feed::new(&events);
/// feed.add(events.find(BRANCHES).unwrap(), Privilege::Kernel, 1_000)?;
/// let advanced = pmu.advance_beside(&mut precise, &mut feed)?;
/// assert!(advanced.records == 1 && !advanced.pmi && precise.due() == 1);
/// // The next branch is recorded, and the interrupt is due.
/// let recorded = precise.record(&mut pmu, precise.due(), &FedRecord::new(0x40_1000), &mut ram);
/// assert!(recorded.written == 1 && recorded.pmi && pmu.pmi_pending());
/// assert_eq!(ram.0[0x408..0x410], 0x40_1000u64.to_le_bytes());
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct VirtualPrecise {
    pub(crate) configuration: PreciseConfiguration,
    /// Version of the PMU.
    pub(crate) version: u8,
    /// Counters that can write records: general and fixed ones.
    pub(crate) general: u8,
    pub(crate) fixed: u8,
    /// Values that the registers share or show, from [`DUE`] to [`INDEX`].
    pub(crate) words: [u64; WORDS],
    /// `CFG_C` of each counter: eight general and eight fixed ones.
    pub(crate) controls: [u64; 16],
}

const _: () = assert!(size_of::<VirtualPrecise>() <= 256);

/// Number of words.
pub(crate) const WORDS: usize = 11;
/// Counters that overflowed, and whose records are to be written.
pub(crate) const DUE: usize = 0;
/// [`BUFFER`] or [`THRESHOLD`] of the status, or 0.
pub(crate) const STATUS: usize = 1;
/// Bits of `IA32_DEBUGCTL`.
pub(crate) const DEBUG: usize = 2;
/// `IA32_DS_AREA`, `IA32_PEBS_ENABLE`, `MSR_PEBS_DATA_CFG`.
pub(crate) const AREA: usize = 3;
pub(crate) const ENABLE: usize = 4;
pub(crate) const DATA: usize = 5;
/// `MSR_PEBS_LD_LAT_THRESHOLD`, `MSR_PEBS_FRONTEND`.
pub(crate) const LATENCY: usize = 6;
pub(crate) const FRONTEND: usize = 7;
/// Counters whose records follow `MSR_PEBS_DATA_CFG`.
pub(crate) const ADAPTIVE: usize = 8;
/// `IA32_PEBS_BASE`, `IA32_PEBS_INDEX`.
pub(crate) const BASE: usize = 9;
pub(crate) const INDEX: usize = 10;

/// OvfBuf of the status: the Debug Store's buffer reached its threshold.
pub(crate) const BUFFER: u64 = 1 << 62;
/// Bit of the status: the buffer of architectural PEBS reached its threshold.
pub(crate) const THRESHOLD: u64 = 1 << 54;

impl VirtualPrecise {
    /// Creates the state that a guest's precise records and branch trace store have after reset. `pmu` is the
    /// configuration of the guest's PMU.
    ///
    /// # Errors
    /// A processor with the PMU configuration `pmu` cannot have the precise records of `configuration`.
    pub fn new(
        pmu: &Configuration,
        configuration: PreciseConfiguration,
    ) -> Result<Self, ConfigurationError> {
        configuration.check(pmu)?;
        let version = match pmu {
            Configuration::Intel(intel) => intel.version,
            _ => 0,
        };
        let (general, fixed) = configuration.counters_of(pmu);
        let (words, controls) = ([0; WORDS], [0; 16]);
        Ok(Self { configuration, version, general, fixed, words, controls })
    }

    /// Returns the configuration of the precise records and the branch trace store that the guest sees.
    pub fn configuration(&self) -> PreciseConfiguration {
        self.configuration
    }

    /// Returns the bitmap of the counters with a due record. The record of a counter is due after the counter has
    /// overflowed, until the record is written. The bits are those of the global status.
    pub fn due(&self) -> u64 {
        self.words[DUE]
    }

    /// Returns the bitmap of the counters that write records. The bits are those of the global status.
    pub fn enabled(&self) -> u64 {
        match self.configuration.records {
            PreciseRecords::None => 0,
            PreciseRecords::DebugStore(_) => self.words[ENABLE] & self.counters(),
            PreciseRecords::Architectural(_) if self.words[INDEX] & INDEX_ENABLE == 0 => 0,
            PreciseRecords::Architectural(_) => {
                let enabled = self.controls.iter().enumerate();
                enabled.fold(0, |counters, (place, control)| {
                    counters | (control >> 63) << (place % 8 + 32 * (place / 8))
                })
            }
        }
    }

    /// Returns the guest's load-latency threshold in cycles (`MSR_PEBS_LD_LAT_THRESHOLD`). The embedder feeds the
    /// load-latency event only for loads with at least this latency.
    pub fn load_latency(&self) -> u16 {
        self.words[LATENCY] as u16
    }

    /// Returns whether the guest has enabled the branch trace store. If the result is `false`, the embedder need not
    /// feed [branches](Self::branch).
    pub fn is_tracing(&self) -> bool {
        self.words[DEBUG] & DEBUG_TRACE == DEBUG_TRACE
    }

    pub(crate) const fn has_debug_store(&self) -> bool {
        self.configuration.branch_trace || self.debug_store().is_some()
    }

    /// Returns the counters that can write records, as bits of the global status.
    pub(crate) fn counters(&self) -> u64 {
        u64::from(self.general) | u64::from(self.fixed) << 32
    }

    pub(crate) const fn after_reset(&self) -> Self {
        Self { words: [0; WORDS], controls: [0; 16], ..*self }
    }
}

/// `IA32_PEBS_INDEX`: records are written.
pub(crate) const INDEX_ENABLE: u64 = 1 << 32;
/// `IA32_DEBUGCTL`: TR and BTS.
pub(crate) const DEBUG_TRACE: u64 = 1 << 6 | 1 << 7;
