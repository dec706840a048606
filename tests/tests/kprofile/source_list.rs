//! The source list that Windows returns, against the data files.

use pmu_amd::Amd64;
use pmu_core::EventSource;
use pmu_core::profile::{DefaultInterface, KProfileSource};
use pmu_intel::Emon;
use pmu_kprofile::compat::LayoutError;
use pmu_kprofile::compat::source_list::{SOURCE_LIST_CLASS, read_source_list, write_source_list};
use pmu_tests::kprofile::facts::{put, value};
use pmu_tests::{Row, data};
use proptest::prelude::*;

const TIME: KProfileSource = KProfileSource::TIME;

/// Builds the answer that Windows would give, by the data files: a chain of an interface's sources.
fn source_list(rows: &[Row<'_>]) -> Vec<u8> {
    let header = value("PROFILE_LIST_INFORMATION.Profile") as usize;
    let mut image = vec![0; header];
    put(&mut image, 0, "PROFILE_LIST_INFORMATION.EventTraceInformationClass", 0x0D);
    put(&mut image, 0, "PROFILE_LIST_INFORMATION.Spare", 0);
    for (number, row) in rows.iter().enumerate() {
        let base = image.len();
        let name = base + value("PROFILE_SOURCE_INFO.Description") as usize;
        image.resize(name, 0);
        let units = row.text("windows_name").encode_utf16().chain([0]);
        image.extend(units.flat_map(u16::to_le_bytes));
        // The next entry's 64-bit member is aligned.
        image.resize(image.len().next_multiple_of(8), 0);
        let next = if number + 1 == rows.len() { 0 } else { image.len() - base };
        let source = row.number("value");
        let (min, max) = if source == 0 { (1_221, 1_000_000) } else { (0x1000, 0x7FFF_FFFF) };
        let mut put = |name: &str, value| {
            put(&mut image, base, &format!("PROFILE_SOURCE_INFO.{name}"), value);
        };
        put("NextEntryOffset", next as u64);
        put("Source", source);
        put("MinInterval", min);
        put("MaxInterval", max);
        put("Reserved", 0);
    }
    image
}

/// Returns a query's buffer of some length, filled with bytes that must not be mistaken for an answer.
fn query(length: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; length];
    bytes.iter_mut().zip(SOURCE_LIST_CLASS.to_le_bytes()).for_each(|(to, from)| *to = from);
    bytes
}

