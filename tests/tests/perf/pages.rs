//! Pages by which threads read their events: they say what a read says, and nothing once the event is closed, or its
//! thread does not run.

use pmu::core::thread::ThreadEvent;
use pmu::{Event, GenericEvent};
use pmu_tests::linux_page::LinuxPage;
use pmu_virt::mock::{Deviations, Fault};

use crate::machine::Machine;
use crate::models::models;
use crate::subsystem::Errno;
use crate::world::{System, map};
use crate::{BRANCHES, CYCLES, PERIOD, PLAIN, plain, precise_cycles, with_branches};

/// Tag of the processor's own event.
const OWN: u64 = 9;

fn own() -> Event {
    Event::generic(GenericEvent::Cycles).with_user_reads().tagged(OWN)
}

/// The page says what a read says, whatever moved the counter since, and nothing once the event is closed.
#[test]
fn a_thread_reads_its_events_from_their_pages() {
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let own = perf.pmu.start(&own()).unwrap();
        let [own_page, plain_page, cycles_page] = [OWN, PLAIN, CYCLES].map(map);
        let mut task = vec![];
        for (bytes, tag) in [(plain(), PLAIN), (precise_cycles(), CYCLES)] {
            perf.open_of(&mut task, &bytes, tag).unwrap();
        }
        let check = |task: &[ThreadEvent], what: &str| {
            // First, because a use of the session publishes the pages, too.
            let pages = [own_page, plain_page, cycles_page].map(|page| machine.read_page(page));
            let thread = |event| perf.pmu.read_thread(event).unwrap().value;
            // A sampling unit has no RDPMC: the thread makes a system call.
            let cycles = (!machine.has_units).then(|| thread(&task[1]));
            let counts = [Some(perf.pmu.read(own).unwrap().value), Some(thread(&task[0])), cycles];
            assert_eq!(pages, counts, "{name}, {what}");
        };
        perf.switch(&mut vec![], &mut task).unwrap();
        check(&task, "switched in");
        machine.work(PERIOD / 2, 0x9000);
        check(&task, "while it counts");
        machine.work(7 * PERIOD, 0x9000);
        check(&task, "after interrupts");
        let before = perf.pmu.read(own).unwrap().value;
        // An event for the only counters of the others, if there are any.
        let more = perf.open(&precise_cycles(), 4, None).and_then(|more| perf.close(more));
        let more = more.and(perf.open(&with_branches(), BRANCHES, None));
        check(&task, "beside others");
        machine.suspend();
        check(&task, "after a suspend");
        perf.run_guest(|| machine.work(3 * PERIOD, 0xA000)).unwrap();
        check(&task, "after a guest");
        perf.tick().unwrap();
        machine.work(PERIOD, 0x9000);
        check(&task, "after a tick");
        assert_eq!(perf.pmu.read(own).unwrap().value, before + PERIOD, "{name}");
        perf.switch(&mut task, &mut vec![]).unwrap();
        perf.switch(&mut vec![], &mut task).unwrap();
        check(&task, "switched in again");
        if let Ok(more) = more {
            perf.close(more).unwrap();
        }
        perf.pmu.close(own).unwrap();
        assert_eq!(machine.read_page(own_page), None, "{name}: closed");
        machine.end();
        for page in [plain_page, cycles_page] {
            let read = LinuxPage::of(page).read(|_| panic!("a counter"), || 0);
            assert_eq!(read, None, "{name}: the processor is down");
        }
    }
}

/// An interrupt at each access publishes what is open, also while it is closed.
#[test]
fn the_page_of_an_event_that_is_closed_is_hidden_whatever_interrupts() {
    for model in models() {
        for at in 1..30 {
            for is_down in [false, true] {
                let machine = Machine::of(&model, Deviations::NONE, |_| ());
                let (perf, page) = (machine.perf, map(OWN));
                let event = perf.pmu.start(&own()).unwrap();
                perf.open(&plain(), PLAIN, None).unwrap(); // what interrupts
                machine.work(100, 0x9000);
                machine.disturb(at, Fault::None);
                if is_down {
                    perf.pmu.processor_down().unwrap();
                } else {
                    perf.close(event).unwrap();
                }
                machine.disturb(0, Fault::None);
                assert_eq!(machine.read_page(page), None, "{}, {at}, down: {is_down}", model.name);
            }
        }
    }
}

