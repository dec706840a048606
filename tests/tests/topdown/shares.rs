//! Shares of fed programs: over reads, a wrap, starts and stops, and beside events.

use pmu_core::{Event, EventSelect};
use pmu_intel::topdown::{TopDownCounter, TopDownError, TopDownFilter, TopDownPart, TopDownView};
use pmu_tests::opened::Random;
use pmu_virt::{Mode, Privilege};

use crate::support::*;

#[test]
fn shares_of_fed_programs_are_right_to_a_255th() {
    for processor in processors() {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        let handler = |mock: &Mock<'_>| kernel.handle(mock);
        mock.on_interrupt(&handler);
        let mut session = kernel.take(&mock);
        let mut topdown =
            TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
        pass(&mock, 1_000, MIXES[1]);
        topdown.start(&mut session, TopDownFilter::ALL).unwrap();
        let (mut expected, mut random) = (Expected::of(&processor), Random(0x1234_5678_9ABC));
        for readings in 1..60 {
            let mut since = expected.clone();
            for _ in 0..random.below(4) {
                let bits = random.below(40);
                let slots = 1 + random.below(1 << bits);
                let mix = MIXES[random.below(4) as usize];
                pass(&mock, slots, mix);
                expected.add(slots, mix);
            }
            let before = topdown.view().counted;
            let counts = topdown.read(&mut session).unwrap();
            expected.check(&counts, readings, &format!("{processor:?}"));
            // Each read begins new fractions, so what lies between two is right by itself.
            since.slots = expected.slots - since.slots;
            for (part, all) in since.parts.iter_mut().zip(expected.parts) {
                *part = all - *part;
            }
            since.check(&counts.since(&before), 1, &format!("{processor:?}, since the last"));
        }
        topdown.stop(&mut session).unwrap();
        pass(&mock, 77, MIXES[0]);
        expected.check(&topdown.read(&mut session).unwrap(), 61, "stopped");
        topdown.start(&mut session, TopDownFilter::ALL).unwrap();
        pass(&mock, 510, MIXES[2]);
        expected.add(510, MIXES[2]);
        expected.check(&topdown.read(&mut session).unwrap(), 62, "started again");
        topdown.shut_down(&mut session).unwrap();
        assert!(
            session.counters().usable.bits() >> 35 & 1 == 1,
            "the session has its counter again"
        );
        let (unit, used) = (&kernel.counters, session.counters().usable);
        assert_eq!(used, unit.counters(), "{processor:?}");
        assert_eq!(kernel.unclaimed.get() + kernel.faulted.get(), 0);
        assert!(mock.breach().is_none());
    }
}

/// The slots' counter wraps in 2⁴⁸ slots: one overflow, whose status bits are those of the counter and of the metrics.
#[test]
fn shares_are_right_over_a_wrap_which_is_one_overflow() {
    for processor in processors() {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        let handler = |mock: &Mock<'_>| {
            assert_eq!(mock.with_metrics(|metrics| metrics.metrics() != 0), Some(true));
            kernel.handle(mock);
        };
        mock.on_interrupt(&handler);
        let mut session = kernel.take(&mock);
        let mut topdown =
            TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
        topdown.start(&mut session, TopDownFilter::ALL).unwrap();
        let mut expected = Expected::of(&processor);
        for (slots, mix) in
            [(1 << 47, MIXES[1]), (1 << 47, MIXES[3]), (3 << 48, MIXES[2]), (9, MIXES[0])]
        {
            pass(&mock, slots, mix);
            expected.add(slots, mix);
        }
        assert_eq!(mock.interrupts(), 4, "{processor:?}");
        let status = mock.with_pmu(|pmu| pmu.read(0x38E));
        assert_eq!(status, pmu_virt::Read::Value(0), "{processor:?}: both bits are acknowledged");
        assert_eq!(mock.with_metrics(|metrics| metrics.metrics()), Some(255));
        expected.check(&topdown.read(&mut session).unwrap(), 5, &format!("{processor:?}"));
        assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0));
    }
}

