//! Starting and stopping tracing, and the requests that are refused.

use std::sync::Mutex;

use pmu_core::frame::InterruptFrame;
use pmu_core::profile::KProfileSource;
use pmu_kprofile::PointerWidth::{Bits32, Bits64};
use pmu_kprofile::WindowsVersion::{Windows8, WindowsXp};
use pmu_kprofile::trace::{
    EVENT_TRACE_FLAG_PROFILE, GroupMask, MAX_PMC_SOURCES, PERF_CONTEXT_SWITCH, PERF_PMC_PROFILE,
    PERF_PROFILE, TraceError,
};
use pmu_kprofile::{ProfileCallback, ProfileError, ProfileObject, Rules};
use pmu_tests::kprofile::tracing::{SAMPLE, Tracing, frame, pmc, record_of};
use pmu_tests::kprofile::{FAULT, Nothing, REFUSAL, VERSIONS, WIDTHS, leak, processor, source};

const TIME: KProfileSource = KProfileSource::TIME;

#[test]
fn sampled_profile_goes_from_the_timer_interrupt_through_the_ring_to_a_record() {
    for width in [Bits32, Bits64] {
        for mask in [
            GroupMask::EMPTY.with(PERF_PROFILE),
            GroupMask::from_enable_flags(EVENT_TRACE_FLAG_PROFILE),
        ] {
            let mut tracing = Tracing::new(Rules::LATEST, width);
            assert_eq!(tracing.lists.timer_interrupt(&frame(0, 0x10)).hits, 0);
            tracing.control.set_group_mask(mask, &mut tracing.machine).unwrap();
            assert_eq!(tracing.control.group_mask(), mask);
            assert_eq!(tracing.running(), [0]);
            let (plain, other) = (frame(0, 0x8000_1234), frame(1, 0x11));
            assert_eq!(tracing.lists.timer_interrupt(&plain).hits, 1);
            assert_eq!(tracing.lists.timer_interrupt(&other).hits, 1);
            assert_eq!(tracing.lists.interrupt(&plain, source(0x19)).hits, 0);
            assert_eq!(tracing.drain(0), [record_of(plain, width, SAMPLE)]);
            assert_eq!(tracing.drain(1), [record_of(other, width, SAMPLE)]);
            assert_eq!(tracing.drain(0), []);

            tracing.flags(&[]).unwrap();
            assert_eq!(tracing.running(), []);
            assert_eq!(tracing.lists.timer_interrupt(&plain).hits, 0);
            assert_eq!(tracing.drain(0), []);
            assert_eq!((tracing.sampled.dropped(), tracing.lists.started()), (0, 0));
        }
    }
}

#[test]
fn up_to_four_sources_of_pmc_interrupts_are_traced_each_with_its_source() {
    assert_eq!(MAX_PMC_SOURCES, 4);
    for count in 1..=4 {
        let mut tracing = Tracing::latest();
        let sources = &[0x7FFF, 0x19, 0x02, 0x1D][..count];
        tracing.sources(sources).unwrap();
        assert_eq!((tracing.configured(), tracing.running()), (sources.to_vec(), vec![]));
        tracing.flags(&[PERF_PMC_PROFILE]).unwrap();
        let mut running = sources.to_vec();
        running.sort_unstable();
        assert_eq!(tracing.running(), running);
        for from in [0x7FFF, 0x19, 0x02, 0x1D, 0x00, 0x1E] {
            let hits = tracing.lists.interrupt(&frame(1, 0x20), source(from)).hits;
            assert_eq!(hits, u32::from(sources.contains(&from)), "{from:#X}");
            let expected = record_of(frame(1, 0x20), Bits64, pmc(from));
            assert_eq!(tracing.drain(1), vec![expected; hits as usize]);
        }
        tracing.flags(&[]).unwrap();
        assert_eq!((tracing.running(), tracing.lists.started()), (vec![], 0));
        assert_eq!(tracing.lists.interrupt(&frame(1, 0x20), source(0x7FFF)).hits, 0);
    }
}

