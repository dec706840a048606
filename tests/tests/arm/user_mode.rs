//! Reads at EL0, by the page that `Pmu` publishes and as programs for Linux read it.

use pmu::{Event, GenericEvent, Kernel};
use pmu_arm::registers::{Register, UserEnable};
use pmu_tests::linux_page::LinuxPage;

use crate::world::{ArmKernel, execute, execute_masked, model, on, on_each, running, shut_down};

const OPEN: UserEnable = UserEnable::new().with_cycle_counter(true).with_event_counters(true);
const CLOSED: UserEnable = UserEnable::new();

/// Writes PMUSERENR_EL0, as the kernel does at a switch.
fn permit(enable: UserEnable) {
    model().write(Register::Pmuserenr.encoding(), enable.into_bits());
    model().synchronize();
}

fn page(tag: u64) -> LinuxPage<'static> {
    LinuxPage::of(ArmKernel::user_page(tag).unwrap())
}

/// Returns what a program of Linux' reads.
fn read(tag: u64) -> Option<u64> {
    let by_mrs = |bit| model().read_at_el0(bit).expect("the kernel permits it");
    page(tag).read(by_mrs, || unreachable!("no clock")).map(|read| read.value)
}

/// Over wraps of 32 bits, and on two processors. In Linux, the page's index is the counter's number and 1, and 32 is
/// the cycle counter.
#[test]
fn a_thread_reads_what_its_kernel_reads() {
    on_each(|is_long, level| {
        let pmu = running(is_long, level);
        let mut events = [GenericEvent::Instructions, GenericEvent::Branches, GenericEvent::Cycles]
            .map(|event| Event::generic(event).with_user_reads());
        for (tag, event) in events.iter_mut().enumerate() {
            *event = event.tagged(tag as u64);
        }
        let mut events = events.map(|event| pmu.thread_event(&event).unwrap());
        let mut all = 0;
        for (processor, work) in [(0, 100), (1, 1 << 32), (0, 3), (1, 0x7FFF_FFF0), (1, 50)] {
            on(processor, || {
                pmu.switch(&mut [], &mut events).unwrap();
                permit(OPEN);
                assert_eq!([0, 1, 2].map(|tag| page(tag).field("index")), [1, 2, 32]);
                for part in [work / 2, work - work / 2] {
                    execute(0, part);
                    all += part;
                    assert_eq!([0, 1, 2].map(read), [4, 1, 10].map(|each| Some(each * all)));
                }
                permit(CLOSED);
                pmu.switch(&mut events, &mut []).unwrap();
                // Another thread's, which has neither pages nor the permission.
                execute(0, 1_000);
                assert_eq!([0, 1, 2].map(read), [None; 3]);
                assert_eq!([0, 31].map(|bit| model().read_at_el0(bit)), [None; 2]);
            });
        }
        for (event, each) in events.iter().zip([4, 1, 10]) {
            assert_eq!(pmu.read_thread(event).unwrap().value, each * all);
        }
        shut_down(pmu);
    });
}

/// An overflow whose interrupt is masked as the program reads: the width in the page lets it read on over the wrap.
#[test]
fn a_wrap_before_its_interrupt_is_read_over() {
    on_each(|is_long, level| {
        let pmu = running(is_long, level);
        let event = Event::generic(GenericEvent::Branches).every(1 << 30).with_total();
        let event = pmu.start(&event.with_user_reads()).unwrap();
        permit(OPEN);
        for passed in [(1 << 30) - 1, 1, 1_000] {
            execute_masked(0, passed);
            assert_eq!(read(0), Some(pmu.read(event).unwrap().value), "{passed}");
        }
        execute(0, 5);
        assert_eq!(read(0), Some((1 << 30) + 1_005));
        pmu.close(event).unwrap();
        assert_eq!(read(0), None);
        shut_down(pmu);
    });
}

/// The page says nothing of an event that was not opened for it.
#[test]
fn other_events_have_no_page() {
    let pmu = running(true, 1);
    let event = pmu.start(&Event::generic(GenericEvent::Branches)).unwrap();
    execute(0, 10);
    assert_eq!(read(0), None);
    pmu.close(event).unwrap();
    shut_down(pmu);
}
