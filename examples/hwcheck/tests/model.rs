//! The model against a processor: it agrees with itself, and one bit that differs is found and named.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod machines;

use machines::{Folder, claim, configurations, intel, run};
use pmu_hwcheck::machine::software::Plan;
use pmu_hwcheck::programs::Comparison;
use pmu_hwcheck::registers::Registers;
use pmu_hwcheck::registers::agreed::Agreed;
use pmu_hwcheck::registers::journal::Journal;
use pmu_hwcheck::registers::read;
use pmu_hwcheck::report::{Access, Answer, Claim, Disagreement, Hex, Outcome};
use pmu_virt::configuration::Configuration;

fn compared(
    configuration: Configuration,
    programs: u32,
    change: impl FnOnce(&mut Plan),
) -> Vec<Claim> {
    let folder = Folder::new();
    let machine = folder.machine(Plan::new(configuration).with(change));
    let agreed =
        Agreed::new(&configuration, |address| read(&machine, &configuration, address).ok());
    let journal = Journal::new(&agreed).unwrap();
    let registers = Registers::new(&machine, configuration, &agreed, &journal);
    let mut comparison = Comparison::new(&registers).unwrap();
    comparison.allow_rdpmc();
    comparison.read_only().unwrap();
    comparison.programs(7, programs, &|| false).unwrap();
    comparison.claims()
}

fn disagreements(claims: &[Claim]) -> Vec<&Disagreement> {
    claims.iter().flat_map(|claim| &claim.evidence.disagreements).collect()
}

#[test]
fn every_kind_of_pmu_agrees_with_itself() {
    for configuration in configurations() {
        let claims = compared(configuration, 12, |_| {});
        assert_eq!(disagreements(&claims), Vec::<&Disagreement>::new(), "{configuration:?}");
        let few = claims.iter().filter(|claim| claim.evidence.compared.unwrap_or(0) < 10);
        let few: Vec<_> =
            few.map(|claim| &claim.id).filter(|id| *id != "model.read-only").collect();
        assert!(few.is_empty(), "{configuration:?}: {few:?}");
    }
}

#[test]
fn counters_that_count_meanwhile_and_overflow_are_no_disagreement() {
    for configuration in configurations() {
        for events in [1, 1 << 20, 1 << 45] {
            let claims = compared(configuration, 8, |plan| plan.between_accesses = events);
            assert_eq!(disagreements(&claims), Vec::<&Disagreement>::new(), "{configuration:?}");
        }
    }
}

#[test]
fn a_bit_that_is_read_otherwise_is_found_and_named() {
    // The addresses and the sections of the manuals' tables.
    for (configuration, register, bit, name, manual) in [
        (intel(), 0x186, 5, "IA32_PERFEVTSELx", "Version 1"),
        (intel(), 0xC3, 47, "IA32_PMCx", "Version 1"),
        (intel(), 0x4C3, 0, "IA32_A_PMCx", "Full-Width Writes"),
        (intel(), 0x30A, 31, "IA32_FIXED_CTRx", "Version 2"),
        (intel(), 0x38D, 4, "IA32_FIXED_CTR_CTRL", "Version 2"),
        (intel(), 0x38F, 33, "IA32_PERF_GLOBAL_CTRL", "Version 2"),
        (intel(), 0x392, 1, "IA32_PERF_GLOBAL_INUSE", "Version 4"),
        (intel(), 0x345, 13, "IA32_PERF_CAPABILITIES", "Architectural MSRs"),
        (machines::amd(), 0xC001_0204, 41, "PerfEvtSelx", "Core Performance Event-Counter"),
        (machines::amd(), 0xC001_0007, 3, "PerfCtrx", "Performance Counter MSRs"),
        (
            machines::amd(),
            0xC000_0302,
            2,
            "PerfCntrGlobalStatusClr",
            "Performance Monitoring Version 2",
        ),
    ] {
        let claims = compared(configuration, 12, |plan| plan.inverted = Some((register, bit)));
        let named: Vec<_> = disagreements(&claims)
            .into_iter()
            .filter(|one| one.register == Hex(u64::from(register)) && one.access == Access::Rdmsr)
            .collect();
        let [one] = named[..] else { panic!("{register:#x}: {named:?}") };
        let (Answer::Value(model), Answer::Value(processor)) = (one.model, one.processor) else {
            panic!("{one:?}")
        };
        assert_eq!(model ^ processor, 1 << bit, "{register:#x}");
        assert!(one.name == name && one.manual.contains(manual), "{one:?}");
        let others = disagreements(&claims).len();
        assert_eq!(others, 1, "{:?}", disagreements(&claims));
    }
}

#[test]
fn a_bit_that_is_taken_though_the_model_faults_is_found_and_named() {
    let claims = compared(intel(), 1, |plan| plan.tolerated = Some((0x187, 63)));
    let one = disagreements(&claims);
    let [one] = one[..] else { panic!("{one:?}") };
    assert_eq!((one.register, one.access), (Hex(0x187), Access::Wrmsr));
    assert!(one.value.is_some_and(|value| value.0 >> 63 == 1));
    assert_eq!((one.model, one.processor), (Answer::GeneralProtection, Answer::Done));
}

