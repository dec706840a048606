//! The creation of profile objects: the checks of each version, and the properties of an object.

use core::sync::atomic::{AtomicU32, Ordering};

use pmu_core::frame::InterruptFrame;
use pmu_core::profile::{AddedSources, InterfaceError, KProfileSource};
use pmu_core::windows::HalInterface;
use pmu_kprofile::CreateError::{
    self, BucketSize, BufferTooSmall, EmptyBuffer, NoCallbackObjects, RangeWraps,
    SegmentWithoutProcess, UnsupportedSource,
};
use pmu_kprofile::WindowsVersion::{self, *};
use pmu_kprofile::compat::kprofile::{KProfile, Role};
use pmu_kprofile::compat::layout::Layout;
use pmu_kprofile::hardware::AsOfVersion;
use pmu_kprofile::{
    Affinity, BasicProfile, PointerWidth, ProfileCallback, ProfileHardware, ProfileObject,
    Profiles, Rules,
};
use pmu_tests::data;
use pmu_tests::kprofile::{
    Machine, Nothing, VERSIONS, WIDTHS, buffer, counts, leak, process, processor, request, source,
    x64, x86,
};

type Lists = Profiles<8, 70>;
const TIME: KProfileSource = KProfileSource::TIME;

fn machine() -> Machine {
    Machine::new(Affinity::first(70))
}

