//! Interrupts that find the counters frozen, and none of them overflowed.

use pmu_core::{Claim, CounterMemory, CounterSlot, KProfileSource, ProfileInterface};
use pmu_intel::Emon;
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
        let mut session = interface.initialize(&processor, &msr, &platform, &memory).unwrap();
        session.start(KProfileSource::TOTAL_CYCLES).unwrap();
        msr.take_writes();
        // SDM vol. 3B, §20.2.4.1: from version 4 on the bit says that the counters are frozen; before, it is
        // not the driver's.
        msr.set(GLOBAL_STATUS, CTR_FRZ);
        let nothing = |overflow| panic!("{overflow:?}");
        let serviced = interface.service(&&msr, &&platform, &memory, nothing).unwrap();
        let expected = if frozen { Claim::Ours } else { Claim::NotOurs };
        assert_eq!((serviced.overflows, serviced.claim), (0, expected), "version {version}");
        let acknowledged = msr.take_writes().contains(&(ACKNOWLEDGE, CTR_FRZ));
        assert_eq!(acknowledged, frozen, "version {version}");
    }
}
