//! Top-down counts of a `Pmu` beside other operations of the processor.

use pmu::PmuError;
use pmu::core::{CounterError, Event, EventSelect, GenericEvent};
use pmu::intel::topdown::{TopDownError, TopDownFilter};
use pmu_tests::opened::running;
use pmu_virt::mock::Fault;

use crate::top_down::{check, has_level_2, is_e_core, machine, machines, pass};
use crate::world::{Happens, Machine, TestPmu};

fn start(machine: &'static Machine, pmu: &'static TestPmu) {
    let started = pmu.with_top_down(&machine.top_down, |topdown, session, _| {
        topdown.start(session.counters_mut(), TopDownFilter::ALL)
    });
    started.unwrap().unwrap();
}

/// A kernel that did not release the counters before the processor went down releases them afterwards. Meanwhile, the
/// new session's own events are left alone.
#[test]
fn counters_that_were_not_released_before_a_processor_went_down_are_released_later() {
    for (processors, level_2) in machines() {
        for counting in [false, true] {
            let (machine, pmu) = machine(processors, level_2);
            machine.up();
            let (top_down, this) = (&machine.top_down, machine.snapshot());
            pmu.take_top_down(top_down, &this).unwrap();
            if counting {
                start(machine, pmu);
            }
            pass(machine, 0, 10);
            pmu.processor_down().unwrap();
            pmu.processor_up(&this).unwrap();
            let group = pmu.with(|session, unit| {
                let counters = session.counters_mut();
                let event = Event::generic(GenericEvent::Instructions);
                let group = counters.open_group(unit, &[event; 2])?;
                counters.start_group(group, 0)?;
                Ok::<_, PmuError>(group)
            });
            let group = group.unwrap().unwrap();
            let taken = pmu.take_top_down(top_down, &this);
            assert_eq!(taken, Err(PmuError::TopDown(TopDownError::MemoryInUse)));
            machine.happen(0, Happens::Instructions, 1_000);
            pmu.release_top_down(top_down).unwrap();
            machine.happen(0, Happens::Instructions, 1_000);
            let count =
                || pmu.count_slots(top_down, &this, TopDownFilter::ALL, || pass(machine, 0, 4));
            check(&count().unwrap(), 4, has_level_2(machine, 0, level_2), 1);
            if !is_e_core(machine, 0) {
                let slots = Event::raw(EventSelect::from_bits(0x0400));
                assert_eq!(pmu.count(&[slots], || pass(machine, 0, 4)).unwrap()[0].value, 1_020);
            }
            let counts = pmu.with(|session, _| {
                let mut counts = [Default::default(); 2];
                session.counters_mut().read_group(group, 0, &mut counts).map(|_| counts)
            });
            assert_eq!(counts.unwrap().unwrap().map(|count| count.value), [2_000; 2]);
            check(&count().unwrap(), 4, has_level_2(machine, 0, level_2), 1);
            machine.down();
            assert!(machine.mocks.iter().all(|mock| mock.breach().is_none()));
        }
    }
}

#[test]
fn a_snapshot_of_another_type_of_core_is_refused_and_forgotten() {
    for (processors, level_2) in machines() {
        let (machine, pmu) = machine(processors, level_2);
        machine.up();
        let top_down = &machine.top_down;
        let [this, other] = [0, 1].map(|processor| machine.on(processor, || machine.snapshot()));
        let count = |of| pmu.count_slots(top_down, of, TopDownFilter::ALL, || pass(machine, 0, 4));
        if processors[0] != processors[1] {
            let refused = PmuError::TopDown(TopDownError::Session(CounterError::OtherProcessor));
            assert_eq!(count(&other), Err(refused));
            assert_eq!(pmu.take_top_down(top_down, &other), Err(refused));
            assert!(top_down.here().is_none() && running(&machine.mocks[0]).is_empty());
        }
        check(&count(&this).unwrap(), 4, has_level_2(machine, 0, level_2), 1);
        machine.down();
    }
}

/// The kernel took the counters before. An access of the count fails, and with `Fault::From` each later access. If the
/// count's end failed, the slots are still counted, and `stop` ends that, as the documents of `count_slots` say.
#[test]
fn a_failed_count_of_taken_counters_is_repeated_after_a_stop() {
    let mut stopped = [0; 2];
    for (processors, level_2) in machines() {
        for fault in [Fault::At, Fault::From] {
            for access in 1..60 {
                let (machine, pmu) = machine(processors, level_2);
                machine.up();
                let (top_down, this) = (&machine.top_down, machine.snapshot());
                pmu.take_top_down(top_down, &this).unwrap();
                let mock = &machine.mocks[0];
                let count =
                    || pmu.count_slots(top_down, &this, TopDownFilter::ALL, || pass(machine, 0, 4));
                mock.inject(fault(access));
                let counted = count();
                mock.inject(Fault::None);
                let what = format!("{processors:?}, {:?}: {counted:?}", fault(access));
                pmu.processor_resumed().expect(&what);
                let mut again = count();
                if again == Err(PmuError::TopDown(TopDownError::AlreadyStarted)) {
                    assert!(counted.is_err(), "{what}");
                    let end = pmu.with_top_down(top_down, |topdown, session, _| {
                        topdown.stop(session.counters_mut())
                    });
                    end.unwrap().expect(&what);
                    stopped[usize::from(is_e_core(machine, 0))] += 1;
                    again = count();
                }
                check(&again.expect(&what), 4, has_level_2(machine, 0, level_2), 2);
                pmu.release_top_down(top_down).expect(&what);
                machine.down();
            }
        }
    }
    assert!(stopped.iter().all(|times| *times > 0));
}
