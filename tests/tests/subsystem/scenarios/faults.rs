//! A fault at each access of a scenario: one that passes changes nothing.

use pmu_tests::opened::Processor as Cpu;
use pmu_virt::mock::{Deviation, Deviations, Fault};

use super::world::{World, machines};
use crate::kernel::event::TICK;
use crate::kernel::perf::Target::{Processor, Task};

/// Does everything once, from the processors' start to their end, while the access with this number faults on each of
/// them. Returns the number of accesses of the first one.
fn scenario(machine: &[Cpu; 2], fault: Fault) -> u32 {
    let mut w = World::found(machine, |mock| {
        mock.clear();
        mock.inject(fault);
    });
    let task = w.perf.spawn();
    let own = w.open(Processor(0), &["cpu/event=0xd0,umask=0x01,period=5000/D"]);
    w.open(Task(task), &["cpu/event=0xd1,umask=0x01,period=4096,inherit/"]);
    w.open(Task(task), &["cpu/event=0xd2,umask=0x01/", "cpu/event=0xd0,umask=0x01/"]);
    w.switch(0, Some(task));
    w.happen(0, 2, 10_001);
    w.happen(0, 3, 5_000);
    w.pass(TICK);
    w.check("counted");
    w.tick();
    let child = w.fork(task);
    w.switch(0, None);
    w.switch(0, Some(child));
    w.happen(0, 3, 3_000);
    w.pass(TICK);
    w.perf.suspend(0);
    w.lend(0, false, 100);
    w.check("lent");
    let children = own + 4..own + 5;
    w.exit(child, children);
    w.switch(0, Some(task));
    w.happen(0, 3, 200);
    w.happen(0, 4, 20);
    w.check("the child ended");
    w.perf.close(own);
    w.naive[own].has_ended = true;
    w.check("closed");
    let first = w.mocks[0];
    w.end();
    first.accesses().total()
}

/// On each platform that deviates from the manuals, except Zhaoxin's ZX-C, whose counters have a driver of their own.
/// The flexible events wait on a processor with fewer counters.
#[test]
fn the_scenario_is_exact_on_every_platform() {
    let is_zx_c = |deviation: &Deviation| *deviation == Deviation::AcknowledgesWhileEnabled;
    for deviation in Deviation::ALL.into_iter().filter(|of| !is_zx_c(of)) {
        for machine in machines(Deviations::of(&[deviation])) {
            scenario(&machine, Fault::None);
        }
    }
}

#[test]
fn a_fault_that_passes_changes_no_count_of_any_scenario() {
    for machine in machines(Deviations::NONE) {
        let accesses = scenario(&machine, Fault::None);
        assert!(accesses > 100, "{machine:?}: {accesses}");
        for access in 1..=accesses {
            scenario(&machine, Fault::At(access));
        }
    }
}
