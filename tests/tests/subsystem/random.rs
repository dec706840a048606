//! A perf-like subsystem, at random, against what happens: events of processors and of tasks, groups, turns,
//! frequencies, switches between processors, suspends and faults, on every configuration.

use super::perf::expected::Told;
use super::perf::lent::Lent;
use super::perf::operations::Faults;
use super::perf::state::Subsystem;
use pmu_tests::opened::{Mock, Processor, processors};
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::Deviations;

/// Runs the subsystem on processors of a machine, the first of which is the boot processor.
fn run(processors: &[Processor], seed: u64, steps: u32, faults: Faults) {
    let told = Told::new();
    let lent: Vec<Lent> = processors.iter().map(|_| Lent::new()).collect();
    let machine = &processors[0];
    let handlers: Vec<_> =
        lent.iter().map(|lent| |mock: &Mock<'_>| lent.serve(machine, mock, &told)).collect();
    let mocks: Vec<Mock<'_>> = processors.iter().map(Processor::mock).collect();
    for (mock, handler) in mocks.iter().zip(&handlers) {
        mock.on_interrupt(handler);
    }
    let mut subsystem = Subsystem::new(machine, processors, &lent, &mocks, &told, seed);
    subsystem.run(steps, faults);
}

/// Returns the seeds of the runs: more where `PMU_TEST_SUBSYSTEM` says how many.
fn seeds() -> core::ops::RangeInclusive<u64> {
    1..=std::env::var("PMU_TEST_SUBSYSTEM").map_or(12, |seeds| seeds.parse().unwrap())
}

/// Returns the processors of each machine: two alike, of each kind; and two of different types of core.
fn machines() -> Vec<[Processor; 2]> {
    let mut machines: Vec<_> =
        processors(Deviations::NONE).into_iter().map(|processor| [processor; 2]).collect();
    let core = |general, core_type| {
        let mut core = Processor::intel(IntelConfiguration::new(5, general, 3));
        core.unit.set_core_type(core_type);
        core
    };
    machines.push([core(8, 0x4000_0001), core(6, 0x2000_0001)]);
    machines.push([core(6, 0x2000_0001), core(6, 0x4000_0001)]);
    machines
}

#[test]
fn every_count_time_and_report_is_that_of_what_happened() {
    for machine in machines() {
        for seed in seeds() {
            run(&machine, seed, 120, Faults::None);
        }
    }
}

#[test]
fn a_fault_that_passes_changes_no_count() {
    for machine in machines() {
        for seed in seeds() {
            run(&machine, seed, 120, Faults::Passing);
        }
    }
}

#[test]
fn after_registers_did_not_answer_nothing_is_invented_and_everything_goes_on() {
    for machine in machines() {
        for seed in seeds() {
            run(&machine, seed, 120, Faults::Lasting);
        }
    }
}
