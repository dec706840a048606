//! Facilities while the counters are lent: suspended, and brought back.

use core::cell::{Cell, RefCell};

use pmu_core::access::{AccessErrorKind, AccessFault, AccessOperation, RegisterBackend};
use pmu_core::error::CounterError;
use pmu_core::facility::{EventFacility, Facility, Running, Unsettled};
use pmu_core::{CounterSession, CounterSet, Events, Sample};
use pmu_tests::opened::{Mock, Processor};
use pmu_virt::mock::Deviations;

use super::hardware::*;
use super::scene::*;

/// Lends the counters and takes them back; just before the `at`-th access everything overflows, and these accesses
/// fault, from the first on so many. Returns whether both went beyond the end.
fn lent(processor: &Processor, freezes: bool, at: Option<u32>, faults: Option<(u32, u32)>) -> bool {
    let scene = Scene::of_samples(processor, freezes);
    let handler = |mock: &Mock<'_>| scene.interrupt(mock);
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let registers = Registers(&mock, &scene.hardware, |mock: &Mock<'_>| scene.step(mock));
    let (memory, hardware) = (&scene.memory, &scene.hardware);
    let mut counters = scene.take(&registers);
    let event = scene.sampled_event();
    scene.happen(&mock, SAMPLED, PERIOD - 1);
    let context = format!("{}, {at:?}, {faults:?}", scene.context);

    hardware.accesses.set(0);
    scene.at.set(at);
    hardware.faults.set(faults);
    let window = counters.lend(0, |sample| scene.note(&sample));
    let ended = match window {
        Err(error) => {
            assert!(hardware.faulted.get(), "{context}: {error:?}");
            assert!(hardware.wanted.get(), "{context}: suspended, and nothing is lent");
            let runs = memory.counter_of(event).is_some();
            assert_eq!(runs, matches!(error, CounterError::Unchanged(_)), "{context}: {error:?}");
            false
        }
        Ok(window) => {
            let state = (hardware.recording.get(), hardware.wanted.get());
            assert_eq!(state, (false, false), "{context}: suspended");
            let ended = window.end(0);
            assert!(ended.is_ok() || hardware.faulted.get(), "{context}: {ended:?}");
            let state = (hardware.recording.get(), hardware.wanted.get());
            if scene.errors.get() == 0 {
                // Never in between, unless an interrupt could not start the recording again.
                assert_eq!(state.0, state.1, "{context}");
            }
            assert!(state.1 || ended.is_err(), "{context}: resumed");
            ended.is_ok()
        }
    };
    scene.at.set(None);
    hardware.faults.set(None);
    if ended && scene.errors.get() == 0 {
        scene.happen(&mock, SAMPLED, PERIOD);
        scene.happen(&mock, SAMPLED, PERIOD);
        let told = scene.told.borrow();
        assert_eq!(told.len() as u64, scene.overflows[0].get(), "{context}: samples");
        assert!(told.last().unwrap().is_some(), "{context}: with records");
        assert!(!hardware.frozen.get(), "{context}");
    }
    (at.is_none() || scene.is_beyond()) && (faults.is_none() || !hardware.faulted.get())
}

#[test]
fn a_window_suspends_a_facility_and_brings_it_back() {
    each(platforms(), |processor, freezes| {
        assert!(lent(processor, freezes, None, None));
    });
}

#[test]
fn an_interrupt_at_any_access_of_a_window_leaves_nothing_recording() {
    each(platforms(), |processor, freezes| {
        (1..).find(|at| lent(processor, freezes, Some(*at), None));
    });
}

#[test]
fn a_fault_at_any_access_of_a_window_leaves_nothing_half_suspended() {
    each(platforms(), |processor, freezes| {
        for count in [1, 2, 4, u32::MAX] {
            (1..).find(|access| lent(processor, freezes, None, Some((*access, count))));
        }
    });
}

#[test]
fn a_fault_and_an_interrupt_at_any_access_of_a_window_leave_nothing_half_suspended() {
    each([Deviations::NONE], |processor, freezes| {
        for at in 1..24 {
            (1..).find(|access| {
                lent(processor, freezes, Some(at), Some((*access, 2))) || *access > 60
            });
        }
    });
}

/// The call of a window that failed.
#[derive(Debug)]
enum Failed {
    Begin(CounterError),
    End,
}

/// Lends the counters, and ends the window.
fn lend_once<B: Fn(&Mock<'_>)>(
    counters: &mut Session<'_, '_, '_, B>,
    in_window: impl FnOnce(),
) -> Result<(), Failed> {
    let window = counters.lend(0, |_| ()).map_err(Failed::Begin)?;
    in_window();
    window.end(0).map_err(|_| Failed::End)
}

/// The fault lasts from an access of the window's begin or end on. When it is gone, another window brings both
/// facilities back, and the counters unless they faulted: these are programmed anew.
#[test]
fn a_window_after_a_lasting_fault_brings_both_facilities_back() {
    each([Deviations::NONE], |processor, freezes| {
        let (mut begins, mut ends) = (0, 0);
        for access in 1.. {
            let scene = Scene::of_samples(processor, freezes);
            let (mock, hardware) = (processor.mock(), &scene.hardware);
            let handler = |mock: &Mock<'_>| scene.interrupt(mock);
            mock.on_interrupt(&handler);
            let registers = Registers(&mock, hardware, |_: &Mock<'_>| ());
            let mut counters = scene.take(&registers);
            hardware.traces.set(true);
            let event = scene.sampled_event();
            let context = format!("{}, from {access}", scene.context);
            let is_off = || assert!(!hardware.recording.get() && !hardware.traces.get());

            hardware.accesses.set(0);
            hardware.faults.set(Some((access, u32::MAX)));
            let first = lend_once(&mut counters, is_off);
            hardware.faults.set(None);
            let faulted = match &first {
                Ok(()) => break,
                Err(Failed::Begin(CounterError::Unchanged(_))) => false,
                Err(Failed::Begin(CounterError::StateUnknown(_)) | Failed::End) => true,
                Err(other) => panic!("{context}: {other:?}"),
            };
            match first {
                Err(Failed::Begin(_)) => begins += 1,
                _ => ends += 1,
            }

            let again = lend_once(&mut counters, is_off);
            assert!(again.is_ok(), "{context}: {again:?}");
            let on = (hardware.recording.get(), hardware.wanted.get(), hardware.traces.get());
            assert_eq!(on, (true, true, true), "{context}");
            if faulted {
                counters.reprogram(|_| ()).unwrap();
                if !counters.is_enabled(event) {
                    counters.enable(event, 0).unwrap();
                }
            }
            let before = scene.told.borrow().len();
            scene.happen(&mock, SAMPLED, 2 * PERIOD);
            assert_eq!(scene.told.borrow().len(), before + 2, "{context}");
            assert!(scene.told.borrow().last().unwrap().is_some(), "{context}: with records");
            counters.shut_down().unwrap();
            assert_eq!(mock.breach(), None, "{context}");
        }
        assert!(begins > 0 && ends > 0, "{}: {begins} begins, {ends} ends", processor.deviations);
    });
}

/// The overflow is found by the window, and not by an interrupt: its sample has the records, too.
#[test]
fn an_overflow_that_is_pending_as_a_window_begins_has_its_records() {
    each([Deviations::NONE], |processor, freezes| {
        let scene = Scene::new(processor, freezes);
        let mock = processor.mock();
        let registers = Registers(&mock, &scene.hardware, |_: &Mock<'_>| ());
        let mut counters = scene.take(&registers);
        // No handler is set: interrupts are off.
        scene.happen(&mock, SAMPLED, PERIOD);
        let context = &scene.context;
        let records = RefCell::new(vec![]);
        let note = |sample: Sample<'_, Facilities<'_>>| {
            records.borrow_mut().push(sample.facility().unwrap().0.newest);
        };
        let window = counters.lend(0, note).unwrap();
        assert!(!scene.hardware.frozen.get(), "{context}: acknowledged before the borrower");
        assert_eq!(records.borrow().len(), 1, "{context}");
        let newest = records.borrow()[0].unwrap_or_else(|| panic!("{context}: no records"));
        if scene.hardware.freezes {
            assert_eq!(newest, scene.hardware.at_interrupt.get(), "{context}");
        }
        window.end(0).unwrap();
        assert!(scene.hardware.recording.get(), "{context}");
    });
}

/// The overflow is reported, and the event goes on: no counter is at fault.
#[test]
fn records_that_cannot_be_read_as_a_window_begins_lose_no_event() {
    each([Deviations::NONE], |processor, freezes| {
        let scene = Scene::of_samples(processor, freezes);
        let mock = processor.mock();
        let registers = Registers(&mock, &scene.hardware, |_: &Mock<'_>| ());
        let mut counters = scene.take(&registers);
        let event = scene.sampled_event();
        // No handler is set: interrupts are off.
        scene.happen(&mock, SAMPLED, PERIOD);
        scene.hardware.broken.set(Some(NEWEST));
        let (reported, context) = (Cell::new(0), &scene.context);
        let told = |sample: Sample<'_, Facilities<'_>>| {
            assert_eq!(sample.facility().unwrap().0.newest, None);
            reported.set(reported.get() + 1);
        };
        let lent = counters.lend(0, told).map(|_| ());
        assert!(matches!(lent, Err(CounterError::Unchanged(_))), "{context}: {lent:?}");
        assert_eq!((reported.get(), counters.is_enabled(event)), (1, true), "{context}");
        assert!(scene.hardware.recording.get() && scene.hardware.wanted.get(), "{context}");
        scene.hardware.broken.set(None);
        counters.lend(0, |_| ()).unwrap().end(0).unwrap();
        assert!(counters.is_enabled(event), "{context}");
    });
}

/// Otherwise the borrower would find a bit of the status set, and the owner old records.
#[test]
fn records_that_another_owners_interrupt_froze_are_released_before_a_window() {
    each([Deviations::NONE], |processor, freezes| {
        let scene = Scene::new(processor, freezes);
        let mock = processor.mock();
        let registers = Registers(&mock, &scene.hardware, |_: &Mock<'_>| ());
        let mut counters = scene.take(&registers);
        scene.hardware.raised();
        let window = counters.lend(0, |_| ()).unwrap();
        assert!(!scene.hardware.frozen.get(), "{}", scene.context);
        window.end(0).unwrap();
        assert!(scene.hardware.recording.get(), "{}", scene.context);
    });
}

/// A window that was dropped leaves the facility suspended, until the next window's end.
#[test]
fn a_dropped_window_leaves_the_facility_suspended() {
    each([Deviations::NONE], |processor, freezes| {
        let scene = Scene::new(processor, freezes);
        let mock = processor.mock();
        let registers = Registers(&mock, &scene.hardware, |_: &Mock<'_>| ());
        let mut counters = scene.take(&registers);
        drop(counters.lend(0, |_| ()).unwrap());
        assert!(!scene.hardware.recording.get());
        let window = counters.lend(0, |_| ()).unwrap();
        assert!(!scene.hardware.recording.get());
        window.end(0).unwrap();
        assert!(scene.hardware.recording.get() && scene.hardware.wanted.get());
    });
}

/// A facility that notes its calls; one of them fails.
#[derive(Clone, Copy)]
struct Noted<'a> {
    name: &'static str,
    calls: &'a RefCell<Vec<(&'static str, &'static str)>>,
    fails: &'static str,
}

impl Noted<'_> {
    fn note(&self, call: &'static str) -> Result<(), AccessFault> {
        self.calls.borrow_mut().push((self.name, call));
        let (operation, kind) = (AccessOperation::Write, AccessErrorKind::Fault);
        let fault = AccessFault { operation, register: 0, kind };
        if self.fails == call { Err(fault) } else { Ok(()) }
    }
}

impl Facility for Noted<'_> {
    fn begin<M: RegisterBackend>(&mut self, _: &M) -> Result<(), AccessFault> {
        self.note("begin")
    }

    fn end<M: RegisterBackend>(&mut self, _: &M) -> Result<(), AccessFault> {
        self.note("end")
    }
}

impl EventFacility for Noted<'_> {
    const OFFERS: bool = true;

    fn settle<M: RegisterBackend>(&self, _: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let call = match (running.are_lent(), running.are_returned()) {
            (true, _) => SUSPEND,
            (_, true) => RESUME,
            _ => return Ok(()),
        };
        self.note(call).map_err(|fault| Unsettled { counters: CounterSet::NONE, fault })
    }

    fn lose(&self) {}
}

const SUSPEND: &str = "suspend";
const RESUME: &str = "resume";

#[test]
fn of_a_pair_both_are_resumed_if_one_cannot_be_suspended() {
    let processor = pmu_tests::opened::plain(4);
    let run = |[first, second]: [&'static str; 2]| {
        let calls = RefCell::new(vec![]);
        let scene = Scene::new(&processor, false);
        let mock = processor.mock();
        let registers = Registers(&mock, &scene.hardware, |_: &Mock<'_>| ());
        let noted = |name, fails| Noted { name, calls: &calls, fails };
        let pair = (noted("first", first), noted("second", second));
        let (unit, memory) = (&processor.unit, &scene.memory);
        let source = Events::new(unit, &scene.table).with(pair);
        let all = CounterSet::ALL;
        let taken = CounterSession::take(source, unit, all, &registers, memory);
        let mut counters = taken.unwrap();
        let outcome = match counters.lend(0, |_| ()) {
            Ok(window) => window.end(0).map_err(CounterError::from),
            Err(error) => Err(error),
        };
        (outcome.is_ok(), calls.take())
    };
    let both = |call| [("first", call), ("second", call)];
    // A second attempt follows a resume that failed.
    let (once, twice) =
        ([both(SUSPEND), both(RESUME)], [both(SUSPEND), both(RESUME), both(RESUME)]);
    assert_eq!(run(["", ""]), (true, once.concat()));
    assert_eq!(run([SUSPEND, ""]), (false, once.concat()));
    assert_eq!(run(["", SUSPEND]), (false, once.concat()));
    assert_eq!(run([RESUME, ""]), (false, twice.concat()));
    assert_eq!(run(["", RESUME]), (false, twice.concat()));
}
