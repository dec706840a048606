//! Operations of a task on the top-down counts, with an interrupt, an overflow and a fault at each access.

use core::cell::{Cell, RefCell};

use pmu_core::{Event, EventSelect};
use pmu_intel::topdown::{SavedTopDown, TopDownCounter, TopDownError, TopDownFilter};
use pmu_virt::mock::Fault;

use crate::support::*;

type Operation = fn(&mut TopDown<'_, '_>, &mut Session<'_, '_>) -> Result<(), TopDownError>;

/// Operations on counts that are started; after each the processor's slots are counted on.
const OPERATIONS: [(&str, Operation); 5] = [
    ("read", |topdown, session| topdown.read(session).map(|_| ())),
    ("stop and start", |topdown, session| {
        topdown.stop(session)?;
        topdown.start(session, TopDownFilter::ALL)
    }),
    ("a thread's switches", |topdown, session| {
        let mut thread = SavedTopDown::new(TopDownFilter::ALL);
        topdown.switch_in(session, &thread)?;
        topdown.switch_out(session, &mut thread)
    }),
    ("a window", |topdown, session| {
        let window = session.lend_with(0, topdown, |_, _| ()).map_err(TopDownError::Session)?;
        window.end(0).map_err(|error| TopDownError::Session(error.into()))
    }),
    ("an event beside", |_, session| {
        let events: Vec<_> = session.events().collect();
        let [event] = events[..] else { panic!("an event") };
        session.stop_event(event, 0)?;
        Ok(session.start_event(event, 0)?)
    }),
];

/// An occurrence before a chosen access.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Disturbance {
    /// Another source's NMI.
    Interrupt,
    /// So many slots pass that the slots' counter wraps.
    Wrap,
    /// A counter overflows.
    Overflow,
}

#[test]
fn an_interrupt_and_a_wrap_before_each_access_lose_no_slot_and_count_none_twice() {
    use Disturbance::*;
    for processor in processors() {
        for disturbance in [Interrupt, Wrap, Overflow] {
            for (name, operation) in OPERATIONS {
                for access in 1.. {
                    let what = format!("{processor:?}, {name}: {disturbance:?} before {access}");
                    if !disturb(&processor, operation, disturbance, access, &what) {
                        assert!(access > 1, "{what}");
                        break;
                    }
                }
            }
        }
    }
}

/// Returns whether the operation has so many accesses.
fn disturb(
    processor: &Processor,
    operation: Operation,
    disturbance: Disturbance,
    access: u32,
    what: &str,
) -> bool {
    const BESIDE: u64 = 5_000;
    let mock = processor.mock();
    let kernel = Kernel::new(processor, &mock);
    let expected = RefCell::new(Expected::of(processor));
    let handler = |mock: &Mock<'_>| {
        kernel.handle(mock);
        if let Some(counts) = kernel.sampled.borrow_mut().pop() {
            let expected = expected.borrow();
            // A read may lack what passed at its own accesses, and a wrap that is not served yet.
            let lacks = (expected.slots - u128::from(counts.slots)) % (1 << 48);
            // A span of slots is counted up to its overflow when the handler comes.
            let most = if disturbance == Disturbance::Wrap { 1_200 } else { 40 };
            assert!(
                lacks <= most,
                "{what}: the handler read {} of {}",
                counts.slots,
                expected.slots
            );
        }
    };
    mock.on_interrupt(&handler);
    let mut session = kernel.take(&mock);
    let event = Event::raw(EventSelect::from_bits(0xC4)).every(BESIDE);
    let event = session.open_event(&kernel.counters, &event).unwrap();
    session.start_event(event, 0).unwrap();
    let mut topdown =
        TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
    topdown.start(&mut session, TopDownFilter::ALL).unwrap();
    pass(&mock, 1_000, MIXES[1]);
    expected.borrow_mut().add(1_000, MIXES[1]);
    let (made, inside, on) = (Cell::new(0), Cell::new(false), Cell::new(true));
    let before = |mock: &Mock<'_>| {
        if !on.get() {
            return;
        }
        let count = |slots| {
            if counts_slots(mock) {
                expected.borrow_mut().add(slots, MIXES[3]);
                pass(mock, slots, MIXES[3]);
            }
        };
        count(7);
        if inside.replace(true) {
            return;
        }
        made.set(made.get() + 1);
        if made.get() == access {
            match disturbance {
                Disturbance::Interrupt => {
                    mock.interrupt_from_elsewhere();
                }
                Disturbance::Wrap => count(1 << 48),
                Disturbance::Overflow => branches(mock, BESIDE),
            }
        }
        inside.set(false);
    };
    mock.on_access(&before);
    operation(&mut topdown, &mut session).unwrap();
    on.set(false);
    pass(&mock, 123, MIXES[2]);
    expected.borrow_mut().add(123, MIXES[2]);
    let counts = topdown.read(&mut session).unwrap();
    expected.borrow().check(&counts, 20, what);
    assert_eq!(kernel.faulted.get(), 0, "{what}");
    // Here, no owner claims the NMI of another source.
    let others = u32::from(disturbance == Disturbance::Interrupt);
    assert!(kernel.unclaimed.get() <= others, "{what}: {} unclaimed", kernel.unclaimed.get());
    assert!(mock.breach().is_none(), "{what}");
    made.get() >= access
}

