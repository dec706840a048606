//! Context switches, from the group mask and the class of the PEBS index to the ring.

use pmu_kprofile::PointerWidth::Bits64;
use pmu_kprofile::Rules;
use pmu_kprofile::WindowsVersion::Windows8;
use pmu_kprofile::trace::{
    CONTEXT_SWITCH_HOOK, ContextSwitch, Extended, GroupMask, Hook, PERF_CONTEXT_SWITCH,
    PERF_PROFILE, SwitchRing, TraceCallback, TraceControl, TraceError, TraceObjects, TraceRing,
};
use pmu_tests::kprofile::tracing::Tracing;
use pmu_tests::kprofile::{VERSIONS, WIDTHS, processor};

/// Returns the switch from thread `number` to the next one.
fn switch(number: u32) -> ContextSwitch {
    ContextSwitch { old_thread: number, new_thread: number + 1, ..ContextSwitch::default() }
}

fn with_index(index: u64) -> Extended {
    Extended { pebs_index: Some(index), ..Extended::default() }
}

#[test]
fn switches_are_traced_while_the_group_mask_says_so_and_stamped_while_class_0x0b_does() {
    let mut tracing = Tracing::latest();
    let on = processor(0, 1);
    let (mask, other) = (PERF_CONTEXT_SWITCH, PERF_PROFILE);
    let plain = Extended::default();
    // Flags, hooks with the index, and the outcome of a switch: no record, or one with or without the index.
    let steps: [(&[u32], &[u16], Option<Extended>); 8] = [
        (&[], &[], None),
        (&[mask], &[], Some(plain.clone())),
        (&[mask], &[0x0524], Some(with_index(3))),
        (&[mask, other], &[0x0524], Some(with_index(4))),
        (&[other], &[0x0524], None),
        (&[], &[0x0524], None),
        (&[mask], &[0x0524], Some(with_index(7))),
        (&[mask], &[], Some(plain)),
    ];
    for (number, (flags, hooks, expected)) in (1u32..).zip(steps) {
        tracing.flags(flags).unwrap();
        tracing.control.set_pebs_hooks(hooks).unwrap();
        assert_eq!(tracing.switches.is_traced(), expected.is_some());
        tracing.switches.record(on, 100, with_index(number.into()), switch(number));
        let expected: Vec<_> = expected.into_iter().map(|e| (100, e, switch(number))).collect();
        assert_eq!(tracing.drain_switches(1), expected, "step {number}");
        assert_eq!(tracing.drain_switches(0), []);
    }
    assert_eq!((tracing.running(), tracing.switches.dropped()), (vec![], 0));
}

/// The records have the maximum number of counter values.
#[test]
fn switches_have_the_values_of_counters() {
    let mut tracing = Tracing::latest();
    tracing.flags(&[PERF_CONTEXT_SWITCH]).unwrap();
    tracing.control.set_pebs_hooks(&[CONTEXT_SWITCH_HOOK]).unwrap();
    for count in 0..=7 {
        let extended = Extended { pmc_values: (0..count).collect(), ..with_index(9) };
        tracing.switches.record(processor(0, 0), 1, extended.clone(), switch(5));
        assert_eq!(tracing.drain_switches(0), [(1, extended, switch(5))]);
    }
}

/// A header of 16 bytes, an index, 7 values, and 24 bytes.
#[test]
fn a_ring_of_switches_has_the_memory_of_records_of_13_words() {
    assert_eq!(size_of::<SwitchRing<8>>(), size_of::<TraceRing<8, 13>>());
}