fn check_source_list<I: EventSource>(interface: &I, rows: &[Row<'_>]) {
    let expected = source_list(rows);
    let needed = expected.len();
    let mut bytes = query(needed + 9);
    assert_eq!(write_source_list(interface, &mut bytes), Ok(needed));
    assert_eq!(bytes[..needed], expected, "{}", interface.name());
    assert_eq!(bytes[needed..], [0xEE; 9]);
    assert_eq!(write_source_list(interface, &mut query(needed)), Ok(needed));
    for image in [&bytes[..needed], &bytes] {
        let entries: Vec<_> = read_source_list(image).map(Result::unwrap).collect();
        assert_eq!(entries.len(), rows.len());
        for (entry, row) in entries.iter().zip(rows) {
            assert_eq!(u64::from(entry.source.value()), row.number("value"));
            assert_eq!(entry.name().collect::<String>(), row.text("windows_name"));
            let is_time = entry.source == TIME;
            let limits = if is_time { (1_221, 1_000_000) } else { (4_096, 2_147_483_647) };
            assert_eq!((entry.min_interval, entry.max_interval), limits);
        }
    }
    for length in (0..200.min(needed)).chain(needed - 1..needed) {
        let mut small = query(length);
        let error = write_source_list(interface, &mut small).unwrap_err();
        assert_eq!(error, LayoutError::BufferTooSmall { needed });
        assert_eq!(error.status().unwrap().value(), 0xC000_0023);
        assert_eq!(small, query(length), "nothing is written");
    }
    for class in [0, 3, 0x0C, 0x0E, u32::MAX] {
        let mut other = query(needed);
        other[..4].copy_from_slice(&class.to_le_bytes());
        let before = other.clone();
        let error = write_source_list(interface, &mut other).unwrap_err();
        assert_eq!(error, LayoutError::WrongClass(class));
        assert_eq!((error.status().unwrap().value(), other), (0xC000_0002, before));
        // The class is all that is needed to see that it is another's.
        for length in [4, 8, needed - 1] {
            let mut short = query(length);
            short[..4].copy_from_slice(&class.to_le_bytes());
            let error = write_source_list(interface, &mut short).unwrap_err();
            assert_eq!(error, LayoutError::WrongClass(class), "{length} bytes");
        }
    }
}

#[test]
fn the_source_list_has_the_data_files_bytes_and_reads_back() {
    assert_eq!(SOURCE_LIST_CLASS, 0x0D);
    let emon = data!("emon_sources.csv");
    check_source_list(&Emon::declared(), &emon);
    check_source_list(&Amd64::declared(), &data!("amd64_sources.csv"));
    check_source_list(&DefaultInterface::new(), &emon[..1]);
}

#[test]
fn a_malformed_entry_ends_the_list_with_an_error_that_says_where() {
    let rows = data!("emon_sources.csv");
    let whole = source_list(&rows[..3]);
    // Timer, TotalIssues, BranchInstructions.
    let (second, third) = (8 + 0x28, 8 + 0x28 + 0x30);
    let read = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        let found: Vec<_> = read_source_list(&bytes).take(99).collect();
        let good = found.iter().filter(|entry| entry.is_ok()).count();
        assert!(found.len() <= good + 1, "the error is the last item");
        (good, found.last().unwrap().err())
    };
    let link = |at: usize, next: u32| {
        move |bytes: &mut Vec<u8>| bytes[at..at + 4].copy_from_slice(&next.to_le_bytes())
    };
    let malformed = |offset| Some(LayoutError::Malformed { offset });
    assert_eq!(read(&|_| {}), (3, None));
    assert_eq!(malformed(8).unwrap().status().unwrap().value(), 0xC000_000D);
    let rest = (whole.len() - second) as u32;
    for next in [1, 7, 8, 0x17, 0x18, 0x19, rest + 1, rest + 8, 0x8000_0000, u32::MAX] {
        assert_eq!(read(&link(second, next)), (1, malformed(second)), "{next:#X}");
    }
    // A link to the very end leads to no entry.
    assert_eq!(read(&link(second, rest)), (2, malformed(whole.len())));
    // An entry's name ends within the entry.
    assert_eq!(read(&link(second, 0x20)), (1, malformed(second)));
    assert_eq!(read(&link(8, 0)), (1, None));
    // ProfileMaximum is not a source.
    assert_eq!(read(&|bytes| bytes[third + 4] = 0x18), (2, malformed(third)));
    // The terminating zero of the last name is missing.
    for length in third..third + 0x18 + 2 * "BranchInstructions".len() + 2 {
        assert_eq!(read(&|bytes| bytes.truncate(length)), (2, malformed(third)), "{length:#X}");
    }
    // The header alone is the list of a machine without a source.
    assert_eq!(read_source_list(&whole[..8]).count(), 0);
    for length in (0..8).chain(9..8 + 0x1A) {
        let error = read_source_list(&whole[..length]).collect::<Vec<_>>();
        assert_eq!(error, [Err(LayoutError::Malformed { offset: 8 })]);
    }
}

#[test]
fn what_is_no_character_of_a_name_is_replaced() {
    let rows = data!("emon_sources.csv");
    let mut bytes = source_list(&rows[..1]);
    let name = 8 + 0x18;
    bytes[name..name + 10].copy_from_slice(&[0x3D, 0xD8, 0x00, 0xDE, 0x00, 0xD8, 0x41, 0, 0, 0]);
    let entry = read_source_list(&bytes).next().unwrap().unwrap();
    assert_eq!(entry.name().collect::<String>(), "\u{1F600}\u{FFFD}A");
}

proptest! {
    #[test]
    fn any_source_list_is_read_to_an_end(
        mut bytes in prop::collection::vec(any::<u8>(), 0..600),
        links in prop::collection::vec((0usize..12, 0u32..0x90), 0..12),
    ) {
        // Some links are small, so that there is a chain to follow.
        for (place, next) in links {
            let at = 8 + 0x20 * place;
            if let Some(link) = bytes.get_mut(at..at + 4) {
                link.copy_from_slice(&next.to_le_bytes());
            }
        }
        let found: Vec<_> = read_source_list(&bytes).take(1000).collect();
        prop_assert!(found.len() <= bytes.len() / 0x1A + 1);
        prop_assert!(found.iter().rev().skip(1).all(|entry| entry.is_ok()));
        for entry in found.into_iter().flatten() {
            prop_assert!(entry.name().count() <= bytes.len() / 2);
        }
    }
}
