//! The mock backend: its counts, records, refusals and faults.

use core::cell::Cell;

use pmu_core::Platform;
use pmu_core::access::{
    AccessErrorKind, AccessOperation, CounterIndex, RegisterAddress, RegisterBackend,
};
use pmu_tests::software_pmu::*;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, Vendor};
use pmu_virt::mock::{Breach, Deviation, Deviations, Fault, MockMsr, PmiFault, Record};
use pmu_virt::{Mode, Privilege};

type Mock<'h> = MockMsr<'h, 8>;

const GP: AccessErrorKind = AccessErrorKind::Fault;

fn model() -> pmu_virt::VirtualPmu {
    pmu(Configuration::Intel(IntelConfiguration::new(4, 4, 3)))
}

fn msr(address: u32) -> RegisterAddress {
    // SAFETY: the mock's registers are numbers.
    unsafe { RegisterAddress::new(address) }
}

#[test]
fn accesses_are_counted_by_kind_and_kept() {
    let mock = Mock::new(model());
    mock.write(msr(0xC1), 7).unwrap();
    assert_eq!(mock.read(msr(0xC1)), Ok(7));
    assert_eq!(mock.read_counter(CounterIndex::new(0)), Ok(7));
    assert_eq!(mock.read(msr(0x1A6)), Err(GP));
    let accesses = mock.accesses();
    assert_eq!((accesses.reads, accesses.writes, accesses.pmc_reads), (2, 1, 1));
    let record = |operation, register, outcome| Record { operation, register, outcome };
    assert!(mock.trace().records().eq([
        record(AccessOperation::Write, 0xC1, Ok(7)),
        record(AccessOperation::Read, 0xC1, Ok(7)),
        record(AccessOperation::ReadCounter, 0, Ok(7)),
        record(AccessOperation::Read, 0x1A6, Err(GP)),
    ]));
    mock.clear();
    assert_eq!((mock.accesses().total(), mock.trace().records().count()), (0, 0));
}

/// The second counter, at each address that one version or vendor has of it.
#[test]
fn a_dead_counter_is_dead_at_each_of_its_addresses() {
    let mock = Mock::new(pmu(Configuration::Intel(IntelConfiguration::new(6, 4, 3))))
        .deviating(Deviations::of(&[Deviation::DeadCounter]));
    for address in [0xC2, 0x4C2, 0x1904] {
        mock.write(msr(address), 7).unwrap();
        assert_eq!(mock.read(msr(address)), Ok(0), "{address:#X}");
    }
    mock.write(msr(0x1900), 7).unwrap();
    assert_eq!(mock.read(msr(0xC1)), Ok(7));
}

/// Two counters of Intel, six of AMD; the registers, and their values.
#[test]
fn a_platform_has_left_in_the_registers_what_its_deviations_say() {
    use Deviation::{LeftFrozen, LeftOverflowed, LeftRunning, NarrowAcknowledge};
    let intel = |version| Configuration::Intel(IntelConfiguration::new(version, 2, 0));
    let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let all = [LeftRunning, LeftOverflowed, LeftFrozen];
    let narrow = [LeftFrozen, NarrowAcknowledge];
    // SDM vol. 4: FREEZE_PERFMON_ON_PMI is bit 12 of IA32_DEBUGCTL, and CTR_Frz, from version 4 on, bit 59 of the
    // status; until then frozen counters are disabled. APM vol. 2: PMCFreeze is bit 59 of the status.
    for (configuration, deviations, registers) in [
        (intel(3), &all[..2], &[(0x186, 0x53_003C), (0x38F, 0b11), (0x38E, 0b11), (0x1D9, 0)][..]),
        (intel(3), &all, &[(0x38F, 0), (0x38E, 0b11), (0x1D9, 1 << 12)]),
        (intel(4), &all, &[(0x38F, 0b11), (0x38E, 1 << 59 | 0b11), (0x1D9, 1 << 12)]),
        (intel(3), &narrow, &[(0x38F, 0), (0x38E, 0), (0x1D9, 0)]),
        (
            amd,
            &all,
            &[(0xC001_0202, 0x53_0076), (0xC000_0301, 0x3F), (0xC000_0300, 1 << 59 | 0x3F)],
        ),
        (amd, &all[1..], &[(0xC001_0202, 0), (0xC000_0301, 0x3F), (0xC000_0300, 1 << 59 | 0x3F)]),
    ] {
        let mock = Mock::new(pmu(configuration)).deviating(Deviations::of(deviations));
        for (register, value) in registers {
            let found = mock.read(msr(*register));
            assert_eq!(found, Ok(*value), "{register:#X} of {configuration:?} with {deviations:?}");
        }
        assert!(mock.snapshot().has_long_mode());
    }
}