/// A fault that goes away at the retry changes nothing; one that stays is a typed error, and once it is gone, the next
/// calls count on, with nothing twice.
#[test]
fn a_fault_at_each_access_is_a_typed_error_and_counts_nothing_twice() {
    for processor in processors() {
        for (name, operation) in OPERATIONS {
            for (permanent, access) in [false, true]
                .into_iter()
                .flat_map(|permanent| (1..30).map(move |access| (permanent, access)))
            {
                let what = format!("{processor:?}, {name}: fault {access}, permanent: {permanent}");
                let mock = processor.mock();
                let kernel = Kernel::new(&processor, &mock);
                let handler = |mock: &Mock<'_>| kernel.handle(mock);
                mock.on_interrupt(&handler);
                let mut session = kernel.take(&mock);
                let event = Event::raw(EventSelect::from_bits(0xC4)).every(5_000);
                let event = session.open_event(&kernel.counters, &event).unwrap();
                session.start_event(event, 0).unwrap();
                let mut topdown =
                    TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
                topdown.start(&mut session, TopDownFilter::ALL).unwrap();
                let mut expected = Expected::of(&processor);
                pass(&mock, 10_000, MIXES[1]);
                expected.add(10_000, MIXES[1]);
                mock.inject(if permanent { Fault::From(access) } else { Fault::At(access) });
                let done = operation(&mut topdown, &mut session);
                mock.inject(Fault::None);
                if !permanent {
                    assert_eq!(done, Ok(()), "{what}");
                }
                // The failure may have stopped the counts: they are started again.
                if topdown.stop(&mut session) != Ok(()) {
                    let _ = topdown.read(&mut session);
                }
                let _ = topdown.start(&mut session, TopDownFilter::ALL);
                if topdown.read(&mut session) == Err(TopDownError::Lent) {
                    // The window's end could not resume the counts: the next window's end does.
                    let window = session.lend_with(0, &mut topdown, |_, _| ()).unwrap();
                    window.end(0).unwrap();
                }
                let before = topdown.read(&mut session).unwrap();
                let kept = matches!(
                    done,
                    Ok(()) | Err(TopDownError::Access(_) | TopDownError::Session(_))
                );
                if kept {
                    assert_eq!(before.slots, 10_000, "{what}: {done:?}");
                }
                assert!(before.slots <= 10_000, "{what}: {before:?}");
                if before.slots == 10_000 {
                    expected.check(&before, 8, &what);
                }
                let mut more = Expected::of(&processor);
                pass(&mock, 2_550, MIXES[2]);
                more.add(2_550, MIXES[2]);
                let counts = topdown.read(&mut session).unwrap();
                more.check(&counts.since(&before), 1, &format!("{what}: afterwards"));
                topdown.shut_down(&mut session).unwrap();
                assert_eq!(session.counters().usable, kernel.counters.counters(), "{what}");
            }
        }
    }
}

#[test]
fn taking_and_shutting_down_with_a_fault_at_each_access_leaves_the_session_its_counter() {
    for processor in processors() {
        for access in 1..40 {
            let what = format!("{processor:?}: fault {access}");
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let mut session = kernel.take(&mock);
            mock.inject(Fault::At(access));
            let mut topdown =
                TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
            topdown.start(&mut session, TopDownFilter::ALL).unwrap();
            topdown.shut_down(&mut session).unwrap();
            mock.inject(Fault::From(access));
            let taken = TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory);
            if let Ok(mut topdown) = taken {
                let _ = topdown.start(&mut session, TopDownFilter::ALL);
                let _ = topdown.shut_down(&mut session);
                mock.inject(Fault::None);
                topdown.shut_down(&mut session).unwrap();
                assert_eq!(session.counters().usable, kernel.counters.counters(), "{what}");
            }
            mock.inject(Fault::None);
            assert!(!counts_slots(&mock), "{what}");
            // The memory is free, and a session that lost the counter gets it back.
            let lost = kernel.counters.counters().without(session.counters().usable);
            if !lost.is_empty() {
                session.take_more(&kernel.counters, lost).unwrap();
            }
            TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
        }
    }
}

