//! The effect of an interrupt on a started object, version by version.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

use pmu_core::frame::InterruptFrame;
use pmu_core::profile::KProfileSource;
use pmu_kprofile::CreateError::{self, EmptyBuffer};
use pmu_kprofile::WindowsVersion::{self, *};
use pmu_kprofile::{
    Affinity, BasicProfile, DispatchOutcome, ProfileCallback, ProfileObject, Profiles, Rules,
    Statistics,
};
use pmu_tests::kprofile::{
    Frame, Machine, VERSIONS, WIDTHS, buffer, counts, leak, process, processor, request, source,
    x64, x86,
};

type Lists = Profiles<8, 70>;
const TIME: KProfileSource = KProfileSource::TIME;
const HIT: DispatchOutcome = DispatchOutcome { hits: 1, outside: 0 };
const PASSED: DispatchOutcome = DispatchOutcome { hits: 0, outside: 0 };
const OUTSIDE: DispatchOutcome = DispatchOutcome { hits: 0, outside: 1 };

fn machine() -> Machine {
    Machine::new(Affinity::first(70))
}

fn create(rules: Rules, request: BasicProfile<'_>) -> Result<ProfileObject<'_>, CreateError> {
    ProfileObject::basic(rules, request, &machine())
}

/// Returns lists on which one basic object is started.
fn started(rules: Rules, request: BasicProfile<'static>) -> &'static Lists {
    let lists = leak(Lists::with_rules(rules));
    let object = create(rules, request).unwrap_or_else(|error| panic!("{rules:?}: {error}"));
    lists.start(leak(object), &mut machine()).unwrap();
    lists
}

/// Version 6.2 made the end of the range inclusive by mistake; 1809 corrected it.
fn end_is_inclusive(version: WindowsVersion) -> bool {
    (Windows8..Windows10v1809).contains(&version)
}

/// A callback that records its arguments.
struct Log(Mutex<Vec<(u64, u32)>>);

impl ProfileCallback for Log {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, source: KProfileSource) {
        self.0.lock().unwrap().push((frame.pc(), source.value()));
    }
}

#[test]
fn a_profile_acts_on_its_source_its_processors_and_its_range_alone() {
    let counters = buffer(4);
    let affinity = [processor(0, 1), processor(0, 63), processor(1, 5)].into_iter().collect();
    let lists = started(
        Rules::LATEST,
        BasicProfile { source: source(0x19), affinity: Some(affinity), ..request(counters) },
    );
    let on = |group, number| Frame { processor: processor(group, number), ..Frame::at(0x1008) };
    for (frame, from, expected) in [
        (on(0, 1), 0x19, HIT),
        (on(0, 63), 0x19, HIT),
        (on(1, 5), 0x19, HIT),
        (on(0, 5), 0x19, PASSED),
        (on(1, 1), 0x19, PASSED),
        (on(0, 0), 0x19, PASSED),
        (on(1, 63), 0x19, PASSED),
        (on(0, 65), 0x19, PASSED),
        (on(0, 1), 0x1A, PASSED),
        (on(0, 1), 0x00, PASSED),
        (Frame { pc: 0xFFF, ..on(0, 1) }, 0x19, PASSED),
        (Frame { pc: 0x1000, ..on(0, 1) }, 0x19, HIT),
        (Frame { pc: 0x100F, ..on(0, 1) }, 0x19, HIT),
        (Frame { pc: 0x1010, ..on(0, 1) }, 0x19, PASSED),
        (Frame { process: process(3), ..on(0, 1) }, 0x19, HIT),
        (Frame { cs: 0x33, flags: u64::MAX, ..on(0, 1) }, 0x19, HIT),
    ] {
        assert_eq!(lists.interrupt(&frame, source(from)), expected, "{frame:x?} {from:#X}");
    }
    assert_eq!(lists.timer_interrupt(&on(0, 1)), PASSED);
    assert_eq!(counts(counters), [1, 0, 5, 1]);
}

#[test]
fn an_interrupt_without_a_source_is_the_timer_s() {
    let (time, cycles) = (buffer(1), buffer(1));
    let lists = started(Rules::LATEST, request(time));
    let other = BasicProfile { source: source(0x13), ..request(cycles) };
    lists.start(leak(create(Rules::LATEST, other).unwrap()), &mut machine()).unwrap();
    assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)), HIT);
    assert_eq!(lists.interrupt(&Frame::at(0x1000), TIME), HIT);
    assert_eq!(lists.interrupt(&Frame::at(0x1000), source(0x13)), HIT);
    assert_eq!((counts(time), counts(cycles)), (vec![2], vec![1]));
}

