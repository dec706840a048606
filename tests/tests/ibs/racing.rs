//! Operations that race with a sample, another owner's interrupt, or a fault: before each access in turn.

use core::cell::Cell;
use pmu_tests::Reason;

use pmu_core::EventId;
use pmu_core::error::CounterError;
use pmu_core::thread::ThreadEvent;
use pmu_virt::configuration::AmdConfiguration;
use pmu_virt::mock::{Deviation, Deviations, Fault, PmiFault};

use crate::support::*;

/// An operation of a task. Returns the event, which a switch of threads may have given another place.
type Operation = fn(&Kernel, &Mock<'_>, &mut Session<'_>, EventId) -> Result<EventId, CounterError>;

fn stop(
    _: &Kernel,
    _: &Mock<'_>,
    session: &mut Session<'_>,
    event: EventId,
) -> Result<EventId, CounterError> {
    session.disable(event, 0).map(|()| event).reason()
}

fn restart(
    _: &Kernel,
    _: &Mock<'_>,
    session: &mut Session<'_>,
    event: EventId,
) -> Result<EventId, CounterError> {
    session.disable(event, 0)?;
    session.enable(event, 0).map(|()| event).reason()
}

fn window(
    kernel: &Kernel,
    _: &Mock<'_>,
    session: &mut Session<'_>,
    event: EventId,
) -> Result<EventId, CounterError> {
    let window = session.lend(0, |sample| kernel.note(&sample))?;
    Ok(window.end(0).map(|()| event)?)
}

fn suspend(
    kernel: &Kernel,
    mock: &Mock<'_>,
    session: &mut Session<'_>,
    event: EventId,
) -> Result<EventId, CounterError> {
    session.suspend(0, |sample| kernel.note(&sample))?;
    // No interrupt stays pending while the processor sleeps.
    mock.deliver_sample();
    session.resume(0, |sample| kernel.note(&sample)).map(|_| event)
}

fn reprogram(
    kernel: &Kernel,
    _: &Mock<'_>,
    session: &mut Session<'_>,
    event: EventId,
) -> Result<EventId, CounterError> {
    session.reprogram(|sample| kernel.note(&sample)).map(|_| event)
}

fn switch(
    kernel: &Kernel,
    _: &Mock<'_>,
    session: &mut Session<'_>,
    event: EventId,
) -> Result<EventId, CounterError> {
    let mut thread = [ThreadEvent::Opened(event)];
    let out = session.switch_out(&mut thread, 0, |sample| kernel.note(&sample));
    out.map_err(|error| error.reason)?;
    let inside = session.switch_in(&kernel.counters, &mut thread, 0);
    inside.map_err(|error| error.reason)?;
    match thread {
        [ThreadEvent::Opened(event)] => Ok(event),
        [other] => panic!("{other:?}"),
    }
}

fn read(
    _: &Kernel,
    _: &Mock<'_>,
    session: &mut Session<'_>,
    event: EventId,
) -> Result<EventId, CounterError> {
    session.read(event, 0).map(|_| event)
}

/// The operations, and whether the event samples afterwards.
const OPERATIONS: [(&str, Operation, bool); 7] = [
    ("stop", stop, false),
    ("restart", restart, true),
    ("window", window, true),
    ("suspend", suspend, true),
    ("reprogram", reprogram, true),
    ("switch", switch, true),
    ("read", read, true),
];

/// An event just before one access.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Comes {
    Sample,
    /// A sample whose interrupt comes after this many further accesses.
    Late(u32),
    Foreign,
    /// A fault of this access, whose retry succeeds.
    Fault,
    /// A sample, whose interrupt comes at once, and a fault of the access.
    SampleAndFault,
}