#[test]
fn flags_start_and_stop_what_changes_and_nothing_else() {
    let mut tracing = Tracing::latest();
    tracing.sources(&[0x19, 0x1A]).unwrap();
    let other = PERF_CONTEXT_SWITCH;
    let steps: [(&[u32], &[u32], usize); 9] = [
        (&[PERF_PROFILE], &[0], 3),
        (&[PERF_PROFILE], &[0], 0),
        (&[PERF_PROFILE, other], &[0], 0),
        (&[PERF_PROFILE, PERF_PMC_PROFILE], &[0, 0x19, 0x1A], 6),
        (&[PERF_PMC_PROFILE], &[0x19, 0x1A], 3),
        (&[PERF_PROFILE], &[0], 9),
        (&[PERF_PMC_PROFILE], &[0x19, 0x1A], 9),
        (&[other], &[], 6),
        (&[], &[], 0),
    ];
    for (number, (flags, running, changes)) in steps.into_iter().enumerate() {
        let before = tracing.machine.changes;
        tracing.flags(flags).unwrap();
        assert_eq!(tracing.running(), running, "step {number}");
        assert_eq!(tracing.machine.changes - before, changes, "step {number}");
        let mask = tracing.control.group_mask();
        let bits: u32 = mask.masks.iter().map(|word| word.count_ones()).sum();
        assert_eq!(bits as usize, flags.len());
        assert!(flags.iter().all(|flag| mask.contains(*flag)));
    }
}

#[test]
fn a_configuration_replaces_the_one_before() {
    let mut tracing = Tracing::latest();
    tracing.sources(&[0x19, 0x1A, 0x1B]).unwrap();
    tracing.sources(&[0x1C]).unwrap();
    assert_eq!(tracing.configured(), [0x1C]);
    tracing.flags(&[PERF_PMC_PROFILE]).unwrap();
    assert_eq!(tracing.running(), [0x1C]);
    tracing.flags(&[]).unwrap();
    tracing.sources(&[0x1A, 0x19]).unwrap();
    tracing.flags(&[PERF_PMC_PROFILE]).unwrap();
    assert_eq!(tracing.running(), [0x19, 0x1A]);
}

#[test]
fn sources_that_cannot_be_configured_change_nothing() {
    let mut tracing = Tracing::latest();
    tracing.machine.unsupported = Some(source(0x77));
    let unsupported = |value| TraceError::UnsupportedSource(source(value));
    let parameter = Some(0xC000_000D);
    let not_supported = Some(0xC000_00BB);
    tracing.sources(&[0x19]).unwrap();
    let cases: [(&[u32], TraceError, Option<u32>); 9] = [
        (&[], TraceError::NoSource, parameter),
        (&[1, 2, 3, 4, 5], TraceError::TooManySources(5), parameter),
        (&[0x1A, 0x1B, 0x1A], TraceError::DuplicateSource(source(0x1A)), parameter),
        (&[0x1A, 0x77], unsupported(0x77), not_supported),
        (&[0], unsupported(0), not_supported),
        (&[0x1A, 0], unsupported(0), not_supported),
        (&[0x8000], unsupported(0x8000), not_supported),
        (&[0xFFFF], unsupported(0xFFFF), not_supported),
        (&[u32::MAX], unsupported(u32::MAX), not_supported),
    ];
    for (sources, error, status) in cases {
        assert_eq!(tracing.sources(sources), Err(error));
        assert_eq!(error.status().map(|status| status.value()), status);
        assert_eq!(tracing.configured(), [0x19]);
    }
    tracing.flags(&[PERF_PMC_PROFILE]).unwrap();
    for sources in [&[0x1A][..], &[0x19], &[]] {
        assert_eq!(tracing.sources(sources), Err(TraceError::Busy));
    }
    assert_eq!(TraceError::Busy.status(), None);
    assert_eq!((tracing.configured(), tracing.running()), (vec![0x19], vec![0x19]));
}

#[test]
fn pmc_interrupts_without_sources_are_not_traced() {
    let mut tracing = Tracing::latest();
    let both = [PERF_PROFILE, PERF_PMC_PROFILE];
    assert_eq!(tracing.flags(&both), Err(TraceError::NotConfigured));
    assert_eq!((tracing.running(), tracing.lists.started()), (vec![], 0));
    assert_eq!(tracing.control.group_mask(), GroupMask::EMPTY);
}