#[test]
fn before_3_51_neither_source_nor_processor_is_a_condition() {
    for version in VERSIONS {
        let asked = BasicProfile {
            source: source(0x19),
            affinity: Some(Affinity::of(processor(0, 1))),
            ..request(buffer(1))
        };
        let lists = started(x86(version), asked);
        let expected = if version < Nt351 { HIT } else { PASSED };
        let other = Frame { processor: processor(0, 2), ..Frame::at(0x1000) };
        let own = Frame { processor: processor(0, 1), ..other };
        assert_eq!(lists.interrupt(&other, source(0x19)), expected, "{version:?}");
        assert_eq!(lists.interrupt(&own, source(0x1A)), expected, "{version:?}");
        assert_eq!(lists.timer_interrupt(&own), expected, "{version:?}");
        assert_eq!(lists.interrupt(&own, source(0x19)), HIT, "{version:?}");
        assert_eq!(lists.interrupt(&Frame::at(0x1004), source(0x19)).hits, 0);
    }
}

/// A profile of a process counts only that process, at any address; a global one counts all.
#[test]
fn a_process_s_list_is_for_its_interrupts_and_the_global_list_for_all() {
    let (of_3, of_4, global) = (buffer(1), buffer(1), buffer(1));
    let lists = started(Rules::LATEST, BasicProfile { process: process(3), ..request(of_3) });
    for (owner, counters) in [(process(4), of_4), (None, global)] {
        let asked = BasicProfile { process: owner, ..request(counters) };
        lists.start(leak(create(Rules::LATEST, asked).unwrap()), &mut machine()).unwrap();
    }
    for (interrupted, hits) in [(process(3), 2), (process(4), 2), (process(5), 1), (None, 1)] {
        let frame = Frame { process: interrupted, ..Frame::at(0x1000) };
        assert_eq!(lists.timer_interrupt(&frame), DispatchOutcome { hits, outside: 0 });
    }
    assert_eq!([of_3, of_4, global].map(counts), [vec![1], vec![1], vec![4]]);
}

/// Records at each call which object was called, and the counts so far.
struct Witness(&'static [AtomicU32], u64, &'static Mutex<Vec<(u64, Vec<u32>)>>);

impl ProfileCallback for Witness {
    fn profile_interrupt(&self, _: &dyn InterruptFrame, _: KProfileSource) {
        self.2.lock().unwrap().push((self.1, counts(self.0)));
    }
}

#[test]
fn the_process_s_list_comes_before_the_global_one_and_callbacks_in_the_order_of_starting() {
    let counters = buffer(1);
    let lists = leak(Lists::new());
    let mut machine = machine();
    let log = leak(Mutex::default());
    let callbacks: Vec<&ProfileObject<'_>> = (0..4)
        .map(|number| leak(Witness(counters, number, log)))
        .map(|witness| leak(ProfileObject::callback(Rules::LATEST, TIME, witness).unwrap()))
        .collect();
    let asked = BasicProfile { process: process(3), ..request(counters) };
    let of_process = leak(create(Rules::LATEST, asked).unwrap());
    for object in [callbacks[2], callbacks[0], of_process, callbacks[3], callbacks[1]] {
        lists.start(object, &mut machine).unwrap();
    }
    lists.stop(callbacks[0], &mut machine).unwrap();
    lists.start(callbacks[0], &mut machine).unwrap();
    let frame = Frame { process: process(3), ..Frame::at(0x1000) };
    assert_eq!(lists.timer_interrupt(&frame).hits, 5);
    assert_eq!(*log.lock().unwrap(), [2, 3, 1, 0].map(|number| (number, vec![1])));
}

#[test]
fn a_callback_object_has_no_condition_but_its_source() {
    let log = leak(Log(Mutex::default()));
    let lists = leak(Lists::new());
    let object = leak(ProfileObject::callback(Rules::LATEST, source(0x1D), log).unwrap());
    lists.start(object, &mut machine()).unwrap();
    let frame = |pc, on, owner| Frame { process: owner, processor: on, ..Frame::at(pc) };
    let frames = [
        frame(0, processor(0, 0), None),
        frame(u64::MAX, processor(1, 5), process(9)),
        frame(0x1000, processor(0, 63), process(u64::MAX)),
    ];
    for frame in frames {
        assert_eq!(lists.interrupt(&frame, source(0x1D)), HIT);
        assert_eq!(lists.interrupt(&frame, source(0x1E)), PASSED);
        assert_eq!(lists.timer_interrupt(&frame), PASSED);
    }
    assert_eq!(*log.0.lock().unwrap(), frames.map(|frame| (frame.pc, 0x1D)));
}

