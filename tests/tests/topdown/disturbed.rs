//! Operations of a task on the top-down counts, with an interrupt, an overflow and a fault at each access.

use core::cell::{Cell, RefCell};
use pmu_tests::Reason;

use pmu_core::error::{CounterError, EventsError};
use pmu_core::registers::EventSelect;
use pmu_core::{Event, EventId};
use pmu_virt::mock::Fault;

use crate::support::*;

type Operation = fn(&Kernel, &mut Session<'_, '_>, EventId) -> Result<(), CounterError>;

/// Operations on slots that are counted; after each the processor's slots are counted on. Threads take the counter from
/// the processor's slots, which take turns.
const OPERATIONS: [(&str, Operation); 7] = [
    ("read", |kernel, session, group| kernel.read(session, group).map(|_| ())),
    ("read of a part", |_, session, group| {
        let last = session.group_events(group).last().unwrap();
        session.read(last, 0).map(|_| ())
    }),
    ("stop and start", |_, session, group| {
        session.disable(group, 0).map_err(|error| error.reason)?;
        session.enable(group, 0).map_err(|error| error.reason)
    }),
    ("a thread's switches", |kernel, session, _| {
        let mut thread = kernel.thread(session, |event| event);
        let of = |error: EventsError| error.reason;
        let entered = session.switch_in(&kernel.counters, &mut thread, 0).map_err(of);
        let left = session.switch_out(&mut thread, 0, |_| ()).map_err(of);
        kernel.of_threads.set(kernel.of_threads.get().plus(&kernel.counts_of(&thread)));
        entered.and(left).and(session.rotate(0))
    }),
    ("a window", |_, session, _| {
        let window = session.lend(0, |_| ())?;
        window.end(0).map_err(Into::into)
    }),
    ("a suspend", |_, session, _| {
        session.suspend(0, |_| ())?;
        session.resume(0, |_| ()).map(|_| ())
    }),
    ("an event beside", |kernel, session, _| {
        let event = kernel.beside.get().unwrap();
        session.disable(event, 0)?;
        session.enable(event, 0).reason()
    }),
];

/// Opens and starts the slots of all privilege levels, which take turns, and an event beside them.
fn start(kernel: &Kernel, session: &mut Session<'_, '_>, period: u64) -> EventId {
    let event = Event::raw(EventSelect::from_bits(0xC4)).every(period);
    let event = session.open(&kernel.counters, &[event]).unwrap();
    session.enable(event, 0).unwrap();
    kernel.beside.set(Some(event));
    let group = kernel.open(session, Event::rotating).unwrap();
    session.enable(group, 0).unwrap();
    kernel.sampled_event.set(session.group_events(group).next());
    group
}

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
            let counted = counts.plus(&kernel.of_threads.get()).slots;
            let lacks = (expected.slots - u128::from(counted)) % (1 << 48);
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
    let group = start(&kernel, &mut session, BESIDE);
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
                Disturbance::Wrap => {
                    let pmu_virt::Read::Value(held) = mock.with_pmu(|pmu| pmu.read(0x30C)) else {
                        panic!("the slots' counter");
                    };
                    count((1 << 48) - held);
                    // Unless the task was about to stop the counter, which the handler did then.
                    count(held);
                }
                Disturbance::Overflow => branches(mock, BESIDE),
            }
        }
        inside.set(false);
    };
    mock.on_access(&before);
    operation(&kernel, &mut session, group).unwrap();
    on.set(false);
    pass(&mock, 123, MIXES[2]);
    expected.borrow_mut().add(123, MIXES[2]);
    let counts = kernel.read(&session, group).unwrap().plus(&kernel.of_threads.get());
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
                counting!(processor => mock, kernel, session);
                let group = start(&kernel, &mut session, 5_000);
                let mut expected = Expected::of(&processor);
                pass(&mock, 10_000, MIXES[1]);
                expected.add(10_000, MIXES[1]);
                mock.inject(if permanent { Fault::From(access) } else { Fault::At(access) });
                let done = operation(&kernel, &mut session, group);
                mock.inject(Fault::None);
                if !permanent {
                    assert_eq!(done, Ok(()), "{what}");
                }
                // The failure may have stopped the counts: they are started again.
                session.resume(0, |_| ()).unwrap();
                let read = |session: &mut Session<'_, '_>| {
                    let counts = kernel.read(session, group);
                    counts.map(|counts| counts.plus(&kernel.of_threads.get()))
                };
                let is_lost = read(&mut session).is_err();
                let _ = session.disable(group, 0);
                session.enable(group, 0).expect(&what);
                let before = read(&mut session).unwrap();
                if matches!(done, Ok(()) | Err(CounterError::Unchanged(_))) {
                    assert!(before.slots == 10_000 && !is_lost, "{what}: {done:?}, {before:?}");
                }
                assert!(before.slots <= 10_000, "{what}: {before:?}");
                if before.slots == 10_000 {
                    expected.check(&before, 8, &what);
                }
                let mut more = Expected::of(&processor);
                pass(&mock, 2_550, MIXES[2]);
                more.add(2_550, MIXES[2]);
                let counts = read(&mut session).unwrap();
                more.check(&counts.since(&before), 1, &format!("{what}: afterwards"));
                session.close(group, 0).unwrap();
                assert_eq!(session.counters().usable, kernel.counters.counters(), "{what}");
            }
        }
    }
}

