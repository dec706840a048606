//! `Machine` profiles with whichever interface it has, on the software PMU.

use core::cell::RefCell;

use pmu::Machine;
use pmu_core::error::{CounterError, NoInterface};
use pmu_core::profile::{InterfaceError, KProfileSource, Session};
use pmu_core::x86::Snapshot;
use pmu_core::{Claim, CounterSession, CounterSet, EventSource, Events};
use pmu_tests::opened::*;
use pmu_tests::reports::service_sources;
use pmu_tests::{FakePlatform, RegisterFile, amd_processor, intel_processor, recorded, result};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::Deviations;

/// Instructions, by both vendors' tables: the first of [`KINDS`].
const SOURCE: KProfileSource = KProfileSource::TOTAL_ISSUES;
const INTERVAL: u64 = 0x1000;

#[test]
fn a_machine_reports_the_overflows_of_its_interface() {
    for processor in processors(Deviations::NONE) {
        let machine = Machine::detect(&processor.snapshot);
        let has_it = match processor.configuration {
            Configuration::Intel(_) => machine.name() == "Emon",
            _ => machine.name() == "Amd64",
        };
        assert!(has_it, "{processor:?}: {machine:?}");
        let (memory, mock) = (Memory::new(), processor.mock());
        let told = RefCell::new(Vec::new());
        let handler = |mock: &Mock<'_>| {
            let count =
                |overflow: pmu_core::profile::Overflow| told.borrow_mut().push(overflow.source);
            service_sources(&machine, mock, &memory, count).unwrap();
        };
        mock.on_interrupt(&handler);
        machine.set_interval(SOURCE, INTERVAL).unwrap();
        let mut session =
            Session::take(&machine, &processor.snapshot, CounterSet::GENERAL, &mock, &memory)
                .unwrap();
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
    assert_eq!(machine.name(), "Zen");
    let (memory, told) = (Memory::new(), RefCell::new(Vec::new()));
    let handler = |mock: &Mock<'_>| {
        let count = |overflow: pmu_core::profile::Overflow| told.borrow_mut().push(overflow.source);
        service_sources(&machine, mock, &memory, count).unwrap();
    };
    mock.on_interrupt(&handler);
    machine.set_interval(SOURCE, INTERVAL).unwrap();
    let mut session =
        Session::take(&machine, &snapshot, CounterSet::GENERAL, &mock, &memory).unwrap();
    session.start(SOURCE).unwrap();
    happen(&mock, 0, INTERVAL);
    session.shut_down().unwrap();
    assert_eq!(told.into_inner(), [SOURCE]);
}

/// As the README's `count` asks, on machines of which no leaf, the version of leaf 0x0A, and a hypervisor's bit say
/// that there are no counters.
#[test]
fn a_machine_without_counters_says_so_with_the_reason() {
    let intel = intel_processor(0, 0);
    let none = Snapshot::capture(|_: u32, _: u32| result([0; 4]));
    let guest = recorded("vm-hyperv-icelake.txt");
    for (this, why) in [
        (none, NoInterface::OtherVendor([0; 12])),
        (intel, NoInterface::NoPerformanceMonitoring),
        (guest, NoInterface::HiddenByHypervisor),
    ] {
        let machine = Machine::detect(&this);
        assert_eq!(machine.why_time_only(), Some(why));
        let (memory, table) = (Memory::new(), Table::new());
        let mock = Processor::intel(IntelConfiguration::new(4, 4, 3)).mock();
        mock.clear();
        let (events, unit) = (Events::new(machine.unit(), &table), machine.unit_of(&this));
        let taken = CounterSession::take(events, &unit, CounterSet::ALL, &mock, &memory);
        let error = taken.map(|_| ()).unwrap_err();
        assert_eq!(error, CounterError::NoCounters(why));
        assert!(error.to_string().contains(&why.to_string()), "{error}");
        assert_eq!(mock.accesses().total(), 0);
        // Time remains.
        let session = Session::take(&machine, &this, CounterSet::GENERAL, &mock, &memory).unwrap();
        assert!(session.query(KProfileSource::TIME).is_supported());
    }
}