/// A buffer between two counters that must not be touched.
struct Guarded(&'static [AtomicU32]);

impl Guarded {
    fn new(counters: usize) -> Self {
        Self(buffer(counters + 2))
    }

    fn counters(&self) -> &'static [AtomicU32] {
        &self.0[1..self.0.len() - 1]
    }

    #[track_caller]
    fn counts(&self) -> Vec<u32> {
        let all = counts(self.0);
        assert_eq!((all[0], all[all.len() - 1]), (0, 0), "written outside the buffer");
        counts(self.counters())
    }
}

#[test]
fn an_interrupt_at_the_inclusive_end_of_an_exact_fit_is_reported_and_nothing_is_written() {
    for version in VERSIONS {
        for width in WIDTHS {
            let guarded = Guarded::new(4);
            let lists = started(Rules { version, width }, request(guarded.counters()));
            let expected = if end_is_inclusive(version) { OUTSIDE } else { PASSED };
            assert_eq!(lists.timer_interrupt(&Frame::at(0x1010)), expected, "{version:?}");
            assert_eq!(lists.timer_interrupt(&Frame::at(0x1011)), PASSED, "{version:?}");
            assert_eq!(lists.timer_interrupt(&Frame::at(0x100F)), HIT);
            assert_eq!(guarded.counts(), [0, 0, 0, 1]);
            let outside = expected.outside.into();
            let statistics = Statistics { seen: 3, hit: 1, missed: 2, outside };
            assert_eq!(lists.statistics(), statistics);
        }
    }
}

#[test]
fn the_inclusive_end_counts_where_it_lies_in_a_partial_bucket_or_a_spare_counter() {
    for version in VERSIONS {
        let expected = if end_is_inclusive(version) { HIT } else { PASSED };
        for (size, counters, own) in [(0xE, 4, 3), (0x10, 5, 4)] {
            let guarded = Guarded::new(counters);
            let lists = started(x64(version), BasicProfile { size, ..request(guarded.counters()) });
            assert_eq!(lists.timer_interrupt(&Frame::at(0x1000 + size)), expected, "{version:?}");
            assert_eq!(lists.timer_interrupt(&Frame::at(0x1001 + size)), PASSED, "{version:?}");
            assert_eq!(guarded.counts()[own], expected.hits);
            assert_eq!(guarded.counts().iter().sum::<u32>(), expected.hits);
        }
    }
}

/// Covers every request that passes the check before version 1703.
#[test]
fn a_bucket_without_a_counter_is_reported_and_nothing_is_written() {
    for version in VERSIONS.into_iter().filter(|version| *version < Windows10v1703) {
        let guarded = Guarded::new(1);
        let asked = BasicProfile { size: 19, bucket_log2: 4, ..request(guarded.counters()) };
        let lists = started(x86(version), asked);
        for (pc, expected) in [(0xFFF, PASSED), (0x100F, HIT), (0x1010, OUTSIDE), (0x1012, OUTSIDE)]
        {
            assert_eq!(lists.timer_interrupt(&Frame::at(pc)), expected, "{version:?} {pc:#X}");
        }
        let end = if end_is_inclusive(version) { OUTSIDE } else { PASSED };
        assert_eq!(lists.timer_interrupt(&Frame::at(0x1013)), end, "{version:?}");
        assert_eq!(guarded.counts(), [1]);
        assert_eq!(lists.statistics().outside, 2 + u64::from(end.outside));
    }
}