/// A wrap whose interrupt has not come yet is found by the read, and the interrupt is claimed when it comes.
#[test]
fn a_wrap_whose_interrupt_is_late_is_counted_once_and_its_interrupt_claimed() {
    use pmu_virt::mock::PmiFault;
    for processor in processors() {
        for late in [PmiFault::Late(1), PmiFault::Late(3), PmiFault::Late(6), PmiFault::Late(40)] {
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let handler = |mock: &Mock<'_>| kernel.handle(mock);
            mock.on_interrupt(&handler);
            let mut session = kernel.take(&mock);
            let mut topdown =
                TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
            topdown.start(&mut session, TopDownFilter::ALL).unwrap();
            let mut expected = Expected::of(&processor);
            pass(&mock, (1 << 48) - 5, MIXES[1]);
            mock.inject_pmi(late);
            // Frozen counters: nothing is counted after the overflow.
            let after = if processor.freezing { 0 } else { 100 };
            pass(&mock, 5, MIXES[1]);
            pass(&mock, after, MIXES[1]);
            expected.add((1 << 48) + after, MIXES[1]);
            let counts = topdown.read(&mut session).unwrap();
            expected.check(&counts, 2, &format!("{processor:?}, {late:?}"));
            mock.inject_pmi(PmiFault::None);
            mock.deliver();
            assert_eq!(kernel.unclaimed.get(), 0, "{processor:?}, {late:?}");
        }
    }
}

#[test]
fn only_the_slots_of_the_filters_privilege_levels_are_counted() {
    let processor = processors()[3];
    for (filter, levels) in [
        (TopDownFilter::USER, [true, false]),
        (TopDownFilter::KERNEL, [false, true]),
        (TopDownFilter::ALL, [true, true]),
    ] {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        let mut session = kernel.take(&mock);
        let mut topdown =
            TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
        topdown.start(&mut session, filter).unwrap();
        let mut expected = Expected::of(&processor);
        for ((privilege, slots), counted) in
            [(Privilege::User, 1_000), (Privilege::Kernel, 300)].into_iter().zip(levels)
        {
            pass_at(&mock, privilege, slots, MIXES[1]);
            if counted {
                expected.add(slots, MIXES[1]);
            }
        }
        expected.check(&topdown.read(&mut session).unwrap(), 1, &format!("{filter:?}"));
    }
}

/// Reads of user mode by two RDPMCs, with CR4.PCE alone, between the kernel's reads.
#[test]
fn user_mode_reads_both_registers_by_rdpmc() {
    for processor in processors() {
        for filter in
            [TopDownFilter::USER, TopDownFilter { user_rdpmc: true, ..TopDownFilter::USER }]
        {
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let mut session = kernel.take(&mock);
            let mut topdown =
                TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
            topdown.start(&mut session, filter).unwrap();
            let mut expected = Expected::of(&processor);
            for round in 1..6 {
                pass(&mock, 5_000 * round, MIXES[1]);
                expected.add(5_000 * round, MIXES[1]);
                topdown.read(&mut session).unwrap();
                let view = topdown.view();
                pass(&mock, 301, MIXES[3]);
                expected.add(301, MIXES[3]);
                let [slots, metrics] = view.indices.expect("both count");
                let user = Mode { cpl: 3, pce: true, protected: true };
                mock.set_mode(user);
                let read = |index| pmu_core::MsrBackend::read_pmc(&mock, index);
                let (slots, metrics) = (read(slots).unwrap(), read(metrics).unwrap());
                mock.set_mode(Mode::KERNEL);
                if !processor.intel.rdpmc_user_disable || filter.user_rdpmc {
                    expected.check(&view.counts(slots, metrics), 2 * round, "user mode");
                } else {
                    assert_eq!(slots, 0, "denied");
                }
            }
        }
    }
}

