//! Bucket arithmetic, against walking a range bucket by bucket.

use pmu_kprofile::CreateError;
use pmu_kprofile::WindowsVersion::*;
use pmu_kprofile::bucket::Bucket;
use pmu_kprofile::{Affinity, BasicProfile, ProfileObject, Profiles, Rules};
use pmu_tests::kprofile::{self, Frame, Machine, VERSIONS, buffer, counts, request, x64, x86};
use proptest::prelude::*;

const LAX: Rules = x86(Windows10v1607);
const STRICT: Rules = x86(Windows10v1703);

fn bucket(log2: u32) -> Bucket {
    Bucket::from_log2(log2).expect("2 to 31")
}

/// Counts the buckets of a range by walking it.
fn walk(size: u64, log2: u32) -> u64 {
    let (mut covered, mut buckets) = (0, 0);
    while covered < u128::from(size) {
        covered += 1u128 << log2;
        buckets += 1;
    }
    buckets
}

/// Returns whether each bucket has a whole counter, by walking the buffer.
fn has_counters(size: u64, log2: u32, buffer_bytes: u32) -> bool {
    (0..walk(size, log2)).all(|number| 4 * number + 4 <= buffer_bytes.into())
}

#[test]
fn a_bucket_has_4_bytes_to_2_gib_and_is_stored_as_a_shift_less_2() {
    for log2 in (0..=70).chain([u32::MAX - 1, u32::MAX]) {
        match Bucket::from_log2(log2) {
            Ok(bucket) => {
                assert!((2..=31).contains(&log2));
                assert_eq!((bucket.log2(), bucket.shift()), (log2, log2 - 2));
                assert_eq!(u128::from(bucket.bytes()), 2u128.pow(log2));
            }
            Err(error) => {
                assert!(!(2..=31).contains(&log2));
                assert_eq!(error, CreateError::BucketSize { log2 });
            }
        }
    }
    assert_eq!(Bucket::SMALLEST.bytes(), 4);
    assert_eq!(Bucket::LARGEST.bytes(), 0x8000_0000);
}

#[test]
fn each_edge_of_each_bucket_belongs_to_the_bucket_s_own_counter() {
    for log2 in 2..=31 {
        let last = u64::MAX >> log2;
        for number in (0..=70).chain([0xFFFF, last / 2, last - 1, last]) {
            let first = number << log2;
            let end = first + ((1 << log2) - 1);
            for distance in [first, first + 1, first + 3, end - 1, end] {
                assert_eq!(bucket(log2).offset(distance), 4 * number, "{log2} {distance:#X}");
            }
        }
    }
}

#[test]
fn from_version_1703_a_buffer_needs_a_whole_counter_for_each_bucket() {
    for log2 in [2, 3, 4, 7, 12, 31] {
        for buffer_bytes in 0..=20 {
            for number in 0..=6u64 {
                for size in [number << log2, (number << log2) + 1, ((number + 1) << log2) - 1] {
                    assert_eq!(bucket(log2).count(size), walk(size, log2));
                    assert_eq!(
                        bucket(log2).fits(STRICT, size, buffer_bytes),
                        has_counters(size, log2, buffer_bytes),
                        "2^{log2} {buffer_bytes} {size:#X}"
                    );
                }
            }
        }
    }
}

/// A count of buckets in 32 bits would take these for small.
#[test]
fn a_range_of_more_than_2_to_the_32_buckets_is_not_taken_for_a_small_one() {
    for rules in [LAX, STRICT, x64(Windows10v1607), Rules::LATEST] {
        for size in [1 << 34, (1 << 34) + 4, (1 << 35) + 1, u64::MAX - 3, u64::MAX] {
            assert!(!bucket(2).fits(rules, size, 64), "{size:#X}");
        }
    }
    assert!(bucket(2).fits(STRICT, 0xFFFF_FFFC, u32::MAX));
    assert!(!bucket(2).fits(STRICT, 0xFFFF_FFFD, u32::MAX));
    assert_eq!(bucket(2).count(u64::MAX), 1 << 62);
    assert_eq!(bucket(31).count(u64::MAX), 1 << 33);
}

