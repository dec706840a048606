//! Intel's registers. Read first: SDM vol. 3B, "Architectural Performance Monitoring"; vol. 4,
//! "Architectural MSRs".

use crate::configuration::IntelConfiguration;
use crate::configuration::features::{IntelFeature, QUALIFIERS};
use crate::registers::layout::{Freeze, Layout, greatest};
use crate::registers::table::Family::*;
use crate::registers::table::WriteAs::{Cleared, Kept, Refused, Set, SignExtended, Stored};
use crate::registers::table::{Counters, Features, ReadAs, Row, Table, to_global, when};

// Intel's registers. Read first: SDM vol. 3B, "Architectural Performance Monitoring"; vol. 4,
// "Architectural MSRs".

const ALL: u64 = u64::MAX;
/// An event select's bits that every version has: bits 31:0 without AnyThread. SDM vol. 3B, figure "Layout of
/// IA32_PERFEVTSELx MSRs". Pin control (19) is taken and has no effect, as in KVM: there is no pin.
const SELECT: u64 = 0xFFDF_FFFF;
/// A fixed counter's bits that every version has: OS, USR and PMI. SDM vol. 3B, figure "Layout of
/// IA32_FIXED_CTR_CTRL MSR".
const EACH_FIXED: u64 = 0b1011;
/// `IA32_DEBUGCTL`: LBR (0), TR (6), BTS, BTINT, BTS_OFF_OS, BTS_OFF_USR, FREEZE_LBRS_ON_PMI,
/// FREEZE_PERFMON_ON_PMI, ENABLE_UNCORE_PMI, FREEZE_WHILE_SMM (14).
const DEBUG_OF_PMU: u64 = 0x7FC1;
const DEBUG_LBR: u64 = 1 << 0;
/// `IA32_MISC_ENABLE`: performance monitoring available, BTS unavailable, PEBS unavailable.
const MISC_PERFMON_AVAILABLE: u64 = 1 << 7;
const MISC_UNAVAILABLE: u64 = 1 << 11 | 1 << 12;
/// `IA32_PERF_GLOBAL_STATUS`: OvfBuf, CondChgd.
const STATUS_BUFFER_OVERFLOW: u64 = 1 << 62;
const STATUS_CONDITION_CHANGED: u64 = 1 << 63;

const VERSIONS: &str = "SDM vol. 3B, Architectural Performance Monitoring Version 1";
const VERSION_2: &str = "SDM vol. 3B, Architectural Performance Monitoring Version 2";
const VERSION_4: &str = "SDM vol. 3B, Architectural Performance Monitoring Version 4";
const VERSION_6: &str = "SDM vol. 3B, Architectural Performance Monitoring Version 6";
const FULL_WIDTH: &str = "SDM vol. 3B, Full-Width Writes to Performance Counter Registers";
const VOLUME_4: &str = "SDM vol. 4, IA-32 Architectural MSRs";