#[test]
fn counters_are_left_running_where_the_global_control_had_stopped_them() {
    let mut stopped = model();
    set(&mut stopped, 0x38F, 0);
    let mock = Mock::new(stopped).deviating(Deviations::of(&[Deviation::LeftRunning]));
    assert_eq!(mock.read(msr(0x38F)), Ok(0b1111));
}

#[test]
fn a_lax_mock_remembers_the_first_breach() {
    let mock = Mock::new(model());
    mock.write(msr(0x309), 1 << 60).unwrap();
    assert!(mock.write(msr(0x186), 1 << 40).is_err());
    let breach = Breach {
        operation: AccessOperation::Write,
        register: 0x309,
        value: 1 << 60,
        illegal: 1 << 60,
    };
    assert_eq!(mock.breach(), Some(breach));
}

#[test]
#[should_panic(expected = "WRMSR 0x309 of 0x1000000000000: illegal bits 0x1000000000000")]
fn a_strict_mock_fails_on_a_bit_that_hardware_would_ignore() {
    let _ = Mock::strict(model()).write(msr(0x309), 1 << 48);
}

#[test]
#[should_panic(expected = "RDMSR 0x1A6: no such register")]
fn a_strict_mock_fails_on_a_register_that_is_not_there() {
    let _ = Mock::strict(model()).read(msr(0x1A6));
}

#[test]
#[should_panic(expected = "RDPMC 0x4: no such counter")]
fn a_strict_mock_fails_on_a_counter_that_is_not_there() {
    let _ = Mock::strict(model()).read_counter(CounterIndex::new(4));
}

#[test]
#[should_panic(expected = "WRMSR 0xC0010000")]
fn a_strict_mock_fails_on_writes_that_a_hidden_pmu_ignores() {
    let _ = Mock::strict(pmu(Configuration::hidden(Vendor::Amd))).write(msr(0xC001_0000), 0);
}

#[test]
fn a_fault_has_no_effect_and_comes_when_it_was_ordered() {
    let mock = Mock::new(model());
    let write = |value| mock.write(msr(0xC1), value);
    mock.inject(Fault::At(2));
    assert_eq!([write(1), write(2), write(3)], [Ok(()), Err(GP), Ok(())]);
    mock.inject(Fault::From(2));
    assert_eq!([write(4), write(5), write(6)], [Ok(()), Err(GP), Err(GP)]);
    mock.inject(Fault::Register(0xC1));
    assert_eq!((write(7), mock.read(msr(0xC2)), mock.read(msr(0xC1))), (Err(GP), Ok(0), Err(GP)));
    mock.inject(Fault::Ignored(0xC1));
    assert_eq!((write(8), mock.read(msr(0xC1))), (Ok(()), Ok(0)));
    mock.inject(Fault::None);
    assert_eq!(mock.read(msr(0xC1)), Ok(4));
    assert_eq!(mock.breach(), None, "an injected fault is not a breach");
}

/// Starts counter 0 on cycles, one before its overflow.
fn arm(mock: &Mock<'_>) {
    mock.unmask_performance_interrupt();
    mock.write(msr(0xC1), 0xFFFF_FFFF).unwrap();
    mock.write(msr(0x186), 0x53_003C).unwrap();
}