#[test]
fn starting_and_closing_with_a_fault_at_each_access_leaves_the_session_its_counter() {
    for processor in processors() {
        for access in 1..40 {
            let what = format!("{processor:?}: fault {access}");
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let mut session = kernel.take(&mock);
            mock.inject(Fault::At(access));
            let group = kernel.start(&mut session);
            session.close(group, 0).unwrap();
            mock.inject(Fault::From(access));
            if let Ok(group) = kernel.open(&mut session, |event| event) {
                let _ = session.enable(group, 0);
                let _ = session.close(group, 0);
                mock.inject(Fault::None);
                let _ = session.close(group, 0);
            }
            mock.inject(Fault::None);
            session.reprogram(|_| ()).unwrap();
            assert!(!counts_slots(&mock), "{what}");
            assert_eq!(session.events().count(), 0, "{what}");
            let group = kernel.start(&mut session);
            pass(&mock, 510, MIXES[0]);
            assert_eq!(kernel.read(&session, group).unwrap().slots, 510, "{what}");
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
            counting!(processor => mock, kernel, session);
            let group = kernel.start(&mut session);
            let mut expected = Expected::of(&processor);
            mock.inject(Fault::Register(register));
            pass(&mock, 1 << 48, MIXES[1]);
            expected.add(1 << 48, MIXES[1]);
            assert_eq!((mock.interrupts(), kernel.faulted.get()), (1, 1), "{what}");
            mock.inject(Fault::None);
            let counts = kernel.read(&session, group).unwrap();
            expected.check(&counts, 2, &what);
            pass(&mock, 255, MIXES[2]);
            expected.add(255, MIXES[2]);
            expected.check(&kernel.read(&session, group).unwrap(), 3, &what);
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
            let group = kernel.open(&mut session, |event| event).unwrap();
            mock.inject(fault);
            let started = session.enable(group, 0).map_err(|error| error.reason);
            let is_told = match started {
                Err(CounterError::Unchanged(fault)) => [slots, 0x329].contains(&fault.register),
                // The counter itself may not be set back.
                Err(CounterError::StateUnknown(_)) => true,
                _ => fault == Fault::Ignored(slots),
            };
            assert!(is_told, "{processor:?}, {fault:?}: {started:?}");
            mock.inject(Fault::None);
            let _ = session.disable(group, 0);
            session.reprogram(|_| ()).unwrap();
            session.enable(group, 0).unwrap();
            pass(&mock, 255, MIXES[0]);
            assert_eq!(kernel.read(&session, group).unwrap().slots, 255);
        }
    }
}

/// The metrics fault in the overflow's interrupt, after the slots were set back: the fractions of what follows are
/// unknown, and so it is not counted, up to the next read.
#[test]
fn slots_whose_fractions_are_unknown_are_not_counted() {
    for processor in processors() {
        counting!(processor => mock, kernel, session);
        let group = kernel.start(&mut session);
        let mut expected = Expected::of(&processor);
        mock.inject(Fault::Register(0x329));
        pass(&mock, 1 << 48, MIXES[1]);
        expected.add(1 << 48, MIXES[1]);
        mock.inject(Fault::None);
        pass(&mock, 1_000_000, MIXES[2]);
        let what = format!("{processor:?}");
        expected.check(&kernel.read(&session, group).unwrap(), 2, &what);
        pass(&mock, 500, MIXES[3]);
        expected.add(500, MIXES[3]);
        expected.check(&kernel.read(&session, group).unwrap(), 3, &what);
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
            if whole {
                let group = kernel.open(&mut session, Event::rotating).unwrap();
                session.enable(group, 0).unwrap();
            }
            let [mut one, mut other] = [(); 2].map(|()| kernel.thread(&session, |event| event));
            let unit = &kernel.counters;
            session.switch_in(unit, &mut one, 0).unwrap();
            pass(&mock, 1_000_000, MIXES[1]);
            mock.inject(Fault::From(access));
            let left = session.switch_out(&mut one, 0, |_| ());
            mock.inject(Fault::None);
            let counted = kernel.counts_of(&one).slots;
            assert!(counted == 1_000_000 || left.is_err() && counted == 0, "{what}: {left:?}");
            if left.is_err() {
                session.reprogram(|_| ()).unwrap();
            }
            session.switch_in(unit, &mut other, 0).unwrap();
            pass(&mock, 500, MIXES[2]);
            session.switch_out(&mut other, 0, |_| ()).unwrap();
            let before = kernel.counts_of(&other);
            assert!(before.slots <= 500, "{what}: {before:?}");
            // The next time, all is counted.
            session.switch_in(unit, &mut other, 0).unwrap();
            pass(&mock, 255, MIXES[2]);
            session.switch_out(&mut other, 0, |_| ()).unwrap();
            let more = kernel.counts_of(&other).since(&before);
            let mut expected = Expected::of(&processor);
            expected.add(255, MIXES[2]);
            expected.check(&more, 1, &what);
            assert_eq!(mock.with_metrics(|metrics| metrics.metrics()), Some(0), "{what}");
        }
    }
}
