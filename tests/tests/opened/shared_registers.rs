//! Opened events and registers that other owners share: the fixed counters' control, the status, and the interrupt.

use core::cell::{Cell, RefCell};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::registers::CounterId;
use pmu_core::{Claim, CounterSession, CounterSet, CounterUnit, Events, service};
use pmu_tests::StateRegisters;
use pmu_tests::opened::*;
use pmu_tests::{FakePlatform, RegisterFile};
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::Deviations;

/// Fixed counters 1 and 3 are other owners', who set their bits of the shared control.
#[test]
fn the_fixed_counters_control_is_shared() {
    const CONTROL: u32 = 0x38D;
    let processor = Processor::intel(IntelConfiguration::new(4, 4, 4));
    let unit = &processor.unit;
    for (only, slots) in [
        (CounterSet::GENERAL, 24),
        (CounterSet::GENERAL | CounterSet::fixed(0b101), 24),
        // There are slots for the general counters alone.
        (CounterSet::ALL, 4),
    ] {
        let (small, large, table) =
            (CounterMemory::<[CounterSlot; 4]>::new(), Memory::new(), Table::new());
        let memory: &CounterMemory = if slots == 4 { &small } else { &large };
        let mock = processor.mock();
        let poke = |register, value| {
            mock.with_pmu(|pmu| assert_eq!(pmu.write(register, value).illegal, 0))
        };
        let fixed_control = || mock.with_pmu(|pmu| pmu.state().fixed_control());
        poke(CONTROL, 0xB0B0);
        poke(0x38F, 0b1010 << 32);
        poke(0x391, 1 << 33);
        let mut counters = processor.take_only(only, &mock, memory, &table);
        let context = format!("{only:?}, {slots}: {:?}", counters.counters());
        assert_eq!(fixed_control(), 0xB0B0, "{context}");
        let status = mock.with_pmu(|pmu| pmu.state().global_status());
        assert_eq!(status, 1 << 33, "{context}: its owner acknowledges it");
        counters.set_others_fixed_control(0xF0, 0x80).unwrap();
        assert_eq!(fixed_control(), 0xB080, "{context}");
        let mine = counters.counters().usable.contains(CounterId::fixed(2).unwrap());
        if mine {
            let own = |bits| Err(CounterError::OwnControlBits(bits));
            assert_eq!(counters.set_others_fixed_control(0xFF0, 0xB00), own(0xF00));
            assert_eq!(counters.set_others_fixed_control(1 << 41, 0), own(1 << 41));
            let event = raw(2).on(CounterSet::fixed(0b100)).user_only();
            let id = counters.open(unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
            // Bits of a fixed counter: 0 kernel, 1 user, 2 any thread, 3 interrupts.
            assert_eq!(fixed_control(), 0xBA80);
            counters.set_others_fixed_control(0xF0, 0xB0).unwrap();
            assert_eq!(fixed_control(), 0xBAB0);
            mock.lose_registers();
            assert_eq!(counters.reprogram(|o| panic!("{o:?}")).map(CounterSet::len), Ok(1));
            assert_eq!(fixed_control(), 0xBAB0, "{context}");
        } else {
            counters.set_others_fixed_control(0xF00, 0xB00).unwrap();
            assert_eq!(fixed_control(), 0xBB80, "{context}");
        }
        counters.shut_down().unwrap();
        assert_eq!(fixed_control(), if mine { 0xB0B0 } else { 0xBB80 }, "{context}");
        let closed = CounterError::OwnControlBits(0);
        assert_eq!(counters.set_others_fixed_control(0xF, 0), Err(closed), "shut down");
    }
}

#[test]
fn without_fixed_counters_no_bits_of_their_control_are_set() {
    for processor in processors(Deviations::NONE).into_iter().filter(|p| !p.fixed()) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let none = CounterError::OwnControlBits(0);
        assert_eq!(counters.set_others_fixed_control(0xF0, 0xB0), Err(none));
    }
}