/// Windows XP began to trace the sampled profile; PMC interrupts, and the use of profile objects for all of it, came
/// with Windows 8.
#[test]
fn sampled_profiles_are_traced_from_windows_xp_on_and_pmc_interrupts_from_windows_8() {
    for version in VERSIONS {
        for width in WIDTHS {
            let rules = Rules { version, width };
            let mut tracing = Tracing::new(rules, width);
            let nothing = |tracing: &Tracing| {
                assert_eq!((tracing.running(), tracing.lists.started()), (vec![], 0), "{rules:?}");
                assert_eq!(tracing.control.group_mask(), GroupMask::EMPTY);
            };
            let refused = |flag| Err(TraceError::NotTraced(flag));
            assert_eq!(TraceError::NotTraced(PERF_PROFILE).status().unwrap().value(), 0xC000_00BB);

            // A version that cannot trace PMC interrupts cannot configure them.
            let allowed = if version >= Windows8 { Ok(()) } else { refused(PERF_PMC_PROFILE) };
            assert_eq!(tracing.sources(&[0x19]), allowed, "{rules:?}");
            assert_eq!(tracing.flags(&[PERF_PMC_PROFILE]), allowed, "{rules:?}");
            assert_eq!(tracing.configured().len(), usize::from(allowed.is_ok()));
            if allowed.is_ok() {
                assert_eq!(tracing.lists.interrupt(&frame(1, 0x20), source(0x19)).hits, 1);
                assert_eq!(tracing.drain(1), [record_of(frame(1, 0x20), width, pmc(0x19))]);
                tracing.flags(&[]).unwrap();
            }
            nothing(&tracing);

            let sampled = if version >= WindowsXp { Ok(()) } else { refused(PERF_PROFILE) };
            assert_eq!(tracing.flags(&[PERF_PROFILE]), sampled, "{rules:?}");
            if sampled.is_ok() {
                assert_eq!(tracing.running(), [0]);
                assert_eq!(tracing.lists.timer_interrupt(&frame(0, 0x10)).hits, 1);
                assert_eq!(tracing.drain(0), [record_of(frame(0, 0x10), width, SAMPLE)]);
                tracing.flags(&[]).unwrap();
            }
            nothing(&tracing);
            // The flags of other events are not this crate's to refuse.
            tracing.flags(&[PERF_CONTEXT_SWITCH]).unwrap();
        }
    }
}

#[test]
fn hardware_that_refuses_one_source_leaves_tracing_as_it_was() {
    let both = [PERF_PROFILE, PERF_PMC_PROFILE];
    for before in [&[][..], &[PERF_PROFILE]] {
        for refused in [0x19, 0x1A, 0x1B, 0x1C] {
            let mut tracing = Tracing::latest();
            tracing.sources(&[0x19, 0x1A, 0x1B, 0x1C]).unwrap();
            tracing.flags(before).unwrap();
            let (mask, running) = (tracing.control.group_mask(), tracing.running());
            tracing.machine.counterless = Some(source(refused));
            let refusal = ProfileError::Hardware { processor: processor(0, 0), error: REFUSAL };
            assert_eq!(tracing.flags(&both), Err(TraceError::Profile(refusal)));
            assert_eq!(TraceError::Profile(refusal).status(), refusal.status());
            assert_eq!((tracing.control.group_mask(), tracing.running()), (mask, running));
            assert_eq!(tracing.lists.started(), before.len());
            tracing.machine.counterless = None;
            tracing.flags(&both).unwrap();
            assert_eq!(tracing.running(), [0, 0x19, 0x1A, 0x1B, 0x1C]);
        }
    }
}