#[test]
fn an_empty_range_fits_every_buffer() {
    for version in VERSIONS {
        for (log2, buffer_bytes) in [(2, 0), (2, 1), (31, 4), (17, u32::MAX)] {
            assert!(bucket(log2).fits(x64(version), 0, buffer_bytes));
        }
    }
}

/// Covers all buffers of 1 to 64 bytes with buckets of 4 to 256 bytes, and every size up to one byte more than a bucket
/// beyond the largest that the buffer could seem to hold.
#[test]
fn before_version_1703_the_check_lets_through_what_does_not_fit_and_how_much() {
    let (mut cases, mut wrong) = (0, 0);
    for log2 in 2..=8u32 {
        for buffer_bytes in 1..=64u32 {
            let capacity = u64::from(buffer_bytes / 4) << log2;
            let mut excess = 0;
            for size in 0..=capacity + (2 << log2) + 1 {
                let accepts = [LAX, STRICT].map(|r| bucket(log2).fits(r, size, buffer_bytes));
                assert_ne!(accepts, [false, true], "what fits is never refused");
                if accepts == [true, false] {
                    wrong += 1;
                    excess = size - capacity;
                }
                cases += 1;
            }
            if buffer_bytes.is_multiple_of(4) {
                assert_eq!(excess, (1 << log2) / 4 - 1);
            } else if (buffer_bytes, log2) == (7, 6) {
                assert_eq!(excess, 63);
            }
        }
    }
    assert_eq!((cases, wrong), (317_888, 19_872));
}

#[test]
fn the_lax_check_ended_with_version_1703() {
    for version in VERSIONS {
        // 19 bytes are two buckets of 16, and the buffer has one counter.
        let lax = bucket(4).fits(x86(version), 19, 4);
        assert_eq!(lax, version < Windows10v1703, "{version:?}");
        assert!(bucket(4).fits(x86(version), 16, 4) && !bucket(4).fits(x86(version), 20, 4));
    }
}

/// Covers all buffers of 4 to 64 bytes with all sizes of 1 to 599.
#[test]
fn before_version_1703_the_default_bucket_may_be_too_small_or_none() {
    let [mut fine, mut by_defect, mut too_small, mut none] = [0; 4];
    for buffer_bytes in 4..=64 {
        for size in 1..=599 {
            let Some(bucket) = Bucket::for_buffer(LAX, size, buffer_bytes) else {
                none += 1;
                continue;
            };
            match [LAX, STRICT].map(|rules| bucket.fits(rules, size, buffer_bytes)) {
                [_, true] => fine += 1,
                [true, false] => by_defect += 1,
                [false, false] => too_small += 1,
            }
        }
    }
    assert_eq!((fine, by_defect, too_small, none), (34_192, 1_165, 747, 435));
    // 17 bytes in two counters: buckets of 8 span 16.
    assert_eq!(Bucket::for_buffer(LAX, 17, 8), Some(bucket(3)));
    assert_eq!(Bucket::for_buffer(STRICT, 17, 8), Some(bucket(4)));
}

/// Returns the smallest bucket size with which the counters suffice, by trying all.
fn smallest(size: u64, buffer_bytes: u32) -> Option<u32> {
    (2..=31).find(|log2| size.div_ceil(1 << log2) <= u64::from(buffer_bytes / 4))
}

#[test]
fn from_version_1703_the_default_bucket_is_the_smallest_that_fits() {
    for buffer_bytes in 4..=64 {
        for size in 0..=599 {
            let found = Bucket::for_buffer(STRICT, size, buffer_bytes).map(Bucket::log2);
            assert_eq!(found, smallest(size, buffer_bytes), "{size} in {buffer_bytes}");
        }
    }
}