#[test]
fn hooks_that_cannot_have_the_index_change_nothing() {
    let mut tracing = Tracing::latest();
    tracing.flags(&[PERF_CONTEXT_SWITCH]).unwrap();
    for stamped in [&[][..], &[0x0524]] {
        tracing.control.set_pebs_hooks(stamped).unwrap();
        for hooks in [&[0x0F2E][..], &[0x0F2F], &[0x0524, 0x0524], &[0x0524, 0x0F2E], &[0]] {
            assert_eq!(tracing.control.set_pebs_hooks(hooks), Err(TraceError::PebsHook));
        }
        tracing.switches.record(processor(0, 0), 1, with_index(5), switch(0));
        let (_, extended, _) = tracing.drain_switches(0).remove(0);
        assert_eq!(extended.pebs_index.is_some(), !stamped.is_empty());
    }
    assert_eq!(TraceError::PebsHook.status().map(|status| status.value()), Some(0xC000_000D));
}

/// The control area, which holds the index, dates from version 6.2.
#[test]
fn the_index_is_windows_8_s_and_later() {
    for version in VERSIONS {
        for width in WIDTHS {
            let mut tracing = Tracing::new(Rules { version, width }, width);
            let allowed = if version >= Windows8 { Ok(()) } else { Err(TraceError::NoPebsIndex) };
            assert_eq!(tracing.control.set_pebs_hooks(&[0x0524]), allowed, "{version:?}");
            tracing.flags(&[PERF_CONTEXT_SWITCH]).unwrap();
            tracing.switches.record(processor(0, 0), 1, with_index(5), switch(0));
            let (_, extended, _) = tracing.drain_switches(0).remove(0);
            assert_eq!(extended.pebs_index.is_some(), version >= Windows8);
        }
    }
    assert_eq!(TraceError::NoPebsIndex.status().map(|status| status.value()), Some(0xC000_00BB));
}

#[test]
fn switches_without_room_and_those_of_processors_without_a_ring_are_counted_as_dropped() {
    let mut tracing = Tracing::latest();
    for _ in 0..5 {
        tracing.switches.record(processor(0, 2), 1, Extended::default(), switch(0));
    }
    assert_eq!(tracing.switches.dropped(), 0, "nothing is lost that is not traced");
    tracing.flags(&[PERF_CONTEXT_SWITCH]).unwrap();
    for number in 0..5 {
        tracing.switches.record(processor(0, 0), 1, Extended::default(), switch(number));
    }
    assert_eq!(tracing.switches.dropped(), 2);
    tracing.switches.record(processor(0, 2), 1, Extended::default(), switch(0));
    assert_eq!((tracing.switches.dropped(), tracing.drain_switches(0).len()), (3, 3));
}

/// A kernel that traces only profile interrupts.
#[test]
fn without_switches_the_flag_is_kept_and_no_hook_can_have_the_index() {
    static RINGS: [TraceRing<1>; 1] = [const { TraceRing::new() }; 1];
    static SAMPLED: TraceCallback<1> = TraceCallback::new(Hook::SampledProfile, Bits64, &RINGS);
    static OBJECTS: TraceObjects = TraceObjects::new(Rules::LATEST, &SAMPLED, &SAMPLED);
    let mut tracing = Tracing::latest();
    let mut control = TraceControl::new(tracing.lists, &OBJECTS);
    let mask = GroupMask::EMPTY.with(PERF_CONTEXT_SWITCH);
    control.set_group_mask(mask, &mut tracing.machine).unwrap();
    assert_eq!(control.group_mask(), mask);
    assert_eq!(control.set_pebs_hooks(&[]), Ok(()));
    assert_eq!(control.set_pebs_hooks(&[0x0524]), Err(TraceError::PebsHook));
}

/// A flag that cannot be traced must not affect the tracing of switches.
#[test]
fn a_mask_that_cannot_be_set_leaves_switches_as_they_were() {
    let mut tracing = Tracing::latest();
    tracing.flags(&[PERF_CONTEXT_SWITCH]).unwrap();
    tracing.machine.counterless = Some(pmu_core::profile::KProfileSource::TIME);
    assert!(tracing.flags(&[PERF_PROFILE]).is_err());
    assert!(tracing.switches.is_traced());
    tracing.flags(&[]).unwrap();
    assert!(tracing.flags(&[PERF_CONTEXT_SWITCH, PERF_PROFILE]).is_err());
    assert!(!tracing.switches.is_traced());
}
