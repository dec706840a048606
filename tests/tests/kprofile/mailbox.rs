//! Requests to other processors: each processor is a thread, and its interrupt a flag that it polls.

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::thread;

use super::mailbox_machine::*;
use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::InterfaceError;
use pmu_kprofile::hardware::{Mailbox, Remote, RemoteProcessors, SourceRequest};
use pmu_kprofile::{
    Affinity, BasicProfile, ProfileError, ProfileHardware, ProfileObject, Profiles,
};

#[test]
fn a_request_is_served_on_its_processor_and_answered() {
    let (machine, mailbox, done) =
        (Machine::default(), Mailbox::<3>::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let here = Processor::new(&machine, 1);
            while !done.load(Ordering::SeqCst) {
                mailbox.drain(&here);
                thread::yield_now();
            }
        });
        let mut hardware = Remote::new(&mailbox, Processor::new(&machine, 0));
        for _ in 0..100 {
            assert_eq!(hardware.start(on(1), SOURCE), Ok(()));
            assert_eq!(*machine.running.lock().unwrap(), BTreeSet::from([(1, SOURCE.value())]));
            assert_eq!(hardware.stop(on(1), SOURCE), Ok(()));
            let refused = Err(InterfaceError::NoFreeCounter(OTHER));
            assert_eq!(hardware.start(on(1), OTHER), refused);
            // A request to the own processor needs no interrupt.
            assert_eq!(hardware.start(on(0), SOURCE), Ok(()));
            assert_eq!(hardware.stop(on(0), SOURCE), Ok(()));
        }
        assert!(hardware.supports(SOURCE) && !hardware.supports(OTHER));
        assert!(!hardware.in_interrupt());
        assert_eq!(
            (hardware.this_processor(), hardware.active_processors()),
            (on(0), Affinity::first(3))
        );
        done.store(true, Ordering::SeqCst);
    });
    let interrupts = machine.interrupts.map(AtomicU64::into_inner);
    assert_eq!(interrupts, [0, 300, 0]);
    assert!(machine.running.into_inner().unwrap().is_empty());
}

/// Posts requests to another processor repeatedly, and drains until all processors have finished.
fn ask_and_drain(machine: &Machine, mailbox: &Mailbox<3>, here: u16, there: u16) {
    let processor = Processor::new(machine, here);
    let mut hardware = Remote::new(mailbox, Processor::new(machine, here));
    for _ in 0..200 {
        assert_eq!(hardware.start(on(there), SOURCE), Ok(()));
        assert_eq!(hardware.stop(on(there), SOURCE), Ok(()));
    }
    machine.interrupts[usize::from(here)].fetch_add(1 << 32, Ordering::SeqCst);
    let is_done = |n: &AtomicU64| n.load(Ordering::SeqCst) >> 32 != 0;
    while !machine.interrupts.iter().all(is_done) {
        mailbox.drain(&processor);
        thread::yield_now();
    }
}

#[test]
fn requests_that_cross_do_not_wait_for_each_other() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    thread::scope(|scope| {
        for (here, there) in [(0, 1), (1, 2), (2, 0)] {
            let (machine, mailbox) = (&machine, &mailbox);
            scope.spawn(move || ask_and_drain(machine, mailbox, here, there));
        }
    });
    assert!(machine.running.into_inner().unwrap().is_empty());
}

#[test]
fn a_request_to_a_processor_that_has_another_waits_until_that_one_is_answered() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    let remote = |number| Remote::new(&mailbox, Processor::new(&machine, number));
    let waits = |number: usize| machine.waited[number].load(Ordering::SeqCst) > 0;
    thread::scope(|scope| {
        let first = scope.spawn(|| remote(2).start(on(1), SOURCE));
        while !waits(2) {
            thread::yield_now();
        }
        let second = scope.spawn(|| remote(0).stop(on(1), SOURCE));
        while !waits(0) {
            thread::yield_now();
        }
        while !(first.is_finished() && second.is_finished()) {
            mailbox.drain(&Processor::new(&machine, 1));
            thread::yield_now();
        }
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (Ok(()), Ok(())));
    });
    assert_eq!(machine.interrupts.map(AtomicU64::into_inner), [0, 2, 0]);
}

