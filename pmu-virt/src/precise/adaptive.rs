//! Records of formats 4–6: a basic group, and the groups that the guest has requested. SDM vol. 3B, "Adaptive PEBS".

use crate::branches::virtual_branches::VirtualBranches;
use crate::model::state::Model;
use crate::precise::fed::FedRecord;
use crate::precise::memory::GuestFault;
use crate::precise::store::Store;
use crate::registers::counters::{MAX_PER_KIND, places};

/// `MSR_PEBS_DATA_CFG`: memory, general registers, XMM, branch records, counters, metrics.
pub(crate) const DATA_MEMORY: u64 = 1 << 0;
pub(crate) const DATA_GENERAL: u64 = 1 << 1;
pub(crate) const DATA_XMM: u64 = 1 << 2;
pub(crate) const DATA_BRANCHES: u64 = 1 << 3;
pub(crate) const DATA_COUNTERS: u64 = 1 << 4;
pub(crate) const DATA_METRICS: u64 = 1 << 5;

/// A record of formats 4–6.
#[derive(Clone, Copy)]
pub(crate) struct Adaptive<'r> {
    /// The groups beside the basic one, as in `MSR_PEBS_DATA_CFG`.
    pub(crate) groups: u64,
    /// Counters that overflowed.
    pub(crate) counters: u64,
    /// The basic group has the latency of the retirement.
    pub(crate) timing: bool,
    pub(crate) fed: &'r FedRecord<'r>,
    pub(crate) model: &'r Model,
}

impl Adaptive<'_> {
    /// Stores the record; `size` is its size in bytes.
    pub(crate) fn store(&self, size: u64, store: &mut Store<'_>) -> Result<(), GuestFault> {
        let fed = self.fed;
        let retired = if self.timing { u64::from(fed.retire_latency) << 32 } else { 0 };
        let first = u64::from(self.groups as u32) | retired | size << 48;
        store.words([first, fed.ip, self.counters, fed.tsc])?;
        let has = |group: u64| self.groups & group != 0;
        if has(DATA_MEMORY) {
            let access = [fed.data_address, fed.data_source, fed.latencies(), fed.transaction];
            store.words(access)?;
        }
        if has(DATA_GENERAL) {
            store_general(fed, store)?;
        }
        if has(DATA_XMM) {
            fed.vectors().xmm.iter().try_for_each(|value| store.wide(*value))?;
        }
        if has(DATA_BRANCHES) {
            store_branches(fed.branches, (self.groups >> 24 & 0xFF) + 1, store)?;
        }
        if has(DATA_COUNTERS | DATA_METRICS) {
            let read = |place| if has(DATA_COUNTERS) { (self.groups >> place) as u8 } else { 0 };
            let metrics = has(DATA_METRICS).then_some(fed.metrics);
            store_counters(self.model, [read(32), read(48)], metrics, store)?;
        }
        Ok(())
    }
}

/// Stores RFLAGS, RIP and the general registers in the order of their numbers.
pub(crate) fn store_general(fed: &FedRecord<'_>, store: &mut Store<'_>) -> Result<(), GuestFault> {
    store.words([fed.registers.flags, fed.registers.ip])?;
    store.words(fed.registers.general)
}

/// Stores so many branch records, the newest first.
pub(crate) fn store_branches(
    branches: Option<&VirtualBranches>,
    count: u64,
    store: &mut Store<'_>,
) -> Result<(), GuestFault> {
    (0..count as usize).try_for_each(|number| {
        let record = branches.and_then(|branches| branches.newest(number));
        store.words(record.map_or([0; 3], |record| [record.from, record.to, record.info]))
    })
}

/// Stores the values of these general and fixed counters, and the metrics.
pub(crate) fn store_counters(
    model: &Model,
    counters: [u8; 2],
    metrics: Option<[u64; 2]>,
    store: &mut Store<'_>,
) -> Result<(), GuestFault> {
    let [general, fixed] = counters;
    let metrics_mask = if metrics.is_some() { 0b11 } else { 0 };
    store.words([u64::from(general) | u64::from(fixed) << 32, metrics_mask])?;
    let read = u16::from(general) | u16::from(fixed) << MAX_PER_KIND;
    places(read).try_for_each(|place| store.words([model.registers.counter(place)]))?;
    metrics.map_or(Ok(()), |metrics| store.words(metrics))
}
