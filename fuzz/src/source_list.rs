//! Source lists: read from arbitrary bytes, and written into arbitrary buffers for what an arbitrary
//! leaf 0x0A declares.
//!
//! The bytes: the leaf's EAX and EBX, the length of the caller's buffer, and its contents, which are also the list to
//! read.

use std::sync::LazyLock;

use pmu_core::profile::KProfileSource;
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_intel::Emon;
use pmu_kprofile::compat::LayoutError;
use pmu_kprofile::compat::source_list::{SourceListEntry, read_source_list, write_source_list};

use crate::input::{Input, number};

/// The most bytes of a caller's buffer: more than any list.
const MOST: usize = 0x800;

/// The compared fields of an entry: source, shortest and longest interval, name.
type Entry = (u32, u32, u32, String);

fn plain(entry: SourceListEntry<'_>) -> Entry {
    let SourceListEntry { source, min_interval, max_interval, .. } = entry;
    (source.value(), min_interval, max_interval, entry.name().collect())
}

/// `PROFILE_SOURCE_INFO`: the next entry's distance at 0, source at 4, intervals at 8 and 0xC, and from 0x18 on the
/// name in UTF-16 up to a zero. Returns the entries, and the offset of the broken one. A header alone has no entry.
fn by_hand(buffer: &[u8]) -> (Vec<Entry>, Option<usize>) {
    let mut entries = Vec::new();
    if buffer.len() == 8 {
        return (entries, None);
    }
    let mut offset = 8;
    loop {
        if buffer.len() < offset + 0x1A {
            return (entries, Some(offset));
        }
        let next = number(buffer, offset, 4) as usize;
        let end = if next == 0 { buffer.len() } else { offset + next };
        if end > buffer.len() || end < offset + 0x1A {
            return (entries, Some(offset));
        }
        let units = (offset + 0x18..end - 1).step_by(2).map(|at| number(buffer, at, 2) as u16);
        let name: Vec<u16> = units.clone().take_while(|unit| *unit != 0).collect();
        let source = number(buffer, offset + 4, 4) as u32;
        if name.len() == units.len() || source == KProfileSource::MAXIMUM {
            return (entries, Some(offset));
        }
        let interval = |at| number(buffer, offset + at, 4) as u32;
        entries.push((source, interval(8), interval(0xC), String::from_utf16_lossy(&name)));
        if next == 0 {
            return (entries, None);
        }
        offset = end;
    }
}

fn read(buffer: &[u8]) -> (Vec<Entry>, Option<usize>) {
    let mut entries = Vec::new();
    let mut broken = None;
    for item in read_source_list(buffer) {
        assert_eq!(broken, None, "an error is the last item");
        match item {
            Ok(entry) => entries.push(plain(entry)),
            Err(LayoutError::Malformed { offset }) => broken = Some(offset),
            Err(error) => panic!("{error:?}"),
        }
    }
    (entries, broken)
}

/// The sources by the data file: value, name, and the bit of EBX that takes it away.
static SOURCES: LazyLock<Vec<(u32, &str, Option<u64>)>> = LazyLock::new(|| {
    let rows = pmu_tests::rows(include_str!("../../tests/data/emon_sources.csv"));
    let source = |row: &pmu_tests::Row<'static>| {
        (row.number("value") as u32, row.text("windows_name"), row.optional("ebx_bit"))
    };
    rows.iter().map(source).collect()
});

/// Returns the list of the leaf's sources.
fn list_of(eax: u32, ebx: u32) -> Vec<Entry> {
    let declared = |bit: u64| bit < u64::from(eax >> 24) && ebx >> bit & 1 == 0;
    SOURCES
        .iter()
        .filter(|(_, _, bit)| bit.is_none_or(declared))
        .map(|(value, name, _)| {
            let (min, max) = if *value == 0 { (1_221, 1_000_000) } else { (0x1000, 0x7FFF_FFFF) };
            (*value, min, max, (*name).into())
        })
        .collect()
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (eax, ebx, length) = (input.u32(), input.u32(), usize::from(input.u16()) % MOST);
    let given = input.rest();
    assert_eq!(read(given), by_hand(given));

    let snapshot = Snapshot::capture(move |leaf: u32, _: u32| match leaf {
        0 => CpuIdResult { eax: 0x0A, ebx: 0x756E_6547, ecx: 0x6C65_746E, edx: 0x4965_6E69 },
        0x0A => CpuIdResult { eax, ebx, ecx: 0, edx: 0 },
        _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
    });
    let Ok(emon) = Emon::detect(&snapshot) else { return };
    let mut buffer = given.to_vec();
    buffer.resize(length, 0xA5);
    let before = buffer.clone();
    let expected = list_of(eax, ebx);
    let size = |name: &str| (0x18 + 2 * (name.chars().count() + 1)).next_multiple_of(8);
    let needed = 8 + expected.iter().map(|(.., name)| size(name)).sum::<usize>();
    match write_source_list(&emon, &mut buffer) {
        Ok(written) => {
            assert_eq!((written, number(&before, 0, 4)), (needed, 0x0D));
            assert_eq!(read(&buffer[..written]), (expected.clone(), None));
            // The last entry's end is the list's, however long the buffer is.
            assert_eq!(read(&buffer), (expected, None));
            assert_eq!(buffer[..4], before[..4]);
            assert_eq!(buffer[written..], before[written..]);
        }
        Err(error) => {
            assert_eq!(buffer, before);
            match error {
                LayoutError::BufferTooSmall { needed: told } => {
                    assert_eq!(told, needed);
                    assert!(length < needed && (length < 4 || number(&before, 0, 4) == 0x0D));
                }
                LayoutError::WrongClass(class) => {
                    assert_eq!(u64::from(class), number(&before, 0, 4));
                    assert!(class != 0x0D && length >= 4);
                }
                _ => panic!("{error:?}"),
            }
        }
    }
}