#[test]
fn a_processor_that_does_not_answer_is_an_error_and_serves_nothing_later() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    let mut hardware =
        Remote::new(&mailbox, Processor { turns: 50, ..Processor::new(&machine, 0) });
    for _ in 0..3 {
        assert_eq!(hardware.start(on(1), SOURCE), Err(InterfaceError::NoAnswer(on(1))));
    }
    // The processor wakes up: the requests were withdrawn.
    mailbox.drain(&Processor::new(&machine, 1));
    assert!(machine.running.lock().unwrap().is_empty());
    // This processor is beyond the mailbox.
    assert_eq!(hardware.start(on(3), SOURCE), Err(InterfaceError::NoAnswer(on(3))));
    assert!(hardware.start(ProcessorNumber { group: 9, number: 0 }, SOURCE).is_err());
}

#[test]
fn a_start_that_is_answered_too_late_is_undone() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    machine.held.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            // The requester gives up only after the other processor has begun.
            let asker = patient(Processor::new(&machine, 0), false);
            let outcome = Remote::new(&mailbox, asker).start(on(1), SOURCE);
            machine.held.store(false, Ordering::SeqCst);
            outcome
        });
        let here = Processor::new(&machine, 1);
        while !asking.is_finished() {
            mailbox.drain(&here);
            thread::yield_now();
        }
        assert_eq!(asking.join().unwrap(), Err(InterfaceError::NoAnswer(on(1))));
    });
    assert!(machine.inside.load(Ordering::SeqCst));
    assert!(machine.running.lock().unwrap().is_empty(), "the source still runs");
    // The slot is free again.
    let mut hardware =
        Remote::new(&mailbox, Processor { turns: 50, ..Processor::new(&machine, 0) });
    assert_eq!(hardware.start(on(1), SOURCE), Err(InterfaceError::NoAnswer(on(1))));
}

#[test]
fn a_stop_without_an_answer_in_time_is_done_when_the_processor_comes_to_it() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    let mut hardware =
        Remote::new(&mailbox, Processor { turns: 50, ..Processor::new(&machine, 0) });
    let here = Processor::new(&machine, 1);
    for number in 0..3 {
        for source in sources() {
            machine.running.lock().unwrap().insert((1, source.value()));
            assert_eq!(hardware.stop(on(1), source), Err(InterfaceError::NoAnswer(on(1))));
        }
        // A start is not.
        assert_eq!(hardware.start(on(1), SOURCE), Err(InterfaceError::NoAnswer(on(1))));
        assert_eq!(running(&machine).len(), sources().count());
        // After the stop was left: the handler of an interrupt before that may have found nothing.
        let before = machine.interrupts[1].load(Ordering::SeqCst);
        assert!(before >= 2 * sources().count() as u64, "round {number}");
        mailbox.drain(&here);
        assert_eq!(running(&machine), []);
        // A stop that was not left again is not done again.
        mailbox.drain(&here);
    }
}

#[test]
fn a_source_whose_stop_was_not_answered_in_time_can_be_started_again() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    let lists: Profiles<4, 3> = Profiles::new();
    let impatient =
        || Remote::new(&mailbox, Processor { turns: 50, ..Processor::new(&machine, 0) });
    let mut patient = Remote::new(&mailbox, Processor::new(&machine, 0));
    let counters = [const { AtomicU32::new(0) }; 1];
    let request = BasicProfile {
        process: None,
        base: 0x1000,
        size: 4,
        bucket_log2: 2,
        buffer: &counters,
        source: SOURCE,
        affinity: Some(Affinity::first(2)),
    };
    let object = ProfileObject::basic(lists.rules(), request, &patient).unwrap();
    let silent =
        ProfileError::Hardware { processor: on(1), error: InterfaceError::NoAnswer(on(1)) };
    for _ in 0..3 {
        // SAFETY: the object lives to the end of this function, and is stopped by then.
        let start = |hardware: &mut _| unsafe { lists.start_borrowed(&object, hardware) };
        assert_eq!(start(&mut impatient()), Err(silent), "processor 1 does not drain");
        let started = while_1_drains(&machine, &mailbox, || start(&mut patient));
        assert_eq!(started, Ok(()));
        assert_eq!(running(&machine), [(0, SOURCE.value()), (1, SOURCE.value())]);
        assert_eq!(lists.stop(&object, &mut impatient()), Err(silent));
        assert_eq!(running(&machine), [(1, SOURCE.value())]);
    }
}

