//! `NtQueryIntervalProfile` and `NtSetIntervalProfile`: the statuses, the effects and the records of each version.

use pmu_core::EventSource;
use pmu_core::interval::IntervalLimits;
use pmu_core::profile::{DefaultInterface, KProfileSource, NtStatus};
use pmu_intel::Emon;
use pmu_kprofile::WindowsVersion::{Nt351, Vista, Windows8};
use pmu_kprofile::service::{KernelCaller, UserCaller};
use pmu_kprofile::trace::{
    CacheErrata, Event, IntervalHook, IntervalServices, Record, SourceInterval, TraceRing,
};
use pmu_kprofile::{PointerWidth, Rules};
use pmu_tests::kprofile::{VERSIONS, WIDTHS, leak, source};

const TIME: KProfileSource = KProfileSource::TIME;
const CYCLES: KProfileSource = KProfileSource::TOTAL_CYCLES;
const FIXUP: KProfileSource = KProfileSource::ALIGNMENT_FIXUP;

/// A caller in user mode.
fn user(has_profile_privilege: bool) -> UserCaller {
    UserCaller {
        probes: Ok(()),
        is_restricted: false,
        process: Ok(()),
        has_profile_privilege,
        kernel_space: 0x8000_0000_0000,
    }
}

fn nothing_recorded(event: SourceInterval<'_>) {
    panic!("{event:?} was recorded");
}

/// Sets an interval as the kernel itself, and returns the interval in force and what was recorded.
fn set(
    services: &IntervalServices,
    interface: &impl EventSource,
    units: u32,
    source: KProfileSource,
) -> (Option<u32>, Vec<(u32, u32, u32)>) {
    let mut recorded = Vec::new();
    let record = |event: SourceInterval<'_>| {
        assert_eq!((event.hook, event.name), (IntervalHook::Set, None));
        recorded.push((event.source, event.new, event.old));
    };
    let set = services.set(interface, units, Ok(source), &KernelCaller, record).unwrap();
    (set.map(|interval| interval.get()), recorded)
}

/// "SeSystemProfilePrivilege needed since Windows 8, else STATUS_PRIVILEGE_NOT_HELD".
#[test]
fn setting_takes_the_privilege_from_windows_8_on_and_querying_never() {
    for version in VERSIONS {
        for width in WIDTHS {
            let (services, emon) =
                (IntervalServices::new(Rules { version, width }), Emon::declared());
            for (privileged, allowed) in [(true, true), (false, version < Windows8)] {
                let caller = user(privileged);
                emon.set_interval(TIME, 10_000).unwrap();
                let before = emon.query(TIME).interval;
                let asked = before + 1;
                let outcome = services.set(&emon, asked, Ok(TIME), &caller, nothing_recorded);
                assert_eq!(outcome.is_ok(), allowed, "{version:?} {privileged}");
                let now = if allowed { asked } else { before };
                assert_eq!(services.query(&emon, Ok(TIME), &caller), Ok(now));
                // A request that has no effect is refused, too.
                let fixup = services.set(&emon, 7, Ok(source(0x17)), &caller, nothing_recorded);
                assert_eq!(fixup.err(), (!allowed).then_some(NtStatus::PRIVILEGE_NOT_HELD));
            }
            assert_eq!(NtStatus::PRIVILEGE_NOT_HELD.value(), 0xC000_0061);
            let kernel = services.set(&emon, 9_999, Ok(TIME), &KernelCaller, nothing_recorded);
            assert_eq!(kernel.unwrap().map(|interval| interval.get()), Some(9_999));
        }
    }
}