/// Lets one thing come before each access of an operation in turn.
fn race(processor: Processor, (name, operation, restarts): (&str, Operation, bool), comes: Comes) {
    let is_late = matches!(comes, Comes::Late(_))
        || processor.deviations.contains(Deviation::LateIbs) && comes != Comes::Foreign;
    for kind in [pmu_amd::ibs::IbsKind::Op, pmu_amd::ibs::IbsKind::Fetch] {
        for access in 1.. {
            let what = format!(
                "{}, {:?}, {}, {kind:?}, {name}, {comes:?} before {access}",
                processor.name, processor.counters.counters, processor.deviations
            );
            sampler!(processor, kind => mock, kernel, session);
            let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
            // Without a status, a session expects an interrupt of its predecessor's.
            mock.interrupt_from_elsewhere();
            let interrupts = mock.interrupts();
            kernel.claimed.set(0);
            kernel.unclaimed.set(0);
            let (left, fed, made) = (Cell::new(access), Cell::new(false), Cell::new(0));
            // The access before which it came, unless the interrupt came first.
            let last = Cell::new(None);
            let accesses =
                |mock: &Mock<'_>| mock.trace().dropped() + mock.trace().records().count();
            let look = |mock: &Mock<'_>| {
                let is_next = accesses(mock) == made.get() + 1;
                last.set(mock.trace().records().last().filter(|_| is_next));
            };
            let before = |mock: &Mock<'_>| {
                left.set(left.get() - 1);
                match left.get() {
                    -1 => look(mock),
                    0 => {
                        let late = match comes {
                            Comes::Late(accesses) => PmiFault::Late(accesses),
                            _ => PmiFault::None,
                        };
                        mock.inject_pmi(late);
                        match comes {
                            Comes::Foreign => {
                                mock.interrupt_from_elsewhere();
                            }
                            Comes::Fault => mock.inject(Fault::At(1)),
                            _ => fed.set(kernel.run(mock, 2 * PERIOD)),
                        }
                        if comes == Comes::SampleAndFault {
                            mock.inject(Fault::At(1));
                        }
                        mock.inject_pmi(PmiFault::None);
                        // The interrupt's accesses came before this one.
                        left.set(0);
                        made.set(accesses(mock));
                    }
                    _ => {}
                }
            };
            mock.on_access(&before);
            let event = operation(&kernel, &mock, &mut session, event).unwrap();
            let done = left.get() > 0;
            if left.get() == 0 {
                look(&mock);
            }
            mock.on_access(&|_| ());
            mock.inject(Fault::None);
            // Interrupts that have not come yet come now.
            mock.deliver_sample();
            if !restarts {
                assert!(!kernel.run(&mock, 2 * PERIOD), "{what}: stopped");
            }
            assert_eq!(is_enabled(&mock), restarts, "{what}");
            assert!(!is_valid(&mock, kind), "{what}: a sample is left");
            assert_eq!(kernel.sampled().len(), fed.get().into(), "{what}");
            if is_late && fed.get() {
                kernel.forget_without_trace(kind, last.get());
            }
            kernel.all_reported(&what);
            // Another owner's interrupt may be taken for one that was expected, but never the other way round.
            let foreign = u32::from(comes == Comes::Foreign && !done);
            assert!(kernel.unclaimed.get() <= foreign, "{what}");
            let answers = kernel.claimed.get() + kernel.unclaimed.get();
            assert_eq!(answers, mock.interrupts() - interrupts, "{what}");
            assert_eq!((kernel.faulted.get(), kernel.overflows.get()), (0, 0), "{what}");
            if !restarts {
                session.enable(event, 0).unwrap();
            }
            // The rest of the period is no longer than the period.
            assert!(kernel.run(&mock, PERIOD + 15), "{what}: samples on");
            mock.deliver_sample();
            session.disable(event, 0).unwrap();
            kernel.all_reported(&what);
            session.shut_down().unwrap();
            assert!(!is_enabled(&mock), "{what}");
            if done {
                break;
            }
        }
    }
}

const COMES: [Comes; 9] = [
    Comes::Sample,
    Comes::Foreign,
    Comes::Fault,
    Comes::SampleAndFault,
    Comes::Late(0),
    Comes::Late(1),
    Comes::Late(2),
    Comes::Late(4),
    Comes::Late(1_000),
];

/// Runs all races of these processors.
fn all(processors: impl Iterator<Item = Processor>, comes: &[Comes]) {
    for processor in processors {
        for operation in OPERATIONS {
            comes.iter().for_each(|comes| race(processor, operation, *comes));
        }
    }
}

#[test]
fn no_operation_loses_a_sample_that_comes_at_any_access_and_no_sample_undoes_one() {
    all(processors().into_iter(), &COMES);
}

#[test]
fn no_operation_loses_a_sample_beside_each_kind_of_counters() {
    for counters in [AmdConfiguration::LEGACY, AmdConfiguration::CORE_EXTENSION] {
        let processors = ["Zen 3", "Zen 6"].into_iter();
        all(processors.map(|name| Processor { counters, ..named(name) }), &COMES);
    }
}

/// The interrupt comes only after the unit was stopped: a stop's sample is reported then.
#[test]
fn an_interrupt_that_comes_after_the_stop_is_claimed_and_its_sample_reported() {
    let deviations = Deviations::of(&[Deviation::LateIbs]);
    let late = processors().into_iter().map(|of| Processor { deviations, ..of });
    let takes = |(name, ..): &(&str, Operation, bool)| *name != "read" && *name != "reprogram";
    for processor in late {
        for operation in OPERATIONS.into_iter().filter(takes) {
            race(processor, operation, Comes::Sample);
        }
    }
}
