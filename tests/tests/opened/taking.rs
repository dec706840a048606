//! Taking counters, fixed ones among them: with a fault, and with an interrupt, at each access.

use core::cell::Cell;

use pmu_core::error::CounterError;
use pmu_core::registers::CounterId;
use pmu_core::{CounterSession, CounterSet, Events, service};
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviations, Fault};

/// The last fixed counter is another owner's: user mode, and an interrupt.
fn anothers(processor: &Processor) -> CounterSet {
    let fixed = processor.unit.counters() & CounterSet::FIXED;
    fixed.iter().last().map_or(CounterSet::NONE, |counter| counter.only())
}

/// The bits of the fixed counters' control that are its.
fn anothers_control(processor: &Processor, mock: &Mock<'_>) -> u64 {
    let mine = |counter: CounterId| 0xF << (4 * counter.number());
    let mask = anothers(processor).iter().fold(0, |mask, counter| mask | mine(counter));
    mock.with_pmu(|pmu| pmu.state()).register(0x38D).unwrap_or(0) & mask
}

/// A processor on which that owner has its counter.
fn mock_of<'m>(processor: &Processor) -> Mock<'m> {
    let mock = processor.mock();
    for counter in anothers(processor).iter() {
        let _ = mock.with_pmu(|pmu| pmu.write(0x38D, 0b1010 << (4 * counter.number())));
    }
    mock
}

/// Takes every other counter of a processor.
fn take<'a, 'm>(
    processor: &'a Processor,
    mock: &'m Mock<'m>,
    memory: &'a Memory,
    table: &'a Table,
) -> Result<Opened<'a, 'm>, CounterError> {
    let source = Events::new(&processor.unit, table);
    let only = CounterSet::ALL.without(anothers(processor));
    CounterSession::take(source, &processor.unit, only, mock, memory)
}

fn accesses(processor: &Processor) -> u32 {
    let (memory, table, mock) = (Memory::new(), Table::new(), mock_of(processor));
    mock.clear();
    take(processor, &mock, &memory, &table).unwrap();
    mock.accesses().total()
}

/// An event on each counter is counted to the last.
#[track_caller]
fn assert_each_counts(
    counters: &mut Opened<'_, '_>,
    processor: &Processor,
    mock: &Mock<'_>,
    context: &str,
) {
    for counter in counters.counters().usable.iter() {
        let kind = if counter.is_fixed() { usize::from(counter.number()) } else { 2 };
        if kind > 2 || counter.is_fixed() && kind == 2 {
            // Reference cycles, and what follows: not fed.
            continue;
        }
        let event = raw(kind).on(counter.only());
        let event = counters.open(&processor.unit, &[event]).unwrap();
        counters.enable(event, 0).unwrap();
        happen(mock, kind, 77);
        counters.disable(event, 0).unwrap();
        let count = counters.close(event, 0).unwrap();
        assert_eq!(count.value, 77, "{counter:?}: {context}");
    }
}

#[test]
fn after_a_fault_at_any_access_the_counters_are_taken_or_can_be_taken_again() {
    for processor in processors(Deviations::NONE) {
        for access in 1..=accesses(&processor) {
            for fault in [Fault::At(access), Fault::From(access)] {
                let (memory, table, mock) = (Memory::new(), Table::new(), mock_of(&processor));
                let context = format!("{processor:?}, {fault:?}");
                mock.inject(fault);
                let outcome = take(&processor, &mock, &memory, &table);
                mock.inject(Fault::None);
                assert_eq!(running(&mock), CounterSet::NONE, "{context}");
                let mut counters = match outcome {
                    Ok(counters) => counters,
                    Err(error) => {
                        let is_typed = matches!(
                            error,
                            CounterError::Unchanged(_) | CounterError::Unresponsive
                        );
                        assert!(is_typed, "{context}: {error}");
                        take(&processor, &mock, &memory, &table).unwrap()
                    }
                };
                assert_each_counts(&mut counters, &processor, &mock, &context);
                counters.shut_down().unwrap();
                assert_eq!(running(&mock), CounterSet::NONE, "{context}");
                let kept = anothers_control(&processor, &mock);
                assert_eq!(kept.count_ones(), 2 * anothers(&processor).len() as u32, "{context}");
            }
        }
    }
}

#[test]
fn an_interrupt_at_any_access_finds_nothing_and_disturbs_nothing() {
    for processor in processors(Deviations::NONE) {
        for access in 1..=accesses(&processor) {
            let (memory, table, mock) = (Memory::new(), Table::new(), mock_of(&processor));
            let context = format!("{processor:?}, access {access}");
            let came = Cell::new(0);
            let handler = |mock: &Mock<'_>| {
                let source = Events::new(&processor.unit, &table);
                let serviced = service(&source, mock, &memory, |o| panic!("{o:?}"));
                assert_eq!(serviced.unwrap().overflows, 0);
                came.set(came.get() + 1);
            };
            mock.on_interrupt(&handler);
            mock.clear();
            // NMI, not masked: firmware's, or the kernel's before.
            mock.set_performance_entry(0x400);
            mock.interrupt_at(access);
            let mut counters = take(&processor, &mock, &memory, &table).unwrap();
            assert_eq!(came.get(), 1, "{context}");
            let all = processor.unit.counters().without(anothers(&processor));
            assert_eq!(counters.counters().usable, all, "{context}");
            assert_each_counts(&mut counters, &processor, &mock, &context);
            counters.shut_down().unwrap();
        }
    }
}