/// "ProfileAlignmentFixup (1) answered by the kernel from its own variable, initially 0"; "just remembered, never used
/// otherwise"; unsupported sources have the interval 0, and every request succeeds.
#[test]
fn alignment_fixups_are_remembered_and_what_is_unsupported_is_0_with_success() {
    let (services, emon) = (IntervalServices::new(Rules::LATEST), Emon::declared());
    let query = |from| services.query(&emon, from, &user(false));
    assert_eq!(query(Ok(FIXUP)), Ok(0));
    for units in [1, u32::MAX, 0, 77] {
        assert_eq!(set(&services, &emon, units, FIXUP), (None, vec![]));
        assert_eq!(query(Ok(FIXUP)), Ok(units));
    }
    for unsupported in [source(0x17), source(0x7FFF)] {
        assert_eq!(set(&services, &emon, 0x10000, unsupported), (None, vec![]));
        assert_eq!(query(Ok(unsupported)), Ok(0));
    }
    let none = KProfileSource::try_from(0x18);
    assert_eq!(services.set(&emon, 1, none, &KernelCaller, nothing_recorded), Ok(None));
    assert_eq!(query(none), Ok(0));
    // The variable is the kernel's own, whatever the interface is.
    assert_eq!(services.query(&DefaultInterface::new(), Ok(FIXUP), &user(true)), Ok(77));
}

#[test]
fn an_interval_beyond_the_limits_becomes_the_nearest_and_is_told() {
    let (services, emon) = (IntervalServices::new(Rules::LATEST), Emon::declared());
    let (events, time) = (IntervalLimits::EVENTS, IntervalLimits::TIME);
    for (from, limits) in [(CYCLES, events), (TIME, time)] {
        for (asked, expected) in [
            (0, limits.min),
            (limits.min - 1, limits.min),
            (limits.min, limits.min),
            (limits.max, limits.max),
            (limits.max + 1, limits.max),
            (u32::MAX, limits.max),
        ] {
            assert_eq!(set(&services, &emon, asked, from).0, Some(expected));
            assert_eq!(services.query(&emon, Ok(from), &KernelCaller), Ok(expected));
        }
    }
    // "min 1221 max 1000000", "min 4096 max 2147483647".
    assert_eq!((time.min, time.max), (1_221, 1_000_000));
    assert_eq!((events.min, events.max), (4_096, 2_147_483_647));
}

/// "if larger than what cache-errata support needs, the kernel's own smaller value is set".
#[test]
fn time_is_no_longer_than_cache_errata_need() {
    let errata: &CacheErrata = leak(CacheErrata::new());
    let services = IntervalServices::new(Rules::LATEST).with_errata(errata);
    let emon = Emon::declared();
    assert_eq!(set(&services, &emon, 50_000, TIME).0, Some(50_000));
    errata.require(IntervalLimits::TIME.check(20_000).unwrap());
    assert_eq!(set(&services, &emon, 50_000, TIME).0, Some(20_000));
    assert_eq!(set(&services, &emon, 15_000, TIME).0, Some(15_000));
    assert_eq!(set(&services, &emon, 50_000, CYCLES).0, Some(50_000), "only of time");
}

#[test]
fn a_query_answers_the_failed_probe_of_the_callers_memory() {
    let (services, emon) = (IntervalServices::new(Rules::LATEST), Emon::declared());
    let status = Err(NtStatus::ACCESS_VIOLATION);
    let caller = UserCaller { probes: Err(NtStatus::ACCESS_VIOLATION), ..user(true) };
    assert_eq!(services.query(&emon, Ok(TIME), &caller), status);
    assert_eq!(services.query(&emon, Ok(source(0x17)), &caller), status);
}

/// Before version 3.51 there is no source, and time is meant.
#[test]
fn before_version_3_51_every_request_is_of_time() {
    for version in VERSIONS {
        let rules = Rules { version, width: PointerWidth::Bits32 };
        let (services, emon) = (IntervalServices::new(rules), Emon::declared());
        let cycles = emon.query(CYCLES).interval;
        let (in_force, _) = set(&services, &emon, 0x8000, CYCLES);
        let queried = services.query(&emon, Ok(CYCLES), &KernelCaller).unwrap();
        let of_time = version < Nt351;
        assert_eq!((in_force, queried), (Some(0x8000), 0x8000));
        assert_eq!(emon.query(TIME).interval == 0x8000, of_time, "{version:?}");
        assert_eq!(emon.query(CYCLES).interval, if of_time { cycles } else { 0x8000 });
    }
}

