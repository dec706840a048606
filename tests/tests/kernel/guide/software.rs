//! Events that the kernel itself counts.

use pmu::frame::{InterruptFrame, PlainFrame};
use pmu::{Event, GenericEvent, PmuError, PmuEvent, SoftwareEvent, ThreadEvent};
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use super::{PMU, printed, println, up};
use crate::software::frame;
use crate::world::{Happens, machine};

// ANCHOR: software
/// Opens the first events of `perf stat` on this processor, as a group.
fn open() -> Result<[PmuEvent; 3], PmuError> {
    let software = [SoftwareEvent::TaskClock, SoftwareEvent::PageFaults].map(Event::software);
    PMU.start_group(&[software[0], software[1], Event::generic(GenericEvent::Cycles)])
}

/// The end of the page fault handler.
fn page_fault(frame: &PlainFrame, was_read_from_disk: bool) {
    let what = match was_read_from_disk {
        true => SoftwareEvent::MajorFaults,
        false => SoftwareEvent::MinorFaults,
    };
    PMU.happened(what, frame, |sample| println!("{:?} at {:#x}", sample.event, frame.pc()));
}

/// The scheduler's switch, with preemption off. `frame` is one of the kernel's own.
fn switch(
    frame: &PlainFrame,
    from: &mut [ThreadEvent; 4],
    to: &mut [ThreadEvent; 4],
    has_moved: bool, // the new thread ran on another processor before
) -> Result<(), PmuError> {
    PMU.happened(SoftwareEvent::ContextSwitches, frame, |_sample| ());
    PMU.switch(from, to, |_sample| ())?;
    if has_moved {
        PMU.happened(SoftwareEvent::CpuMigrations, frame, |_sample| ());
    }
    Ok(())
}

/// The handler of the timer that `Kernel::set_clock_timer` sets.
fn timer_interrupt(frame: &PlainFrame) {
    PMU.clock_interrupt(frame, |_sample| println!("a clock at {:#x}", frame.pc()));
}
// ANCHOR_END: software

#[test]
fn a_kernel_counts_what_it_does_itself() {
    let machine = up(Configuration::Intel(IntelConfiguration::new(4, 4, 3)), |frame| {
        PMU.interrupt(frame, |_sample| ())
    });
    let [clock, faults, cycles] = open().unwrap();
    page_fault(&frame(true), false);
    page_fault(&frame(true), true);
    machine.happen(0, Happens::Cycles, 300);
    machine.now.set(machine.now.get() + 100);
    let counts = [clock, faults, cycles].map(|event| PMU.read(event).unwrap().value);
    assert_eq!(counts, [100, 2, 300]);

    let major = Event::software(SoftwareEvent::MajorFaults).every(1);
    let migrations = Event::software(SoftwareEvent::CpuMigrations);
    let second = Event::software(SoftwareEvent::CpuClock).every(1_000_000_000);
    let [mut thread, mut idle] = [[ThreadEvent::Unused; 4]; 2];
    for (place, event) in thread.iter_mut().zip([major, migrations, second]) {
        *place = PMU.thread_event(&event).unwrap();
    }
    switch(&frame(false), &mut idle, &mut thread, true).unwrap();
    page_fault(&frame(true), true);
    machine.now.set(self::machine().clock_timers[0].get().unwrap());
    timer_interrupt(&frame(false));
    switch(&frame(false), &mut thread, &mut idle, false).unwrap();
    let migrated = PMU.read_thread(&thread[1]).unwrap();
    assert_eq!((migrated.value, migrated.running), (1, 1_000_000_000));
    let printed = printed();
    assert_eq!(printed.len(), 2, "{printed:?}");
    assert!(printed[0].ends_with("at 0x1000") && printed[1] == "a clock at 0x1000");
    PMU.close(clock).unwrap();
    machine.down();
}