/// It is found where each program begins, so that nothing else would be compared.
#[test]
fn a_register_that_takes_no_write_is_named_and_the_others_are_compared_without_it() {
    let all: u64 =
        compared(intel(), 12, |_| {}).iter().filter_map(|one| one.evidence.compared).sum();
    for register in [0x187, 0xC2, 0x30A, 0x38D, 0x38F, 0x390] {
        for events in [0, 1 << 45] {
            let claims = compared(intel(), 12, |plan| {
                plan.faulting = Some(register);
                plan.between_accesses = events;
            });
            let one = disagreements(&claims);
            let [one] = one[..] else { panic!("{register:#x}: {one:?}") };
            assert_eq!((one.register, one.access), (Hex(u64::from(register)), Access::Wrmsr));
            assert_eq!((one.model, one.processor), (Answer::Done, Answer::GeneralProtection));
            let compared: u64 = claims.iter().filter_map(|one| one.evidence.compared).sum();
            assert!(events != 0 || compared > all / 2, "{register:#x}: {compared} of {all}");
        }
    }
}

#[test]
fn a_register_that_never_reads_as_written_is_named_and_the_others_are_compared_without_it() {
    let answers =
        |claims: &[Claim]| -> u64 { claims.iter().filter_map(|one| one.evidence.compared).sum() };
    let all = answers(&compared(intel(), 12, |_| {}));
    for (register, bit) in [(0x186, 2), (0xC2, 40), (0x30A, 3), (0x38D, 1), (0x38F, 0)] {
        let claims = compared(intel(), 12, |plan| plan.inverted = Some((register, bit)));
        let one = disagreements(&claims);
        let [one] = one[..] else { panic!("{register:#x}: {one:?}") };
        assert_eq!((one.register, one.access), (Hex(u64::from(register)), Access::Rdmsr));
        let compared = answers(&claims);
        assert!(compared > all / 2, "{register:#x}: {compared} of {all}");
    }
}

/// A hypervisor that declares more than it has.
#[test]
fn a_declared_register_that_is_not_there_is_named_and_the_others_are_compared() {
    for register in [0x187, 0xC3, 0x30A, 0x38D, 0x38E, 0x38F] {
        let folder = Folder::new();
        let machine =
            folder.machine(Plan::new(intel()).with(|plan| plan.unreadable = Some(register)));
        let before = machine.state().unwrap();
        for options in [&[][..], &["--read-only"]] {
            let (status, report, output) = run(&folder, options);
            let report = report.unwrap();
            assert_eq!(status, Some(4), "{register:#x}: {output:?}");
            let told: Vec<_> = report
                .claims
                .iter()
                .flat_map(|claim| &claim.evidence.disagreements)
                .filter(|one| one.processor == Answer::GeneralProtection)
                .map(|one| one.register)
                .collect();
            assert_eq!(told, [Hex(u64::from(register))], "{options:?}");
            assert_eq!(claim(&report, "model.absent").outcome, Outcome::Agrees);
        }
        assert_eq!(machine.state().unwrap(), before, "{register:#x}");
    }
}

/// An overflow that another sets: no register that is compared with what was written.
#[test]
fn an_answer_that_differs_once_is_counted_and_no_disagreement() {
    let mut once = 0;
    for at in (1_700..6_000).step_by(120) {
        let claims = compared(intel(), 12, |plan| plan.others = vec![(at, 0x391, 0b1)]);
        assert_eq!(disagreements(&claims), Vec::<&Disagreement>::new(), "{at}");
        once += claims.iter().map(|claim| claim.evidence.unrepeated).sum::<u32>();
    }
    assert!(once > 0);
}

#[test]
fn the_same_seed_is_the_same_programs() {
    let claims = || compared(intel(), 5, |_| {});
    assert_eq!(claims(), claims());
}

#[test]
fn a_run_tells_the_one_bit_in_words() {
    let folder = Folder::new();
    folder.machine(Plan::new(intel()).with(|plan| plan.tolerated = Some((0x38D, 63))));
    let (status, report, output) = run(&folder, &[]);
    let report = report.unwrap();
    assert_eq!(status, Some(4), "{:?}", report.claims);
    assert_eq!(claim(&report, "model.fixed-control").outcome, Outcome::Disagrees);
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("WRMSR 0x38d (IA32_FIXED_CTR_CTRL) of 0x8"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("the model #GP, the processor done; SDM vol. 3B"), "{line}");
}

#[test]
fn a_counter_that_counts_more_in_each_run_is_exact_all_the_same_and_one_that_counts_otherwise_is_not()
 {
    let folder = Folder::new();
    folder.machine(Plan::new(intel()).with(|plan| plan.more_instructions = 17));
    let (_, report, _) = run(&folder, &[]);
    assert_eq!(claim(&report.unwrap(), "count.instructions.general").outcome, Outcome::Exact);
    let folder = Folder::new();
    // Counter 0, as it is read, has a bit that it does not have.
    folder.machine(Plan::new(intel()).with(|plan| plan.inverted = Some((0xC1, 40))));
    let (_, report, _) = run(&folder, &[]);
    assert_eq!(claim(&report.unwrap(), "driver.take").outcome, Outcome::Disagrees);
}

#[test]
fn without_rdpmc_its_claims_are_not_tried() {
    let folder = Folder::new();
    folder.machine(Plan::new(intel()));
    std::fs::remove_file(folder.0.join("sys/bus/event_source/devices/cpu/rdpmc")).unwrap();
    let (status, report, output) = run(&folder, &[]);
    let report = report.unwrap();
    assert_eq!(status, Some(0), "{output:?}");
    assert_eq!(claim(&report, "rdpmc.counters").outcome, Outcome::NotTried);
    assert_eq!(claim(&report, "count.instructions.fixed").outcome, Outcome::Exact);
}
