//! Creation as a service: each check with its status, and their order (Windows 10's, from the published analyses of
//! `NtCreateProfileEx`).

mod kprofile;

use kprofile::{Machine, process, x64, x86};
use pmu_core::{KProfileSource, NtStatus, ProfileInterface};
use pmu_kprofile::WindowsVersion::*;
use pmu_kprofile::{
    Affinity, CreateRequest, IntervalGuard, KernelCaller, Rules, UserCaller, ValidRequest,
};

const KERNEL: u64 = 0xFFFF_8000_0000_0000;
const SOURCE: KProfileSource = KProfileSource::TOTAL_CYCLES;

fn request() -> CreateRequest {
    CreateRequest {
        process: process(7),
        base: 0x1000,
        size: 0x100,
        bucket_log2: 4,
        buffer_bytes: 64,
        source: SOURCE,
        affinity: Some(Affinity::first(1)),
    }
}

fn user() -> UserCaller {
    UserCaller {
        probes: Ok(()),
        affinity_is_well_formed: true,
        is_restricted: false,
        process: Ok(()),
        has_profile_privilege: true,
        kernel_space: KERNEL,
    }
}

fn status(rules: Rules, request: &CreateRequest, caller: &UserCaller, unsupported: bool) -> u32 {
    let mut machine = Machine::new(Affinity::first(2));
    machine.unsupported = unsupported.then_some(SOURCE);
    request.validate(rules, &machine, caller).map_or_else(|error| error.status().value(), |_| 0)
}

/// Each flaw alone has its status; with all later ones too, it is still the one that is told.
#[test]
fn the_checks_of_a_creation_come_in_windows_order() {
    type Flaw = fn(&mut CreateRequest, &mut UserCaller, &mut bool);
    // From the last check to the first.
    let flaws: [(u32, Flaw); 10] = [
        (0xC000_0061, |request, user, _| {
            (request.process, user.has_profile_privilege) = (None, false);
        }),
        (0xC000_0008, |_, user, _| user.process = Err(status_of(0xC000_0008))),
        (0xC000_0022, |request, user, _| {
            (request.base, user.is_restricted) = (KERNEL, true);
        }),
        (0xC000_000D, |request, _, _| request.affinity = Some(Affinity::first(3))),
        (0x8000_0002, |_, user, _| user.probes = Err(NtStatus::DATATYPE_MISALIGNMENT)),
        (0xC000_00BB, |_, _, unsupported| *unsupported = true),
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
    let malformed = UserCaller { affinity_is_well_formed: false, ..user() };
    assert_eq!(status(x64(Vista), &request(), &malformed, false), 0);
    assert_eq!(status(x64(Windows7), &request(), &malformed, false), 0xC000_000D);
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
    let ValidRequest { base, limit, bucket, segment, affinity } = valid;
    assert_eq!((base, limit, bucket.log2(), segment), (0, 64, 2, 0x1234));
    assert_eq!(affinity, Affinity::first(1));
    let global = CreateRequest { process: None, ..asked };
    assert_eq!(status(x86(Windows10v1903), &global, &user(), false), 0xC000_000D);
}

/// The limits are of the published source lists: 1,221 to 1,000,000 units of 100 ns, and from 4,096 events on.
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