/// Leaves a stop of a source that runs on processor 1.
fn leave_a_stop(machine: &Machine, mailbox: &Mailbox<3>) {
    machine.running.lock().unwrap().insert((1, SOURCE.value()));
    let mut hardware = Remote::new(mailbox, Processor { turns: 5, ..Processor::new(machine, 0) });
    assert!(hardware.stop(on(1), SOURCE).is_err());
}

#[test]
fn an_interrupt_within_a_stop_that_was_left_does_not_start_the_source_before() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    leave_a_stop(&machine, &mailbox);
    thread::scope(|scope| {
        let asking =
            scope.spawn(|| Remote::new(&mailbox, Processor::new(&machine, 0)).start(on(1), SOURCE));
        while machine.waited[0].load(Ordering::SeqCst) < 10 {
            thread::yield_now();
        }
        // The interrupt finds the start, which fails the test where the source runs.
        let nested = AtomicU64::new(0);
        let hooked = serving(Processor::new(&machine, 1), |processor, request| {
            nested.fetch_add(1, Ordering::SeqCst);
            mailbox.drain(processor);
            processor.serve(request)
        });
        mailbox.drain(&hooked);
        assert_eq!(
            nested.load(Ordering::SeqCst),
            2,
            "the stop and then, without another interrupt, the start"
        );
        assert_eq!(asking.join().unwrap(), Ok(()));
    });
    assert_eq!(running(&machine), [(1, SOURCE.value())]);
}

#[test]
fn a_start_of_the_own_processor_comes_after_a_stop_that_was_left_there() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    leave_a_stop(&machine, &mailbox);
    let mut own = Remote::new(&mailbox, Processor::new(&machine, 1));
    assert_eq!(own.start(on(1), SOURCE), Ok(()));
    mailbox.drain(&Processor::new(&machine, 1));
    assert_eq!(running(&machine), [(1, SOURCE.value())]);
}

/// A session that is in use answers a stop so; it is not lost, and a second attempt is made once per call.
#[test]
fn a_stop_that_finds_the_session_in_use_is_done_later() {
    let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
    machine.running.lock().unwrap().insert((1, SOURCE.value()));
    let served = AtomicU64::new(0);
    let in_use = serving(Processor::new(&machine, 1), |processor, _| {
        served.fetch_add(1, Ordering::SeqCst);
        Err(InterfaceError::NoAnswer(processor.this_processor()))
    });
    thread::scope(|scope| {
        let asking =
            scope.spawn(|| Remote::new(&mailbox, Processor::new(&machine, 0)).stop(on(1), SOURCE));
        while !asking.is_finished() {
            mailbox.drain(&in_use);
            thread::yield_now();
        }
        assert_eq!(asking.join().unwrap(), Err(InterfaceError::NoAnswer(on(1))));
    });
    let before = served.load(Ordering::SeqCst);
    mailbox.drain(&in_use);
    assert_eq!(served.load(Ordering::SeqCst) - before, 1);
    mailbox.drain(&Processor::new(&machine, 1));
    assert_eq!(running(&machine), []);
}