fn create(rules: Rules, request: BasicProfile<'_>) -> Result<ProfileObject<'_>, CreateError> {
    ProfileObject::basic(rules, request, &machine())
}

/// Every argument is wrong; each step corrects one, in the order in which Windows checks them.
#[test]
fn creation_checks_come_in_windows_order_with_windows_status_in_each_version() {
    type Mend = fn(&mut BasicProfile<'static>);
    static MANY: [AtomicU32; 0x400] = [const { AtomicU32::new(0) }; 0x400];
    let first = BasicProfile {
        base: 0xFFFF_F100,
        size: 0x1000,
        bucket_log2: 1,
        source: source(0x77),
        affinity: Some(Affinity::of(processor(1, 6))),
        ..request(&[])
    };
    let steps: [(CreateError, u32, WindowsVersion, Mend); 6] = [
        (EmptyBuffer, 0xC000_00F5, Nt40Sp4, |r| r.buffer = &MANY[..1]),
        (BucketSize { log2: 1 }, 0xC000_000D, Nt310, |r| r.bucket_log2 = 2),
        (BufferTooSmall { buckets: 0x400, counters: 1 }, 0xC000_0023, Nt310, |r| r.buffer = &MANY),
        (RangeWraps, 0x8000_0005, Nt310, |r| r.base = 0xFFFF_E000),
        (UnsupportedSource(source(0x77)), 0xC000_00BB, Windows8, |r| r.source = source(0x76)),
        (CreateError::Affinity, 0xC000_000D, Windows7, |r| r.affinity = None),
    ];
    let machine = Machine { unsupported: Some(source(0x77)), ..machine() };
    for version in VERSIONS {
        let mut request = first;
        for (number, (.., mend)) in steps.iter().enumerate() {
            let expected = steps[number..].iter().find(|(_, _, since, _)| *since <= version);
            let error = ProfileObject::basic(x86(version), request, &machine).err();
            assert_eq!(error, expected.map(|(error, ..)| *error), "{version:?} step {number}");
            let status = error.map(|error| (error.status().value(), error.status().is_success()));
            assert_eq!(status, expected.map(|(_, status, ..)| (*status, false)));
            mend(&mut request);
        }
        assert!(ProfileObject::basic(x86(version), request, &machine).is_ok());
    }
}

#[test]
fn a_segment_needs_a_process_and_that_is_looked_at_last() {
    for version in VERSIONS {
        let machine = Machine { unsupported: Some(source(0x77)), ..machine() };
        let request = BasicProfile { base: 0x1234, bucket_log2: 0, ..request(buffer(2)) };
        let check = |request| ProfileObject::basic(x86(version), request, &machine).err();
        assert_eq!(check(request), Some(SegmentWithoutProcess));
        assert_eq!(SegmentWithoutProcess.status().value(), 0xC000_000D);
        assert_eq!(check(BasicProfile { process: process(8), ..request }), None);
        assert_eq!(check(BasicProfile { base: 0, ..request }), None, "no segment");
        if version >= Windows8 {
            let unsupported = BasicProfile { source: source(0x77), ..request };
            assert_eq!(check(unsupported), Some(UnsupportedSource(source(0x77))));
            let elsewhere = Some(Affinity::of(processor(1, 6)));
            assert_eq!(
                check(BasicProfile { affinity: elsewhere, ..request }),
                Some(CreateError::Affinity)
            );
        }
    }
}

#[test]
fn a_bucket_of_0_is_the_kernel_s_choice_for_a_segment_of_32_bit_windows_alone() {
    let zero = |base| BasicProfile {
        process: process(8),
        base,
        size: 17,
        bucket_log2: 0,
        ..request(buffer(2))
    };
    let none = Some(BucketSize { log2: 0 });
    assert_eq!(create(x86(Windows10v1703), zero(0xFFFF)).err(), None);
    assert_eq!(create(x86(Windows10v1703), zero(0x1_0000)).err(), none);
    assert_eq!(create(x64(Windows10v1703), zero(0xFFFF)).err(), none);
    // The old formula: fewer bytes than counters have no logarithm.
    let short = BasicProfile { size: 1, ..zero(0xFFFF) };
    assert_eq!(create(x86(Windows10v1607), short).err(), none);
    assert_eq!(create(x86(Windows10v1703), short).err(), None);
}

#[test]
fn a_range_that_ends_at_the_last_address_plus_one_is_refused_in_every_version_and_width() {
    let counters = buffer(0x40);
    for version in VERSIONS {
        for (width, last) in WIDTHS.into_iter().zip([0xFFFF_FFFF, u64::MAX]) {
            let rules = Rules { version, width };
            let check =
                |base, size| create(rules, BasicProfile { base, size, ..request(counters) });
            for size in [1, 2, 3, 4, 0xFF, 0x100] {
                assert_eq!(check(last - size + 1, size).err(), Some(RangeWraps), "{rules:?}");
                assert_eq!(check(last, size).err(), Some(RangeWraps), "{rules:?}");
                assert_eq!(check(last - size, size).err(), None, "{rules:?}");
            }
            assert_eq!(check(last, 0).err(), None);
            if width == PointerWidth::Bits32 {
                assert_eq!(check(last + 1, 0).err(), Some(RangeWraps));
                assert_eq!(check(u64::MAX - 3, 4).err(), Some(RangeWraps));
            }
        }
    }
    assert_eq!(RangeWraps.status().value(), 0x8000_0005);
}

#[test]
fn the_affinity_must_be_active_from_windows_7_on_and_before_may_mean_all() {
    let active = Affinity::first(2);
    let on = |numbers: &[u8]| -> Affinity {
        numbers.iter().map(|number| processor(0, *number)).collect()
    };
    for version in VERSIONS.into_iter().filter(|version| *version >= Nt351) {
        // The request; whether Windows 7 accepts it; the profiled processors in earlier versions, from SP4 on and
        // before.
        let cases = [
            (on(&[]), false, on(&[0, 1]), on(&[0, 1])),
            (on(&[1]), true, on(&[1]), on(&[1])),
            (on(&[0, 1]), true, on(&[0, 1]), on(&[0, 1])),
            (on(&[1, 2]), false, on(&[1]), on(&[1])),
            (on(&[2]), false, on(&[0, 1]), on(&[])),
        ];
        for (affinity, accepted, since_sp4, earlier) in cases {
            let mut machine = Machine::new(active);
            let asked = BasicProfile { affinity: Some(affinity), ..request(buffer(1)) };
            let object = match ProfileObject::basic(x64(version), asked, &machine) {
                Err(error) => {
                    assert!(version >= Windows7 && !accepted, "{version:?} {error}");
                    continue;
                }
                Ok(object) => object,
            };
            assert!(version < Windows7 || accepted, "{version:?}");
            let lists = leak(Lists::with_rules(x64(version)));
            let expected = if version >= Nt40Sp4 { since_sp4 } else { earlier };
            let outcome = lists.start(leak(object), &mut machine);
            assert_eq!(outcome.is_ok(), !expected.is_empty());
            let running: Affinity = machine.running.iter().map(|(on, _)| *on).collect();
            assert_eq!(running, expected, "{version:?} {affinity:?}");
        }
    }
}

#[test]
fn a_refused_creation_leaves_buffer_and_hardware_alone() {
    let counters = buffer(1);
    counters[0].store(7, Ordering::Relaxed);
    let machine = machine();
    for bad in [
        BasicProfile { bucket_log2: 32, ..request(counters) },
        BasicProfile { size: 5, ..request(counters) },
        BasicProfile { base: u64::MAX, ..request(counters) },
        BasicProfile { affinity: Some(Affinity::EMPTY), ..request(counters) },
    ] {
        assert!(ProfileObject::basic(Rules::LATEST, bad, &machine).is_err());
    }
    assert_eq!((counts(counters), machine.changes), (vec![7], 0));
}

#[test]
fn callback_objects_exist_from_windows_8_on() {
    static NOTHING: Nothing = Nothing;
    for version in VERSIONS {
        for width in WIDTHS {
            let object = ProfileObject::callback(Rules { version, width }, TIME, &NOTHING);
            assert_eq!(object.is_ok(), version >= Windows8);
        }
    }
    assert_eq!(NoCallbackObjects.status().value(), 0xC000_00BB);
}

#[test]
fn a_callback_object_shows_whom_it_calls() {
    struct Driver(u64);
    impl ProfileCallback for Driver {
        fn profile_interrupt(&self, _: &dyn InterruptFrame, _: KProfileSource) {}
        fn routine(&self) -> u64 {
            self.0
        }
    }
    static CALLBACK: Driver = Driver(0xFFFF_F800_0123_4560);
    let object = ProfileObject::callback(x64(Windows8), source(0x19), &CALLBACK).unwrap();
    let kprofile = object.to_kprofile();
    let context = core::ptr::from_ref(&CALLBACK).addr() as u64;
    assert_eq!(kprofile.role, Role::Callback { callback: 0xFFFF_F800_0123_4560, context });
    // A closure's is the code that it is.
    let closure = |_: &dyn InterruptFrame, _: KProfileSource| {};
    let object = ProfileObject::callback(x64(Windows8), source(0x19), &closure).unwrap();
    let Role::Callback { callback, .. } = object.to_kprofile().role else { panic!("a callback's") };
    assert_ne!(callback, 0);
    assert_eq!((kprofile.source, kprofile.process, kprofile.started), (source(0x19), 0, false));
    let mut bytes = [0; Layout::MAX_SIZE];
    kprofile.encode(Layout::X64_WIN8, &mut bytes).unwrap();
    assert_eq!(bytes[..2], [0x11, 0], "the type of callback objects, as the documents have it");
}

#[test]
fn an_object_shows_itself_as_its_windows_lays_it_out() {
    let rows = data!("kprofile_layouts.csv");
    for version in VERSIONS {
        for width in WIDTHS {
            let rules = Rules { version, width };
            let Some(layout) = Layout::of(Rules { version, width }) else { continue };
            let counters = buffer(1);
            let lists = leak(Lists::with_rules(rules));
            let asked = BasicProfile { process: process(0x80), size: 3, ..request(counters) };
            let mut machine = Machine::new(Affinity::first(3));
            let object = leak(ProfileObject::basic(rules, asked, &machine).unwrap());
            lists.start(object, &mut machine).unwrap();
            let mut kprofile = object.to_kprofile();
            // The host's address of the buffer may exceed the kernel's pointers.
            if let Role::Basic { buffer, .. } = &mut kprofile.role {
                assert_eq!(*buffer, counters.as_ptr() as u64);
                *buffer = 0x8000;
            }
            let mut bytes = [0xAA; Layout::MAX_SIZE];
            let size = kprofile.encode(layout, &mut bytes);
            let size = size.unwrap_or_else(|error| panic!("{rules:?}: {error}"));
            let member = |name| {
                let is_it = |row: &&pmu_tests::Row<'_>| {
                    row.text("layout") == format!("{layout:?}") && row.text("member") == name
                };
                let row = rows.iter().find(is_it)?;
                assert_eq!(row.number("total_size"), size as u64);
                let (at, size) = (row.number("offset") as usize, row.number("size") as usize);
                Some(bytes[at..at + size].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b)))
            };
            let kind = if version <= Nt351 { 0x0F } else { 0x17 };
            for (name, expected) in [
                ("Type", kind),
                ("Size", size as u64),
                ("Process", 0x80),
                ("RangeBase", 0x1000),
                ("RangeLimit", 0x1003),
                ("BucketShift", 0),
                ("Buffer", 0x8000),
                ("Segment", 0),
                ("Started", 1),
            ] {
                assert_eq!(member(name), Some(expected), "{rules:?} {name}");
            }
            assert_eq!(member("Source"), (version >= Nt351).then_some(0));
        }
    }
}

