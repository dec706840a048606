//! Extra registers that a facility has reserved, beside events of the session that use them.

use pmu_core::{
    CounterError, CounterMemory, CounterSession, CounterSet, CounterSlot, Event, EventId,
    OpenedEvents,
};
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::IntelConfiguration;

fn demand(value: u64, registers: &[u32]) -> Demand {
    Demand { value, registers: registers.to_vec() }
}

/// Off-core response has two registers.
const BOTH: [u32; 2] = [EXTRA[0], EXTRA[1]];

const IN_USE: Result<(), CounterError> = Err(CounterError::ExtraRegisterInUse(EXTRA[0]));

fn eight_counters() -> Processor {
    Processor::intel(IntelConfiguration::new(4, 8, 3))
}

fn open(counters: &mut Refined<'_, '_>, processor: &Processor, event: &Event) -> EventId {
    counters.open_event(&processor.unit, event).unwrap()
}

#[test]
fn a_reserved_register_keeps_its_value_until_it_is_released() {
    let processor = eight_counters();
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    counters.reserve_extra_register(register(EXTRA[0]), 5).unwrap();
    assert_eq!(extra.values()[..2], [5, BEFORE[1]]);
    let [same, other] = [5, 6].map(|value| refined(2, &demand(value, &BOTH[..1])));
    let [same, other] = [same, other].map(|event| open(&mut counters, &processor, &event));
    let free = open(&mut counters, &processor, &refined(3, &demand(7, &BOTH)));
    // An event with the same value shares the register, and one with two registers gets the other one.
    for event in [same, free] {
        counters.start_event(event, 0).unwrap();
    }
    assert_eq!(counters.start_event(other, 0), IN_USE);
    assert_eq!(extra.values()[..2], [5, 7]);
    counters.stop_event(same, 0).unwrap();
    assert_eq!(counters.start_event(other, 0), IN_USE);
    // Another value is refused, and the same one is no change.
    assert_eq!(counters.reserve_extra_register(register(EXTRA[0]), 6), IN_USE);
    extra.take_accesses();
    counters.reserve_extra_register(register(EXTRA[0]), 5).unwrap();
    assert_eq!(extra.take_accesses(), 0);
    counters.release_extra_register(register(EXTRA[0]));
    // Not reserved: nothing happens.
    counters.release_extra_register(register(EXTRA[3]));
    counters.start_event(other, 0).unwrap();
    assert_eq!((extra.values()[..2].to_vec(), extra.take_accesses() > 0), (vec![6, 7], true));
    // An event that runs keeps its register, too.
    assert_eq!(counters.reserve_extra_register(register(EXTRA[0]), 5), IN_USE);
    counters.reserve_extra_register(register(EXTRA[0]), 6).unwrap();
    counters.shut_down().unwrap();
    assert_eq!(extra.values(), BEFORE);
    let refused = counters.reserve_extra_register(register(EXTRA[0]), 5);
    assert!(matches!(refused, Err(CounterError::NotAvailable(_))), "{refused:?}");
    // The next session knows of no reservation.
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    let other = open(&mut counters, &processor, &refined(2, &demand(9, &BOTH[..1])));
    counters.start_event(other, 0).unwrap();
    assert_eq!(extra.values()[0], 9);
}

#[test]
fn a_rotating_event_waits_for_a_reserved_register() {
    let processor = eight_counters();
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    counters.reserve_extra_register(register(EXTRA[2]), 5).unwrap();
    let event = refined(2, &demand(6, &EXTRA[2..3])).rotating();
    let event = open(&mut counters, &processor, &event);
    counters.start_event(event, 0).unwrap();
    for now in 1..4 {
        counters.rotate(now).unwrap();
        assert_eq!((counters.counter_of(event), extra.values()[2]), (None, 5));
    }
    counters.release_extra_register(register(EXTRA[2]));
    counters.rotate(4).unwrap();
    assert_eq!((counters.counter_of(event).is_some(), extra.values()[2]), (true, 6));
}

#[test]
fn a_reservation_outlasts_lost_registers_and_ends_with_a_reclaimed_table() {
    let processor = eight_counters();
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    counters.reserve_extra_register(register(EXTRA[0]), 5).unwrap();
    mock.lose_registers();
    extra.set([0; 4]);
    counters.reprogram(|_| ()).unwrap();
    assert_eq!(extra.values()[0], 5);
    let other = open(&mut counters, &processor, &refined(2, &demand(6, &BOTH[..1])));
    assert_eq!(counters.start_event(other, 0), IN_USE);
    // SAFETY: the session is not used again.
    unsafe {
        memory.reclaim();
        table.reclaim();
    }
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    let other = open(&mut counters, &processor, &refined(2, &demand(6, &BOTH[..1])));
    counters.start_event(other, 0).unwrap();
    assert_eq!(extra.values()[0], 6);
}

#[test]
fn lent_counters_and_a_faulting_register_are_refused_and_reserve_nothing() {
    let processor = eight_counters();
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    // A dropped window leaves the counters lent.
    drop(counters.lend(0, |o| panic!("{o:?}")).unwrap());
    extra.take_accesses();
    let refused = counters.reserve_extra_register(register(EXTRA[0]), 5);
    assert!(matches!(refused, Err(CounterError::NotAvailable(_))), "{refused:?}");
    assert_eq!((extra.take_accesses(), extra.values()), (0, BEFORE));
    counters.shut_down().unwrap();
    // The first access reads the value from before, the second one writes.
    for at in [1, 2] {
        let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
        extra.take_accesses();
        extra.fault.set(Some((at, true)));
        let refused = counters.reserve_extra_register(register(EXTRA[0]), 5);
        extra.fault.set(None);
        let Err(CounterError::Access(fault)) = refused else { panic!("{at}: {refused:?}") };
        assert_eq!((fault.register, extra.values()), (EXTRA[0], BEFORE), "{at}");
        let other = open(&mut counters, &processor, &refined(2, &demand(6, &BOTH[..1])));
        counters.start_event(other, 0).unwrap();
        assert_eq!(extra.values()[0], 6, "{at}");
        counters.shut_down().unwrap();
        assert_eq!(extra.values(), BEFORE, "{at}");
    }
}

