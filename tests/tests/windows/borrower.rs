//! A borrower of a session's counters, and the session's events, which must not notice it.

use core::cell::RefCell;

use pmu_core::interrupt::EventOverflow;
use pmu_core::lending::LentCounters;
use pmu_core::{CounterSet, EventId, Events, service};
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviation, Deviations};
use pmu_virt::{PmuState, Write};

pub(crate) const PERIOD: u64 = 0x1000;

pub(crate) fn state(mock: &Mock<'_>) -> PmuState {
    mock.with_pmu(|pmu| pmu.state())
}

pub(crate) fn write(mock: &Mock<'_>, register: u32, value: u64) {
    let written = mock.with_pmu(|pmu| pmu.write(register, value).answer);
    assert_eq!(written, Write::Done, "{register:#X}");
}

/// Counts on each lent counter, as a guest does. Then disarms and clears them, or leaves them as they are.
pub(crate) fn borrow(
    processor: &Processor,
    mock: &Mock<'_>,
    lent: &mut LentCounters,
    disarms: bool,
) {
    lent.set_programmed(true);
    let own = lent.counters();
    let unit = &processor.unit;
    for (number, counter) in own.iter().enumerate() {
        let registers = unit.counter(counter).unwrap();
        write(mock, registers.value_register().get(), 0x1000 + number as u64);
        if !counter.is_fixed() {
            write(mock, registers.control().register().get(), 0x53_003C);
        }
    }
    if !(own & CounterSet::FIXED).is_empty() {
        write(mock, 0x38D, 0xB | 0xB << 4);
    }
    if let Some(global) = unit.global() {
        write(mock, global.control.get(), own.bits());
    }
    // 100 cycles and instructions of the guest's, without an overflow.
    let mut feed = happened(1, 100);
    let _ = mock.pass(&mut feed);
    if !disarms {
        return;
    }
    for counter in own.iter() {
        let registers = unit.counter(counter).unwrap();
        write(mock, registers.control().register().get(), 0);
        write(mock, registers.value_register().get(), 0);
    }
    if let Some(global) = unit.global() {
        write(mock, global.control.get(), lent.global_control());
    }
    lent.set_programmed(false);
}

/// The events of a case: 0 interrupts, 1 is counted, 2 interrupts on a fixed counter where there is one, 3 and 4 are a
/// group.
pub(crate) fn open(processor: &Processor, counters: &mut Opened<'_, '_>) -> Vec<EventId> {
    let unit = &processor.unit;
    let sampled = |kind: usize| raw(kind).every(PERIOD).with_total().tagged(kind as u64);
    let alone = [sampled(2), raw(3), sampled(if processor.fixed() { 0 } else { 4 })];
    let mut events: Vec<EventId> =
        alone.iter().map(|event| counters.open(unit, &[*event]).unwrap()).collect();
    for event in &events {
        counters.enable(*event, 0).unwrap();
    }
    if processor.fixed() {
        let group = counters.open(unit, &[sampled(5), raw(6)]).unwrap();
        counters.enable(group, 0).unwrap();
        events.extend(counters.group_events(group));
    }
    events
}

pub(crate) fn kinds(processor: &Processor) -> &'static [usize] {
    if processor.fixed() { &[2, 3, 0, 5, 6] } else { &[2, 3, 4] }
}

/// Returns whether the event of this place interrupts.
pub(crate) fn interrupts(place: usize) -> bool {
    ![1, 4].contains(&place)
}

/// Asserts that each event has counted `before`, and that its period ends where it should.
#[track_caller]
pub(crate) fn assert_exact(
    processor: &Processor,
    mock: &Mock<'_>,
    counters: &Opened<'_, '_>,
    events: &[EventId],
    reports: &RefCell<Vec<EventOverflow>>,
    before: u64,
) {
    let context = format!("{processor:?}");
    for (place, (event, kind)) in events.iter().zip(kinds(processor)).enumerate() {
        assert_eq!(total(counters, *event), before, "{context}: {place}");
        happen(mock, *kind, PERIOD - before % PERIOD - 1);
        assert_eq!(reports.take(), [], "{context}: {place} is early");
        happen(mock, *kind, 1);
        let told: Vec<EventId> = reports.take().iter().map(|overflow| overflow.event).collect();
        let due = if interrupts(place) { vec![*event] } else { vec![] };
        assert_eq!(told, due, "{context}: {place}");
        assert_eq!(
            total(counters, *event),
            before + PERIOD - before % PERIOD,
            "{context}: {place}"
        );
    }
}

/// Processors as the manuals have them, and with interrupts that platforms are known to have.
pub(crate) fn all_processors() -> Vec<Processor> {
    let mut all = processors(Deviations::NONE);
    all.extend(processors(Deviations::of(&[
        Deviation::NestsInterrupts,
        Deviation::MasksOnDelivery,
        Deviation::RaisesOnUnmask,
    ])));
    all
}

/// Runs `check` on the events of a case, which interrupt, and of each of which 0x700 have happened.
pub(crate) fn counting(
    processor: &Processor,
    check: impl FnOnce(&Mock<'_>, Opened<'_, '_>, &[EventId], &RefCell<Vec<EventOverflow>>),
) {
    let (memory, table) = (Memory::new(), Table::new());
    let reports = RefCell::new(vec![]);
    let handler = |mock: &Mock<'_>| {
        let source = Events::new(&processor.unit, &table);
        service(&source, mock, &memory, |o| reports.borrow_mut().push(*o)).unwrap();
    };
    let mock = processor.mock();
    mock.on_interrupt(&handler);
    let mut counters = processor.take(&mock, &memory, &table);
    let events = open(processor, &mut counters);
    kinds(processor).iter().for_each(|kind| happen(&mock, *kind, 0x700));
    check(&mock, counters, &events, &reports);
}
