//! Shares of fed programs: over reads, a wrap, starts and stops, and beside events.

use pmu_core::error::{CounterError, EventsError};
use pmu_core::memory::CounterMemory;
use pmu_core::registers::EventSelect;
use pmu_core::{CounterSession, CounterSet, Event, Events};
use pmu_intel::topdown::{TopDownCounts, TopDownPart, TopDownView};
use pmu_tests::Reason;
use pmu_tests::opened::Random;
use pmu_virt::configuration::IntelFeature;
use pmu_virt::{GuestFacility, Mode, Privilege};

use crate::support::*;

#[test]
fn shares_of_fed_programs_are_right_to_a_255th() {
    for processor in processors() {
        counting!(processor => mock, kernel, session);
        let group = kernel.open(&mut session, |event| event).unwrap();
        pass(&mock, 1_000, MIXES[1]);
        session.enable(group, 0).unwrap();
        let mut before = TopDownCounts::NONE;
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
            let counts = kernel.read(&session, group).unwrap();
            expected.check(&counts, readings, &format!("{processor:?}"));
            // Each read begins new fractions, so what lies between two is right by itself.
            since.slots = expected.slots - since.slots;
            for (part, all) in since.parts.iter_mut().zip(expected.parts) {
                *part = all - *part;
            }
            since.check(&counts.since(&before), 1, &format!("{processor:?}, since the last"));
            before = counts;
        }
        session.disable(group, 0).unwrap();
        pass(&mock, 77, MIXES[0]);
        expected.check(&kernel.read(&session, group).unwrap(), 61, "stopped");
        session.enable(group, 0).unwrap();
        pass(&mock, 510, MIXES[2]);
        expected.add(510, MIXES[2]);
        expected.check(&kernel.read(&session, group).unwrap(), 62, "started again");
        session.close(group, 0).unwrap();
        let (unit, used) = (&kernel.counters, session.counters().usable);
        assert_eq!(used, unit.counters(), "{processor:?}");
        session.shut_down().unwrap();
        let enabled = mock.with_metrics(|metrics| metrics.read(0x38F));
        let off = pmu_virt::Read::Shared { value: 0, mask: 1 << 48 };
        assert_eq!(enabled, Some(off), "{processor:?}: the bit of the metrics");
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
        let group = kernel.start(&mut session);
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
        expected.check(&kernel.read(&session, group).unwrap(), 5, &format!("{processor:?}"));
        assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0));
    }
}

