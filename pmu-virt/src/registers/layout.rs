//! Resolved configurations: the registers that exist, and their bits.

use crate::configuration::cpuid::{HiddenConfiguration, HiddenRdpmc, HiddenRegisters};
use crate::configuration::{Configuration, Vendor};
use crate::registers::table::{Counters, Family, Features, Located, ReadAs, Row, Table, WriteAs};
use crate::registers::{amd, intel};

/// Effect of an interrupting overflow on the counters, where the guest has requested it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freeze {
    /// The guest cannot request a freeze.
    Never,
    /// Clears the global control register.
    ClearsControl,
    /// Sets [`Layout::FROZEN`] in the global status.
    SetsStatus,
}

/// Registers and legal bits that a configuration has: the part of the model that differs by vendor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) table: &'static Table,
    /// Bitmap of the table's rows that exist. Of a row, only the registers of existing counters do.
    rows: u64,
    /// The registers that exist, one bit per place of the register file.
    present: u32,
    /// Legal bits of the registers of each family; 0 for a family that is absent.
    legal: [u64; Family::COUNT],
    /// Constant values of `IA32_MISC_ENABLE` and `IA32_PERF_CAPABILITIES`.
    pub(crate) misc_enable: u64,
    pub(crate) capabilities: u64,
    /// The processor has no PMU, and registers of rows that [say so](crate::registers::table::Row::hidden_as_zero) read
    /// 0.
    pub(crate) hidden_as_zero: bool,
    /// RDPMC of an absent counter reads 0, for the first four.
    pub(crate) absent_counters_read_zero: bool,
    pub(crate) freeze: Freeze,
    /// Bits of an event select that qualify an event, and that a policy does not see.
    pub(crate) qualifiers: u64,
    /// Bits that only the event select of the third general counter has.
    pub(crate) third_select: u64,
    /// Delivery of an interrupt masks the LVT entry.
    pub(crate) masks_entry: bool,
}

impl Layout {
    /// Status bit that says that the counters are frozen, and that keeps them stopped until software clears the bit.
    pub(crate) const FROZEN: u64 = 1 << 59;
    /// Bit of `IA32_DEBUGCTL` by which software asks for the freeze.
    pub(crate) const FREEZE_ON_INTERRUPT: u64 = 1 << 12;

    /// Returns the layout of a processor without a PMU.
    pub(crate) const fn hidden(table: &'static Table) -> Self {
        Self {
            table,
            rows: table.rows_with(Features::NONE),
            present: 0,
            legal: [0; Family::COUNT],
            misc_enable: 0,
            capabilities: 0,
            hidden_as_zero: false,
            absent_counters_read_zero: false,
            freeze: Freeze::Never,
            qualifiers: 0,
            third_select: 0,
            masks_entry: false,
        }
    }

    /// Adds the registers of `counters` to this family, each with the legal bits `legal`. A family of one register has
    /// bit 0.
    pub(crate) const fn with(mut self, family: Family, counters: u8, legal: u64) -> Self {
        self.present |= (counters as u32) << family.first();
        // 0 says that the family is absent: `global` is asked in this way.
        self.legal[family as usize] = if counters == 0 { 0 } else { legal };
        self
    }

    pub(crate) const fn with_features(mut self, features: Features) -> Self {
        self.rows = self.table.rows_with(features);
        self
    }

    /// Returns the legal bits of a register of this family.
    #[inline]
    pub(crate) const fn legal(&self, family: Family) -> u64 {
        self.legal[family as usize]
    }

    /// Returns the legal bits of the register at this place of the register file, with the bits that no other register
    /// of its family has.
    pub(crate) const fn legal_of(&self, family: Family, index: usize) -> u64 {
        let legal = self.legal(family);
        if index == Family::EventSelect.first() + 2 { legal | self.third_select } else { legal }
    }

    /// Returns the bits of the global control register; 0 where there is none.
    #[inline]
    pub(crate) const fn global(&self) -> u64 {
        self.legal(Family::GlobalControl)
    }

    /// Returns the counters that exist.
    #[inline]
    pub(crate) const fn counters(&self) -> Counters {
        (self.present >> Family::GeneralCounter.first()) as Counters
    }

    #[inline]
    pub(crate) const fn has(&self, counter: usize) -> bool {
        self.counters() as usize >> (counter % 16) & 1 != 0
    }

    /// Returns the greatest value of the counter with this place, 0–15.
    #[inline]
    pub(crate) const fn mask(&self, counter: usize) -> u64 {
        self.legal(if counter < 8 { Family::GeneralCounter } else { Family::FixedCounter })
    }

    /// Returns whether the processor has this register.
    #[inline]
    pub(crate) const fn exists(&self, located: &Located) -> bool {
        // `NOWHERE` has no bit in `present`, so a register without a place exists on no processor.
        self.present >> (located.index % 32) & 1 != 0 && self.rows >> (located.number % 64) & 1 != 0
    }