/// SDM vol. 4, table "IA-32 Architectural MSRs", in its order.
///
/// Version 6 has four registers of each counter from 0x1900 on, of which two are older ones by another address;
/// `CFG_B` and `CFG_C` belong to auto counter reload and architectural PEBS.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row::not_offered(0x040, 8, "MSR_LASTBRANCH_x_FROM_IP of Core 2 and Atom"),
    Row::not_offered(0x060, 8, "MSR_LASTBRANCH_x_TO_IP of Core 2 and Atom"),
    Row::new(GeneralCounter, 0x0C1, "IA32_PMCx", VERSIONS).each(8, 1).hidden_as_zero(2)
        .write(SignExtended).host_write(Stored).drops(ALL),
    Row::new(EventSelect, 0x186, "IA32_PERFEVTSELx", VERSIONS).each(8, 1).hidden_as_zero(2),
    // SDM vol. 4 has the three bits read-only. As KVM does: a write that changes one of the two
    // "unavailable" bits faults, one that changes "available" is ignored.
    Row::new(MiscEnable, 0x1A0, "IA32_MISC_ENABLE", VOLUME_4)
        .write(Kept).drops(MISC_PERFMON_AVAILABLE).shares(MISC_PERFMON_AVAILABLE | MISC_UNAVAILABLE),
    Row::not_offered(0x1A6, 2, "MSR_OFFCORE_RSP_x"),
    Row::not_offered(0x1C8, 2, "MSR_LBR_SELECT, MSR_LASTBRANCH_TOS"),
    // Without LBRs KVM drops their enable bit; every other bit without a facility faults.
    Row::new(DebugControl, 0x1D9, "IA32_DEBUGCTL", "SDM vol. 3B, IA32_DEBUGCTL MSR")
        .drops(DEBUG_LBR).shares(DEBUG_OF_PMU),
    // The SDM calls bits above the width reserved. As KVM does, they are dropped.
    Row::new(FixedCounter, 0x309, "IA32_FIXED_CTRx", VERSION_2).each(8, 1).drops(ALL),
    Row::not_offered(0x329, 1, "MSR_PERF_METRICS"),
    Row::new(Capabilities, 0x345, "IA32_PERF_CAPABILITIES", VOLUME_4)
        .write(Refused).host_write(Kept),
    // As KVM: version 1 has no global registers.
    Row::new(FixedControl, 0x38D, "IA32_FIXED_CTR_CTRL", VERSION_2),
    Row::new(GlobalStatus, 0x38E, "IA32_PERF_GLOBAL_STATUS", VERSION_2)
        .write(Refused).host_write(Stored),
    Row::new(GlobalControl, 0x38F, "IA32_PERF_GLOBAL_CTRL", VERSION_2),
    // As KVM, since the SDM is silent: the write registers of the status read 0. It has a bit for the DS buffer
    // in every version, and without one, KVM ignores it. `IA32_PERF_GLOBAL_OVF_CTRL` up to version 3.
    Row::new(GlobalStatus, 0x390, "IA32_PERF_GLOBAL_STATUS_RESET", VERSION_4)
        .read(ReadAs::Zero).write(Cleared)
        .also_legal(STATUS_CONDITION_CHANGED).drops(STATUS_BUFFER_OVERFLOW),
    // Bit 63 is reserved here. Bits of absent features are set as written: an embedder that wants otherwise refuses
    // the write before it hands it over.
    Row::new(GlobalStatus, 0x391, "IA32_PERF_GLOBAL_STATUS_SET", VERSION_4)
        .needs(Features::VERSION_4).read(ReadAs::Zero).write(Set),
    Row::new(GlobalStatus, 0x392, "IA32_PERF_GLOBAL_INUSE", VERSION_4)
        .needs(Features::VERSION_4).read(ReadAs::InUse).write(Refused),
    Row::not_offered(0x3F1, 7, "IA32_PEBS_ENABLE, and its neighbors"),
    Row::new(GeneralCounter, 0x4C1, "IA32_A_PMCx", FULL_WIDTH).each(8, 1)
        .needs(Features::FULL_WIDTH_WRITES),
    Row::not_offered(0x600, 1, "IA32_DS_AREA"),
    Row::not_offered(0x680, 32, "MSR_LASTBRANCH_x_FROM_IP"),
    Row::not_offered(0x6C0, 32, "MSR_LASTBRANCH_x_TO_IP"),
    Row::not_offered(0xDC0, 32, "MSR_LBR_INFO_x"),
    Row::not_offered(0x1200, 32, "IA32_LBR_x_INFO"),
    Row::not_offered(0x1309, 8, "IA32_FIXED_CTRx_RELOAD_CFG"),
    Row::not_offered(0x14C1, 8, "IA32_PMCx_RELOAD_CFG"),
    Row::not_offered(0x14CE, 2, "IA32_LBR_CTL, IA32_LBR_DEPTH"),
    Row::not_offered(0x1500, 32, "IA32_LBR_x_FROM_IP"),
    Row::not_offered(0x1600, 32, "IA32_LBR_x_TO_IP"),
    Row::new(GeneralCounter, 0x1900, "IA32_PMC_GPx_CTR", VERSION_6).each(32, 4)
        .needs(Features::VERSION_6),
    Row::new(EventSelect, 0x1901, "IA32_PMC_GPx_CFG_A", VERSION_6).each(32, 4)
        .needs(Features::VERSION_6),
    Row::not_offered(0x1902, 48, "IA32_PMC_GPx_CFG_B, IA32_PMC_FXx_CFG_B").each(48, 4),
    Row::not_offered(0x1903, 48, "IA32_PMC_GPx_CFG_C, IA32_PMC_FXx_CFG_C").each(48, 4),
    Row::new(FixedCounter, 0x1980, "IA32_PMC_FXx_CTR", VERSION_6).each(16, 4)
        .needs(Features::VERSION_6).drops(ALL),
    Row::not_offered(0x1981, 16, "no register of a fixed counter").each(16, 4),
];