/// User mode's read of the two registers, which a read of the kernel interrupts before each of its steps: the sequence
/// counter tells user mode to read again.
#[test]
fn user_modes_read_that_a_read_of_the_kernel_interrupts_is_repeated() {
    for processor in processors() {
        for interrupted in 0..5 {
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let mut session = kernel.take(&mock);
            let mut topdown =
                TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
            let filter = TopDownFilter { user_rdpmc: true, ..TopDownFilter::USER };
            topdown.start(&mut session, filter).unwrap();
            let mut expected = Expected::of(&processor);
            pass(&mock, 70_000, MIXES[1]);
            expected.add(70_000, MIXES[1]);
            // The memory that the kernel shares: the sequence counter, and the view.
            let (mut sequence, mut shared) = (0, topdown.view());
            let mut step = 0;
            let mut before_step = |shared: &mut TopDownView, sequence: &mut u32| {
                if step == interrupted {
                    topdown.read(&mut session).unwrap();
                    (*sequence, *shared) = (*sequence + 2, topdown.view());
                    pass(&mock, 300, MIXES[3]);
                    expected.add(300, MIXES[3]);
                }
                step += 1;
            };
            let read = |index| pmu_core::MsrBackend::read_pmc(&mock, index).unwrap();
            let mut tries = 0;
            let counts = loop {
                tries += 1;
                before_step(&mut shared, &mut sequence);
                let began = sequence;
                before_step(&mut shared, &mut sequence);
                let view = shared;
                before_step(&mut shared, &mut sequence);
                let [slots, metrics] = view.indices.expect("both count");
                let slots = read(slots);
                before_step(&mut shared, &mut sequence);
                let counts = view.counts(slots, read(metrics));
                if sequence == began {
                    break counts;
                }
            };
            assert_eq!(tries, if (1..4).contains(&interrupted) { 2 } else { 1 });
            expected.check(&counts, 2, &format!("{processor:?}, before step {interrupted}"));
        }
    }
}

#[test]
fn illegal_combinations_are_typed_errors_and_change_nothing() {
    let processor = processors()[2];
    let mock = processor.mock();
    let kernel = Kernel::new(&processor, &mock);
    let mut session = kernel.take(&mock);
    // An event on the slots' counter.
    let slots = Event::raw(EventSelect::from_bits(0x0400));
    let event = session.open_event(&kernel.counters, &slots).unwrap();
    session.start_event(event, 0).unwrap();
    let take = |session: &mut Session<'_, '_>| {
        TopDownCounter::take(kernel.unit, &mock, session, &kernel.memory).map(|_| ())
    };
    assert_eq!(take(&mut session), Err(TopDownError::SlotsInUse));
    assert!(session.is_started(event));
    session.close_event(event, 0).unwrap();
    let mut topdown =
        TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
    assert_eq!(take(&mut session), Err(TopDownError::MemoryInUse));
    // The session has no counter of the slots meanwhile.
    let refused = session.open_event(&kernel.counters, &slots);
    assert_eq!(refused, Err(pmu_core::CounterError::NoCounterForEvent));
    let nothing = TopDownFilter { user: false, kernel: false, user_rdpmc: true };
    assert_eq!(topdown.start(&mut session, nothing), Err(TopDownError::Filter));
    assert_eq!(topdown.stop(&mut session), Err(TopDownError::NotStarted));
    let mut thread = pmu_intel::topdown::SavedTopDown::new(TopDownFilter::USER);
    assert_eq!(topdown.switch_out(&mut session, &mut thread), Err(TopDownError::NotStarted));
    topdown.start(&mut session, TopDownFilter::ALL).unwrap();
    assert_eq!(topdown.start(&mut session, TopDownFilter::ALL), Err(TopDownError::AlreadyStarted));
    assert_eq!(topdown.switch_in(&mut session, &thread), Err(TopDownError::Filter));
    pass(&mock, 255, MIXES[0]);
    let counts = topdown.read(&mut session).unwrap();
    assert_eq!((counts.slots, counts.per_mille(TopDownPart::Retiring)), (255, Some(1000)));
    topdown.shut_down(&mut session).unwrap();
    assert_eq!(topdown.read(&mut session), Err(TopDownError::ShutDown));
    assert_eq!(topdown.shut_down(&mut session), Ok(()));
    take(&mut session).unwrap();
}
