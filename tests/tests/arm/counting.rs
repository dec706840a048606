//! `Pmu` on the model: counts, samples, profiles, threads, suspends and windows.

use core::sync::atomic::AtomicU32;

use pmu::core::profile::KProfileSource;
use pmu::core::registers::EventSelect;
use pmu::{Event, GenericEvent};
use pmu_arm::frame;
use pmu_tests::arm::identify;

use crate::world::{
    BR_RETIRED, INST_RETIRED, PLACE, PROCESSORS, accesses, execute, execute_masked, machine, model,
    on, on_each, running, samples, shut_down,
};

fn of(event: u64) -> Event {
    Event::raw(EventSelect::from_bits(event))
}

/// After a reset, the registers hold what harms most.
#[test]
fn counters_that_a_reset_left_running_are_taken_and_left_at_rest() {
    on_each(|is_long, level| {
        let pmu = machine(is_long, level);
        let taken = pmu.processor_up(&identify(model())).unwrap();
        assert_eq!(taken.bits(), 1 << 32 | 0b11_1111);
        execute(level, 1 << 33);
        assert_eq!(samples(), 0);
        on(1, || pmu.processor_up(&identify(model())).unwrap());
        shut_down(pmu);
    });
}

/// Counts of 32 bits go on after a wrap.
#[test]
fn counts_are_exact_across_wraps_and_by_privilege() {
    on_each(|is_long, level| {
        let pmu = running(is_long, level);
        let work = 3_000_000_000;
        let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
        let counted = pmu.count(&events, || execute(level, work)).unwrap();
        assert_eq!(counted.map(|count| count.value), [4 * work, 10 * work]);
        let events = [
            of(BR_RETIRED).user_only(),
            of(BR_RETIRED).kernel_only(),
            of(BR_RETIRED),
            Event::generic(GenericEvent::Cycles).kernel_only(),
            Event::generic(GenericEvent::Cycles).user_only(),
            of(INST_RETIRED),
            of(INST_RETIRED).user_only(),
        ];
        let counted = pmu.count(&events, || {
            execute(0, 700);
            execute(level, 50);
            if level == 1 {
                execute(2, 7); // a hypervisor's, which a kernel at EL1 does not count
            }
        });
        let values = counted.unwrap().map(|count| count.value);
        assert_eq!(values, [700, 50, 750, 500, 7_000, 3_000, 2_800]);
        assert!(pmu.count(&[of(BR_RETIRED); 7], || unreachable!()).is_err());
        shut_down(pmu);
    });
}

#[test]
fn each_period_has_a_sample_and_a_suspend_loses_none() {
    on_each(|is_long, level| {
        let pmu = running(is_long, level);
        let event =
            pmu.start(&Event::generic(GenericEvent::Branches).every(10_000).with_total()).unwrap();
        let cycles = pmu.start(&Event::generic(GenericEvent::Cycles).every(300_000)).unwrap();
        execute(0, 123_456);
        assert_eq!(samples(), 12 + 4);
        assert_eq!(pmu.read(event).unwrap().value, 123_456);
        pmu.processor_suspended().unwrap();
        model().reset();
        pmu.processor_resumed().unwrap();
        execute(level, 6_544);
        assert_eq!(samples(), 1);
        assert_eq!(pmu.read(event).unwrap().value, 130_000);
        for event in [event, cycles] {
            pmu.disable(event).unwrap();
            execute(0, 1_000_000);
            assert_eq!(samples(), if event == cycles { 0 } else { 33 });
            pmu.close(event).unwrap();
        }
        shut_down(pmu);
    });
}

/// The status is read and cleared, and each counter that overflowed is loaded. With a total, it is read before.
#[test]
fn an_interrupt_takes_few_accesses() {
    on_each(|is_long, level| {
        let pmu = running(is_long, level);
        let accesses = || {
            let before = accesses();
            execute(0, 10_000);
            (accesses() - before, samples())
        };
        let event = Event::generic(GenericEvent::Branches).every(10_000);
        let first = pmu.start(&event).unwrap();
        assert_eq!(accesses(), (3, 1));
        let second = pmu.start(&event.with_total()).unwrap();
        assert_eq!(accesses(), (3 + 2, 2));
        for event in [first, second] {
            pmu.close(event).unwrap();
        }
        shut_down(pmu);
    });
}