/// A register that faults in the overflow's interrupt: what was counted is found by the next read.
#[test]
fn a_fault_in_the_overflows_interrupt_loses_no_wrap() {
    for processor in processors() {
        let slots = if processor.intel.version >= 6 { 0x198C } else { 0x30C };
        for register in [slots, 0x329, 0x38D] {
            let what = format!("{processor:?}, {register:#x}");
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let handler = |mock: &Mock<'_>| kernel.handle(mock);
            mock.on_interrupt(&handler);
            let mut session = kernel.take(&mock);
            let mut topdown =
                TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
            topdown.start(&mut session, TopDownFilter::ALL).unwrap();
            let mut expected = Expected::of(&processor);
            mock.inject(Fault::Register(register));
            pass(&mock, 1 << 48, MIXES[1]);
            expected.add(1 << 48, MIXES[1]);
            assert_eq!((mock.interrupts(), kernel.faulted.get()), (1, 1), "{what}");
            mock.inject(Fault::None);
            let counts = topdown.read(&mut session).unwrap();
            expected.check(&counts, 2, &what);
            pass(&mock, 255, MIXES[2]);
            expected.add(255, MIXES[2]);
            expected.check(&topdown.read(&mut session).unwrap(), 3, &what);
        }
    }
}

/// A hypervisor that declares the metrics and drops them.
#[test]
fn registers_that_do_not_answer_are_found_out() {
    for processor in processors() {
        let slots = if processor.intel.version >= 6 { 0x198C } else { 0x30C };
        for fault in [
            Fault::Register(0x329),
            Fault::Ignored(0x329),
            Fault::Register(slots),
            Fault::Ignored(slots),
        ] {
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let mut session = kernel.take(&mock);
            mock.inject(fault);
            let taken = TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory);
            let found = taken.map(|_| ());
            let is_told = matches!(
                found,
                Err(TopDownError::Unresponsive
                    | TopDownError::Access(_)
                    | TopDownError::Session(_))
            );
            assert!(is_told, "{processor:?}, {fault:?}: {found:?}");
            mock.inject(Fault::None);
            let lost = kernel.counters.counters().without(session.counters().usable);
            if !lost.is_empty() {
                session.take_more(&kernel.counters, lost).unwrap();
            }
            TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
        }
    }
}

/// The metrics fault in the overflow's interrupt, after the slots were set back: the fractions of what follows are
/// unknown, and so it is not counted, up to the next read.
#[test]
fn slots_whose_fractions_are_unknown_are_not_counted() {
    for processor in processors() {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        let handler = |mock: &Mock<'_>| kernel.handle(mock);
        mock.on_interrupt(&handler);
        let mut session = kernel.take(&mock);
        let mut topdown =
            TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
        topdown.start(&mut session, TopDownFilter::ALL).unwrap();
        let mut expected = Expected::of(&processor);
        mock.inject(Fault::Register(0x329));
        pass(&mock, 1 << 48, MIXES[1]);
        expected.add(1 << 48, MIXES[1]);
        mock.inject(Fault::None);
        pass(&mock, 1_000_000, MIXES[2]);
        let what = format!("{processor:?}");
        expected.check(&topdown.read(&mut session).unwrap(), 2, &what);
        pass(&mock, 500, MIXES[3]);
        expected.add(500, MIXES[3]);
        expected.check(&topdown.read(&mut session).unwrap(), 3, &what);
    }
}

/// However the switch out of a thread fails, the next thread's counts have nothing of it.
#[test]
fn a_switch_that_fails_gives_no_slot_of_one_thread_to_the_next() {
    for processor in processors() {
        for (whole, access) in
            [false, true].into_iter().flat_map(|whole| (1..16).map(move |at| (whole, at)))
        {
            let what = format!("{processor:?}, processor: {whole}, fault {access}");
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let mut session = kernel.take(&mock);
            let mut topdown =
                TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
            if whole {
                topdown.start(&mut session, TopDownFilter::ALL).unwrap();
            }
            let [mut one, mut other] = [SavedTopDown::new(TopDownFilter::ALL); 2];
            topdown.switch_in(&mut session, &one).unwrap();
            pass(&mock, 1_000_000, MIXES[1]);
            mock.inject(Fault::From(access));
            let left = topdown.switch_out(&mut session, &mut one);
            mock.inject(Fault::None);
            let counted = one.counts().slots;
            assert!(counted == 1_000_000 || left.is_err() && counted == 0, "{what}: {left:?}");
            topdown.switch_in(&mut session, &other).unwrap();
            pass(&mock, 500, MIXES[2]);
            topdown.switch_out(&mut session, &mut other).unwrap();
            assert!(other.counts().slots <= 500, "{what}: {:?}", other.counts());
            // The next time, all is counted.
            topdown.switch_in(&mut session, &other).unwrap();
            let before = other.counts();
            pass(&mock, 255, MIXES[2]);
            topdown.switch_out(&mut session, &mut other).unwrap();
            assert_eq!(other.counts().since(&before).slots, 255, "{what}");
        }
    }
}
