//! The precise records of one virtual processor: creation, programming and reset.

use crate::configuration::Configuration;
use crate::configuration::cpuid::CpuidLeaf;
use crate::configuration::error::ConfigurationError;
use crate::pmu::facility::{GuestFacility, Writer};
use crate::pmu::rows::{FacilityRow, Register, Rows, answers_by_rows};
use crate::precise::configuration::{DebugStoreRecords, PreciseConfiguration, PreciseRecords};
use crate::precise::record::{
    DATA_BRANCHES, DATA_COUNTERS, DATA_GENERAL, DATA_MEMORY, DATA_METRICS, DATA_XMM,
};
use crate::registers::layout::RegisterKind;
use crate::registers::table::WriteAs::{Cleared, Kept, Refused, Set, Stored};
use crate::registers::table::when;

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
/// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// use pmu_virt::precise::{FedRecord, PreciseConfiguration, VirtualPrecise};
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
            // The buffer is switched off as a whole, whatever each counter's control says.
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

    pub(crate) const fn debug_store(&self) -> Option<DebugStoreRecords> {
        match self.configuration.records {
            PreciseRecords::DebugStore(records) => Some(records),
            _ => None,
        }
    }

    pub(crate) const fn is_architectural(&self) -> bool {
        matches!(self.configuration.records, PreciseRecords::Architectural(_))
    }

    const fn has_baseline(&self) -> bool {
        matches!(self.debug_store(), Some(DebugStoreRecords { baseline: true, .. }))
    }

    /// Returns whether the load-latency threshold and the front-end register exist.
    const fn extra_registers(&self) -> (bool, bool) {
        match self.configuration.records {
            PreciseRecords::None => (false, false),
            PreciseRecords::DebugStore(records) => (records.load_latency, records.frontend),
            PreciseRecords::Architectural(records) => (records.load_latency, records.frontend),
        }
    }

    const fn status_bits(&self) -> u64 {
        when(self.has_debug_store(), BUFFER) | when(self.is_architectural(), THRESHOLD)
    }

    const fn unavailable(&self) -> u64 {
        let has_records = self.debug_store().is_some();
        when(self.configuration.branch_trace, MISC_NO_TRACE) | when(has_records, MISC_NO_RECORDS)
    }

    fn legal_enable(&self) -> u64 {
        // With baseline, the bits of load latency are those of the fixed counters.
        let loads = self.debug_store().is_some_and(|own| own.load_latency && !own.baseline);
        self.counters() | when(loads, u64::from(self.general) << 32)
    }

    fn legal_data(&self) -> u64 {
        let counters = u64::from(self.general) << 32 | u64::from(self.fixed) << 48;
        let records = self.debug_store();
        let [has_counters, has_metrics] =
            [records.is_some_and(|own| own.format >= 6), records.is_some_and(|own| own.metrics)];
        let basic = DATA_MEMORY | DATA_GENERAL | DATA_XMM | DATA_BRANCHES | DATA_DEPTH;
        basic | when(has_counters, DATA_COUNTERS | counters) | when(has_metrics, DATA_METRICS)
    }

    fn legal_control(&self) -> u64 {
        let PreciseRecords::Architectural(records) = self.configuration.records else { return 0 };
        1 << 63 | u64::from(records.groups) << 32 | 0xFFFF_FFFF
    }

    fn capabilities(&self) -> u64 {
        self.debug_store().map_or(0, |records| {
            0b11 << 6
                | u64::from(records.format) << 8
                | u64::from(records.baseline) << 14
                | u64::from(records.timing) << 17
        })
    }
}

/// `IA32_PEBS_INDEX`: records are written.
pub(crate) const INDEX_ENABLE: u64 = 1 << 32;
/// `IA32_DEBUGCTL`: TR and BTS.
pub(crate) const DEBUG_TRACE: u64 = 1 << 6 | 1 << 7;