/// Covers every range that every small buffer is accepted for, with each address of it and around it.
#[test]
fn whatever_is_accepted_counts_in_its_own_counter_or_is_reported() {
    for version in [Windows2000, Windows8, Windows10v1803, Windows10v2004] {
        for (bucket_log2, counters) in [(2, 1), (2, 3), (3, 1), (3, 2), (4, 1), (4, 3), (5, 2)] {
            for size in 0.. {
                let guarded = Guarded::new(counters);
                let request = request(guarded.counters());
                let asked = BasicProfile { size, bucket_log2, ..request };
                if create(x64(version), asked).is_err() {
                    assert!(size >= (counters as u64) << bucket_log2);
                    break;
                }
                let lists = started(x64(version), asked);
                let mut expected = vec![0; counters];
                for pc in 0xFFE..0x1002 + size {
                    let end = if end_is_inclusive(version) { size } else { size.wrapping_sub(1) };
                    let distance = pc.checked_sub(0x1000).filter(|at| *at <= end && end != !0);
                    let outcome = match distance.map(|at| at / 2u64.pow(bucket_log2)) {
                        None => PASSED,
                        Some(own) if own < counters as u64 => {
                            expected[own as usize] += 1;
                            HIT
                        }
                        Some(_) => OUTSIDE,
                    };
                    assert_eq!(lists.timer_interrupt(&Frame::at(pc)), outcome, "{pc:#X} {asked:?}");
                }
                assert_eq!(guarded.counts(), expected);
            }
        }
    }
}

#[test]
fn an_empty_range_matches_nothing_but_its_base_where_the_end_is_inclusive() {
    for version in VERSIONS {
        let guarded = Guarded::new(1);
        let lists = started(x64(version), BasicProfile { size: 0, ..request(guarded.counters()) });
        let expected = if end_is_inclusive(version) { HIT } else { PASSED };
        assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)), expected, "{version:?}");
        assert_eq!(lists.timer_interrupt(&Frame::at(0xFFF)), PASSED);
        assert_eq!(lists.timer_interrupt(&Frame::at(0x1001)), PASSED);
        assert_eq!(guarded.counts(), [expected.hits]);
    }
}

/// Before NT 4.0 SP4 nothing checked the buffer's size alone.
#[test]
fn an_empty_buffer_is_accepted_for_an_empty_range_before_sp4_and_never_written() {
    for version in VERSIONS {
        let asked = BasicProfile { size: 0, ..request(&[]) };
        if version >= Nt40Sp4 {
            assert_eq!(create(x86(version), asked).err(), Some(EmptyBuffer));
        } else {
            assert_eq!(started(x86(version), asked).timer_interrupt(&Frame::at(0x1000)), PASSED);
        }
    }
}

#[test]
fn a_segment_s_profile_counts_virtual_8086_execution_in_that_segment_alone() {
    const V86: u64 = 1 << 17;
    for version in VERSIONS {
        let counters = buffer(8);
        let asked = BasicProfile {
            process: process(8),
            base: 0x1234,
            size: 32,
            bucket_log2: 0,
            ..request(counters)
        };
        let lists = started(x86(version), asked);
        let frame = Frame { cs: 0x1234, flags: V86, process: process(8), ..Frame::at(9) };
        for (frame, expected) in [
            (frame, HIT),
            (Frame { flags: V86 | 0x246, ..frame }, HIT),
            (Frame { flags: !V86, ..frame }, PASSED),
            (Frame { cs: 0x1235, ..frame }, PASSED),
            (Frame { cs: 0, ..frame }, PASSED),
            (Frame { pc: 33, ..frame }, PASSED),
            (Frame { pc: 0x1_2349, ..frame }, PASSED),
            (Frame { process: process(9), ..frame }, PASSED),
            (Frame { pc: 31, ..frame }, HIT),
            (Frame { pc: 0, ..frame }, HIT),
        ] {
            assert_eq!(lists.timer_interrupt(&frame), expected, "{version:?} {frame:x?}");
        }
        assert_eq!(counts(counters), [1, 0, 2, 0, 0, 0, 0, 1]);
    }
}

#[test]
fn without_a_segment_code_segment_and_flags_are_no_condition() {
    let counters = buffer(4);
    let lists =
        started(x86(Windows2000), BasicProfile { base: 0, bucket_log2: 0, ..request(counters) });
    for (cs, flags) in [(0, 0), (0x1B, 0x246), (0x1234, 1 << 17)] {
        assert_eq!(lists.timer_interrupt(&Frame { cs, flags, ..Frame::at(5) }), HIT);
    }
    assert_eq!(counts(counters), [0, 3, 0, 0]);
}

#[test]
fn a_counter_is_added_to_modulo_2_to_the_32_and_never_cleared() {
    let counters = buffer(2);
    counters[0].store(u32::MAX, Ordering::Relaxed);
    counters[1].store(41, Ordering::Relaxed);
    let lists = started(Rules::LATEST, request(counters));
    assert_eq!(lists.timer_interrupt(&Frame::at(0x1000)), HIT);
    assert_eq!(lists.timer_interrupt(&Frame::at(0x1004)), HIT);
    assert_eq!(counts(counters), [0, 42]);
}
