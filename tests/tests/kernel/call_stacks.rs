//! Call stacks that follow threads through `Pmu::switch`.

use pmu::core::branches::BranchFilter;
use pmu::core::{Event, GenericEvent};
use pmu::{PmuError, ThreadEvent};
use pmu_virt::Privilege;
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind};
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use super::world::{Happens, Machine, TestPmu};

const PERIOD: u64 = 5_000;

/// A machine with architectural records, or with those of a format.
fn machine(format: Option<u8>) -> (&'static Machine, &'static TestPmu) {
    let (version, records) = match format {
        None => (5, BranchConfiguration::ARCHITECTURAL),
        Some(format) => (4, BranchConfiguration::Legacy { format }),
    };
    let intel = Configuration::Intel(IntelConfiguration::new(version, 4, 3));
    let (machine, pmu) = Machine::with_branches(intel, records);
    machine.up();
    (machine, pmu)
}

fn event(tag: u64) -> Event {
    let event = Event::generic(GenericEvent::Instructions).every(PERIOD).tagged(tag);
    event.with_branches(BranchFilter::USER.call_stack())
}

/// The thread that runs on a processor calls a function from this address.
fn call(machine: &Machine, on: usize, from: u64) {
    let call = FedBranch::new(from, 0x9000, FedBranchKind::RelativeCall, Privilege::User);
    machine.mocks[on].branch(&call);
}

/// Returns the branches of the one sample that a period has.
#[track_caller]
fn sample(machine: &Machine, on: usize) -> Vec<u64> {
    machine.happen(on, Happens::Instructions, PERIOD);
    let samples = machine.sampled.take();
    let [(processor, None, found)] = &samples[..] else { panic!("{samples:?}") };
    assert_eq!(*processor, on);
    found.clone()
}

#[test]
fn two_threads_have_their_call_stacks_on_one_processor_and_on_two() {
    for format in [None, Some(5)] {
        let (machine, pmu) = machine(format);
        let thread = |tag| [pmu.thread_event(&event(tag)).unwrap(), ThreadEvent::Unused];
        let [mut one, mut two] = [thread(0), thread(1)];
        let switch = |on, from: &mut [ThreadEvent], to: &mut [ThreadEvent]| {
            machine.on(on, || pmu.switch(from, to)).unwrap();
        };
        switch(0, &mut [], &mut one);
        [0x1000, 0x1100].into_iter().for_each(|from| call(machine, 0, from));
        switch(0, &mut one, &mut two);
        call(machine, 0, 0x2000);
        assert_eq!(sample(machine, 0), [0x2000]);
        // A thread without events has no call in the others'.
        switch(0, &mut two, &mut []);
        call(machine, 0, 0x3000);
        switch(0, &mut [], &mut one);
        call(machine, 0, 0x1200);
        assert_eq!(sample(machine, 0), [0x1200, 0x1100, 0x1000]);
        // Both run at a time, and the first goes to the other's processor.
        switch(1, &mut [], &mut two);
        assert_eq!(sample(machine, 1), [0x2000]);
        switch(1, &mut two, &mut []);
        switch(0, &mut one, &mut two);
        switch(1, &mut [], &mut one);
        call(machine, 1, 0x1300);
        assert_eq!(sample(machine, 1), [0x1300, 0x1200, 0x1100, 0x1000]);
        assert_eq!(sample(machine, 0), [0x2000]);
        // The thread changes its events, and its processor sleeps.
        let changed = machine.on(1, || pmu.with_thread(&mut one, |_| ()));
        changed.unwrap();
        machine.on(1, || pmu.processor_suspended()).unwrap();
        machine.mocks[1].lose_registers();
        machine.on(1, || pmu.processor_resumed()).unwrap();
        assert_eq!(sample(machine, 1), [0x1300, 0x1200, 0x1100, 0x1000]);
        machine.down();
        assert!(machine.mocks.iter().all(|mock| mock.breach().is_none()));
    }
}

#[test]
fn a_call_stack_begins_anew_after_the_thread_ran_where_no_session_is() {
    let (machine, pmu) = machine(None);
    machine.on(2, || pmu.processor_down()).unwrap();
    let mut thread = [pmu.thread_event(&event(0)).unwrap()];
    pmu.switch(&mut [], &mut thread).unwrap();
    call(machine, 0, 0x1000);
    pmu.switch(&mut thread, &mut []).unwrap();
    // There, the function returns, and another one is called.
    let there = machine.on(2, || pmu.switch(&mut [], &mut thread));
    assert_eq!(there, Err(PmuError::NotUp));
    let left = machine.on(2, || pmu.switch(&mut thread, &mut []));
    assert_eq!(left, Err(PmuError::NotUp));
    pmu.switch(&mut [], &mut thread).unwrap();
    call(machine, 0, 0x1100);
    assert_eq!(sample(machine, 0), [0x1100]);
}

#[test]
fn a_thread_in_the_place_of_another_has_nothing_of_its_call_stack() {
    let (machine, pmu) = machine(None);
    let mut thread = [pmu.thread_event(&event(0)).unwrap()];
    pmu.switch(&mut [], &mut thread).unwrap();
    call(machine, 0, 0x1000);
    pmu.switch(&mut thread, &mut []).unwrap();
    // It ends. The next thread has its events' tags; and so has a child, whose parent ran before.
    let mut child = [ThreadEvent::Unused];
    ThreadEvent::inherit(&thread, &mut child, |tag| tag).unwrap();
    for mut next in [child, [pmu.thread_event(&event(0)).unwrap()]] {
        pmu.switch(&mut [], &mut next).unwrap();
        call(machine, 0, 0x2000);
        assert_eq!(sample(machine, 0), [0x2000]);
        pmu.switch(&mut next, &mut []).unwrap();
    }
    pmu.switch(&mut [], &mut thread).unwrap();
    assert_eq!(sample(machine, 0), []);
}