/// `IA32_PEBS_BASE`: address and size.
pub(crate) const BASE_ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
pub(crate) const BASE_SIZE: u64 = 0x1F;
/// `IA32_PEBS_INDEX`: offset of the next record, and the buffer is full. Bits 58:36 are the threshold.
pub(crate) const INDEX_WRITE: u64 = 0x7FF_FFF0;
pub(crate) const INDEX_FULL: u64 = 1 << 31;
const INDEX_THRESHOLD: u64 = 0x7F_FFFF << 36;
/// `IA32_DEBUGCTL`: TR, BTS, BTINT, BTS_OFF_OS, BTS_OFF_USR.
const DEBUG_OF_TRACE: u64 = 0x7C0;
/// `IA32_MISC_ENABLE`: BTS unavailable, PEBS unavailable.
const MISC_NO_TRACE: u64 = 1 << 11;
const MISC_NO_RECORDS: u64 = 1 << 12;
/// `IA32_PERF_CAPABILITIES`: PEBS_TRAP, PEBS_ARCH_REG, PEBS_REC_FMT, PEBS_BASELINE, PEBS_TIMING_INFO.
const CAPABILITIES_OF_RECORDS: u64 = 0b11 << 6 | 0xF << 8 | 1 << 14 | 1 << 17;
/// `MSR_PEBS_DATA_CFG`: the number of branch records less 1.
const DATA_DEPTH: u64 = 0x1F << 24;
/// An event select: the counter's records are adaptive. The bits of `IA32_FIXED_CTR_CTRL` are 32 + 4*n*.
const SELECT_ADAPTIVE: u64 = 1 << 34;

/// Values that are computed: of `IA32_MISC_ENABLE`, `IA32_PERF_CAPABILITIES`, the event selects, `IA32_FIXED_CTR_CTRL`.
const MISC: usize = WORDS;
const CAPABILITIES: usize = WORDS + 1;
const SELECTS: usize = WORDS + 2;
const FIXED_CONTROL: usize = WORDS + 3;
/// `IA32_PMC_GPx_CFG_C`, `IA32_PMC_FXx_CFG_C`.
const CONTROLS: usize = WORDS + 4;

type Row = FacilityRow<VirtualPrecise>;

const STORE: &str = "SDM vol. 3B, Processor Event Based Sampling (PEBS)";
const PEBS: &str = "SDM vol. 3B, Architectural PEBS";

impl Rows for VirtualPrecise {
    const KIND: RegisterKind = RegisterKind::PreciseRecords;

