//! Zhaoxin's ZX-C, which takes an acknowledgement only while the global control enables counters: no overflow is left
//! behind where the driver has stopped all of them.

use core::cell::RefCell;

use pmu_core::interrupt::EventOverflow;
use pmu_core::registers::stop_all;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, EventCount, Events, service};
use pmu_tests::opened::*;
use pmu_tests::{StateRegisters, recorded};

use pmu_virt::configuration::{Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::mock::{Deviation, Deviations};

const PERIOD: u64 = 0x1000;
const GLOBAL_STATUS: u32 = 0x38E;

/// ZX-C: two general counters of 40 bits, and CPUID as recorded.
fn zx_c() -> Processor {
    let snapshot = recorded("zhaoxin-shanghai.txt");
    let intel = IntelConfiguration::new(2, 2, 3).with(|intel| {
        intel.general_width = 40;
        intel.fixed_width = 40;
        intel.set(IntelFeature::FullWidthWrites, false);
    });
    let deviations = Deviations::of(&[Deviation::AcknowledgesWhileEnabled]);
    let unit = pmu_intel::counters(&snapshot);
    let configuration = Configuration::Intel(intel);
    Processor { configuration, deviations, freezing: false, unit, snapshot }
}

fn status(mock: &Mock<'_>) -> u64 {
    mock.with_pmu(|pmu| pmu.state()).global_status()
}

#[test]
fn the_mock_takes_an_acknowledgement_only_while_a_counter_is_enabled() {
    use pmu_core::access::{RegisterAddress, RegisterBackend};
    let mock = zx_c().mock();
    // SAFETY: the mock's registers are numbers.
    let register = |address| unsafe { RegisterAddress::new(address) };
    leave_overflowed(&mock);
    mock.write(register(0x390), 0b11).unwrap();
    assert_eq!(mock.read(register(GLOBAL_STATUS)), Ok(0b11));
    mock.write(register(0x38F), 1).unwrap();
    mock.write(register(0x390), 0b11).unwrap();
    assert_eq!(mock.read(register(GLOBAL_STATUS)), Ok(0));
}

/// Two cycles' counters overflow, and are stopped.
fn leave_overflowed(mock: &Mock<'_>) {
    mock.with_pmu(|pmu| {
        for counter in 0..2 {
            let _ = pmu.write(0x186 + counter, 0x43_01D0);
            let _ = pmu.write(0xC1 + counter, 0xFFFF_FFFF);
        }
        let _ = pmu.write(0x38F, 0b11);
    });
    mock.pass(&mut happened(2, 1));
    mock.with_pmu(|pmu| {
        (0..2).for_each(|counter| _ = pmu.write(0x186 + counter, 0));
        let _ = pmu.write(0x38F, 0);
    });
    assert_eq!(status(mock), 0b11);
}

#[test]
fn overflows_that_a_predecessor_left_are_gone_when_the_counters_are_taken() {
    let (processor, memory, table) = (zx_c(), Memory::new(), Table::new());
    let mock = processor.mock();
    leave_overflowed(&mock);
    let mut counters = processor.take(&mock, &memory, &table);
    assert_eq!(status(&mock), 0);
    counters.shut_down().unwrap();
}

#[test]
fn overflows_are_gone_when_every_counter_was_silenced() {
    let processor = zx_c();
    let mock = processor.mock();
    leave_overflowed(&mock);
    stop_all(&processor.unit, &&mock).unwrap();
    let state = mock.with_pmu(|pmu| pmu.state());
    assert_eq!((state.global_status(), state.global_control()), (0, 0));
    assert_eq!(running(&mock), CounterSet::NONE);
}

/// An overflow is pending when the group, which has every counter, stops, is switched out, or lends its counters.
#[test]
fn a_total_is_exact_after_a_groups_stop_that_an_overflow_crosses() {
    for way in ["stop", "switch", "lend"] {
        let (processor, memory, table) = (zx_c(), Memory::new(), Table::new());
        let reports = RefCell::new(Vec::<EventOverflow>::new());
        let handler = |mock: &Mock<'_>| {
            let source = Events::new(&processor.unit, &table);
            service(&source, mock, &memory, |o| reports.borrow_mut().push(*o)).unwrap();
        };
        let mock = processor.mock();
        mock.on_interrupt(&handler);
        let general = CounterSet::from_bits(0b11);
        let mut counters = processor.take_only(general, &mock, &memory, &table);
        let events = [raw(2).every(PERIOD).with_total(), raw(3)];
        let mut group = counters.open(&processor.unit, &events).unwrap();
        counters.enable(group, 0).unwrap();
        happen(&mock, 3, 5);
        mock.pass(&mut happened(2, PERIOD));
        assert_ne!(status(&mock), 0, "{way}: it is pending");
        match way {
            "stop" => {
                counters.disable(group, 1).unwrap();
                assert_eq!(status(&mock), 0, "{way}");
                counters.enable(group, 2).unwrap();
            }
            "switch" => {
                let mut thread = [ThreadEvent::Unused; 2];
                let ids: Vec<_> = counters.group_events(group).collect();
                thread.iter_mut().zip(ids).for_each(|(of, id)| *of = ThreadEvent::Opened(id));
                counters.switch_out(&mut thread, 1, |o| reports.borrow_mut().push(*o)).unwrap();
                assert_eq!(status(&mock), 0, "{way}");
                counters.switch_in(&processor.unit, &mut thread, 2).unwrap();
                group = id_of(&thread[0]);
            }
            _ => {
                let window = counters.lend(1, |o| reports.borrow_mut().push(*o)).unwrap();
                assert_eq!(status(&mock), 0, "{way}");
                window.end(2).unwrap();
            }
        }
        // The interrupt that was pending is spurious.
        mock.deliver();
        happen(&mock, 2, 7);
        happen(&mock, 3, 7);
        let mut counts = [EventCount::default(); 2];
        counters.read_group(group, 3, &mut counts).unwrap();
        assert_eq!(counts.map(|count| count.value), [PERIOD + 7, 12], "{way}");
        happen(&mock, 2, PERIOD - 7);
        counters.read_group(group, 3, &mut counts).unwrap();
        assert_eq!(counts.map(|count| count.value), [2 * PERIOD, 12], "{way}");
        counters.close(group, 4).unwrap();
        counters.shut_down().unwrap();
        assert_eq!(status(&mock), 0, "{way}");
    }
}
