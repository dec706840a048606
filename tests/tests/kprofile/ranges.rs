//! Ranges at the ends of the address space, and of no size.

use pmu_kprofile::WindowsVersion::{Windows7, Windows8, Windows10v1803, Windows10v1809};
use pmu_kprofile::{Affinity, BasicProfile, ProfileObject, Profiles, Rules, WindowsVersion};
use pmu_tests::kprofile::{Frame, Machine, buffer, counts, leak, process, request, x64};

/// Returns the addresses at which a profile of `size` bytes from `base` on counts, of those at and next to its ends and
/// at those of the address space; alone on its list, or among `others` elsewhere.
fn hit(version: WindowsVersion, base: u64, size: u64, of_process: bool, others: u64) -> Vec<u64> {
    let rules = x64(version);
    let mut machine = Machine::new(Affinity::first(1));
    let lists: &Profiles<4, 1> = leak(Profiles::with_rules(rules));
    let process = process(if of_process { 7 } else { 0 });
    let mut start = |base, size, buffer| {
        let request = BasicProfile { base, size, process, ..request(buffer) };
        let object = leak(ProfileObject::basic(rules, request, &machine).unwrap());
        lists.start(object, &mut machine).unwrap();
    };
    for other in 0..others {
        start(0x9000 + 0x100 * other, 0x10, buffer(4));
    }
    let counters = buffer(5);
    start(base, size, counters);
    let end = base + size;
    let mut addresses = vec![0, 1, 2, 4, base, end, u64::MAX - 1, u64::MAX];
    addresses.extend([base.wrapping_sub(1), base.wrapping_add(1), end.wrapping_sub(1)]);
    addresses.sort_unstable();
    addresses.dedup();
    addresses
        .into_iter()
        .filter(|pc| {
            let before: u32 = counts(counters).iter().sum();
            let frame = Frame { process, ..Frame::at(*pc) };
            let outcome = lists.timer_interrupt(&frame);
            let counted = counts(counters).iter().sum::<u32>() - before;
            assert_eq!(outcome.outside, 0);
            assert_eq!(outcome.hits, counted);
            counted != 0
        })
        .collect()
}

#[test]
fn an_empty_range_counts_nothing_wherever_it_is() {
    for version in [Windows7, Windows10v1809, Rules::LATEST.version] {
        for base in [0, 1, 0x1000, u64::MAX] {
            for (of_process, others) in [(false, 0), (true, 0), (false, 2), (true, 2)] {
                assert_eq!(hit(version, base, 0, of_process, others), [0; 0], "{base:#X}");
            }
        }
    }
}

/// From 6.2 to 1803 the end address is inclusive, so an empty range is one address.
#[test]
fn an_empty_range_of_windows_8_is_its_base() {
    for version in [Windows8, Windows10v1803] {
        for base in [0, 1, 0x1000, u64::MAX] {
            assert_eq!(hit(version, base, 0, false, 0), [base]);
        }
    }
}

#[test]
fn a_range_of_one_byte_is_its_base() {
    for base in [0, 1, 0x1000, u64::MAX - 1] {
        for (of_process, others) in [(false, 0), (true, 0), (false, 2), (true, 2)] {
            assert_eq!(hit(Rules::LATEST.version, base, 1, of_process, others), [base]);
        }
    }
}