#[test]
fn an_undo_that_fails_too_is_told_as_the_fault_and_nothing_is_traced() {
    let mut tracing = Tracing::latest();
    tracing.sources(&[0x19]).unwrap();
    tracing.machine.counterless = Some(source(0x19));
    tracing.machine.stuck = Some(TIME);
    let fault = ProfileError::Hardware { processor: processor(0, 0), error: FAULT };
    let outcome = tracing.flags(&[PERF_PROFILE, PERF_PMC_PROFILE]);
    assert_eq!(outcome, Err(TraceError::Profile(fault)));
    assert_eq!((tracing.lists.started(), tracing.control.group_mask()), (0, GroupMask::EMPTY));
}

/// An object whose source does not stop is off its list nevertheless, and so are those after it.
#[test]
fn hardware_that_does_not_stop_is_told_and_nothing_is_traced_any_more() {
    for stuck in [0, 0x19, 0x1A] {
        let mut tracing = Tracing::latest();
        tracing.sources(&[0x19, 0x1A]).unwrap();
        tracing.flags(&[PERF_PROFILE, PERF_PMC_PROFILE]).unwrap();
        tracing.machine.stuck = Some(source(stuck));
        let fault = ProfileError::Hardware { processor: processor(0, 0), error: FAULT };
        assert_eq!(tracing.flags(&[]), Err(TraceError::Profile(fault)));
        assert_eq!((tracing.running(), tracing.lists.started()), (vec![stuck], 0));
        assert_eq!(tracing.control.group_mask(), GroupMask::EMPTY);
        assert_eq!(tracing.flags(&[]), Ok(()));
    }
}

#[test]
fn full_lists_leave_tracing_as_it_was() {
    let mut tracing = Tracing::latest();
    for from in [0x30, 0x31] {
        let object = ProfileObject::callback(Rules::LATEST, source(from), &Nothing).unwrap();
        tracing.lists.start(leak(object), &mut tracing.machine).unwrap();
    }
    tracing.sources(&[0x19, 0x1A, 0x1B, 0x1C]).unwrap();
    let full = Err(TraceError::Profile(ProfileError::AtLimit));
    assert_eq!(tracing.flags(&[PERF_PROFILE, PERF_PMC_PROFILE]), full);
    assert_eq!((tracing.running(), tracing.lists.started()), (vec![0x30, 0x31], 2));
    assert_eq!(tracing.control.group_mask(), GroupMask::EMPTY);
    tracing.flags(&[PERF_PMC_PROFILE]).unwrap();
    assert_eq!(tracing.lists.started(), 6);
}

/// A callback that sets the group mask of the tracing that it belongs to.
struct Meddler {
    tracing: Mutex<Tracing>,
    answers: Mutex<Vec<Result<(), TraceError>>>,
}

impl ProfileCallback for Meddler {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
        let mut tracing = self.tracing.lock().unwrap();
        tracing.machine.this = frame.processor();
        let answers = [tracing.flags(&[PERF_PROFILE, PERF_PMC_PROFILE]), tracing.flags(&[])];
        tracing.machine.this = processor(0, 2);
        self.answers.lock().unwrap().extend(answers);
    }
}

/// An interrupt may switch tracing neither on nor off; afterwards a task still can.
#[test]
fn a_change_from_an_interrupt_is_refused_and_changes_nothing() {
    let mut tracing = Tracing::latest();
    let lists = tracing.lists;
    tracing.sources(&[0x19]).unwrap();
    tracing.flags(&[PERF_PROFILE]).unwrap();
    let meddler: &Meddler =
        leak(Meddler { tracing: Mutex::new(tracing), answers: Mutex::default() });
    let object = leak(ProfileObject::callback(Rules::LATEST, source(0x30), meddler).unwrap());
    lists.start(object, &mut meddler.tracing.lock().unwrap().machine).unwrap();
    assert_eq!(lists.interrupt(&frame(0, 0x10), source(0x30)).hits, 1);
    let refused = Err(TraceError::Profile(ProfileError::WrongContext));
    assert_eq!(*meddler.answers.lock().unwrap(), [refused; 2]);
    let mut tracing = meddler.tracing.lock().unwrap();
    assert_eq!(tracing.running(), [0, 0x30]);
    assert_eq!(tracing.control.group_mask(), GroupMask::EMPTY.with(PERF_PROFILE));
    tracing.flags(&[]).unwrap();
    assert_eq!(tracing.running(), [0x30]);
}