/// A profile of all processors, present and future, exports all that its Windows could have.
#[test]
fn a_profile_of_all_processors_ever_shows_those_that_its_windows_has_room_for() {
    for version in VERSIONS {
        for width in WIDTHS {
            let rules = Rules { version, width };
            let Some(layout) = Layout::of(Rules { version, width }) else { continue };
            let asked = BasicProfile { affinity: Some(Affinity::ALL), ..request(buffer(1)) };
            let object = create(rules, asked).unwrap();
            let mut kprofile = object.to_kprofile();
            if let Role::Basic { buffer, .. } = &mut kprofile.role {
                *buffer = 0x8000;
            }
            // KAFFINITY has a pointer's bits; KAFFINITY_EX 4 of them in Windows 7, then 20, then 32.
            let expected = match (width, version) {
                (_, Nt310 | Nt350) => Affinity::EMPTY,
                (PointerWidth::Bits32, _) => Affinity::first(32),
                (PointerWidth::Bits64, _) if version < Windows7 => Affinity::first(64),
                (PointerWidth::Bits64, Windows7) => Affinity::first(4 * 64),
                (PointerWidth::Bits64, _) if version >= Windows11 => Affinity::ALL,
                (PointerWidth::Bits64, _) => Affinity::first(20 * 64),
            };
            let mut bytes = [0; Layout::MAX_SIZE];
            kprofile
                .encode(layout, &mut bytes)
                .unwrap_or_else(|error| panic!("{rules:?}: {error}"));
            let shown = KProfile::decode(layout, &bytes).unwrap().affinity;
            assert_eq!(shown, expected, "{rules:?}");
        }
    }
}