/// A wrap whose interrupt has not come yet is found by the read, and the interrupt is claimed when it comes.
#[test]
fn a_wrap_whose_interrupt_is_late_is_counted_once_and_its_interrupt_claimed() {
    use pmu_virt::mock::PmiFault;
    for processor in processors() {
        for late in [PmiFault::Late(1), PmiFault::Late(3), PmiFault::Late(6), PmiFault::Late(40)] {
            counting!(processor => mock, kernel, session);
            let group = kernel.start(&mut session);
            let mut expected = Expected::of(&processor);
            pass(&mock, (1 << 48) - 5, MIXES[1]);
            mock.inject_pmi(late);
            // Frozen counters: nothing is counted after the overflow.
            let after = if processor.freezing { 0 } else { 100 };
            pass(&mock, 5, MIXES[1]);
            pass(&mock, after, MIXES[1]);
            expected.add((1 << 48) + after, MIXES[1]);
            let counts = kernel.read(&session, group).unwrap();
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
    type Filter = fn(Event) -> Event;
    let filters: [(Filter, [bool; 2]); 3] = [
        (|event| event.user_only(), [true, false]),
        (|event| event.kernel_only(), [false, true]),
        (|event| event, [true, true]),
    ];
    for (filter, levels) in filters {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        let mut session = kernel.take(&mock);
        let group = kernel.open(&mut session, filter).unwrap();
        session.enable(group, 0).unwrap();
        let mut expected = Expected::of(&processor);
        for ((privilege, slots), counted) in
            [(Privilege::User, 1_000), (Privilege::Kernel, 300)].into_iter().zip(levels)
        {
            pass_at(&mock, privilege, slots, MIXES[1]);
            if counted {
                expected.add(slots, MIXES[1]);
            }
        }
        expected.check(&kernel.read(&session, group).unwrap(), 1, &format!("{levels:?}"));
    }
}

/// Reads of user mode by two RDPMCs, with CR4.PCE alone, between the kernel's reads.
#[test]
fn user_mode_reads_both_registers_by_rdpmc() {
    for processor in processors() {
        for user_rdpmc in [false, true] {
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let mut session = kernel.take(&mock);
            let filter = |event: Event| match user_rdpmc {
                true => event.user_only().with_user_reads(),
                false => event.user_only(),
            };
            let group = kernel.open(&mut session, filter).unwrap();
            session.enable(group, 0).unwrap();
            let mut expected = Expected::of(&processor);
            for round in 1..6 {
                pass(&mock, 5_000 * round, MIXES[1]);
                expected.add(5_000 * round, MIXES[1]);
                let counted = kernel.read(&session, group).unwrap();
                let view = TopDownView::new(counted, true, processor.level_2);
                pass(&mock, 301, MIXES[3]);
                expected.add(301, MIXES[3]);
                let [slots, metrics] = view.indices.expect("both count");
                let user = Mode { cpl: 3, pce: true, protected: true };
                mock.set_mode(user);
                let read = |index| pmu_core::access::RegisterBackend::read_counter(&mock, index);
                let (slots, metrics) = (read(slots).unwrap(), read(metrics).unwrap());
                mock.set_mode(Mode::KERNEL);
                if !processor.intel.has(IntelFeature::RdpmcUserDisable) || user_rdpmc {
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
            let group =
                kernel.open(&mut session, |event| event.user_only().with_user_reads()).unwrap();
            session.enable(group, 0).unwrap();
            let view = |counted| TopDownView::new(counted, true, processor.level_2);
            let mut expected = Expected::of(&processor);
            pass(&mock, 70_000, MIXES[1]);
            expected.add(70_000, MIXES[1]);
            // The memory that the kernel shares: the sequence counter, and the view.
            let (mut sequence, mut shared) = (0, view(TopDownCounts::NONE));
            let mut step = 0;
            let mut before_step = |shared: &mut TopDownView, sequence: &mut u32| {
                if step == interrupted {
                    let counted = kernel.read(&session, group).unwrap();
                    (*sequence, *shared) = (*sequence + 2, view(counted));
                    pass(&mock, 300, MIXES[3]);
                    expected.add(300, MIXES[3]);
                }
                step += 1;
            };
            let read =
                |index| pmu_core::access::RegisterBackend::read_counter(&mock, index).unwrap();
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

/// Groups that cannot be counted are refused as they are opened, and none of their events stays open.
#[test]
fn illegal_combinations_are_typed_errors_and_change_nothing() {
    let processor = processors()[2];
    let mock = processor.mock();
    let kernel = Kernel::new(&processor, &mock);
    let mut session = kernel.take(&mock);
    let slots = Event::raw(EventSelect::from_bits(0x0400));
    let (part, cycles) = (Event::part(0), Event::raw(EventSelect::from_bits(0x3C)));
    let refused: [(&[Event], usize, CounterError); 9] = [
        (&[part], 0, CounterError::NotDivided),
        (&[part, slots], 0, CounterError::NotDivided),
        (&[cycles, part], 1, CounterError::NotDivided),
        (&[slots.every(100_000), part], 1, CounterError::NotDivided),
        (&[slots, part.every(100_000)], 1, CounterError::NotDivided),
        (&[slots.user_only(), part], 1, CounterError::NotDivided),
        (&[slots, part.kernel_only()], 1, CounterError::NotDivided),
        // Two counts of slots need the one counter.
        (&[slots, part, slots], 2, CounterError::NoFreeCounter),
        (&[slots, part.on(pmu_core::CounterSet::GENERAL)], 1, CounterError::NoCounterForEvent),
    ];
    for (events, member, reason) in refused {
        let opened = session.open(&kernel.counters, events);
        assert_eq!(opened, Err(EventsError { events: 1 << member, reason }), "{events:?}");
        assert_eq!(session.events().count(), 0);
    }
    assert_eq!(session.open(&kernel.counters, &[part]).reason(), Err(CounterError::NotDivided));
    // A processor without level 2.
    let first = processors()[0];
    let other = first.mock();
    let small = Kernel::new(&first, &other);
    let level_2 = small.take(&other).open(&small.counters, &[slots, Event::part(4)]);
    assert_eq!(level_2.map_err(|error| error.reason), Err(CounterError::NotDivided));
    // A session whose source does not divide.
    let plain = first.mock();
    let (memory, table) = (
        CounterMemory::<[_; 24]>::new(),
        pmu_core::memory::EventTable::<[pmu_core::memory::EventEntry; 4]>::new(),
    );
    let source = Events::new(&small.counters, &table as &pmu_core::memory::EventTable);
    let mut without =
        CounterSession::take(source, &small.counters, CounterSet::ALL, &plain, &memory).unwrap();
    let opened = without.open(&small.counters, &[slots, part]);
    assert_eq!(opened.map_err(|error| error.reason), Err(CounterError::NoCounterForEvent));
    // Beside an event of the slots that keeps its counter.
    let event = session.open(&kernel.counters, &[slots]).unwrap();
    session.enable(event, 0).unwrap();
    let group = kernel.open(&mut session, |event| event).unwrap();
    let started = session.enable(group, 0).map_err(|error| error.reason);
    assert_eq!(started, Err(CounterError::NoFreeCounter));
    assert!(session.is_enabled(event));
    session.close(event, 0).unwrap();
    assert_eq!(session.disable(group, 0), Ok(()));
    session.enable(group, 0).unwrap();
    assert_eq!(session.enable(group, 0), Ok(()));
    pass(&mock, 255, MIXES[0]);
    let counts = kernel.read(&session, group).unwrap();
    assert_eq!((counts.slots, counts.per_mille(TopDownPart::Retiring)), (255, Some(1000)));
    session.close(group, 0).unwrap();
    assert_eq!(kernel.read(&session, group), Err(CounterError::NoSuchEvent(group)));
    assert!(mock.breach().is_none());
}