    /// Returns the register at an address, if the processor has it.
    pub(crate) fn find(&self, address: u32) -> Option<Located> {
        self.table.find(address).filter(|located| self.exists(located))
    }

    /// Returns the layout of a configuration that has passed its [check](Configuration::check).
    pub(crate) const fn of(configuration: &Configuration) -> Self {
        match configuration {
            Configuration::Intel(intel) => intel::layout(intel),
            Configuration::Amd(amd) => amd::layout(amd),
            Configuration::Hidden(hidden) => of_hidden(hidden),
        }
    }
}

/// Returns the greatest value of a counter of this width.
pub(crate) const fn greatest(width: u8) -> u64 {
    match 64u32.checked_sub(width as u32) {
        Some(unused @ 0..=63) => u64::MAX >> unused,
        _ => 0,
    }
}

const fn of_hidden(hidden: &HiddenConfiguration) -> Layout {
    let mut layout = match hidden.vendor {
        Vendor::Intel => intel::hidden(),
        Vendor::Amd => amd::hidden(),
    };
    layout.hidden_as_zero |= matches!(hidden.registers, HiddenRegisters::Kvm);
    layout.absent_counters_read_zero = matches!(hidden.rdpmc, HiddenRdpmc::Zero);
    layout
}

/// Description of one register of a vendor's PMUs: its address, its name, and how the PMU answers a guest's access.
///
/// ```
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
/// let control = configuration.registers().find(|register| register.address == 0x38D).unwrap();
/// assert_eq!((control.name, control.legal), ("IA32_FIXED_CTR_CTRL", 0xBBB)); // no AnyThread
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct RegisterInfo {
    /// Address of the register: the value of ECX for RDMSR and WRMSR.
    pub address: u32,
    /// Name of the register in the manual. The letter x stands for the counter's number.
    pub name: &'static str,
    /// Section of the manual about the register.
    pub manual: &'static str,
    /// Purpose of the register.
    pub kind: RegisterKind,
    /// Number of the counter to which the register belongs. The number is 0 for a register that belongs to no single
    /// counter.
    pub counter: u8,
    /// The processor has the register. If this field is `false`, the PMU still answers accesses to the register,
    /// usually by a fault.
    pub exists: bool,
    /// WRMSR can change the register.
    pub is_writable: bool,
    /// Bits that a guest may write. If a WRMSR sets any other bit, the access faults, or the register ignores the bit.
    pub legal: u64,
    /// Bits that belong to the PMU. In a shared register, the other bits belong to the embedder.
    pub owned: u64,
    /// The register is part of the state that an embedder saves. This field is `false` for a register without state.
    /// The field is also `false` if an earlier register in
    /// [`Configuration::registers`](crate::configuration::Configuration::registers) has the same contents. To restore a
    /// virtual processor, [write](crate::VirtualPmu::host_write) the saved registers in the order of the list.
    pub is_state: bool,
}

/// Purpose of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum RegisterKind {
    /// Event select: `IA32_PERFEVTSELx` on Intel, `PerfEvtSelx` on AMD.
    EventSelect,
    /// General counter: `IA32_PMCx` on Intel, `PerfCtrx` on AMD.
    GeneralCounter,
    /// `IA32_FIXED_CTRx`.
    FixedCounter,
    /// `IA32_FIXED_CTR_CTRL`.
    FixedControl,
    /// `IA32_PERF_GLOBAL_CTRL` on Intel, `PerfCntrGlobalCtl` on AMD.
    GlobalControl,
    /// `IA32_PERF_GLOBAL_STATUS` on Intel, `PerfCntrGlobalStatus` on AMD.
    GlobalStatus,
    /// `IA32_PERF_GLOBAL_STATUS_RESET` on Intel, `PerfCntrGlobalStatusClr` on AMD.
    GlobalStatusClear,
    /// `IA32_PERF_GLOBAL_STATUS_SET` on Intel, `PerfCntrGlobalStatusSet` on AMD.
    GlobalStatusSet,
    /// `IA32_PERF_GLOBAL_INUSE`.
    GlobalInUse,
    /// `IA32_DEBUGCTL`.
    DebugControl,
    /// `IA32_MISC_ENABLE`.
    MiscEnable,
    /// `IA32_PERF_CAPABILITIES`.
    Capabilities,
    /// Register of branch records. [`GuestFacility::registers`](crate::GuestFacility::registers) returns this register.
    BranchRecords,
    /// Register of instruction-based sampling. [`GuestFacility::registers`](crate::GuestFacility::registers) returns
    /// this register.
    InstructionSampling,
    /// Register of precise records or of the branch trace store.
    /// [`GuestFacility::registers`](crate::GuestFacility::registers) returns this register.
    PreciseRecords,
    /// Register of top-down metrics. [`GuestFacility::registers`](crate::GuestFacility::registers) returns this
    /// register.
    TopDownMetrics,
    /// Register of auto counter reload. [`GuestFacility::registers`](crate::GuestFacility::registers) returns this
    /// register.
    CounterReload,
    /// Register of a feature that this crate does not implement. Every access faults.
    NotOffered,
}

