//! Interrupts that find the counters frozen and none of them overflowed, or bits of other owners.

use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::{Claim, CounterSet};
use pmu_intel::Emon;
use pmu_tests::reports::service_sources;
use pmu_tests::{FakePlatform, RegisterFile, intel_processor};

const GLOBAL_STATUS: u32 = 0x38E;
const ACKNOWLEDGE: u32 = 0x390;
const CTR_FRZ: u64 = 1 << 59;

#[test]
fn an_interrupt_that_only_releases_frozen_counters_is_claimed() {
    for (version, frozen) in [(3, false), (4, true), (5, true)] {
        let processor = intel_processor(version, 4);
        let interface = Emon::detect(&processor).unwrap();
        let memory = CounterMemory::<[CounterSlot; 4]>::new();
        let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
        let mut session =
            Session::take(&interface, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        session.start(KProfileSource::TOTAL_CYCLES).unwrap();
        msr.take_writes();
        // SDM vol. 3B, §20.2.4.1: from version 4 on the bit says that the counters are frozen; before, it is
        // not the driver's.
        msr.set(GLOBAL_STATUS, CTR_FRZ);
        let nothing = |overflow| panic!("{overflow:?}");
        let serviced = service_sources(&interface, &(&msr, &platform), &memory, nothing).unwrap();
        let expected = if frozen { Claim::Ours } else { Claim::NotOurs };
        assert_eq!((serviced.overflows, serviced.claim), (0, expected), "version {version}");
        let acknowledged = msr.take_writes().contains(&(ACKNOWLEDGE, CTR_FRZ));
        assert_eq!(acknowledged, frozen, "version {version}");
    }
}

/// Unmasking the LVT entry while another owner's bit is set may raise one interrupt more. SDM vol. 4, table of
/// the architectural MSRs, IA32_PERF_GLOBAL_STATUS.
#[test]
fn one_interrupt_more_is_claimed_beside_a_bit_of_another_owner_that_raises_one() {
    for (bit, raises) in [
        // A fixed counter, PERF_METRICS, PEBS, a trace's table, the uncore, the Debug Store's buffer.
        (33, true),
        (48, true),
        (54, true),
        (55, true),
        (61, true),
        (62, true),
        // LBR_Frz, ASCI, CondChgd.
        (58, false),
        (60, false),
        (63, false),
    ] {
        let processor = intel_processor(3, 4);
        let interface = Emon::detect(&processor).unwrap();
        let memory = CounterMemory::<[CounterSlot; 4]>::new();
        let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
        let mut session =
            Session::take(&interface, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        session.start(KProfileSource::TOTAL_CYCLES).unwrap();
        msr.set(GLOBAL_STATUS, 1 << bit | 1);
        let serviced = service_sources(&interface, &(&msr, &platform), &memory, |_| ()).unwrap();
        let expected = if raises { Claim::OursAndMore } else { Claim::Ours };
        assert_eq!((serviced.overflows, serviced.claim), (1, expected), "bit {bit}");
        assert_eq!(serviced.others, 1 << bit);
    }
}