static TABLE: Table = Table::new(ROWS);

/// Returns the bits of `IA32_FIXED_CTR_CTRL`, where the counters in this bitmap have `each`.
const fn fixed_control(fixed: u8, each: u64) -> u64 {
    let (mut legal, mut counter) = (0, 0);
    while counter < 8 {
        if fixed >> counter & 1 != 0 {
            legal |= each << (4 * counter);
        }
        counter += 1;
    }
    legal
}

/// Returns the PMU of a configuration that has passed its check.
pub(crate) const fn layout(intel: &IntelConfiguration) -> Layout {
    let (version_2, version_4) = (intel.version >= 2, intel.version >= 4);
    let features = intel.features.bits();
    let global = to_global(intel.general as Counters | (intel.fixed as Counters) << 8);
    let status = match intel.version {
        ..4 => global,
        // Trace_ToPA_PMI (55), LBR_Frz (58), CTR_Frz, ASCI (60), Ovf_Uncore (61) and OvfBuf. SDM vol. 4,
        // `IA32_PERF_GLOBAL_STATUS_RESET`, makes all but the first depend on the version alone.
        4.. => global | 0x7C80_0000_0000_0000,
    };
    let mut layout = hidden()
        .with(EventSelect, intel.general, SELECT | features.select)
        .with(GeneralCounter, intel.general, greatest(intel.general_width))
        .with(FixedCounter, intel.fixed, greatest(intel.fixed_width))
        .with(
            FixedControl,
            version_2 as u8,
            fixed_control(intel.fixed, EACH_FIXED | features.each_fixed),
        )
        .with(GlobalControl, version_2 as u8, global)
        .with(GlobalStatus, version_2 as u8, status)
        .with(DebugControl, 1, when(version_2, Layout::FREEZE_ON_INTERRUPT))
        .with(Capabilities, 1, 0);
    layout.misc_enable |= MISC_PERFMON_AVAILABLE;
    layout.qualifiers = QUALIFIERS;
    layout.third_select = features.third_select;
    layout.capabilities = features.capabilities;
    layout = layout.with_features(
        Features::NONE
            .with(Features::FULL_WIDTH_WRITES, intel.has(IntelFeature::FullWidthWrites))
            .with(Features::VERSION_4, version_4)
            .with(Features::VERSION_6, intel.version >= 6),
    );
    // SDM vol. 3B, "Freezing LBR and Performance Counters on PMI": versions 2 and 3 clear the global control
    // register, version 4 on sets a bit of the status.
    layout.freeze = match intel.version {
        ..2 => Freeze::Never,
        2..4 => Freeze::ClearsControl,
        4.. => Freeze::SetsStatus,
    };
    layout
}

/// Returns the layout of a processor without a PMU, BTS or PEBS.
pub(crate) const fn hidden() -> Layout {
    let mut layout = Layout::hidden(&TABLE).with(MiscEnable, 1, 0).with(DebugControl, 1, 0);
    layout.misc_enable = MISC_UNAVAILABLE;
    layout.masks_entry = true;
    layout
}
