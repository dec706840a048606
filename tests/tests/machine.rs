//! `Machine` profiles with whichever interface it has, on the software PMU.

mod opened;

use core::cell::RefCell;

use opened::*;
use pmu::Machine;
use pmu_core::{Claim, KProfileSource, ProfileInterface, Snapshot};
use pmu_virt::mock::Deviations;
use pmu_virt::{AmdConfiguration, Configuration, IntelConfiguration};

/// Instructions, by both vendors' tables: the first of [`KINDS`].
const SOURCE: KProfileSource = KProfileSource::TOTAL_ISSUES;
const INTERVAL: u64 = 0x1000;

#[test]
fn a_machine_reports_the_overflows_of_its_interface() {
    for processor in processors(Deviations::NONE) {
        let machine = Machine::detect(&processor.snapshot);
        let has_it = match processor.configuration {
            Configuration::Intel(_) => matches!(machine, Machine::Intel(_)),
            _ => matches!(machine, Machine::Amd(_)),
        };
        assert!(has_it, "{processor:?}: {machine:?}");
        let (memory, mock) = (Memory::new(), processor.mock());
        let told = RefCell::new(Vec::new());
        let handler = |mock: &Mock<'_>| {
            let count = |overflow: pmu_core::Overflow| told.borrow_mut().push(overflow.source);
            machine.service(mock, mock, &memory, count).unwrap();
        };
        mock.on_interrupt(&handler);
        machine.set_interval(SOURCE, INTERVAL).unwrap();
        let mut session = machine.initialize(&processor.snapshot, &mock, &mock, &memory).unwrap();
        session.start(SOURCE).unwrap();
        for _ in 0..3 {
            happen(&mock, 0, INTERVAL);
        }
        session.stop(SOURCE).unwrap();
        happen(&mock, 0, INTERVAL);
        assert_eq!(*told.borrow(), [SOURCE; 3], "{processor:?}");
        session.shut_down().unwrap();
    }
}

#[test]
fn a_zens_own_sources_are_reported() {
    let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let mock = Mock::strict(pmu_virt::VirtualPmu::new(configuration, fed_events()).unwrap());
    let snapshot = mock.snapshot();
    let machine = Machine::detect_zen(&snapshot);
    assert!(matches!(machine, Machine::Zen(_)), "{machine:?}");
    let (memory, told) = (Memory::new(), RefCell::new(Vec::new()));
    let handler = |mock: &Mock<'_>| {
        let count = |overflow: pmu_core::Overflow| told.borrow_mut().push(overflow.source);
        machine.service(mock, mock, &memory, count).unwrap();
    };
    mock.on_interrupt(&handler);
    machine.set_interval(SOURCE, INTERVAL).unwrap();
    let mut session = machine.initialize(&snapshot, &mock, &mock, &memory).unwrap();
    session.start(SOURCE).unwrap();
    happen(&mock, 0, INTERVAL);
    session.shut_down().unwrap();
    assert_eq!(told.into_inner(), [SOURCE]);
}

#[test]
fn an_interrupt_of_a_machine_without_counters_is_anothers_and_nothing_is_touched() {
    let machine = Machine::detect(&Snapshot::capture(|_: u32, _: u32| {
        pmu_core::raw_cpuid::CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 }
    }));
    assert!(matches!(machine, Machine::TimeOnly(..)), "{machine:?}");
    let memory = Memory::new();
    let mock = Processor::intel(IntelConfiguration::new(4, 4, 3)).mock();
    mock.clear();
    let serviced = machine.service(&&mock, &&mock, &memory, |overflow| panic!("{overflow:?}"));
    assert_eq!(serviced.unwrap().claim, Claim::NotOurs);
    assert_eq!(mock.accesses().total(), 0);
}
