//! Branch records as perf samples them: `branch_sample_type`, and `perf_branch_entry`.
//!
//! Source: `perf_event_open(2)`, `branch_sample_type` and `PERF_SAMPLE_BRANCH_STACK`.

use pmu_core::branches::{Branch, BranchFilter, BranchKind, BranchKinds, BranchPath};

use crate::perf::attributes::PerfAttributes;
use crate::perf::error::PerfError;
use crate::perf::event_attr::PerfEventAttr;

/// The branches that the samples of an event contain, as the field `branch_sample_type` of `perf_event_attr` selects
/// them.
///
/// ```
/// use pmu::perf::{BranchSamples, PerfError, PerfEventAttr};
/// use pmu::core::branches::Branch;
/// use pmu::Event;
///
/// /// The second value is kept, for the branches of each sample.
/// fn open(attr: &PerfEventAttr) -> Result<(Event, Option<BranchSamples>), PerfError> {
///     Ok((attr.event(&())?, attr.branches()?))
/// }
/// fn sample(samples: BranchSamples, branches: impl Iterator<Item = Branch>, mut write: impl FnMut([u8; 24])) {
///     for entry in branches.filter_map(|branch| samples.entry(&branch)) {
///         write(entry.to_bytes()); // `lbr[]` of PERF_SAMPLE_BRANCH_STACK
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchSamples {
    wanted: u64,
    filter: BranchFilter,
}

impl BranchSamples {
    /// `PERF_SAMPLE_BRANCH_USER`: branches to user mode.
    pub const USER: u64 = 1 << 0;
    /// `PERF_SAMPLE_BRANCH_KERNEL`: branches to the kernel.
    pub const KERNEL: u64 = 1 << 1;
    /// `PERF_SAMPLE_BRANCH_HV`: branches to a hypervisor. On x86, a branch record does not say whether a branch leads
    /// to a hypervisor.
    pub const HV: u64 = 1 << 2;
    /// `PERF_SAMPLE_BRANCH_ANY`: branches of every type.
    pub const ANY: u64 = 1 << 3;
    /// `PERF_SAMPLE_BRANCH_ANY_CALL`: calls, and far branches such as SYSCALL.
    pub const ANY_CALL: u64 = 1 << 4;
    /// `PERF_SAMPLE_BRANCH_ANY_RETURN`: returns, and far branches such as SYSRET.
    pub const ANY_RETURN: u64 = 1 << 5;
    /// `PERF_SAMPLE_BRANCH_IND_CALL`: indirect calls.
    pub const IND_CALL: u64 = 1 << 6;
    /// `PERF_SAMPLE_BRANCH_ABORT_TX`: aborts of transactions.
    pub const ABORT_TX: u64 = 1 << 7;
    /// `PERF_SAMPLE_BRANCH_IN_TX`: only branches in transactions.
    pub const IN_TX: u64 = 1 << 8;
    /// `PERF_SAMPLE_BRANCH_NO_TX`: only branches outside transactions.
    pub const NO_TX: u64 = 1 << 9;
    /// `PERF_SAMPLE_BRANCH_COND`: conditional branches.
    pub const COND: u64 = 1 << 10;
    /// `PERF_SAMPLE_BRANCH_CALL_STACK`: the calls that have not returned yet, as a call stack.
    pub const CALL_STACK: u64 = 1 << 11;
    /// `PERF_SAMPLE_BRANCH_IND_JUMP`: indirect jumps.
    pub const IND_JUMP: u64 = 1 << 12;
    /// `PERF_SAMPLE_BRANCH_CALL`: direct calls.
    pub const CALL: u64 = 1 << 13;
    /// `PERF_SAMPLE_BRANCH_NO_FLAGS`: in each entry, the flag bits are 0.
    pub const NO_FLAGS: u64 = 1 << 14;
    /// `PERF_SAMPLE_BRANCH_NO_CYCLES`: in each entry, the cycle count is 0.
    pub const NO_CYCLES: u64 = 1 << 15;
    /// `PERF_SAMPLE_BRANCH_TYPE_SAVE`: each entry contains the type of its branch.
    pub const TYPE_SAVE: u64 = 1 << 16;
    /// `PERF_SAMPLE_BRANCH_HW_INDEX`: each sample has the hardware index of its newest branch record. The kernel must
    /// write -1, which means that the index is unknown.
    pub const HW_INDEX: u64 = 1 << 17;
    /// `PERF_SAMPLE_BRANCH_PRIV_SAVE`: each entry has the privilege level. On x86, no record contains a privilege
    /// level.
    pub const PRIV_SAVE: u64 = 1 << 18;
    /// `PERF_SAMPLE_BRANCH_COUNTERS`: each sample contains, for each of its branches, the number of events since the
    /// previous branch.
    pub const COUNTERS: u64 = 1 << 19;