#[test]
fn there_is_no_default_bucket_without_a_counter_or_above_2_gib() {
    for rules in [LAX, STRICT] {
        for buffer_bytes in 0..4 {
            assert_eq!(Bucket::for_buffer(rules, 4, buffer_bytes), None);
        }
    }
    assert_eq!(Bucket::for_buffer(STRICT, 1 << 31, 4), Some(Bucket::LARGEST));
    assert_eq!(Bucket::for_buffer(STRICT, (1 << 31) + 1, 4), None);
    assert_eq!(Bucket::for_buffer(STRICT, u64::MAX, u32::MAX), None);
}

proptest! {
    #[test]
    fn an_address_s_counter_is_the_number_of_whole_buckets_before_it(
        distance: u64,
        shift in 0u32..64,
        log2 in 2u32..=31,
    ) {
        for distance in [distance, distance >> shift] {
            let expected = 4 * (u128::from(distance) / 2u128.pow(log2));
            prop_assert_eq!(u128::from(bucket(log2).offset(distance)), expected);
        }
    }

    #[test]
    fn the_count_of_buckets_agrees_with_walking(
        log2 in 2u32..=31,
        whole in 0u64..200,
        part: u64,
        buffer_bytes in 0u32..900,
    ) {
        let size = (whole << log2) + (part & ((1 << log2) - 1));
        prop_assert_eq!(bucket(log2).count(size), walk(size, log2));
        let fits = bucket(log2).fits(STRICT, size, buffer_bytes);
        prop_assert_eq!(fits, has_counters(size, log2, buffer_bytes));
        // The check compares bytes instead of counters.
        let lax = u128::from(size) / 2u128.pow(log2 - 2) <= buffer_bytes.into();
        prop_assert_eq!(bucket(log2).fits(LAX, size, buffer_bytes), lax);
    }

    #[test]
    fn the_default_bucket_agrees_with_trying_all(
        size: u64,
        shift in 0u32..64,
        buffer_bytes: u32,
        small in 0u32..28,
    ) {
        let (size, buffer_bytes) = (size >> shift, (buffer_bytes >> small).max(4));
        let found = Bucket::for_buffer(STRICT, size, buffer_bytes).map(Bucket::log2);
        prop_assert_eq!(found, smallest(size, buffer_bytes));
    }

    /// Checks a whole profile: each address of the range, and those around it, counts in the bucket that a walk finds.
    #[test]
    fn a_profile_counts_each_address_in_the_bucket_that_a_walk_finds(
        base: u64,
        log2 in 2u32..=31,
        whole in 0u64..6,
        part: u64,
        spare in 0usize..3,
        places in prop::collection::vec((0u64..8, -2i64..3), 1..40),
    ) {
        let size = (whole << log2) + (part & ((1 << log2) - 1));
        let base = base.clamp(16, u64::MAX - (8 << 31));
        let counters = buffer((walk(size, log2) as usize + spare).max(1));
        let machine = &mut Machine::new(Affinity::first(1));
        let request = BasicProfile { base, size, bucket_log2: log2, ..request(counters) };
        let object = kprofile::leak(ProfileObject::basic(Rules::LATEST, request, machine).unwrap());
        let profiles = kprofile::leak(Profiles::<1, 1>::new());
        profiles.start(object, machine).unwrap();
        let mut expected = vec![0; counters.len()];
        for (number, off) in places {
            for edge in [base + (number << log2), base + size] {
                let pc = edge.wrapping_add_signed(off);
                let inside = (base..base + size).contains(&pc);
                let outcome = profiles.timer_interrupt(&Frame::at(pc));
                prop_assert_eq!((outcome.hits, outcome.outside), (u32::from(inside), 0));
                if inside {
                    // The first bucket that ends beyond the address.
                    let own = (1u128..).position(|n| u128::from(pc - base) < n << log2);
                    expected[own.unwrap()] += 1;
                }
            }
        }
        prop_assert_eq!(counts(counters), expected);
    }
}
