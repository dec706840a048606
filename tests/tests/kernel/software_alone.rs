//! Software events where no counters are: of a processor that has none, and of a kernel that takes none.

use pmu::core::CounterSet;
use pmu::core::access::{RegisterAddress, RegisterBackend};
use pmu::core::x86::raw_cpuid::CpuIdResult;
use pmu::{Event, Snapshot, ThreadEvent};
use pmu_tests::opened::Mock;
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use crate::software_attack::{CLOCK, FAULTS, INSTRUCTIONS, fault};
use crate::world::{Happens, Machine, TestPmu};

fn machine() -> (&'static Machine, &'static TestPmu) {
    Machine::new(Configuration::Intel(IntelConfiguration::new(4, 4, 3)))
}

/// A processor of a kernel that takes no counters.
fn up_without_counters() -> (&'static Machine, &'static TestPmu) {
    let (machine, pmu) = machine();
    machine.takes.set(CounterSet::NONE);
    pmu.processor_up(&machine.snapshot()).unwrap();
    (machine, pmu)
}

/// Does everything with software events, up to `processor_down`. No register is accessed.
fn nothing_is_accessed(machine: &'static Machine, pmu: &'static TestPmu) {
    machine.mocks[0].clear();
    assert!(pmu.start_group(&[FAULTS, INSTRUCTIONS]).is_err());
    assert!(pmu.watch(10, 10).is_err());
    let group = [CLOCK.every(10_000).with_total(), FAULTS.rotating(), FAULTS.exclusive()];
    let own = pmu.start_group(&group).unwrap();
    let mut thread = [ThreadEvent::Unused; 3];
    thread[..2].copy_from_slice(&pmu.thread_group(&[FAULTS, CLOCK]).unwrap());
    pmu.switch(&mut [], &mut thread).unwrap();
    fault(pmu);
    machine.now.set(30);
    pmu.tick().unwrap();
    // Clocks stand still meanwhile.
    pmu.lend(|_| machine.now.set(130)).unwrap();
    pmu.processor_suspended().unwrap();
    machine.now.set(230);
    pmu.processor_resumed().unwrap();
    pmu.disable(own[1]).unwrap();
    pmu.enable(own[1]).unwrap();
    pmu.disable(own[0]).unwrap();
    pmu.enable(own[0]).unwrap();
    pmu.set_period(own[0], 20_000).unwrap();
    pmu.reset(own[0]).unwrap();
    pmu.close_member(own[0]).unwrap();
    pmu.close(own[1]).unwrap();
    pmu.switch(&mut thread, &mut []).unwrap();
    pmu.processor_down().unwrap();
    assert_eq!(machine.mocks[0].accesses().total(), 0);
    assert_eq!(thread.map(|event| pmu.read_thread(&event).map_or(0, |of| of.value)), [1, 30, 0]);
}

#[test]
fn no_register_is_accessed_on_a_processor_without_counters() {
    let (machine, pmu) = machine();
    let without = Snapshot::capture(|leaf: u32, subleaf: u32| match leaf {
        0x0A => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
        _ => machine.snapshot().leaf(leaf, subleaf),
    });
    pmu.processor_up(&without).unwrap();
    assert!(pmu.thread_event(&INSTRUCTIONS).is_err());
    nothing_is_accessed(machine, pmu);
}

#[test]
fn no_register_is_accessed_by_a_kernel_that_takes_no_counters() {
    let (machine, pmu) = up_without_counters();
    nothing_is_accessed(machine, pmu);
}

