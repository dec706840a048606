//! Creation as a service: each check with its status, and their order (Windows 10's, from the published analyses of
//! `NtCreateProfileEx`).

use pmu_core::EventSource;
use pmu_core::profile::{KProfileSource, NotASource, NtStatus};
use pmu_kprofile::WindowsVersion::*;
use pmu_kprofile::hardware::IntervalGuard;
use pmu_kprofile::service::{
    CreateRequest, GroupAffinity, KernelCaller, RequestedAffinity, UserCaller, ValidRequest,
};
use pmu_kprofile::{Affinity, BasicProfile, ProfileObject, Rules};
use pmu_tests::kprofile::{self, Machine, process, x64, x86};

const KERNEL: u64 = 0xFFFF_8000_0000_0000;
const SOURCE: KProfileSource = KProfileSource::TOTAL_CYCLES;

const ONE: [GroupAffinity; 1] = [group(0, 1)];

const fn group(group: u16, mask: u64) -> GroupAffinity {
    GroupAffinity { mask, group, reserved: [0; 3] }
}

fn request() -> CreateRequest<'static> {
    CreateRequest {
        process: process(7),
        base: 0x1000,
        size: 0x100,
        bucket_log2: 4,
        buffer_bytes: 64,
        source: Ok(SOURCE),
        affinity: RequestedAffinity::Mask { mask: 1, group: 0 },
    }
}

fn user() -> UserCaller {
    UserCaller {
        probes: Ok(()),
        is_restricted: false,
        process: Ok(()),
        has_profile_privilege: true,
        kernel_space: KERNEL,
    }
}

fn status(
    rules: Rules,
    request: &CreateRequest<'_>,
    caller: &UserCaller,
    unsupported: bool,
) -> u32 {
    let mut machine = Machine::new(Affinity::first(2));
    machine.unsupported = unsupported.then_some(SOURCE);
    request.validate(rules, &machine, caller).map_or_else(|error| error.status().value(), |_| 0)
}

