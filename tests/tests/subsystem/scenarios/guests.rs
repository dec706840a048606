//! Guests: events that count in them alone, or never; and windows in which a guest has the counters.

use pmu_tests::opened::Processor as Cpu;
use pmu_virt::configuration::{AmdConfiguration, Configuration};
use pmu_virt::mock::Deviations;

use super::world::{World, machines};
use crate::kernel::perf::Target::{Processor, Task};

fn has_guests([cpu, _]: &[Cpu; 2]) -> bool {
    match cpu.configuration {
        Configuration::Intel(intel) => intel.version >= 2,
        Configuration::Amd(amd) => amd.guest_host,
        _ => false,
    }
}

/// Returns the machines that confine events to guests or to the host.
fn hosts() -> Vec<[Cpu; 2]> {
    let mut hosts = machines(Deviations::NONE);
    hosts.retain(has_guests);
    for mut amd in [AmdConfiguration::CORE_EXTENSION, AmdConfiguration::perf_mon_v2(8)] {
        amd.guest_host = true;
        hosts.push([Cpu::new(Configuration::Amd(amd), false, Deviations::NONE); 2]);
    }
    hosts
}

/// On processors and of tasks, counted and sampled, with interrupts in the guest, which exits then.
#[test]
fn events_of_guests_and_of_the_host_count_where_they_are_to() {
    for machine in hosts() {
        let mut w = World::new(&machine);
        (0..2).for_each(|cpu| w.perf.cpu(cpu).session.set_virtualization(true).unwrap());
        let inside = w.open(Processor(0), &["cpu/event=0xd0,umask=0x01,period=4096/GD"]);
        let task = w.perf.spawn();
        let outside = w.open(Task(task), &["cpu/event=0xd0,umask=0x01,period=5000/HuD"]);
        let everywhere = w.open(Task(task), &["cpu/event=0xd1,umask=0x01,period=6000/D"]);
        for round in 0..8 {
            w.switch(1 - round % 2, None);
            w.switch(round % 2, Some(task));
            for kind in [2, 3] {
                for cpu in 0..2 {
                    w.happen(cpu, kind, 3_000);
                    w.happen_in_guest(cpu, kind, 9_000 + round as u64);
                    w.happen_in_guest(cpu, kind, 1);
                }
            }
            w.pass(500);
            w.check(&format!("round {round}"));
        }
        let counts = [inside, outside, everywhere].map(|number| w.naive[number].count.value);
        assert!(counts.iter().all(|count| *count > 10_000), "{machine:?}: {counts:?}");
        w.end();
    }
}

/// A guest has the counters, and leaves them programmed: the host's events stand still, and go on behind the window. In
/// each other window, the time is enabled time of those events that are to count in guests, too.
#[test]
fn lent_counters_come_back_to_every_event() {
    for machine in machines(Deviations::NONE).into_iter().chain(hosts()) {
        let mut w = World::new(&machine);
        let task = w.perf.spawn();
        w.open(Processor(0), &["cpu/event=0xd0,umask=0x01,period=4096/D"]);
        if has_guests(&machine) {
            w.perf.cpu(0).session.set_virtualization(true).unwrap();
            w.open(Processor(0), &["cpu/event=0xd0,umask=0x01/HD"]);
        }
        w.open(Task(task), &["cpu/event=0xd1,umask=0x01,freq=1000/D"]);
        w.open(Processor(1), &["cpu/event=0xd0,umask=0x01/"]);
        w.switch(0, Some(task));
        for round in 0..5 {
            w.happen(0, 2, 4_000 + round);
            w.happen(0, 3, 4_095);
            w.happen(1, 2, 5);
            w.pass(300);
            w.check(&format!("round {round}"));
            w.lend(0, round % 2 == 1, 1_000);
            w.check(&format!("behind window {round}"));
        }
        w.end();
    }
}