/// A thread that ran once, whose page had a counter, and a processor that counts something else.
fn switched_out() -> (Machine, Vec<ThreadEvent>) {
    let machine = Machine::new(&models()[3]);
    let perf = machine.perf;
    let page = map(PLAIN);
    let mut task = vec![];
    perf.open_of(&mut task, &plain(), PLAIN).unwrap();
    perf.switch(&mut vec![], &mut task).unwrap();
    machine.work(1_000, 0x9000);
    assert_eq!(machine.read_page(page), Some(1_000));
    perf.switch(&mut task, &mut vec![]).unwrap();
    perf.pmu.start(&Event::generic(GenericEvent::Instructions).tagged(50)).unwrap();
    machine.work(7_000, 0x9000);
    (machine, task)
}

#[test]
fn the_page_of_an_event_that_is_not_switched_in_is_hidden() {
    let refused = |refuse: fn(&Machine), errno| {
        let (machine, mut task) = switched_out();
        refuse(&machine);
        assert_eq!(machine.perf.switch(&mut vec![], &mut task), Err(errno));
        assert_eq!(machine.read_page(map(PLAIN)), None, "{errno:?}");
    };
    // No place in the table; suspended; down.
    let (enomem, ebusy, enodev) = (Errno(12), Errno(16), Errno(19));
    let fill = |machine: &Machine| {
        let instructions = Event::generic(GenericEvent::Instructions);
        while machine.perf.pmu.open(&instructions).is_ok() {}
    };
    refused(fill, enomem);
    refused(|machine| machine.perf.pmu.processor_suspended().unwrap(), ebusy);
    refused(|machine| machine.perf.pmu.processor_down().unwrap(), enodev);
    // Dropped by its thread, which runs on.
    let (machine, task) = switched_out();
    drop(task);
    machine.perf.switch(&mut vec![], &mut vec![]).unwrap();
    assert_eq!(machine.read_page(map(PLAIN)), None);
}

/// By the session, by `count`, and of a guest that does not return.
#[test]
fn the_page_of_an_event_that_ends_otherwise_is_hidden() {
    let opened = || {
        let machine = Machine::new(&models()[3]);
        let event = machine.perf.pmu.start(&own()).unwrap();
        machine.work(1_000, 0x9000);
        let page = map(OWN);
        machine.perf.pmu.read(event).unwrap();
        assert_eq!(machine.read_page(page), Some(1_000));
        (machine, event, page)
    };
    let (machine, event, page) = opened();
    let close =
        |session: &mut pmu::processors::PmuSession<_>| session.counters_mut().close(event.id(), 0);
    machine.perf.pmu.with(|session, _| close(session)).unwrap().unwrap();
    assert_eq!(machine.read_page(page), None, "closed by the session");

    let machine = Machine::new(&models()[3]);
    let page = map(OWN);
    let count = machine.perf.pmu.count(&[own()], || {
        let _ = machine.foreign_interrupt();
        machine.work(1_000, 0x9000);
    });
    assert_eq!(count.unwrap()[0].value, 1_000);
    assert_eq!(machine.read_page(page), None, "counted");

    let (machine, event, page) = opened();
    machine.perf.pmu.processor_suspended().unwrap();
    machine.lose_registers();
    assert_eq!(machine.read_page(page), None, "suspended");
    let _ = machine.foreign_interrupt();
    assert_eq!(machine.read_page(page), None, "interrupted while it is suspended");
    machine.perf.pmu.processor_resumed().unwrap();
    machine.work(1_000, 0x9000);
    assert_eq!(machine.read_page(page), Some(machine.perf.pmu.read(event).unwrap().value));

    let (machine, _, page) = opened();
    let guest = || {
        machine.lose_counters();
        panic!("the guest does not return");
    };
    let guest = core::panic::AssertUnwindSafe(|| machine.perf.run_guest(guest));
    std::panic::catch_unwind(guest).unwrap_err();
    assert_eq!(machine.read_page(page), None, "lent");

    let (machine, event, page) = opened();
    let close = |session: &mut pmu::processors::PmuSession<_>| {
        session.counters_mut().close(event.id(), 0).unwrap();
        panic!("after the event was closed");
    };
    let close =
        core::panic::AssertUnwindSafe(|| machine.perf.pmu.with(|session, _| close(session)));
    std::panic::catch_unwind(close).unwrap_err();
    assert_eq!(machine.read_page(page), None, "closed by a task that panicked");
}

/// Events of the kernel's own have tags that are no pages.
#[test]
fn only_events_that_were_opened_for_user_mode_have_pages() {
    for model in models() {
        let machine = Machine::new(&model);
        let page = map(77);
        let event = Event::generic(GenericEvent::Instructions).tagged(77);
        let event = machine.perf.pmu.start(&event).unwrap();
        machine.work(1_000, 0x9000);
        assert_eq!(machine.perf.pmu.read(event).unwrap().value, 1_000);
        assert_eq!(machine.read_page(page), None, "{}", model.name);
    }
}