    /// The bits that select kinds of branches, with the kinds.
    const KINDS: [(u64, BranchKinds); 9] = [
        (Self::ANY, BranchKinds::ALL),
        (Self::ANY_CALL, BranchKinds::CALLS.union(BranchKind::Other.only())),
        (Self::ANY_RETURN, BranchKind::Return.only().union(BranchKind::Other.only())),
        (Self::IND_CALL, BranchKind::IndirectCall.only()),
        (Self::ABORT_TX, BranchKind::Other.only()),
        (Self::COND, BranchKind::Conditional.only()),
        (Self::IND_JUMP, BranchKind::IndirectJump.only()),
        (Self::CALL, BranchKind::DirectCall.only()),
        (Self::CALL_STACK, BranchKinds::CALLS_AND_RETURNS),
    ];

    /// The names of the bits on perf's command line. Source: perf-record(1), `--branch-filter`.
    const NAMES: [(&'static str, u64); 20] = [
        ("u", Self::USER),
        ("k", Self::KERNEL),
        ("hv", Self::HV),
        ("any", Self::ANY),
        ("any_call", Self::ANY_CALL),
        ("any_ret", Self::ANY_RETURN),
        ("ind_call", Self::IND_CALL),
        ("abort_tx", Self::ABORT_TX),
        ("in_tx", Self::IN_TX),
        ("no_tx", Self::NO_TX),
        ("cond", Self::COND),
        ("stack", Self::CALL_STACK),
        ("ind_jmp", Self::IND_JUMP),
        ("call", Self::CALL),
        ("no_flags", Self::NO_FLAGS),
        ("no_cycles", Self::NO_CYCLES),
        ("save_type", Self::TYPE_SAVE),
        ("hw_index", Self::HW_INDEX),
        ("priv", Self::PRIV_SAVE),
        ("counter", Self::COUNTERS),
    ];

    /// Returns the value of `branch_sample_type` that perf makes of a name: with branches of every type, if the name
    /// selects only a privilege level.
    pub(crate) fn named(name: &str) -> Option<u64> {
        let known = Self::NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        known.map(|(_, bit)| match *bit {
            level @ (Self::USER | Self::KERNEL | Self::HV) => level | Self::ANY,
            bit => bit,
        })
    }

    /// Interprets `wanted`, a value of `branch_sample_type`. If `wanted` selects no privilege level, the samples carry
    /// branches of all privilege levels that `attributes` do not exclude.
    ///
    /// # Errors
    /// - [`BranchBits`](PerfError::BranchBits): `wanted` has undefined bits.
    /// - [`NoBranchKind`](PerfError::NoBranchKind): `wanted` selects no kind of branches.
    /// - [`CallStackWithKinds`](PerfError::CallStackWithKinds): `wanted` selects a call stack and other branches.
    pub fn of(wanted: u64, attributes: &PerfAttributes) -> Result<Self, PerfError> {
        let unknown = wanted & !((Self::COUNTERS << 1) - 1);
        if unknown != 0 {
            return Err(PerfError::BranchBits(unknown));
        }
        let selects = |(bit, _): &&(u64, BranchKinds)| wanted & bit != 0;
        let selected = Self::KINDS.iter().filter(selects);
        let count = selected.clone().count();
        if count == 0 {
            return Err(PerfError::NoBranchKind);
        }
        let is_stack = wanted & Self::CALL_STACK != 0;
        if is_stack && count > 1 {
            return Err(PerfError::CallStackWithKinds);
        }
        let kinds = selected.fold(BranchKinds::NONE, |kinds, (_, more)| kinds | *more);
        let levels = [Self::USER, Self::KERNEL].map(|bit| wanted & bit != 0);
        let [user, kernel] = match wanted & (Self::USER | Self::KERNEL | Self::HV) {
            0 => [!attributes.exclude_user, !attributes.exclude_kernel],
            _ => levels,
        };
        let filter = BranchFilter::ALL.at(user, kernel).only(kinds);
        let filter = if is_stack { filter.call_stack() } else { filter };
        Ok(Self { wanted, filter })
    }

    /// Returns whether each sample has the [hardware index](Self::HW_INDEX).
    pub(crate) const fn has_hardware_index(&self) -> bool {
        self.wanted & Self::HW_INDEX != 0
    }

    /// Returns the filter for [`Event::with_branches`](pmu_core::Event::with_branches).
    pub const fn filter(&self) -> BranchFilter {
        self.filter
    }

    /// Returns the entry of a recorded branch; `None` if `branch_sample_type` does not select the branch. A processor
    /// whose hardware filter is too coarse also records branches that are not selected. The address of the branch's
    /// target decides whether the branch leads to user mode or to the kernel. If a record does not tell the type of its
    /// branch, no selection by type excludes the branch.
    pub fn entry(&self, branch: &Branch) -> Option<BranchEntry> {
        let wants = |bit| self.wanted & bit != 0;
        let transaction = branch.transaction.unwrap_or_default();
        let is_kernel = branch.to >> 63 != 0;
        let at_level = if is_kernel { self.filter.kernel() } else { self.filter.user() };
        let of_kind = branch.kind.is_none_or(|kind| self.filter.has(kind));
        let kinds = Self::KINDS.iter().fold(0, |bits, (bit, _)| bits | bit) & self.wanted;
        // Aborts are far branches, of which the other bits select none or all.
        let selects_far = kinds & (Self::ANY | Self::ANY_CALL | Self::ANY_RETURN) != 0;
        let is_no_far_branch = match branch.kind {
            Some(kind) => kind != BranchKind::Other,
            None => kinds != Self::ABORT_TX,
        };
        let is_abort =
            selects_far || !wants(Self::ABORT_TX) || transaction.aborted || is_no_far_branch;
        let inside = match (wants(Self::IN_TX), wants(Self::NO_TX)) {
            (true, false) => transaction.inside,
            (false, true) => !transaction.inside,
            (true, true) | (false, false) => true,
        };
        if !(at_level && of_kind && is_abort && inside) {
            return None;
        }
        let mut flags = 0;
        if !wants(Self::NO_FLAGS) {
            let spec = match branch.path {
                None => 0,
                Some(BranchPath::Wrong) => 1,
                Some(BranchPath::Correct) => 2,
                Some(BranchPath::Speculative) => 3,
            };
            flags |= u64::from(branch.mispredicted == Some(true))
                | u64::from(branch.mispredicted == Some(false)) << 1
                | u64::from(transaction.inside) << 2
                | u64::from(transaction.aborted) << 3
                | spec << 24;
        }
        if !wants(Self::NO_CYCLES) {
            flags |= u64::from(branch.cycles.unwrap_or(0)) << 4;
        }
        if wants(Self::TYPE_SAVE) {
            flags |= branch.kind.map_or(0, type_of) << 20;
        }
        Some(BranchEntry { from: branch.from, to: branch.to, flags })
    }
}

/// Returns `PERF_BR_…` of a kind; a far branch's is unknown.
const fn type_of(kind: BranchKind) -> u64 {
    match kind {
        BranchKind::Conditional => 1,
        BranchKind::DirectJump => 2,
        BranchKind::IndirectJump => 3,
        BranchKind::DirectCall => 4,
        BranchKind::IndirectCall => 5,
        BranchKind::Return => 6,
        BranchKind::Other => 0,
    }
}

/// `perf_branch_entry`: one branch in a sample, in Linux' layout.
///
/// ```
/// use pmu::perf::{BranchEntry, BranchSamples, PerfAttributes};
/// use pmu::core::branches::Branch;
/// let samples = BranchSamples::of(BranchSamples::ANY | BranchSamples::USER, &PerfAttributes::default())?;
/// let branch = Branch { from: 0x1000, to: 0x2000, mispredicted: Some(true), ..Branch::default() };
/// assert_eq!(samples.entry(&branch), Some(BranchEntry { from: 0x1000, to: 0x2000, flags: 1 }));
/// # Ok::<(), pmu::perf::PerfError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchEntry {
    /// Address of the branch.
    pub from: u64,
    /// Address of the target.
    pub to: u64,
    /// The bit fields of the structure, from bit 0 on: `mispred`, `predicted`, `in_tx` and `abort` (1 bit each),
    /// `cycles` (16 bits), `type` (4), `spec` (2), `new_type` (4) and `priv` (3).
    pub flags: u64,
}

impl BranchEntry {
    /// Returns the 24 bytes of the entry, as a sample contains them.
    pub fn to_bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) const fn words(&self) -> [u64; 3] {
        [self.from, self.to, self.flags]
    }
}

impl PerfEventAttr {
    /// Returns which branches the event's samples carry, or `None` if [`sample_type`](Self::sample_type) does not have
    /// [`SAMPLE_BRANCH_STACK`](Self::SAMPLE_BRANCH_STACK).
    ///
    /// # Errors
    /// The errors of [`BranchSamples::of`].
    pub fn branches(&self) -> Result<Option<BranchSamples>, PerfError> {
        if self.sample_type & Self::SAMPLE_BRANCH_STACK == 0 {
            return Ok(None);
        }
        BranchSamples::of(self.branch_sample_type, &self.select).map(Some)
    }
}
