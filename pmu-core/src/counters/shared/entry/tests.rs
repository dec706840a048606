//! Totals, times and shares of an opened event.

use super::*;

fn entry(period: u64) -> EventEntry {
    let entry = EventEntry::new();
    let event = Event::raw(EventSelect::from_bits(0xC0)).every(period).with_total();
    let select = EventSelect::from_bits(0);
    entry.open(&event, &CounterUnit::NONE, (select, CounterSet::ALL));
    entry
}

#[test]
fn a_total_counts_on_over_a_wrap() {
    let entry = entry(1000);
    entry.loaded(0xFFF0);
    entry.accumulate(0xFFF8, 0xFFFF);
    entry.accumulate(0x0005, 0xFFFF);
    assert_eq!(entry.count().value, 0x15);
}

#[test]
fn time_runs_while_it_is_started_and_while_it_has_a_counter() {
    let entry = entry(1000);
    entry.add_time(100, false);
    entry.set_state(EventState::Waiting);
    entry.add_time(130, false);
    entry.set_state(EventState::Counting);
    entry.add_time(150, true);
    entry.add_time(140, true); // the clock goes back, and comes again
    entry.add_time(150, true);
    entry.add_time(160, false); // its counter has faulted
    entry.set_state(EventState::Stopped);
    entry.add_time(1000, false);
    let count = EventCount { value: 10, ..entry.count() };
    assert_eq!((count.enabled, count.running, count.scaled()), (60, 20, Some(30)));
    assert_eq!(EventCount { running: 0, ..count }.scaled(), None);
}

#[test]
fn a_share_is_of_recent_time_by_a_clock_of_any_unit() {
    for unit in [1, 10, 1_000_003, 3_000_000_000, 1 << 48] {
        let entry = entry(1000);
        entry.add_time(7, false);
        assert_eq!(entry.share(), 1 << 31, "it was not started");
        let mut now = 7;
        let mut pass = |runs: bool, rotations: u32| {
            entry.set_state(if runs { EventState::Counting } else { EventState::Waiting });
            for _ in 0..rotations {
                now += unit;
                entry.add_time(now, runs);
                entry.forget(true, runs);
            }
            f64::from(entry.share()) / f64::from(1_u32 << 31)
        };
        assert!((pass(true, 200) - 1.0).abs() < f64::EPSILON);
        // By then, (15/16)^16 of the former is left, or 0.356.
        let share = pass(false, 16);
        assert!((share - 0.356).abs() < 0.01, "{unit}: {share}");
        let share = pass(true, 16);
        assert!((share - (0.644 + 0.356 * 0.356)).abs() < 0.01, "{unit}: {share}");
    }
}

#[test]
fn a_share_without_a_clock_is_of_rotations() {
    let entry = entry(1000);
    entry.forget(false, false);
    assert_eq!(entry.share(), 1 << 31, "it was not started");
    entry.set_state(EventState::Counting);
    entry.forget(false, true);
    entry.set_state(EventState::Waiting);
    entry.forget(false, false);
    let share = entry.share() >> 20;
    assert!((950..1024).contains(&share), "slightly less than a half: {share}");
    assert_eq!(entry.extract().count(), EventCount::default());
}