/// Earlier HALs had no profile source but time.
#[test]
fn counter_sources_exist_from_the_version_that_brought_their_interface_in_each_width() {
    use HalInterface::*;
    for version in VERSIONS {
        for width in WIDTHS {
            for interface in [Default, Emon, Amd64] {
                let since = match (interface, width) {
                    (Default, _) => None,
                    (_, PointerWidth::Bits32) => Some(Windows8),
                    (Amd64, PointerWidth::Bits64) => Some(Server2003Sp1),
                    (Emon, PointerWidth::Bits64) => Some(Vista),
                };
                let expected = since.is_some_and(|since| since <= version);
                let rules = Rules { version, width };
                assert_eq!(version.has_counters(interface, width), expected, "{rules:?}");

                let (on, none) = (processor(0, 1), AddedSources::none());
                let mut machine = Machine { unsupported: Some(source(0x77)), ..machine() };
                for in_interrupt in [true, false] {
                    machine.in_interrupt = in_interrupt;
                    let hardware = AsOfVersion::new(&mut machine, interface, rules, none);
                    assert_eq!(hardware.in_interrupt(), in_interrupt);
                }
                let mut hardware = AsOfVersion::new(&mut machine, interface, rules, none);
                assert_eq!(hardware.supports(source(0x19)), expected);
                assert!(hardware.supports(TIME) && !hardware.supports(source(0x77)));
                // The hardware supports the value, but the kernel did not add it.
                assert!(!hardware.supports(source(0x7777)));
                let absent = Err(InterfaceError::UnsupportedSource(source(0x7777)));
                assert_eq!(hardware.start(on, source(0x7777)), absent);
                assert_eq!(hardware.this_processor(), processor(0, 0));
                assert_eq!(hardware.active_processors(), Affinity::first(70));
                hardware.start(on, TIME).unwrap();
                let started = hardware.start(on, source(0x19));
                let unsupported = InterfaceError::UnsupportedSource(source(0x19));
                assert_eq!(started, if expected { Ok(()) } else { Err(unsupported) });
                if expected {
                    hardware.stop(on, source(0x19)).unwrap();
                }
                hardware.stop(on, TIME).unwrap();
                assert_eq!(machine.running(), []);
            }
        }
    }
}