#[test]
fn a_processor_without_a_session_says_so_and_no_stop_is_left_to_it() {
    for request in [SourceRequest::Start(SOURCE), SourceRequest::Stop(SOURCE)] {
        let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
        let served = AtomicU64::new(0);
        let without = serving(Processor::new(&machine, 1), |processor, _| {
            served.fetch_add(1, Ordering::SeqCst);
            Err(InterfaceError::NoSession(processor.this_processor()))
        });
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut hardware = Remote::new(&mailbox, Processor::new(&machine, 0));
                match request {
                    SourceRequest::Start(source) => hardware.start(on(1), source),
                    SourceRequest::Stop(source) => hardware.stop(on(1), source),
                }
            });
            while !asking.is_finished() {
                mailbox.drain(&without);
                thread::yield_now();
            }
            assert_eq!(asking.join().unwrap(), Err(InterfaceError::NoSession(on(1))));
        });
        mailbox.drain(&without);
        assert_eq!(served.load(Ordering::SeqCst), 1, "{request:?}");
    }
}

/// By a stop that was left, a request that is waited for, and one that is given up meanwhile.
#[test]
fn a_panic_in_serve_leaves_the_slot_usable_and_the_source_stopped() {
    for request in [SourceRequest::Start(SOURCE), SourceRequest::Stop(SOURCE)] {
        let (machine, mailbox) = (Machine::default(), Mailbox::<3>::new());
        let start = matches!(request, SourceRequest::Start(_));
        if !start {
            machine.running.lock().unwrap().insert((1, SOURCE.value()));
        }
        let panics = serving(Processor::new(&machine, 1), |processor, request| {
            // Half of it is done.
            if let SourceRequest::Start(source) = request {
                processor.machine.running.lock().unwrap().insert((1, source.value()));
            }
            panic!("on purpose");
        });
        let drain = || catch_unwind(AssertUnwindSafe(|| mailbox.drain(&panics)));
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut hardware =
                    Remote::new(&mailbox, patient(Processor::new(&machine, 0), true));
                if start { hardware.start(on(1), SOURCE) } else { hardware.stop(on(1), SOURCE) }
            });
            while drain().is_ok() {
                thread::yield_now();
            }
            assert_eq!(asking.join().unwrap(), Err(InterfaceError::NoAnswer(on(1))));
        });
        // The stop that was left panics too.
        assert!(drain().is_err());
        assert_eq!(running(&machine), [(1, SOURCE.value())]);
        mailbox.drain(&Processor::new(&machine, 1));
        assert_eq!(running(&machine), [], "{request:?}");
        let mut hardware = Remote::new(&mailbox, patient(Processor::new(&machine, 0), true));
        let again = while_1_drains(&machine, &mailbox, || hardware.start(on(1), SOURCE));
        assert_eq!((again, running(&machine)), (Ok(()), vec![(1, SOURCE.value())]));
    }
}

/// A task that was killed while it served neither returns nor unwinds.
#[test]
fn a_slot_whose_call_never_ends_is_had_back() {
    for for_answer in [false, true] {
        let machine: &Machine = Box::leak(Box::default());
        let mailbox: &Mailbox<3> = Box::leak(Box::new(Mailbox::new()));
        thread::spawn(|| {
            let killed = serving(Processor::new(machine, 1), |processor, _| {
                processor.machine.inside.store(true, Ordering::SeqCst);
                loop {
                    thread::park();
                }
            });
            while !machine.inside.load(Ordering::SeqCst) {
                mailbox.drain(&killed);
                thread::yield_now();
            }
        });
        let silent = Err(InterfaceError::NoAnswer(on(1)));
        let ask = || {
            // Until the other processor is at it, and then for an answer or not.
            let asker = patient(Processor::new(machine, 0), for_answer);
            Remote::new(mailbox, asker).start(on(1), SOURCE)
        };
        thread::scope(|scope| {
            let asking = scope.spawn(ask);
            while !machine.inside.load(Ordering::SeqCst) || !for_answer && !asking.is_finished() {
                thread::yield_now();
            }
            // SAFETY: the thread that serves never goes on.
            unsafe { mailbox.reclaim(on(1)) };
            assert_eq!(asking.join().unwrap(), silent);
        });
        machine.running.lock().unwrap().insert((1, SOURCE.value()));
        let mut hardware = Remote::new(mailbox, patient(Processor::new(machine, 0), true));
        let again = while_1_drains(machine, mailbox, || hardware.start(on(1), SOURCE));
        assert_eq!((again, running(machine)), (Ok(()), vec![(1, SOURCE.value())]));
    }
}