/// The empty table belongs to all processors at once.
#[test]
fn a_session_without_a_table_writes_the_register_and_keeps_nothing() {
    let processor = eight_counters();
    let mock = processor.mock();
    let extra = WithExtra::new(&mock);
    let (memory, table) = (CounterMemory::<[CounterSlot; 16]>::new(), pmu_core::EventTable::new());
    let table: &pmu_core::EventTable<[pmu_core::EventEntry; 0]> = &table;
    let source = OpenedEvents::new(&processor.unit, table);
    let mut counters =
        CounterSession::take(source, &processor.unit, CounterSet::ALL, &extra, &mock, &memory)
            .unwrap();
    for value in [5, 6] {
        counters.reserve_extra_register(register(EXTRA[0]), value).unwrap();
        assert_eq!(extra.values()[0], value);
    }
    counters.release_extra_register(register(EXTRA[0]));
    extra.broken.set(EXTRA[0]);
    let refused = counters.reserve_extra_register(register(EXTRA[0]), 7);
    assert!(matches!(refused, Err(CounterError::Access(_))), "{refused:?}");
    extra.broken.set(0);
    counters.shut_down().unwrap();
    assert_eq!(extra.values()[0], 6);
}

/// Events and a facility in any order. Whether an event can start is found out by trying every value in every register.
#[test]
fn an_event_starts_if_and_only_if_some_registers_suit_it_beside_the_others_and_the_reserved_ones() {
    const VALUES: u64 = 3;
    let processor = eight_counters();
    let (mut random, mut refused, mut reserved_ones) = (Random(32), [0; 2], 0);
    for _ in 0..60 {
        let (memory, table, mock) = (Memory::new(), LargeTable::new(), processor.mock());
        let extra = WithExtra::new(&mock);
        extra.set([VALUES; 4]);
        let mut counters = extra.take(&processor, CounterSet::GENERAL, &memory, &table);
        let mut reserved: [Option<u64>; 4] = [None; 4];
        let mut events: Vec<(EventId, Demand, bool)> = (0..6)
            .map(|_| {
                let first = random.below(4) as usize;
                let count = 1 + random.below(2) as usize;
                let registers = (first..4).take(count).map(|number| EXTRA[number]).collect();
                let demand = Demand { value: random.below(VALUES), registers };
                let id = open(&mut counters, &processor, &refined(2, &demand));
                (id, demand, false)
            })
            .collect();
        for _ in 0..60 {
            let demands = |events: &[(EventId, Demand, bool)], reserved: &[Option<u64>; 4]| {
                let held = EXTRA.iter().zip(reserved);
                let held =
                    held.filter_map(|(register, value)| Some(demand((*value)?, &[*register])));
                let started = events.iter().filter(|event| event.2).map(|event| event.1.clone());
                started.chain(held).collect::<Vec<_>>()
            };
            match random.below(3) {
                0 => {
                    let number = random.below(4) as usize;
                    let (of, value) = (register(EXTRA[number]), random.below(VALUES));
                    let held = extra.values()[number];
                    match counters.reserve_extra_register(of, value) {
                        Ok(()) => {
                            assert!(reserved[number].is_none_or(|reserved| reserved == value));
                            reserved[number] = Some(value);
                            reserved_ones += 1;
                        }
                        Err(error) => {
                            let in_use = CounterError::ExtraRegisterInUse(EXTRA[number]);
                            assert_eq!((error, held == value), (in_use, false));
                            assert_eq!(extra.values()[number], held);
                            assert!(demands(&events, &reserved).iter().any(|demand| {
                                demand.value == held && demand.registers.contains(&EXTRA[number])
                            }));
                            refused[0] += 1;
                        }
                    }
                }
                1 => {
                    let number = random.below(4) as usize;
                    counters.release_extra_register(register(EXTRA[number]));
                    reserved[number] = None;
                }
                _ => {
                    let number = random.below(6) as usize;
                    let (id, _, started) = events[number];
                    if started {
                        counters.stop_event(id, 0).unwrap();
                        events[number].2 = false;
                    } else {
                        events[number].2 = true;
                        let possible = have_registers(&demands(&events, &reserved), VALUES);
                        let outcome = counters.start_event(id, 0);
                        assert_eq!(outcome.is_ok(), possible, "{outcome:?}");
                        events[number].2 = possible;
                        refused[1] += u32::from(!possible);
                    }
                }
            }
            for (number, value) in reserved.iter().enumerate() {
                assert!(value.is_none_or(|value| extra.values()[number] == value));
            }
            for (id, demand, started) in &events {
                assert_eq!(counters.counter_of(*id).is_some(), *started);
                let holds = |register: &u32| extra.value(*register) == Some(demand.value);
                assert!(!started || demand.registers.iter().any(holds));
            }
        }
        counters.shut_down().unwrap();
        assert_eq!(extra.values(), [VALUES; 4]);
    }
    assert!(refused.iter().all(|count| *count > 100) && reserved_ones > 100, "{refused:?}");
}