/// The interrupt's handler has the source of another session, or none: it accesses no register of theirs.
#[test]
fn an_interrupt_with_another_source_touches_nothing() {
    let processor = Processor::intel(IntelConfiguration::new(2, 4, 0));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let id = counters.open(&processor.unit, &[raw(2).every(0x1000)]).unwrap();
    counters.enable(id, 0).unwrap();
    mock.pass(&mut happened(2, 0x1000));
    mock.clear();
    let none = Events::new(&CounterUnit::NONE, &table);
    let serviced = service(&none, &mock, &memory, |o| panic!("{o:?}")).unwrap();
    assert_eq!((serviced.overflows, mock.accesses().total()), (0, 0));
}

/// Bits of the status that are no session's are acknowledged on request, and the session's own are not.
#[test]
fn what_has_no_owner_is_acknowledged_on_request() {
    let unit = pmu_intel::counters(&pmu_tests::intel_processor(4, 4));
    let (registers, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    let (memory, table) = (Memory::new(), Table::new());
    registers.set(0x38E, 1 << 62);
    let source = Events::new(&unit, &table);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, (&registers, &platform), &memory)
            .unwrap();
    registers.take_writes();
    counters.acknowledge_others(1 << 62).unwrap();
    assert_eq!(registers.take_writes(), [(0x390, 1 << 62)]);
    let own = Err(CounterError::OwnControlBits(0b1));
    assert_eq!(counters.acknowledge_others(1 << 62 | 0b1), own);
    assert_eq!(registers.take_writes(), []);
    counters.shut_down().unwrap();
    let closed = Err(CounterError::OwnControlBits(0));
    assert_eq!(counters.acknowledge_others(1 << 62), closed);
}

/// A trace's interrupt (bit 55) is its owner's; unmasking the LVT entry may raise a spurious one.
#[test]
fn an_interrupt_of_a_buffer_is_claimed_ahead_and_told() {
    let unit = pmu_intel::counters(&pmu_tests::intel_processor(4, 4));
    let (registers, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
    let (memory, table) = (Memory::new(), Table::new());
    let source = Events::new(&unit, &table);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, (&registers, &platform), &memory)
            .unwrap();
    registers.set(0x38E, 1 << 55);
    let serviced =
        service(&source, &(&registers, &platform), &memory, |o| panic!("{o:?}")).unwrap();
    assert_eq!((serviced.claim, serviced.others), (Claim::Ours, 1 << 55));
    assert_eq!(registers.get(0x390), 0, "its owner acknowledges it");
    counters.shut_down().unwrap();
}

/// An interrupt that comes while its counter is stopped, at any access, is claimed once; the next is another's.
#[test]
fn an_interrupt_while_its_counter_is_stopped_leaves_no_claim_behind() {
    for processor in processors(Deviations::NONE) {
        for at in 1..12 {
            let (memory, table) = (Memory::new(), Table::new());
            let claims = RefCell::new(vec![]);
            let handler = |mock: &Mock<'_>| {
                let source = Events::new(&processor.unit, &table);
                let claim = service(&source, mock, &memory, |_| ()).unwrap().claim;
                claims.borrow_mut().push(claim);
            };
            let left = Cell::new(0);
            let deliver = |mock: &Mock<'_>| {
                left.set(left.get() - i32::from(left.get() > 0));
                if left.get() == 1 {
                    left.set(0);
                    mock.deliver();
                }
            };
            let mock = processor.mock();
            mock.on_interrupt(&handler);
            mock.on_access(&deliver);
            let mut counters = processor.take(&mock, &memory, &table);
            let id = counters.open(&processor.unit, &[raw(2).every(0x1000)]).unwrap();
            counters.enable(id, 0).unwrap();
            // Without a status, one interrupt is expected of a predecessor.
            mock.interrupt_from_elsewhere();
            mock.deliver();
            claims.take();
            happen(&mock, 2, 0xFFF);
            mock.pass(&mut happened(2, 1));
            left.set(at + 1);
            counters.disable(id, 0).unwrap();
            left.set(0);
            mock.deliver();
            let context = format!("{processor:?}, access {at}: {claims:?}");
            assert!(claims.take().iter().all(|claim| *claim != Claim::NotOurs), "{context}");
            mock.interrupt_from_elsewhere();
            mock.deliver();
            let next = claims.take();
            assert!(next.iter().all(|claim| *claim == Claim::NotOurs), "{context}; then {next:?}");
        }
    }
}