/// "If profile tracing is on, event 0x0F48 records old and new (old = 0 if tracing was off when set)."
#[test]
fn an_interval_is_recorded_while_tracing_is_on_with_the_one_that_was_recorded_before() {
    let (services, emon) = (IntervalServices::new(Rules::LATEST), Emon::declared());
    assert_eq!(set(&services, &emon, 0x8000, CYCLES), (Some(0x8000), vec![]));
    services.begin_trace(&emon, [], nothing_recorded);
    let cycles = CYCLES.value();
    assert_eq!(set(&services, &emon, 0x9000, CYCLES).1, [(cycles, 0x9000, 0)]);
    assert_eq!(set(&services, &emon, 1, CYCLES).1, [(cycles, 0x1000, 0x9000)]);
    assert_eq!(set(&services, &emon, 12_000, TIME).1, [(0, 12_000, 0)], "another source");
    // Nothing is set, so nothing is recorded.
    assert_eq!(set(&services, &emon, 5, FIXUP).1, []);
    assert_eq!(set(&services, &emon, 5, source(0x17)).1, []);
    let refused = services.set(&emon, 5, Ok(TIME), &user(false), nothing_recorded);
    assert_eq!(refused, Err(NtStatus::PRIVILEGE_NOT_HELD));
    services.end_trace(&emon, [], nothing_recorded);
    assert_eq!(set(&services, &emon, 0xA000, CYCLES).1, []);
    services.begin_trace(&emon, [], nothing_recorded);
    assert_eq!(set(&services, &emon, 0xB000, CYCLES).1, [(cycles, 0xB000, 0)]);
    assert_eq!(set(&services, &emon, 13_000, TIME).1, [(0, 13_000, 12_000)], "set while on");
}

/// Records 0x0F48 to 0x0F4A: from the service through the ring to bytes, which are counted by hand.
#[test]
fn a_trace_begins_and_ends_with_the_interval_of_each_source() {
    let (services, emon) = (IntervalServices::new(Rules::LATEST), Emon::declared());
    let ring: TraceRing<8> = TraceRing::new();
    let push = |event: SourceInterval<'static>| {
        assert!(ring.push(&Record::new(PointerWidth::Bits64, 5, event)));
    };
    set(&services, &emon, 0x8000, CYCLES);
    let sources = [TIME, source(0x17), CYCLES];
    services.begin_trace(&emon, sources, push);
    services.set(&emon, 0x9000, Ok(CYCLES), &KernelCaller, push).unwrap();
    services.end_trace(&emon, sources, push);
    services.end_trace(&emon, sources, push);
    let records: Vec<Vec<u8>> = ring.drain().map(|bytes| bytes.as_slice().to_vec()).collect();
    let expected = [
        (0x0F49u16, [0u32, 10_000, 10_000]),
        (0x0F49, [0x13, 0x8000, 0x8000]),
        (0x0F48, [0x13, 0x9000, 0]),
        (0x0F4A, [0, 10_000, 10_000]),
        (0x0F4A, [0x13, 0x9000, 0x9000]),
    ];
    let bytes_of = |(hook, words): (u16, [u32; 3])| {
        let mut bytes = vec![2, 0, 0x11, 0xC0, 28, 0];
        bytes.extend(hook.to_le_bytes());
        bytes.extend(5u64.to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    };
    assert_eq!(records, expected.map(bytes_of));
    let first = Record::decode(&records[0]).unwrap().0.event;
    assert!(matches!(first, Event::SourceInterval(_)), "{first:?}");
}

#[test]
fn intervals_are_traced_from_version_6_0_on() {
    for version in VERSIONS {
        for width in WIDTHS {
            let (services, emon) =
                (IntervalServices::new(Rules { version, width }), Emon::declared());
            let mut begun = 0;
            services.begin_trace(&emon, [TIME], |_| begun += 1);
            let (_, recorded) = set(&services, &emon, 20_000, TIME);
            let traced = usize::from(version >= Vista);
            assert_eq!((begun, recorded.len()), (traced, traced), "{version:?}");
        }
    }
}
