//! Events that the kernel itself counts.

use pmu::frame::PlainFrame;
use pmu::{Event, GenericEvent, PmuError, PmuEvent, PmuSample, SoftwareEvent, ThreadEvent};
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use super::{MyKernel, PMU, printed, println, up};
use crate::software::frame;
use crate::world::{Happens, machine, sampling};

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
    PMU.happened(what, frame);
}

/// The scheduler's switch, with preemption off. `frame` is one of the kernel's own.
fn switch(
    frame: &PlainFrame,
    from: &mut [ThreadEvent; 4],
    to: &mut [ThreadEvent; 4],
    has_moved: bool, // the new thread ran on another processor before
) -> Result<(), PmuError> {
    PMU.happened(SoftwareEvent::ContextSwitches, frame);
    PMU.switch(from, to)?;
    if has_moved {
        PMU.happened(SoftwareEvent::CpuMigrations, frame);
    }
    Ok(())
}

/// The handler of the timer that `Kernel::set_clock_timer` sets.
fn timer_interrupt(frame: &PlainFrame) {
    PMU.clock_interrupt(frame);
}

/// Is called by the kernel's `sampled`.
fn sampled(sample: &PmuSample<'_, MyKernel>) {
    println!("{:?} at {:x?}", sample.event, sample.address()); // of the frame
}
// ANCHOR_END: software

#[test]
fn a_kernel_counts_what_it_does_itself() {
    let machine =
        up(Configuration::Intel(IntelConfiguration::new(4, 4, 3)), |frame| PMU.interrupt(frame));
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
    sampling(sampled, || page_fault(&frame(true), true));
    machine.now.set(self::machine().clock_timers[0].get().unwrap());
    sampling(sampled, || timer_interrupt(&frame(false)));
    switch(&frame(false), &mut thread, &mut idle, false).unwrap();
    let migrated = PMU.read_thread(&thread[1]).unwrap();
    assert_eq!((migrated.value, migrated.running), (1, 1_000_000_000));
    let printed = printed();
    assert_eq!(printed.len(), 2, "{printed:?}");
    assert!(printed.iter().all(|line| line.ends_with("at Some(1000)")), "{printed:?}");
    PMU.close(clock).unwrap();
    machine.down();
}