impl RegisterKind {
    const fn of(row: &Row) -> Self {
        match (row.family, row.read, row.write) {
            (Family::EventSelect, ..) => Self::EventSelect,
            (Family::GeneralCounter, ..) => Self::GeneralCounter,
            (Family::FixedCounter, ..) => Self::FixedCounter,
            (Family::FixedControl, ..) => Self::FixedControl,
            (Family::GlobalControl, ..) => Self::GlobalControl,
            (Family::GlobalStatus, ReadAs::InUse, _) => Self::GlobalInUse,
            (Family::GlobalStatus, _, WriteAs::Cleared) => Self::GlobalStatusClear,
            (Family::GlobalStatus, _, WriteAs::Set) => Self::GlobalStatusSet,
            (Family::GlobalStatus, ..) => Self::GlobalStatus,
            (Family::DebugControl, ..) => Self::DebugControl,
            (Family::MiscEnable, ..) => Self::MiscEnable,
            (Family::Capabilities, ..) => Self::Capabilities,
            (Family::NotOffered, ..) => Self::NotOffered,
        }
    }
}

impl Configuration {
    /// Returns all registers of the vendor's PMUs, including registers that this processor lacks. The hypervisor must
    /// intercept the guest's accesses to all these registers.
    ///
    /// [`VirtualPmu::read`](crate::VirtualPmu::read) and [`VirtualPmu::write`](crate::VirtualPmu::write) answer the
    /// intercepted accesses. For a register that is not in this list, these two functions return
    /// [`Unhandled`](crate::Read::Unhandled). The configuration must pass [`check`](Self::check).
    ///
    /// ```
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// // The pages of AMD's MSR permission map: a bit for each access to C000_0000–1FFF and C001_0000–1FFF.
    /// let mut map = [[0u8; 0x2000 / 4]; 2];
    /// let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    /// for register in configuration.registers() {
    ///     let page = (register.address >> 16 & 1) as usize;
    ///     let bit = 2 * (register.address & 0x1FFF) as usize;
    ///     map[page][bit / 8] |= 0b11 << (bit % 8); // Reading and writing.
    /// }
    /// // C001_0200 and C001_0201 …
    /// assert_eq!(map[1][0x80], 0xFF);
    /// ```
    pub fn registers(&self) -> impl Iterator<Item = RegisterInfo> + use<> {
        let layout = Layout::of(self);
        let mut unseen = Unseen::new();
        layout.table.rows().flat_map(Row::all).map(move |(row, address, place)| {
            let index = layout.find(address).map(|located| located.index);
            let writable =
                !matches!(row.write, WriteAs::Refused | WriteAs::Ignored | WriteAs::Kept);
            let is_state = index.is_some_and(|index| unseen.takes(row, index));
            RegisterInfo {
                address,
                name: row.name,
                manual: row.manual,
                kind: RegisterKind::of(row),
                counter: if row.family.count() > 1 { place as u8 } else { 0 },
                exists: index.is_some(),
                is_writable: writable && index.is_some(),
                legal: match index {
                    Some(index) if writable => layout.legal_of(row.family, index) | row.also_legal,
                    _ => 0,
                },
                owned: row.owned,
                is_state,
            }
        })
    }
}

/// Returns the registers that are state, in the order of the table: row, address, and place in the register file.
pub(crate) fn of_state(layout: Layout) -> impl Iterator<Item = (&'static Row, u32, usize)> {
    let mut unseen = Unseen::new();
    layout.table.rows().filter(|row| keeps(row)).flat_map(Row::all).filter_map(
        move |(row, address, _)| {
            let index = layout.find(address)?.index;
            unseen.takes(row, index).then_some((row, address, index))
        },
    )
}

/// Returns whether a row's registers hold state.
const fn keeps(row: &Row) -> bool {
    matches!((row.read, row.host_write), (ReadAs::Held, WriteAs::Stored))
}

/// Bitmap of the places of the register file that no row has named yet.
struct Unseen(u32);

impl Unseen {
    const fn new() -> Self {
        Self(u32::MAX)
    }

    /// Returns whether this register is the first of those that show the same place of the register file.
    fn takes(&mut self, row: &Row, index: usize) -> bool {
        let bit = 1 << (index % 32);
        let takes = keeps(row) && self.0 & bit != 0;
        self.0 &= if takes { !bit } else { u32::MAX };
        takes
    }
}
