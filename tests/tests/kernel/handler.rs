//! Parts of `Pmu` in a handler, beside the overflow: the counts of a group, a user page, and the end of reports; and
//! a count that another processor reads.

use core::cell::RefCell;

use pmu::core::error::CounterError;
use pmu::core::frame::PlainFrame;
use pmu::core::reading::{RemoteCount, remote_count, sample_read, user_view};
use pmu::core::{Event, EventSource, GenericEvent};
use pmu::user::UserPage;
use pmu::{Kernel, PmuSample};
use pmu_tests::linux_page::LinuxPage;
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use crate::world::{Happens, Machine, PROCESSORS, TestPmu, World, sampling};

const PERIOD: u64 = 5_000;
const FRAME: PlainFrame = PlainFrame { pc: 0, cs: 8, flags: 2, processor: 1, process: None };

#[test]
fn a_handler_reads_a_group_publishes_its_page_and_ends_its_reports() {
    let (machine, pmu): (_, &'static TestPmu) =
        Machine::new(Configuration::Intel(IntelConfiguration::new(4, 4, 3)));
    assert!(pmu.events_of(0).is_none(), "no processor is up");
    machine.up();
    assert!(pmu.events_of(PROCESSORS).is_none());
    let leader = Event::generic(GenericEvent::Instructions).every(PERIOD).with_total().tagged(1);
    let member = Event::generic(GenericEvent::Cycles).tagged(2);
    let (page, samples) = (&*Box::leak(Box::new(UserPage::new())), &*Box::leak(Box::default()));
    let samples: &RefCell<Vec<[(u64, u64); 2]>> = samples;
    let id = machine.on(1, || {
        pmu.with(|session, unit| {
            let counters = session.counters_mut();
            let group = counters.open(unit, &[leader, member]).unwrap();
            counters.enable(group, 0).unwrap();
            counters.group_events(group).next().unwrap()
        })
    });
    let id = id.unwrap();
    machine.mocks[1].on_interrupt(Box::leak(Box::new(move |_: &_| {
        let (events, memory) = pmu.events_of(World::this_processor()).unwrap();
        let msr = World::registers();
        let note = |sample: &PmuSample<'_, World>| {
            let read = sample_read(&events, &msr, memory, sample.event, 0).unwrap();
            let read = read.map(|read| (read.tag, read.count.unwrap().value));
            samples.borrow_mut().push(read.collect::<Vec<_>>().try_into().unwrap());
            if samples.borrow().len() == 2 {
                pmu.stop_reporting(sample.event).unwrap();
            }
        };
        let interrupted = sampling(note, || pmu.interrupt(&FRAME));
        assert_eq!(interrupted.error, None);
        page.publish(None, || user_view(&events, &msr, memory, id, 0)).unwrap();
    })));
    machine.happen(1, Happens::Cycles, 70);
    machine.happen(1, Happens::Instructions, PERIOD);
    machine.happen(1, Happens::Cycles, 7);
    machine.happen(1, Happens::Instructions, 4 * PERIOD);
    assert_eq!(*samples.borrow(), [[(1, PERIOD), (2, 70)], [(1, 2 * PERIOD), (2, 77)]]);
    let rdpmc = |index| {
        let counter = pmu::core::access::CounterIndex::new(index);
        machine
            .on(1, || {
                pmu::core::access::RegisterBackend::read_counter(&World::registers(), counter)
            })
            .unwrap()
    };
    let read = LinuxPage::of(page).read(rdpmc, || 0).unwrap();
    assert_eq!(read.value, 5 * PERIOD);
    // Another processor reads what is in memory, and all of it once the group is off its counters.
    let remotely = || {
        let (events, memory) = pmu.events_of(1).unwrap();
        machine.on(0, || remote_count(events.opened(), memory, id, 0))
    };
    let Ok(RemoteCount::Older { count, .. }) = remotely() else { panic!("it is on a counter") };
    assert_eq!(count.value, 2 * PERIOD, "as of the last interrupt");
    let stopped = machine.on(1, || {
        pmu.with(|session, _| {
            let counters = session.counters_mut();
            counters.disable(id, 0).map_err(|error| error.reason)
        })
    });
    assert_eq!(stopped, Ok(Ok::<(), CounterError>(())));
    let Ok(RemoteCount::Current(count)) = remotely() else { panic!("it is on no counter") };
    assert_eq!(count.value, 5 * PERIOD);
    machine.down();
}
