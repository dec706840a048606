//! Samples with the addresses that [the toy vendor's latches](crate::toy_facility) have, through `Pmu` alone.

use core::sync::atomic::AtomicU32;

use pmu::PmuError;
use pmu::core::error::CounterError;
use pmu::core::frame::PlainFrame;
use pmu::core::precise::{NotPrecise, Precision, SampleParts};
use pmu::core::registers::EventSelect;
use pmu::core::{CounterSet, Event, SoftwareEvent};

use crate::toy_facility::LATCH;
use crate::toy_hardware::{BRANCHES, COUNTERS, CYCLES, Register};
use crate::toy_vendor::{
    LATCH_FAULTS, PLACE, PROCESSORS, interrupt, machine_with, on, sampling, shut_down, toy,
};

/// Addresses of instructions, before that at which the interrupt comes.
const BRANCH: u64 = PLACE - 0x10;
const OTHER: u64 = PLACE - 0x20;

/// An event of which every 10,000th occurrence is sampled, with this tag.
fn sampled(event: u8, tag: u64) -> Event {
    Event::raw(EventSelect::from_bits(event.into())).every(10_000).tagged(tag)
}

fn precise(event: u8, tag: u64) -> Event {
    sampled(event, tag).precise(Precision::ZeroSkidRequired)
}

/// Lets events happen at an instruction of user mode, then interrupts. Returns the samples' tags and addresses.
fn execute(happening: &[(u8, u64)], times: u64) -> Vec<(u64, u64)> {
    for (event, at) in happening {
        toy().at.set(*at);
        assert_eq!(toy().happen(*event, true, times), times);
    }
    let mut samples = vec![];
    interrupt(true, |sample| {
        let address = sample.address().unwrap();
        assert_eq!(sample.instruction().is_some(), address != PLACE);
        samples.push((sample.tag, address));
    });
    samples
}

fn latching() -> u64 {
    toy().read(Register::Latching)
}

#[test]
fn each_sample_of_an_interrupt_has_the_address_of_its_own_counter() {
    let pmu = machine_with(PROCESSORS);
    let events = [precise(BRANCHES, 1), sampled(BRANCHES, 2), precise(CYCLES, 3)];
    let [branches, plain, cycles] = events.map(|event| pmu.start(&event).unwrap());
    let faults = pmu.start(&Event::software(SoftwareEvent::PageFaults)).unwrap();
    assert_eq!(latching().count_ones(), 2);
    for _ in 0..3 {
        let mut samples = execute(&[(BRANCHES, BRANCH), (CYCLES, OTHER)], 10_000);
        samples.sort_unstable();
        assert_eq!(samples, [(1, BRANCH), (2, PLACE), (3, OTHER)]);
    }
    // The cycles overflow without the branches, whose address is still latched.
    assert_eq!(execute(&[(CYCLES, OTHER)], 10_000), [(3, OTHER)]);
    pmu.happened(SoftwareEvent::MinorFaults, &PlainFrame::default());
    assert_eq!(pmu.read(faults).unwrap().value, 1);
    pmu.disable(branches).unwrap();
    assert_eq!(latching().count_ones(), 1);
    assert_eq!(execute(&[(BRANCHES, BRANCH), (CYCLES, OTHER)], 10_000), [(2, PLACE), (3, OTHER)]);
    pmu.close(cycles).unwrap();
    assert_eq!(latching(), 0);
    assert_eq!(execute(&[(BRANCHES, BRANCH), (CYCLES, OTHER)], 10_000), [(2, PLACE)]);
    // Another event on the counter does not have the address of the former one.
    pmu.close(plain).unwrap();
    pmu.enable(branches).unwrap();
    assert_eq!(execute(&[(BRANCHES, OTHER)], 10_000), [(1, OTHER)]);
    shut_down(pmu);
}

#[test]
fn a_profile_has_the_latched_addresses() {
    let pmu = machine_with(PROCESSORS);
    let buckets = [const { AtomicU32::new(0) }; 16];
    let profile = pmu.profile(precise(BRANCHES, 0), BRANCH..BRANCH + 64, &buckets, || {
        for _ in 0..5 {
            execute(&[(BRANCHES, BRANCH)], 10_000);
        }
    });
    assert_eq!(profile.unwrap().hits().collect::<Vec<_>>(), [(BRANCH..BRANCH + 4, 5)]);
    shut_down(pmu);
}

/// Each request that cannot be met has its own reason.
#[test]
fn an_event_that_no_counter_can_latch_is_not_opened() {
    let pmu = machine_with(1);
    let refused = |event: Event, why| {
        assert_eq!(pmu.open(&event).err(), Some(PmuError::Counters(CounterError::NotPrecise(why))));
    };
    on(1, || refused(precise(BRANCHES, 1), NotPrecise::NoFacility));
    refused(precise(CYCLES, 1).on(CounterSet::fixed(1)), NotPrecise::NoExactCounter);
    let registers = SampleParts::REGISTERS;
    refused(precise(BRANCHES, 1).recording(registers), NotPrecise::Parts(registers));
    refused(sampled(BRANCHES, 1).recording(registers), NotPrecise::Parts(registers));
    // The counter of cycles stays free.
    for tag in 0..COUNTERS as u64 {
        pmu.start(&precise(CYCLES, tag)).unwrap();
    }
    let fifth = pmu.start(&precise(CYCLES, 5)).err();
    assert_eq!(fifth, Some(PmuError::Counters(CounterError::NoFreeCounter)));
    assert!(pmu.start(&sampled(CYCLES, 5)).is_ok());
    shut_down(pmu);
}