    /// Nothing is enabled before its addresses are set.
    #[rustfmt::skip]
    const ROWS: &'static [Row] = &[
        Row::new(0x600, AREA, "IA32_DS_AREA", STORE).when(Self::has_debug_store),
        Row::new(0x3F2, DATA, "MSR_PEBS_DATA_CFG", STORE).when(Self::has_baseline).legal(Self::legal_data),
        Row::new(0x3F6, LATENCY, "MSR_PEBS_LD_LAT_THRESHOLD", STORE)
            .when(|own| own.extra_registers().0).legal(|_| 0xFFFF),
        Row::new(0x3F7, FRONTEND, "MSR_PEBS_FRONTEND", STORE)
            .when(|own| own.extra_registers().1).legal(|_| 0x7F_FFFF),
        Row::new(0x3F1, ENABLE, "IA32_PEBS_ENABLE", STORE)
            .when(|own| own.debug_store().is_some()).legal(Self::legal_enable),
        Row::new(0x3F4, BASE, "IA32_PEBS_BASE", PEBS)
            .when(Self::is_architectural).legal(|_| BASE_ADDRESS | BASE_SIZE),
        Row::new(0x3F5, INDEX, "IA32_PEBS_INDEX", PEBS)
            .when(Self::is_architectural).legal(|_| INDEX_WRITE | INDEX_FULL | INDEX_ENABLE | INDEX_THRESHOLD),
        Row::new(0x1903, CONTROLS, "IA32_PMC_GPx_CFG_C", PEBS).each_counter("IA32_PMC_FXx_CFG_C", Self::counters)
            .when(Self::is_architectural).legal(Self::legal_control),
        // Neither the guest nor a host changes what the processor has.
        Row::shared(0x1A0, MISC, |own, _| own.unavailable()).when(Self::has_debug_store).write(Kept, Kept),
        Row::shared(0x345, CAPABILITIES, |_, _| CAPABILITIES_OF_RECORDS)
            .when(|own| own.debug_store().is_some()).write(Refused, Kept),
        Row::shared(0x1D9, DEBUG, |_, _| DEBUG_OF_TRACE).when(|own| own.configuration.branch_trace),
        Row::shared(0x38E, STATUS, |own, _| own.status_bits()).write(Refused, Stored),
        Row::shared(0x390, STATUS, |own, _| own.status_bits()).write(Cleared, Cleared),
        Row::shared(0x391, STATUS, |own, _| own.status_bits()).write(Set, Set).when(|own| own.version >= 4),
        Row::shared(0x38D, FIXED_CONTROL, |own, _| spread(own.fixed.into()))
            .when(|own| own.has_baseline() && own.fixed != 0),
        Row::shared(0x186, SELECTS, |_, _| SELECT_ADAPTIVE)
            .each(1, |own| own.general.into()).when(Self::has_baseline),
        Row::shared(0x1901, SELECTS, |_, _| SELECT_ADAPTIVE)
            .each(4, |own| own.general.into()).when(|own| own.has_baseline() && own.version >= 6),
    ];

    fn held(&self, register: &Register<Self>) -> u64 {
        match register.row.value {
            MISC => 0,
            CAPABILITIES => self.capabilities(),
            SELECTS => (self.words[ADAPTIVE] >> register.number & 1) << 34,
            FIXED_CONTROL => spread(self.words[ADAPTIVE] >> 32),
            CONTROLS => self.controls[register.counter() % 16],
            word => self.words[word % WORDS],
        }
    }

    fn hold(&mut self, _: Writer, register: &Register<Self>, value: u64) {
        let adaptive = &mut self.words[ADAPTIVE];
        match register.row.value {
            MISC | CAPABILITIES => {}
            SELECTS => {
                *adaptive =
                    *adaptive & !(1 << register.number) | (value >> 34 & 1) << register.number;
            }
            FIXED_CONTROL => {
                let fixed = (0..8).fold(0, |fixed, n| fixed | (value >> (32 + 4 * n) & 1) << n);
                *adaptive = *adaptive & 0xFFFF_FFFF | fixed << 32;
            }
            CONTROLS => self.controls[register.counter() % 16] = value,
            word => self.words[word % WORDS] = value,
        }
        // A counter that writes no records any more is disarmed.
        self.words[DUE] &= self.enabled();
    }

    /// The bits that do not repeat the sign of a linear address of 57 bits are illegal.
    fn breaks(&self, _: Writer, register: &Register<Self>, value: u64) -> u64 {
        if register.row.value == AREA { value ^ ((value << 7) as i64 >> 7) as u64 } else { 0 }
    }
}

/// Returns a bitmap of fixed counters as bits of `IA32_FIXED_CTR_CTRL`.
fn spread(fixed: u64) -> u64 {
    (0..8).fold(0, |bits, counter| bits | (fixed >> counter & 1) << (32 + 4 * counter))
}

impl GuestFacility for VirtualPrecise {
    answers_by_rows!();

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.declared(leaf)
    }

    fn own_counters(&self) -> u64 {
        self.enabled()
    }

    fn overflowed(&mut self, counters: u64) {
        self.words[DUE] |= counters & self.enabled();
    }

    fn reset(&mut self) {
        *self = self.after_reset();
    }
}