/// An overflow after bit 31, by which a counter of 64 bits would be sampled too early.
#[test]
fn a_period_may_be_longer_than_32_bits() {
    on_each(|is_long, level| {
        let pmu = running(is_long, level);
        let period = 5_000_000_000;
        for event in [GenericEvent::Branches, GenericEvent::Cycles] {
            let is_cycles = event == GenericEvent::Cycles;
            let event = pmu.start(&Event::generic(event).every(period)).unwrap();
            execute(level, 999_999_999);
            assert_eq!(samples(), if is_cycles { 1 } else { 0 });
            execute(0, period);
            assert_eq!(samples(), if is_cycles { 10 } else { 1 });
            pmu.close(event).unwrap();
        }
        shut_down(pmu);
    });
}

/// FEAT_PMUv3p7's freezing, which a reset may leave on.
#[test]
fn an_overflow_that_waits_stops_no_other_counter() {
    on_each(|is_long, level| {
        let pmu = running(is_long, level);
        let sampling = pmu.start(&Event::generic(GenericEvent::Branches).every(10_000)).unwrap();
        let counting = pmu.start(&Event::generic(GenericEvent::Instructions)).unwrap();
        execute_masked(0, 15_000);
        execute_masked(0, 1_000);
        execute(0, 0);
        assert_eq!((samples(), pmu.read(counting).unwrap().value), (1, 64_000));
        for event in [sampling, counting] {
            pmu.close(event).unwrap();
        }
        shut_down(pmu);
    });
}

/// By an event, and by a source of the table, on both processors.
#[test]
fn a_profile_has_the_periods_of_both_processors() {
    on_each(|is_long, level| {
        let pmu = running(is_long, level);
        let buckets = [const { AtomicU32::new(0) }; 16];
        let both =
            || (0..PROCESSORS).for_each(|processor| on(processor, || execute(level, 26_000)));
        let cycles = Event::generic(GenericEvent::Cycles).every(50_000);
        let profile = pmu.profile(cycles, PLACE..PLACE + 64, &buckets, both).unwrap();
        assert_eq!(profile.hits().map(|(_, hits)| hits).sum::<u32>(), 2 * 5);
        let source = KProfileSource::BRANCH_INSTRUCTIONS;
        let buckets = [const { AtomicU32::new(0) }; 16];
        let profile =
            pmu.profile(source, PLACE..PLACE + 64, &buckets, || on(1, || execute(0, 655_360)));
        // The interval is 0x1_0000 branches.
        assert_eq!(profile.unwrap().hits().map(|(_, hits)| hits).sum::<u32>(), 10);
        shut_down(pmu);
    });
}

#[test]
fn a_threads_events_go_with_it_to_another_processor() {
    on_each(|is_long, level| {
        let pmu = running(is_long, level);
        let mut events = [GenericEvent::Instructions, GenericEvent::Cycles]
            .map(|event| pmu.thread_event(&Event::generic(event)).unwrap());
        for (processor, work) in [(0, 100), (1, 1 << 32), (0, 3)] {
            on(processor, || {
                pmu.switch(&mut [], &mut events).unwrap();
                execute(0, work);
                pmu.switch(&mut events, &mut []).unwrap();
                execute(0, 1_000); // another thread's
            });
        }
        let read = |place: usize| pmu.read_thread(&events[place]).unwrap().value;
        let all = (1 << 32) + 103;
        assert_eq!([read(0), read(1)], [4 * all, 10 * all]);
        shut_down(pmu);
    });
}

#[test]
fn what_happens_while_the_counters_are_lent_is_not_counted() {
    on_each(|is_long, level| {
        let pmu = running(is_long, level);
        let event = pmu.start(&Event::generic(GenericEvent::Instructions)).unwrap();
        execute(0, 100);
        pmu.lend(|lent| {
            assert_eq!(lent.counters().len(), 7);
            execute(0, 1_000_000);
        })
        .unwrap();
        execute(0, 11);
        assert_eq!(pmu.read(event).unwrap().value, 4 * 111);
        pmu.close(event).unwrap();
        shut_down(pmu);
    });
}

/// SPSR_ELx.M: EL0t, and AArch32 user mode, of which bit 4 is set.
#[test]
fn a_frame_tells_el0_from_the_kernel() {
    let is_user = |spsr| frame(PLACE, spsr, 1).cs & 3 == 3;
    assert_eq!(
        [0x0, 0x6000_0000, 0x10, 0x4, 0x5, 0x3C5, 0x8, 0x9, 0x13].map(is_user),
        [true, true, true, false, false, false, false, false, false]
    );
    assert_eq!((frame(PLACE, 5, 1).pc, frame(PLACE, 5, 1).processor), (PLACE, 1));
}