/// As where there are counters.
#[test]
fn a_guest_and_a_suspend_are_not_counted_by_a_kernel_that_takes_no_counters() {
    let (machine, pmu) = up_without_counters();
    let [faults, clock] = pmu.start_group(&[FAULTS, CLOCK]).unwrap();
    let pass = || {
        fault(pmu);
        machine.now.set(machine.now.get() + 30);
    };
    pass();
    pmu.lend(|_| (0..3).for_each(|_| pass())).unwrap();
    let count = |event| {
        let count = pmu.read(event).unwrap();
        (count.value, count.enabled, count.running)
    };
    assert_eq!([faults, clock].map(count), [(1, 30, 30), (30, 30, 30)]);
    pass();
    assert_eq!([faults, clock].map(count), [(2, 60, 60), (60, 60, 60)]);
    pmu.processor_suspended().unwrap();
    pass();
    pmu.processor_resumed().unwrap();
    assert_eq!([faults, clock].map(count), [(2, 60, 60), (60, 60, 60)]);
    // It does not return: the events wait until the processor is resumed.
    let unwound = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        pmu.lend(|_| panic!("the guest does not return"))
    }));
    assert!(unwound.is_err());
    pass();
    assert_eq!(count(faults).0, 2);
    pmu.processor_resumed().unwrap();
    pass();
    assert_eq!(count(faults).0, 3);
    pmu.processor_down().unwrap();
}

fn register(mock: &Mock<'static>, address: u32) -> Option<u64> {
    // SAFETY: a mock's, which writes no memory.
    mock.read(unsafe { RegisterAddress::new(address) }).ok()
}

/// A kernel that takes no counters has software events. Another owner's counters run on.
#[test]
fn a_session_of_no_counters_stops_no_other_owners() {
    use pmu::core::thread::{SavedCounter, SavedCounters};
    let (machine, pmu) = up_without_counters();
    let mock = &machine.mocks[0];
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0b1)); // another owner's
    let mut area: SavedCounters<[SavedCounter; 16]> = SavedCounters::new();
    let saved = pmu.with(|session, _| session.counters_mut().save(&mut area, |_| ())).unwrap();
    let control = register(mock, 0x38F);
    assert_eq!(control, Some(0b1), "{saved:?}");
}

#[test]
fn a_session_of_no_counters_leaves_no_freeze_behind() {
    let (machine, pmu) = up_without_counters();
    let mock = &machine.mocks[0];
    let before = register(mock, 0x1D9);
    let frozen = pmu.with(|session, _| session.counters_mut().freeze_on_interrupt()).unwrap();
    pmu.processor_down().unwrap();
    let after = register(mock, 0x1D9);
    assert_eq!(before, after, "{frozen:?}");
}

/// Threads move between a processor whose counters the kernel takes, and one of whose it takes none.
#[test]
fn a_threads_group_waits_where_there_are_no_counters() {
    for rotates in [false, true] {
        for software_first in [false, true] {
            let turning = |event: Event| if rotates { event.rotating() } else { event };
            let (machine, pmu) = machine();
            for (processor, takes) in [(0, CounterSet::ALL), (1, CounterSet::NONE)] {
                machine.takes.set(takes);
                machine.on(processor, || pmu.processor_up(&machine.snapshot())).unwrap();
            }
            let mut group = [INSTRUCTIONS, FAULTS, CLOCK].map(turning);
            if software_first {
                group.swap(0, 1);
            }
            let mut thread = [ThreadEvent::Unused; 4];
            thread[..3].copy_from_slice(&pmu.thread_group(&group).unwrap());
            thread[3] = pmu.thread_event(&turning(FAULTS)).unwrap();
            for turn in 0..6 {
                machine.on(turn % 2, || {
                    pmu.switch(&mut [], &mut thread).unwrap();
                    machine.happen(turn % 2, Happens::Instructions, 7);
                    fault(pmu);
                    machine.now.set(machine.now.get() + 10);
                    pmu.tick().unwrap();
                    machine.now.set(machine.now.get() + 10);
                    pmu.switch(&mut thread, &mut []).unwrap();
                    machine.now.set(machine.now.get() + 10);
                });
            }
            let counts = thread.map(|event| pmu.read_thread(&event).unwrap());
            let mut expected = [21, 3, 60, 6];
            if software_first {
                expected.swap(0, 1);
            }
            assert_eq!(counts.map(|count| count.value), expected, "{rotates} {software_first}");
            let times = counts.map(|count| (count.enabled, count.running));
            assert_eq!(times, [(120, 60), (120, 60), (120, 60), (120, 120)]);
        }
    }
}