/// Version 3 freezes by clearing the enable bits: SDM vol. 3B, "Freezing LBR and Performance Counters on PMI".
#[test]
fn where_nothing_ever_freezes_counters_that_were_left_frozen_count_on_over_an_overflow() {
    use Deviation::{LeftFrozen, NarrowAcknowledge};
    for (deviations, control, counter) in
        [(&[LeftFrozen][..], 0, 0), (&[LeftFrozen, NarrowAcknowledge], 1, 4)]
    {
        let model = pmu(Configuration::Intel(IntelConfiguration::new(3, 4, 0)));
        let mock = Mock::new(model).deviating(Deviations::of(deviations));
        mock.write(msr(0x38F), 1).unwrap();
        arm(&mock);
        mock.advance(&mut feed(CYCLES, Privilege::User, 5));
        let found = [0x38E, 0x38F, 0xC1].map(|register| mock.read(msr(register)));
        assert_eq!(found, [Ok(1), Ok(control), Ok(counter)], "{deviations:?}");
    }
}

#[test]
fn an_interrupt_comes_masks_the_entry_and_may_access_registers() {
    let status = Cell::new(0);
    let handler = |mock: &Mock<'_>| status.set(mock.read(msr(0x38E)).unwrap());
    let mock = Mock::new(model());
    mock.on_interrupt(&handler);
    arm(&mock);
    mock.advance(&mut feed(CYCLES, Privilege::User, 5));
    assert_eq!((mock.interrupts(), status.get()), (1, 1));
    assert_eq!(mock.performance_entry(), 0x1_0400);
    // Masked: no second one.
    mock.write(msr(0xC1), 0xFFFF_FFFF).unwrap();
    mock.advance(&mut feed(CYCLES, Privilege::User, 5));
    assert_eq!(mock.interrupts(), 1);
}

#[test]
fn interrupts_are_lost_and_late_as_ordered() {
    let mock = Mock::new(model());
    arm(&mock);
    mock.inject_pmi(PmiFault::Lost);
    mock.advance(&mut feed(CYCLES, Privilege::User, 1));
    assert_eq!((mock.interrupts(), mock.read(msr(0x38E))), (0, Ok(1)));
    arm(&mock);
    mock.inject_pmi(PmiFault::Late(2));
    mock.advance(&mut feed(CYCLES, Privilege::User, 1));
    for expected in [0, 0, 1, 1] {
        mock.read(msr(0xC1)).unwrap();
        assert_eq!(mock.interrupts(), expected);
    }
}

#[test]
fn an_interrupt_is_raised_before_the_access_that_was_named() {
    let mock = Mock::new(model());
    arm(&mock);
    mock.interrupt_at(2);
    assert_eq!(mock.read(msr(0x38E)), Ok(0));
    assert_eq!((mock.read(msr(0x38E)), mock.interrupts()), (Ok(1), 1));
    // Spurious where nothing runs.
    mock.write(msr(0x186), 0).unwrap();
    mock.write(msr(0x390), 1).unwrap();
    mock.unmask_performance_interrupt();
    mock.interrupt_at(1);
    assert_eq!((mock.read(msr(0x38E)), mock.interrupts()), (Ok(0), 2));
}

#[test]
fn the_embedders_bits_of_a_shared_register_are_kept() {
    let mock = Mock::strict(model());
    mock.write(msr(0x1D9), 1 << 12 | 0b10).unwrap();
    assert_eq!(mock.read(msr(0x1D9)), Ok(1 << 12 | 0b10));
    assert_eq!(mock.read(msr(0x1A0)), Ok(1 << 7 | 1 << 11 | 1 << 12));
}

#[test]
fn rdpmc_is_executed_in_the_mode_that_was_set() {
    let mock = Mock::new(model());
    mock.set_mode(Mode { cpl: 3, pce: false, protected: true });
    assert_eq!(mock.read_counter(CounterIndex::new(0)), Err(GP));
    mock.set_mode(Mode { cpl: 3, pce: true, protected: true });
    assert_eq!(mock.read_counter(CounterIndex::new(0)), Ok(0));
}