/// Each flaw alone has its status; together with all later ones, it is still the one reported.
#[test]
fn the_checks_of_a_creation_come_in_windows_order() {
    type Flaw = fn(&mut CreateRequest<'static>, &mut UserCaller, &mut bool);
    // The flaws in reverse order of the checks.
    let flaws: [(u32, Flaw); 11] = [
        (0xC000_0061, |request, user, _| {
            (request.process, user.has_profile_privilege) = (None, false);
        }),
        (0xC000_0008, |_, user, _| user.process = Err(status_of(0xC000_0008))),
        (0xC000_0022, |request, user, _| {
            (request.base, user.is_restricted) = (KERNEL, true);
        }),
        (0xC000_000D, |request, _, _| {
            request.affinity = RequestedAffinity::Mask { mask: 0b111, group: 0 };
        }),
        (0x8000_0002, |_, user, _| user.probes = Err(NtStatus::DATATYPE_MISALIGNMENT)),
        (0xC000_00BB, |_, _, unsupported| *unsupported = true),
        (0xC000_00BB, |request, _, _| request.source = Err(NotASource)),
        (0x8000_0005, |request, _, _| request.base = u64::MAX - 0x80),
        (0xC000_0023, |request, _, _| request.buffer_bytes = 60),
        (0xC000_000D, |request, _, _| request.bucket_log2 = 1),
        (0xC000_00F5, |request, _, _| request.buffer_bytes = 0),
    ];
    let rules = x64(Windows10v1903);
    let (mut all_request, mut all_user, mut all_unsupported) = (request(), user(), false);
    assert_eq!(status(rules, &all_request, &all_user, false), 0);
    for (expected, flaw) in flaws {
        let (mut request, mut user, mut unsupported) = (request(), user(), false);
        flaw(&mut request, &mut user, &mut unsupported);
        assert_eq!(status(rules, &request, &user, unsupported), expected, "alone");
        flaw(&mut all_request, &mut all_user, &mut all_unsupported);
        let told = status(rules, &all_request, &all_user, all_unsupported);
        assert_eq!(told, expected, "with all later ones");
    }
}

fn status_of(value: u32) -> NtStatus {
    *NtStatus::ALL.iter().find(|status| status.value() == value).expect("it has a name")
}

#[test]
fn checks_exist_from_their_version_on() {
    let restricted = UserCaller { is_restricted: true, ..user() };
    let kernel = CreateRequest { base: KERNEL, ..request() };
    assert_eq!(status(x64(Windows8), &kernel, &restricted, false), 0);
    assert_eq!(status(x64(Windows81), &kernel, &restricted, false), 0xC000_0022);
    // A region that ends where the kernel begins does not reach into it.
    let below = CreateRequest { base: KERNEL - 0x100, ..request() };
    assert_eq!(status(x64(Windows81), &below, &restricted, false), 0);
    // The range is empty and nothing of it lies below, but it begins there.
    let empty = CreateRequest { size: 0, ..kernel };
    assert_eq!(status(x64(Windows81), &empty, &restricted, false), 0xC000_0022);
    assert_eq!(status(x64(Windows7), &request(), &user(), true), 0, "any source");
    assert_eq!(status(x64(Windows8), &request(), &user(), true), 0xC000_00BB);
}

/// "GroupCount 0 = all active processors, array ignored"; "any GROUP_AFFINITY with invalid Group, empty Mask, a bit for
/// an inactive processor, or non-zero Reserved": STATUS_INVALID_PARAMETER. Whoever asks.
#[test]
fn groups_are_checked_one_by_one() {
    let active =
        [group(0, 0b11), group(1, 1 << 40)].map(|of| Affinity::of_group(of.group, of.mask));
    let machine = Machine::new(active[0].union(active[1]));
    let validate = |version, groups: &[GroupAffinity]| {
        let request = CreateRequest { affinity: RequestedAffinity::Groups(groups), ..request() };
        let by_user = request.validate(x64(version), &machine, &user());
        assert_eq!(request.validate(x64(version), &machine, &KernelCaller), by_user);
        by_user.map(|valid| valid.affinity).map_err(|error| error.status().value())
    };
    for version in [Windows7, Windows10v1903] {
        assert_eq!(validate(version, &[]), Ok(active[0].union(active[1])));
        assert_eq!(validate(version, &[group(1, 1 << 40)]), Ok(active[1]));
        let both = [group(0, 0b10), group(0, 0b01), group(1, 1 << 40)];
        assert_eq!(validate(version, &both), Ok(active[0].union(active[1])));
        for wrong in [
            group(2, 1),
            group(u16::MAX, 1),
            group(0, 0),
            group(0, 0b101),
            group(1, 1),
            GroupAffinity { reserved: [0, 0, 1], ..ONE[0] },
        ] {
            assert_eq!(validate(version, &[wrong]), Err(0xC000_000D), "{wrong:?}");
            assert_eq!(validate(version, &[ONE[0], wrong]), Err(0xC000_000D), "{wrong:?}");
        }
    }
    // NtCreateProfileEx does not exist: STATUS_INVALID_SYSTEM_SERVICE.
    assert_eq!(validate(Vista, &ONE), Err(0xC000_001C));
}

/// "Affinity == -1 is translated to all active in the current group"; "a 32-bit caller's -1 is zero-extended and so
/// fails unless all 32 are active". Before 6.1 bits of inactive processors are allowed.
#[test]
fn a_mask_is_of_the_callers_group() {
    let (first, second) = (Affinity::of_group(0, 0b11), Affinity::of_group(1, 0xFF));
    let machine = Machine::new(first.union(second));
    let validate = |rules, mask, group| {
        let affinity = RequestedAffinity::Mask { mask, group };
        let valid = CreateRequest { affinity, ..request() }.validate(rules, &machine, &user());
        valid.map(|valid| valid.affinity).map_err(|error| error.status().value())
    };
    let wrong = Err(0xC000_000D);
    assert_eq!(validate(x64(Windows7), u64::MAX, 0), Ok(first));
    assert_eq!(validate(x64(Windows10v1903), u64::MAX, 1), Ok(second));
    assert_eq!(validate(x64(Windows7), 0xFFFF_FFFF, 1), wrong);
    assert_eq!(validate(x86(Windows7), 0xFFFF_FFFF, 0), Ok(first));
    assert_eq!(validate(x64(Windows7), 0, 0), wrong);
    assert_eq!(validate(x64(Windows7), 0b100, 0), wrong);
    assert_eq!(validate(x64(Windows7), u64::MAX, 2), wrong);
    assert_eq!(validate(x64(Windows7), 0b110, 1), Ok(Affinity::of_group(1, 0b110)));
    assert_eq!(validate(x64(Vista), 0b110, 0), Ok(Affinity::of_group(0, 0b110)));
    assert_eq!(validate(x64(Vista), 0b100, 0), Ok(first.union(second)), "none active: all");
    assert_eq!(validate(x86(Nt40), 0b100, 0), Ok(Affinity::of_group(0, 0b100)), "but not yet");
    assert_eq!(validate(x86(Nt40), 0, 0), Ok(first.union(second)));
    assert_eq!(validate(x86(Nt350), 0b1, 0), Ok(Affinity::ALL), "there is no affinity");
}

#[test]
fn before_version_3_51_the_source_is_time() {
    let machine = Machine::new(Affinity::first(2));
    let source = |version| request().validate(x86(version), &machine, &user()).unwrap().source;
    assert_eq!((source(Nt350), source(Nt351)), (KProfileSource::TIME, SOURCE));
    let profile = BasicProfile {
        process: None,
        base: 0x1000,
        size: 4,
        bucket_log2: 2,
        buffer: kprofile::buffer(1),
        source: SOURCE,
        affinity: None,
    };
    let object = ProfileObject::basic(x86(Nt350), profile, &machine).unwrap();
    assert_eq!(object.source(), KProfileSource::TIME);
}

#[test]
fn privilege_is_needed_for_everybodys_user_space_alone() {
    let poor = UserCaller { has_profile_privilege: false, ..user() };
    let (own, global) = (request(), CreateRequest { process: None, ..request() });
    let kernels = CreateRequest { base: KERNEL, ..global };
    let rules = Rules::LATEST;
    assert_eq!(status(rules, &own, &poor, false), 0);
    assert_eq!(status(rules, &kernels, &poor, false), 0);
    assert_eq!(status(rules, &global, &poor, false), 0xC000_0061);
    assert_eq!(status(rules, &global, &user(), false), 0);
    let machine = Machine::new(Affinity::first(2));
    assert!(global.validate(rules, &machine, &KernelCaller).is_ok());
}

#[test]
fn a_segment_is_validated_into_its_linear_offsets() {
    let machine = Machine::new(Affinity::first(2));
    let asked = CreateRequest { base: 0x1234, bucket_log2: 0, size: 64, ..request() };
    let valid = asked.validate(x86(Windows10v1903), &machine, &user()).unwrap();
    let ValidRequest { base, limit, bucket, segment, source, affinity } = valid;
    assert_eq!((base, limit, bucket.log2(), segment, source), (0, 64, 2, 0x1234, SOURCE));
    assert_eq!(affinity, Affinity::first(1));
    // A base of 64 KiB is not a segment, and in 64 bits no base is: the bucket size of 0 is then too small.
    let far = CreateRequest { base: 0x1_0000, ..asked };
    assert_eq!(status(x86(Windows10v1903), &far, &user(), false), 0xC000_000D);
    assert_eq!(status(x64(Windows10v1903), &asked, &user(), false), 0xC000_000D);
    // No bucket can be chosen for 1 to 3 bytes.
    let short = CreateRequest { buffer_bytes: 3, ..asked };
    assert_eq!(status(x86(Windows10v1903), &short, &user(), false), 0xC000_000D);
    let global = CreateRequest { process: None, ..asked };
    assert_eq!(status(x86(Windows10v1903), &global, &user(), false), 0xC000_000D);
}

/// The limits are those of the published source lists: 1,221 to 1,000,000 units of 100 ns, and from 4,096 events on.
#[test]
fn an_interval_is_held_within_the_limits_and_restored() {
    let emon = pmu_intel::Emon::declared();
    for (from, wanted, expected) in
        [(KProfileSource::TIME, 1, 1221), (SOURCE, 1, 4096), (SOURCE, 70_000, 70_000)]
    {
        let before = emon.query(from).interval;
        let held = IntervalGuard::hold(&emon, from, wanted).unwrap();
        assert_eq!((held.interval().get(), held.before()), (expected, before));
        {
            let inner = IntervalGuard::hold(&emon, from, 100_000).unwrap();
            assert_eq!((emon.query(from).interval, inner.before()), (100_000, expected));
        }
        assert_eq!(emon.query(from).interval, expected);
        drop(held);
        assert_eq!(emon.query(from).interval, before);
    }
    let unknown = KProfileSource::new(0x7FFF).unwrap();
    assert!(IntervalGuard::hold(&emon, unknown, 5000).is_err());
}

#[test]
fn limits_and_privileges_are_of_their_versions() {
    assert_eq!(
        (Vista.started_profiles_limit(4), Windows7.started_profiles_limit(4)),
        (None, Some(32768))
    );
    assert_eq!(
        (Windows7.interval_takes_privilege(), Windows8.interval_takes_privilege()),
        (false, true)
    );
    assert_eq!((Windows7.has_control_area(), Windows8.has_control_area()), (false, true));
}
