//! AMD's registers. Read first: APM vol. 2, "Performance Monitoring Counters"; APM vol. 2, appendix
//! "MSR Cross-Reference".

use crate::configuration::{AmdConfiguration, AmdCounters, SELECT_GUEST_ONLY, SELECT_HOST_ONLY};
use crate::registers::layout::{Layout, greatest};
use crate::registers::table::Family::*;
use crate::registers::table::WriteAs::{Cleared, Ignored, Set, Stored};
use crate::registers::table::{Counters, Features, ReadAs, Row, Table, to_global};

// AMD's registers. Read first: APM vol. 2, "Performance Monitoring Counters"; APM vol. 2, appendix
// "MSR Cross-Reference".

const ALL: u64 = u64::MAX;

const COUNTERS: &str = "APM vol. 2, Performance Counter MSRs";
const EXTENSION: &str = "APM vol. 2, Core Performance Event-Counter Registers";
const VERSION_2: &str = "APM vol. 2, Performance Monitoring Version 2";

/// In the order of the APM's appendix. Reserved bits never fault on AMD's counters: they are dropped, as in KVM.
///
/// The four legacy registers are the same as the first of the core extension. Every AMD processor has them, so guests
/// access them without a check: without a PMU they read 0, as in KVM.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row::not_offered(0xC000_00E9, 1, "IRPerfCount"),
    Row::not_offered(0xC000_010E, 2, "LBR_SELECT, DBG_EXTN_CFG"),
    Row::new(GlobalStatus, 0xC000_0300, "PerfCntrGlobalStatus", VERSION_2)
        .write(Ignored).host_write(Stored).drops(ALL),
    Row::new(GlobalControl, 0xC000_0301, "PerfCntrGlobalCtl", VERSION_2)
        .drops(ALL),
    // As KVM, since the manual is silent: both read 0.
    Row::new(GlobalStatus, 0xC000_0302, "PerfCntrGlobalStatusClr", VERSION_2)
        .read(ReadAs::Zero).write(Cleared).drops(ALL),
    Row::new(GlobalStatus, 0xC000_0303, "PerfCntrGlobalStatusSet", VERSION_2)
        .read(ReadAs::Zero).write(Set).drops(ALL),
    Row::new(EventSelect, 0xC001_0000, "PerfEvtSelx", COUNTERS).each(4, 1).hidden_as_zero(4)
        .drops(ALL),
    Row::new(GeneralCounter, 0xC001_0004, "PerfCtrx", COUNTERS).each(4, 1).hidden_as_zero(4)
        .drops(ALL),
    Row::new(EventSelect, 0xC001_0200, "PerfEvtSelx", EXTENSION).each(8, 2)
        .needs(Features::CORE_EXTENSION).drops(ALL),
    Row::new(GeneralCounter, 0xC001_0201, "PerfCtrx", EXTENSION).each(8, 2)
        .needs(Features::CORE_EXTENSION).drops(ALL),
    Row::not_offered(0xC001_0230, 16, "L2IPerfEvtSelx, L2IPerfCtrx"),
    Row::not_offered(0xC001_0240, 16, "NbPerfEvtSelx, NbPerfCtrx"),
    Row::not_offered(0xC001_0300, 32, "LBR stack"),
    Row::not_offered(0xC001_0800, 32, "UmcPerfEvtSelx, UmcPerfCtrx"),
    Row::not_offered(0xC001_1030, 16, "instruction-based sampling"),
];

static TABLE: Table = Table::new(ROWS);

/// The counters' width in bits.
const WIDTH: u8 = 48;
/// An event select's bits. APM vol. 2, figure "Core Performance Event-Select Register": without 19, 21 and 63:36.
const SELECT: u64 = 0x0000_000F_FFD7_FFFF;
const SELECT_GUEST_HOST: u64 = SELECT_GUEST_ONLY | SELECT_HOST_ONLY;

/// Returns the PMU of a configuration that has passed its check.
pub(crate) const fn layout(amd: &AmdConfiguration) -> Layout {
    let (core_extension, version_2) = match amd.counters {
        AmdCounters::Legacy => (false, false),
        AmdCounters::CoreExtension => (true, false),
        AmdCounters::PerfMonV2 { .. } => (true, true),
    };
    let counters = amd.counters.bitmap();
    let global = to_global(counters as Counters);
    let select = if amd.guest_host { SELECT | SELECT_GUEST_HOST } else { SELECT };
    let mut layout = Layout::hidden(&TABLE)
        .with(EventSelect, counters, select)
        .with(GeneralCounter, counters, greatest(WIDTH))
        .with(GlobalControl, version_2 as u8, global)
        .with(GlobalStatus, version_2 as u8, global)
        .with_features(Features::NONE.with(Features::CORE_EXTENSION, core_extension));
    layout.qualifiers = SELECT_GUEST_HOST;
    layout
}

/// Returns the layout of a processor without a PMU.
pub(crate) const fn hidden() -> Layout {
    let mut layout = Layout::hidden(&TABLE);
    layout.hidden_as_zero = true;
    layout
}
