//! Records of architectural PEBS: fragments with a header, in a physically contiguous buffer. SDM vol. 3B,
//! "Architectural PEBS".

use crate::branches::virtual_branches::CONTROL;
use crate::model::Model;
use crate::precise::memory::{GuestFault, Store};
use crate::precise::record::{FedRecord, store_branches, store_counters, store_general};

/// Groups in a fragment's header, at their places.
const GENERAL_COUNTERS: u64 = 1 << 36;
const FIXED_COUNTERS: u64 = 1 << 37;
const METRICS: u64 = 1 << 38;
const COUNTERS: u64 = GENERAL_COUNTERS | FIXED_COUNTERS | METRICS;
const BRANCHES: u64 = 0b11 << 40;
const XMM: u64 = 1 << 49;
const YMM_HIGH: u64 = 1 << 50;
const OPMASK: u64 = 1 << 53;
const ZMM_HIGH: u64 = 1 << 54;
const ZMM_16_TO_31: u64 = 1 << 55;
const VECTORS: u64 = XMM | YMM_HIGH | OPMASK | ZMM_HIGH | ZMM_16_TO_31;
const GENERAL: u64 = 1 << 61;
const ACCESS: u64 = 1 << 62;
const BASIC: u64 = 1 << 63;
/// Header: the processor is in 64-bit mode; the next fragment belongs to the same record.
const LONG_MODE: u64 = 1 << 30;
const CONTINUED: u64 = 1 << 31;

/// The groups in their order.
const EACH: [u64; 6] = [BASIC, ACCESS, GENERAL, VECTORS, BRANCHES, COUNTERS];

/// A record of architectural PEBS.
#[derive(Clone, Copy)]
pub(crate) struct Architectural<'r> {
    /// Bits 62:32 of `CFG_C`: the groups beside the basic one.
    pub(crate) groups: u64,
    /// Each group is a fragment of its own.
    pub(crate) fragments: bool,
    /// Counters that overflowed.
    pub(crate) counters: u64,
    /// General and fixed counters that a record may show.
    pub(crate) readable: [u8; 2],
    pub(crate) fed: &'r FedRecord<'r>,
    pub(crate) model: &'r Model,
}

impl Architectural<'_> {
    /// Stores the record.
    pub(crate) fn store(&self, store: &mut Store<'_>) -> Result<(), GuestFault> {
        let all = self.groups & (ACCESS | GENERAL | VECTORS | BRANCHES | COUNTERS) | BASIC;
        if !self.fragments {
            return self.fragment(all, false, store);
        }
        // A driver reads on while a fragment says that the record continues.
        let last = EACH.into_iter().rfind(|group| all & group != 0);
        EACH.into_iter()
            .filter(|group| all & group != 0)
            .try_for_each(|group| self.fragment(all & group, last != Some(group), store))
    }

    /// Stores a fragment with these groups.
    fn fragment(
        &self,
        groups: u64,
        continued: bool,
        store: &mut Store<'_>,
    ) -> Result<(), GuestFault> {
        // The header has the size, and stands before the groups.
        let mut counting = Store::counting();
        self.body(groups, &mut counting)?;
        let size = 16 + counting.length.next_multiple_of(16);
        let mode = if self.fed.long_mode { LONG_MODE } else { 0 };
        let more = if continued { CONTINUED } else { 0 };
        store.words([groups | mode | more | size, 0])?;
        self.body(groups, store)?;
        // Linux' driver expects fragments of whole 16 bytes: an odd number of counters leaves eight.
        if counting.length.is_multiple_of(16) { Ok(()) } else { store.words([0]) }
    }

    fn body(&self, groups: u64, store: &mut Store<'_>) -> Result<(), GuestFault> {
        let fed = self.fed;
        let has = |group: u64| groups & group != 0;
        if has(BASIC) {
            // A driver takes the latency only where bit 16 says that it is valid.
            let retired = u64::from(fed.retire_latency) | 1 << 16;
            store.words([fed.ip, self.counters, fed.tsc, retired, 0, 0])?;
        }
        if has(ACCESS) {
            store.words([fed.data_address, 0, 0, 0, 0])?;
            store.words([fed.data_source, fed.latencies(), fed.transaction])?;
        }
        if has(GENERAL) {
            store_general(fed, store)?;
            store.words([fed.registers.ssp, 0])?;
        }
        if has(VECTORS) {
            self.vectors(groups, store)?;
        }
        if has(BRANCHES) {
            self.branches(groups, store)?;
        }
        if has(COUNTERS) {
            let [general, fixed] = self.readable;
            let shown = [
                if has(GENERAL_COUNTERS) { general } else { 0 },
                if has(FIXED_COUNTERS) { fixed } else { 0 },
            ];
            store_counters(self.model, shown, has(METRICS).then_some(fed.metrics), store)?;
        }
        Ok(())
    }

    fn vectors(&self, groups: u64, store: &mut Store<'_>) -> Result<(), GuestFault> {
        let vectors = self.fed.vectors();
        let has = |group: u64| groups & group != 0;
        // The header of this group is that of an XSAVE area, whose components are 1 XMM, 2 YMM, 5 opmask, 6 and 7 ZMM.
        let component = |group, number: u32| u64::from(has(group)) << number;
        let components = component(XMM, 1)
            | component(YMM_HIGH, 2)
            | component(OPMASK, 5)
            | component(ZMM_HIGH, 6)
            | component(ZMM_16_TO_31, 7);
        store.words([components, 0])?;
        if has(XMM) {
            vectors.xmm.iter().try_for_each(|value| store.wide(*value))?;
        }
        if has(YMM_HIGH) {
            vectors.ymm_high.iter().try_for_each(|value| store.wide(*value))?;
        }
        if has(OPMASK) {
            store.words(vectors.opmask)?;
        }
        if has(ZMM_HIGH) {
            vectors.zmm_high.iter().flatten().try_for_each(|value| store.wide(*value))?;
        }
        if has(ZMM_16_TO_31) {
            vectors.zmm_16_to_31.iter().flatten().try_for_each(|value| store.wide(*value))?;
        }
        Ok(())
    }

    fn branches(&self, groups: u64, store: &mut Store<'_>) -> Result<(), GuestFault> {
        let branches = self.fed.branches;
        let control = branches.map_or(0, |branches| branches.words[CONTROL]);
        let depth = branches.map_or(0, |branches| u64::from(branches.depth));
        // The branches of the last exception, the last three words, are not modeled.
        store.words([0, control, depth, 0, 0, 0])?;
        let count = match (groups & BRANCHES) >> 40 {
            1 => 8,
            2 => 16,
            _ => depth,
        };
        store_branches(branches, count, store)
    }
}
