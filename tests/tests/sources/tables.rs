//! The source tables, against data files from other documents.

use pmu_amd::Amd64;
use pmu_core::EventSource;
use pmu_core::interval::IntervalLimits;
use pmu_core::profile::{KProfileSource, ProfileSource};
use pmu_intel::Emon;
use pmu_tests::{Row, data};

fn source(value: u64) -> KProfileSource {
    KProfileSource::new(value as u32).expect("not ProfileMaximum")
}

fn compare<I: EventSource>(interface: &I, rows: &[Row<'_>]) {
    let table = interface.sources();
    assert_eq!(table.len(), rows.len());
    for (entry, row) in table.iter().zip(rows) {
        assert_eq!(u64::from(entry.source().value()), row.number("value"));
        assert_eq!(entry.name(), row.text("name"));
        assert_eq!(entry.windows_name(), row.text("windows_name"), "{}", entry.name());
        assert_eq!(entry.select().select_bits(), row.number("select"), "{}", entry.name());
        assert_eq!(entry.canonical(), row.optional("alias_of").map(source), "{}", entry.name());
    }
}

fn look_up_every_way<I: EventSource>(interface: &I) {
    for (index, entry) in interface.sources().iter().enumerate() {
        assert_eq!(interface.row(entry.source()), Some(index));
        for name in [entry.name(), entry.windows_name()] {
            // The first of that name, where several have it.
            let first = interface.sources().iter().position(|row| row.is_named(name));
            assert_eq!(interface.row_named(name), first, "{name}");
        }
        if let Some(canonical) = entry.canonical() {
            let row = interface.row(canonical).expect("the canonical source is in the table");
            let twin = &interface.sources()[row];
            assert_eq!(twin.select().select_bits(), entry.select().select_bits());
            assert_eq!(twin.canonical(), None);
        }
    }
    let found = (0..0x1_0000).filter_map(KProfileSource::new);
    let found = found.filter(|source| interface.row(*source).is_some());
    assert_eq!(found.count(), interface.sources().len());
    for name in ["", "Profile", "Maximum", "ProfileMaximum", "profiletime", "TotalIssues "] {
        assert_eq!(interface.row_named(name), None, "{name}");
    }
}

#[test]
fn emon_table_equals_the_data_file() {
    let emon = Emon::declared();
    let rows = data!("emon_sources.csv");
    compare(&emon, &rows);
    for (entry, row) in emon.sources().iter().zip(&rows) {
        assert_eq!(entry.event_bit().map(u64::from), row.optional("ebx_bit"), "{}", entry.name());
    }
    look_up_every_way(&emon);
}

#[test]
fn amd64_table_equals_the_data_file() {
    let amd64 = Amd64::declared();
    compare(&amd64, &data!("amd64_sources.csv"));
    look_up_every_way(&amd64);
}

#[test]
fn general_sources_equal_the_data_file() {
    let rows = data!("kprofile_source.csv");
    assert_eq!(rows.len(), KProfileSource::general().len());
    for (general, row) in KProfileSource::general().zip(&rows) {
        assert_eq!(u64::from(general.value()), row.number("value"));
        assert_eq!(general.general_name(), Some(row.text("name")));
    }
}

/// A general source is spelled the same in the enumeration and in every table that has it.
#[test]
fn tables_spell_general_sources_as_the_enumeration_does() {
    fn check(table: &[ProfileSource]) {
        for entry in table.iter().filter(|entry| entry.source().is_general()) {
            assert_eq!(entry.source().general_name(), Some(entry.name()));
        }
    }
    check(Emon::declared().sources());
    check(Amd64::declared().sources());
}

/// Windows reports these for every counter source, and others for its timer.
#[test]
fn intervals_default_and_limits_are_those_that_windows_reports() {
    let amd64 = Amd64::declared();
    for entry in amd64.sources() {
        let found = amd64.query(entry.source());
        let limits = (found.limits.default, found.limits.min, found.limits.max);
        let expected = match entry.source() {
            KProfileSource::TIME => (10_000, 1_221, 1_000_000),
            _ => (65_536, 4_096, 2_147_483_647),
        };
        assert_eq!(limits, expected);
        assert_eq!(found.interval, expected.0);
    }
}

proptest::proptest! {
    #[test]
    fn interval_limits_agree_with_a_naive_model(units: u64, near in 0u64..4, events: bool) {
        let limits = if events { IntervalLimits::EVENTS } else { IntervalLimits::TIME };
        let (min, max) = (u64::from(limits.min), u64::from(limits.max));
        for units in [units, units % (2 * max), min.wrapping_sub(2) + near, max - 2 + near] {
            let inside = (min..=max).contains(&units);
            match limits.check(units) {
                Ok(interval) => assert!(inside && u64::from(interval.get()) == units),
                Err(error) => {
                    let requested = u32::try_from(units).unwrap_or(u32::MAX);
                    assert!(!inside && error.requested == requested && error.limits() == limits);
                }
            }
            let clamped = u64::from(limits.clamp(units).get());
            assert_eq!(clamped, if units < min { min } else if units > max { max } else { units });
        }
    }
}
