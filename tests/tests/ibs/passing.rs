//! Events that pass many at once: an embedder's that lets the guest run freely.

use pmu_virt::ibs::{FedFetch, FedOp, IbsConfiguration, VirtualIbs};
use pmu_virt::{GuestFacility, Writer};

const FETCH_CTL: u32 = 0xC001_1030;
const OP_CTL: u32 = 0xC001_1033;

/// APM vol. 2, "Instruction-Based Sampling": periods in units of 16, enable bits 48 and 17, ops counted with bit 19.
fn sampling(period: u64, counts_ops: bool) -> VirtualIbs {
    let mut ibs = VirtualIbs::new(IbsConfiguration::ZEN_4);
    let _ = ibs.write(Writer::Guest, FETCH_CTL, 1 << 48 | period >> 4);
    let _ = ibs.write(Writer::Guest, OP_CTL, u64::from(counts_ops) << 19 | 1 << 17 | period >> 4);
    ibs
}

/// Executes ops of one cycle, one fetch each.
fn execute(ibs: &mut VirtualIbs, count: u64) -> u64 {
    (0..count).map(|_| u64::from(ibs.execute(&FedOp::new(1)) | ibs.fetch(&FedFetch::new(1)))).sum()
}

#[test]
fn what_passes_at_once_is_what_passes_one_by_one_but_no_sample() {
    for counts_ops in [true, false] {
        for before in [0, 1, 100, 158] {
            for passed in [0, 1, 2, 15, 16, 17, 159, 160, 161, 100_000] {
                let mut at_once = sampling(160, counts_ops);
                assert_eq!(execute(&mut at_once, before), 0);
                let mut one_by_one = at_once;
                at_once.pass(passed, passed, passed);
                assert_eq!(execute(&mut one_by_one, passed.min(159 - before)), 0);
                assert_eq!(at_once, one_by_one, "{before} {passed} {counts_ops}");
                let next = at_once.next_sample();
                let left = 160 - (before + passed).min(159);
                assert_eq!(
                    (next.ops, next.cycles),
                    match counts_ops {
                        true => (Some(left), None),
                        false => (None, Some(left)),
                    }
                );
                assert_eq!(next.fetches, Some(left));
                assert_eq!(execute(&mut at_once, left - 1), 0);
                assert_eq!(execute(&mut at_once, 1), 1, "the last one is sampled");
            }
        }
    }
}

/// Ops do not end a period of cycles, nor cycles one of ops; and an unread sample stops the count.
#[test]
fn only_what_the_guest_counts_passes() {
    for (counts_ops, ops, cycles) in [(true, 0, 500), (false, 500, 0)] {
        let mut ibs = sampling(160, counts_ops);
        ibs.pass(ops, cycles, 0);
        assert_eq!(ibs, sampling(160, counts_ops));
        assert_eq!(execute(&mut ibs, 160), 1);
        let sampled = ibs;
        assert_eq!(ibs.next_sample(), pmu_virt::ibs::NextSample::default());
        ibs.pass(500, 500, 500);
        assert_eq!(ibs, sampled);
    }
    let stopped = VirtualIbs::new(IbsConfiguration::ZEN_4);
    let mut ibs = stopped;
    ibs.pass(500, 500, 500);
    assert_eq!(ibs, stopped);
}