/// On a processor without latches, a thread's event waits.
#[test]
fn a_thread_s_event_latches_wherever_the_thread_runs() {
    let pmu = machine_with(1);
    let mut events = [pmu.thread_event(&precise(BRANCHES, 7)).unwrap()];
    let mut turn = |processor, times| {
        on(processor, || {
            pmu.switch(&mut [], &mut events).unwrap();
            let samples = execute(&[(BRANCHES, BRANCH)], times);
            pmu.switch(&mut events, &mut []).unwrap();
            assert_eq!((latching(), toy().read(Register::Latched(0))), (0, 0));
            assert_eq!(execute(&[(BRANCHES, OTHER)], 10_000), []); // another thread's
            samples
        })
    };
    assert_eq!(turn(0, 6_000), []);
    assert_eq!(turn(1, 10_000), []);
    assert_eq!(turn(0, 4_000), [(7, BRANCH)]);
    assert_eq!(turn(0, 10_000), [(7, BRANCH)]);
    shut_down(pmu);
}

#[test]
fn a_guest_and_a_suspend_find_no_latch_and_leave_none() {
    let pmu = machine_with(PROCESSORS);
    pmu.start(&precise(BRANCHES, 1)).unwrap();
    let own = latching();
    let sample = || execute(&[(BRANCHES, BRANCH)], 10_000);
    assert_eq!(sample(), [(1, BRANCH)]);
    let guest = |programs: bool| {
        let lent = pmu.lend(|lent| {
            assert_eq!((latching(), toy().read(Register::Latched(0))), (0, 0));
            lent.set_programmed(programs);
            toy().write(Register::Latching, if programs { 0b1110 } else { 0 });
        });
        assert_eq!((lent, latching()), (Ok(()), own));
        assert_eq!(sample(), [(1, BRANCH)]);
    };
    guest(false);
    guest(true);
    pmu.processor_suspended().unwrap();
    assert_eq!(latching(), 0);
    toy().lose_registers();
    toy().write(Register::Latching, 0b1110);
    pmu.processor_resumed().unwrap();
    assert_eq!((latching(), sample()), (own, vec![(1, BRANCH)]));
    // Without a word before: the registers are lost.
    toy().lose_registers();
    pmu.processor_resumed().unwrap();
    assert_eq!((latching(), sample()), (own, vec![(1, BRANCH)]));
    shut_down(pmu);
}

#[test]
fn no_event_runs_without_the_latch_that_it_asks_for() {
    let pmu = machine_with(PROCESSORS);
    let events = [precise(BRANCHES, 1), precise(BRANCHES, 2), sampled(BRANCHES, 3)];
    let [event, other, plain] = events.map(|of| pmu.open(&of).unwrap());
    let sample = || {
        let mut samples = execute(&[(BRANCHES, BRANCH)], 10_000);
        samples.sort_unstable();
        samples
    };
    pmu.enable(plain).unwrap();
    LATCH_FAULTS.set(true);
    assert!(pmu.enable(event).is_err());
    assert_eq!(sample(), [(3, PLACE)]);
    LATCH_FAULTS.set(false);
    pmu.disable(plain).unwrap();
    assert_eq!(latching(), 0);
    for event in [event, other, plain] {
        pmu.enable(event).unwrap();
    }
    assert_eq!(sample(), [(1, BRANCH), (2, BRANCH), (3, PLACE)]);
    // The register may hold anything: the event that runs is stopped, too.
    LATCH_FAULTS.set(true);
    assert!(pmu.disable(other).is_err());
    assert_eq!(sample(), [(3, PLACE)]);
    LATCH_FAULTS.set(false);
    pmu.processor_resumed().unwrap();
    pmu.enable(event).unwrap();
    assert_eq!(sample(), [(1, BRANCH), (3, PLACE)]);
    shut_down(pmu);
}

/// Six events take turns on four counters.
#[test]
fn an_event_that_gets_its_turn_latches() {
    let pmu = machine_with(PROCESSORS);
    for tag in 0..6 {
        pmu.start(&precise(BRANCHES, tag).rotating()).unwrap();
    }
    let mut turns = [0; 6];
    for _ in 0..6 {
        assert_eq!(latching(), LATCH.bits());
        for (tag, address) in execute(&[(BRANCHES, BRANCH)], 10_000) {
            assert_eq!(address, BRANCH);
            turns[tag as usize] += 1;
        }
        pmu.tick().unwrap();
    }
    assert_eq!(turns, [4; 6]);
    shut_down(pmu);
}

/// The overflow's interrupt has not come yet: a window finds its address, a thread's switch does not.
#[test]
fn the_sample_of_a_pending_overflow_has_its_address_in_a_window_alone() {
    let pmu = machine_with(PROCESSORS);
    let mut events = [pmu.thread_event(&precise(BRANCHES, 7)).unwrap()];
    pmu.switch(&mut [], &mut events).unwrap();
    toy().at.set(BRANCH);
    let mut found = vec![];
    toy().happen(BRANCHES, true, 10_000);
    sampling(|sample| found.push(sample.address()), || pmu.lend(|_| ())).unwrap();
    toy().happen(BRANCHES, true, 10_000);
    sampling(|sample| found.push(sample.address()), || pmu.switch(&mut events, &mut [])).unwrap();
    assert_eq!(found, [Some(BRANCH), None]);
    shut_down(pmu);
}
