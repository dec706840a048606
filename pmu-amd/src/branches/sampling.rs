//! Branch sampling (BRS) of Zen 3: the taken branches after the overflow of a counter.

use pmu_core::Event;
use pmu_core::access::RegisterBits;
use pmu_core::branches::{
    Branch, BranchEnable, BranchFilter, BranchFormat, BranchOffers, BranchOrder, BranchRegisters,
    BranchUnit, RawBranch,
};
use pmu_core::error::NoFacility;
use pmu_core::registers::EventSelect;
use pmu_core::x86::Snapshot;

use crate::branches::{address_bits, extended};
use crate::registers::{DEBUG_EXTN_CTL, DebugExtnCtl, LAST_BRANCH_STACK_FROM_IP};

/// Number of sampled branches.
const DEPTH: u8 = 16;

/// Mask of the core counters for which the processor samples branches: counter 0.
const COUNTERS: u8 = 1 << 0;

/// PMCx0C4, retired taken branch instructions (PPR of family 19h).
const TAKEN_BRANCHES: u16 = 0xC4;

/// The recording is stopped. Bits 4:3 are always written as 3.
const STOPPED: DebugExtnCtl = DebugExtnCtl::new().with_always_set(3);

/// The recording samples for counter 0, from the first record on.
const SAMPLING: DebugExtnCtl = STOPPED.with_brs_enable(true);

/// All of the sampling's bits.
const BITS: DebugExtnCtl = SAMPLING.with_valid(true).with_next_record(0xF).with_counter(0b111);

/// Returns the event with whose samples Zen 3 records branches: after every `period` taken branches, a sample has the
/// last 16 of them.
///
/// The event is [`Event::raw`] of taken branches, [with branches](Event::with_branches). The session places it on core
/// counter 0: for other counters, the processor does not record branches. The counter overflows 16 branches before the
/// period's end. The processor then records the next 16 taken branches, and raises the interrupt after them.
///
/// Returns `None` if `period` is 16 or less.
///
/// ```
/// use pmu_core::branches::BranchFilter;
/// let event = pmu_amd::branch_sampling_event(1_000_003).unwrap();
/// assert_eq!(event.branches(), Some(BranchFilter::ALL));
/// assert!(pmu_amd::branch_sampling_event(16).is_none());
/// ```
///
/// Sources: PPR of family 19h, models 00h to 0Fh; Linux' branch sampling driver, for the order of the register
/// accesses.
///
/// # Limitations
/// - Only taken branches (PMCx0C4) on core counter 0 have branches, so one event at a time, with a period above 16. The
///   kernel stops the sampling before idle.
/// - An interrupt that the sampling delays comes with fewer branches if its event leaves the counter, and with none at
///   a switch of threads that the event outlasts. An event that starts by a plan counts before it samples.
/// - Untried on hardware.
pub fn branch_sampling_event(period: u64) -> Option<Event> {
    let taken = Event::raw(EventSelect::from_bits(TAKEN_BRANCHES.into()));
    (period > DEPTH.into()).then(|| taken.every(period).with_branches(BranchFilter::ALL))
}

/// Returns the branch sampling of a processor; `None` if the processor declares none: CPUID 0x80000008, EBX bit 31 (APM
/// vol. 3, appendix E).
pub(crate) fn unit(processor: &Snapshot) -> Option<Result<BranchUnit, NoFacility>> {
    if processor.family() != 0x19 || processor.leaf(0x8000_0008, 0).ebx >> 31 == 0 {
        return None;
    }
    let offers = BranchOffers { address_bits: address_bits(processor), ..BranchOffers::default() };
    let (on, off) = (SAMPLING.into_bits(), STOPPED.into_bits());
    // SAFETY: the bits record branches in registers.
    let bits = unsafe { RegisterBits::new(DEBUG_EXTN_CTL, BITS.into_bits()) };
    let next = BITS.with_next_record(0).into_bits() ^ BITS.into_bits();
    let registers = BranchRegisters {
        enable: BranchEnable::Bits { bits, on, off },
        filter: None,
        select: |_, _| (0, BranchFilter::ALL),
        depth: None,
        freeze: None,
        order: BranchOrder::Filled {
            next: next.trailing_zeros() as u8,
            valid: DebugExtnCtl::new().with_valid(true).into_bits(),
            event: TAKEN_BRANCHES,
            counters: COUNTERS,
        },
        from: LAST_BRANCH_STACK_FROM_IP,
        to: Some(LAST_BRANCH_STACK_FROM_IP + 1),
        info: None,
        step: 2,
    };
    // SAFETY: records of branches, which the processor writes and never follows.
    let unit = unsafe { BranchUnit::new(registers, DEPTH, &SAMPLED, offers) };
    Some(unit.ok_or(NoFacility::ImplausibleDepth(DEPTH)))
}

/// The format of sampled branches. All zeros end the records.
static SAMPLED: BranchFormat = BranchFormat {
    name: "BRS",
    decode,
    is_end: |record| record.to == 0,
    writable: |record| record,
    doubles_aborts: false,
};

fn decode(offers: &BranchOffers, record: RawBranch) -> Option<Branch> {
    let address = |word| extended(word, offers.address_bits);
    let (from, to) = (address(record.from), address(record.to));
    (record.to != 0).then_some(Branch { from, to, ..Branch::default() })
}