/// As a kernel wants it whose counters did not answer.
#[test]
fn a_session_that_takes_no_counter_touches_none_and_profiles_by_time() {
    for processor in processors(Deviations::NONE) {
        let (machine, memory) = (Machine::detect(&processor.snapshot), Memory::new());
        let mock = processor.mock();
        mock.clear();
        let taken = Session::take(&machine, &processor.snapshot, CounterSet::NONE, &mock, &memory);
        let mut session = taken.unwrap();
        assert!(session.query(KProfileSource::TIME).is_supported());
        assert!(!session.query(SOURCE).is_supported());
        assert_eq!(session.start(SOURCE), Err(InterfaceError::UnsupportedSource(SOURCE)));
        session.start(KProfileSource::TIME).unwrap();
        session.shut_down().unwrap();
        assert_eq!(mock.accesses().total(), 0, "{processor:?}");
    }
}

/// Counters that CPUID declares, and an emulator does not have: as long as no processor's answered.
#[test]
fn sources_of_counters_that_did_not_answer_are_not_supported_any_more() {
    let machines = [(4, true), (0, false)].map(|(version, is_intel)| {
        let this = if is_intel { intel_processor(version, 4) } else { amd_processor(false, 0) };
        (Machine::detect(&this), this, is_intel)
    });
    for (machine, this, is_intel) in machines {
        let registers =
            || if is_intel { RegisterFile::intel(4, true) } else { RegisterFile::amd() };
        let first = if is_intel { 0xC1 } else { 0xC001_0004 };
        let dead = (first..first + 4).fold(registers(), |msr, register| msr.keeping(register, 0));
        let (platform, memories) = (FakePlatform::default(), [const { Memory::new() }; 2]);
        let is_supported = || machine.query(KProfileSource::TOTAL_ISSUES).is_supported();
        let initialize = |msr: &RegisterFile, place: usize| {
            let session = Session::take(
                &machine,
                &this,
                CounterSet::GENERAL,
                (msr, &platform),
                &memories[place],
            );
            session.and_then(|mut session| session.shut_down())
        };
        assert!(is_supported());
        let unresponsive = Err(InterfaceError::Counters(CounterError::Unresponsive));
        assert_eq!(initialize(&dead, 0), unresponsive);
        assert!(!is_supported());
        assert!(machine.query(KProfileSource::TIME).is_supported());
        let refused = InterfaceError::UnsupportedSource(KProfileSource::TOTAL_ISSUES);
        assert_eq!(machine.set_interval(KProfileSource::TOTAL_ISSUES, 0x1_0000), Err(refused));
        // Another processor's answer, and are the machine's.
        let alive = registers();
        assert_eq!(initialize(&alive, 1), Ok(()));
        assert!(is_supported());
        assert_eq!(initialize(&dead, 0), unresponsive);
        assert!(is_supported());
    }
}

#[test]
fn a_machine_takes_the_bytes_that_costs_says() {
    let costs = include_str!("../../../docs/costs.md").replace('\n', " ");
    let bytes = size_of::<Machine>();
    assert!(costs.contains(&format!("A `Machine` is {bytes} bytes")), "{bytes}");
}

#[test]
fn a_machine_made_without_counters_says_why_and_has_time() {
    static MACHINE: Machine = Machine::without_counters(NoInterface::HiddenByHypervisor);
    let why = Some(NoInterface::HiddenByHypervisor);
    assert_eq!((MACHINE.why_time_only(), MACHINE.unit().why_absent()), (why, why));
    let supported = |source| MACHINE.query(source).is_supported();
    let sources =
        [KProfileSource::TIME, KProfileSource::TOTAL_CYCLES, KProfileSource::TOTAL_ISSUES];
    assert_eq!(sources.map(supported), [true, false, false]);
    assert!(!MACHINE.requires_memory());
    let this = Processor::intel(IntelConfiguration::new(4, 4, 3)).snapshot;
    assert!(!Machine::detect(&this).unit_of(&this).counters().is_empty());
    assert!(MACHINE.unit_of(&this).counters().is_empty());
}

#[test]
fn an_interrupt_of_a_machine_without_counters_is_anothers_and_nothing_is_touched() {
    let machine = Machine::detect(&Snapshot::capture(|_: u32, _: u32| {
        pmu_core::x86::raw_cpuid::CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 }
    }));
    assert!(machine.why_time_only().is_some(), "{machine:?}");
    let memory = Memory::new();
    let mock = Processor::intel(IntelConfiguration::new(4, 4, 3)).mock();
    mock.clear();
    let serviced = service_sources(&machine, &&mock, &memory, |overflow| panic!("{overflow:?}"));
    assert_eq!(serviced.unwrap().claim, Claim::NotOurs);
    assert_eq!(mock.accesses().total(), 0);
}
