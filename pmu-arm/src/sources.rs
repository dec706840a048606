//! The common events that the crate names, and the profile sources that count them.

use pmu_core::profile::{ProfileSource, SourceIndex, SourceTable};
use pmu_core::registers::EventSelect;

use crate::backend::Select;

// Numbers of common events (DDI 0487, "Common event numbers").
const L1I_CACHE_REFILL: u16 = 0x01;
const L1D_CACHE_REFILL: u16 = 0x03;
const L1D_CACHE: u16 = 0x04;
const LD_RETIRED: u16 = 0x06;
const ST_RETIRED: u16 = 0x07;
pub(crate) const INST_RETIRED: u16 = 0x08;
pub(crate) const BR_MIS_PRED: u16 = 0x10;
pub(crate) const CPU_CYCLES: u16 = 0x11;
pub(crate) const BR_PRED: u16 = 0x12;
const L1I_CACHE: u16 = 0x14;
pub(crate) const BR_RETIRED: u16 = 0x21;
pub(crate) const BR_MIS_PRED_RETIRED: u16 = 0x22;
pub(crate) const LL_CACHE: u16 = 0x32;
pub(crate) const LL_CACHE_MISS: u16 = 0x33;
pub(crate) const LL_CACHE_RD: u16 = 0x36;
pub(crate) const LL_CACHE_MISS_RD: u16 = 0x37;
pub(crate) const CNT_CYCLES: u16 = 0x4004;

/// Returns the select of an event at every privilege.
const fn event(number: u16) -> EventSelect {
    let modes = Select::new().with_user(true).with_kernel(true).into_bits();
    EventSelect::from_bits(number as u64 | modes)
}

macro_rules! sources {
    ($($value:literal $name:literal $event:ident;)*) => {
        /// The profile sources of [`Pmuv3`](crate::Pmuv3): those of Windows that are not specific to a vendor, and for
        /// which there is a common event. A processor has the sources whose events it declares.
        ///
        /// The source `ProfileTime` runs on a timer, not on a counter.
        ///
        /// ```
        /// for source in &pmu_arm::SOURCES {
        ///     println!("{} counts event {:#x}", source.name(), source.select().select_bits() as u16);
        /// }
        /// ```
        pub static SOURCES: [ProfileSource; [$($value),*].len()] =
            [$(ProfileSource::new($value, $name, event($event))),*];
    };
}

sources! {
    0x00 "ProfileTime" CPU_CYCLES;
    0x02 "ProfileTotalIssues" INST_RETIRED;
    0x04 "ProfileLoadInstructions" LD_RETIRED;
    0x06 "ProfileBranchInstructions" BR_RETIRED;
    0x08 "ProfileDcacheMisses" L1D_CACHE_REFILL;
    0x09 "ProfileIcacheMisses" L1I_CACHE_REFILL;
    0x0A "ProfileCacheMisses" LL_CACHE_MISS_RD;
    0x0B "ProfileBranchMispredictions" BR_MIS_PRED_RETIRED;
    0x0C "ProfileStoreInstructions" ST_RETIRED;
    0x13 "ProfileTotalCycles" CPU_CYCLES;
    0x14 "ProfileIcacheIssues" L1I_CACHE;
    0x15 "ProfileDcacheAccesses" L1D_CACHE;
}

static INDEX: SourceIndex<32> = SourceIndex::new(&SOURCES);

/// [`SOURCES`], indexed by value and name.
pub(crate) static TABLE: SourceTable = SourceTable::new(&SOURCES, &INDEX);
