//! Events of perf's command line, and bytes of `perf_event_attr`: the fields by the header's offsets, one by one.

use pmu::core::interrupt::EventOverflow;
use pmu::core::registers::{EventList, EventSelect};
use pmu::core::{CounterSet, EventCount, EventId, Sample};
use pmu::perf::{PerfError, PerfEvent, PerfEventAttr, SampleContext};

/// Returns the little-endian field of `length` bytes at `at`; 0 beyond `bytes`.
fn field(bytes: &[u8], at: usize, length: usize) -> u64 {
    (0..length).map(|n| u64::from(bytes.get(at + n).copied().unwrap_or(0)) << (8 * n)).sum()
}

/// A list with one event.
struct OneEvent;

impl EventList for OneEvent {
    fn perf_config(&self, name: &str) -> Option<(u64, u64)> {
        (name == "listed.event").then_some((0x20D1, 7))
    }

    fn constraints(&self, _: EventSelect) -> Option<CounterSet> {
        None
    }
}

fn text(text: &str) {
    match PerfEvent::parse(text, &OneEvent) {
        Ok(event) => {
            assert!(event.name.is_none_or(|name| text.contains(name)));
            assert!(event.core.is_none() || text.starts_with("cpu_"));
            let _ = event.attr.event(&());
            let bytes = event.attr.to_bytes();
            assert_eq!(PerfEventAttr::from_bytes(&bytes), Ok(event.attr), "{text:?}");
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            if let PerfError::Term { at }
            | PerfError::Value { at }
            | PerfError::Modifier { at }
            | PerfError::Needs { at, .. } = error
            {
                assert!(text.is_char_boundary(at), "{text:?}: {at}");
            }
        }
    }
}

/// Returns what the system call would: 0, or the error's number.
fn errno(bytes: &[u8]) -> i32 {
    let size = match field(bytes, 4, 4) as usize {
        _ if bytes.len() < 8 => return 14,
        0 => 64,
        size => size,
    };
    if !(64..=4096).contains(&size) {
        return 7;
    }
    if size > bytes.len() {
        return 14;
    }
    let given = &bytes[..size];
    if given.iter().skip(144).any(|byte| *byte != 0) {
        return 7;
    }
    let flags = field(given, 40, 8);
    let reserved = flags >> 40 != 0
        || field(given, 110, 2) != 0
        || field(given, 116, 4) >> 3 != 0
        || field(given, 24, 8) >> 25 != 0
        || field(given, 24, 8) >> 14 & 1 != 0 && field(given, 24, 8) >> 24 & 1 != 0
        || field(given, 32, 8) >> 5 != 0
        || flags >> 10 & 1 == 0 && field(given, 16, 8) >> 63 != 0;
    if reserved { 22 } else { 0 }
}

fn attributes(bytes: &[u8]) {
    let read = PerfEventAttr::from_bytes(bytes);
    assert_eq!(read.map_or_else(PerfError::errno, |_| 0), errno(bytes), "{read:?}");
    let Ok(attr) = read else { return };
    let size = match field(bytes, 4, 4) {
        0 => 64,
        size => size as usize,
    };
    let (given, written) = (&bytes[..size], attr.to_bytes());
    assert_eq!(PerfEventAttr::from_bytes(&written), Ok(attr));
    for at in (0..4).chain(8..144) {
        assert_eq!(u64::from(written[at]), field(given, at, 1), "byte {at}");
    }
    assert_eq!(attr.select.config, field(given, 8, 8));
    assert_eq!(attr.select.config1, field(given, 56, 8));
    assert_eq!(attr.config2, field(given, 64, 8));
    assert_eq!(attr.select.exclude_guest, field(given, 42, 1) >> 4 & 1 == 1);
    let _ = attr.event(&());
    records(&attr, bytes);
}

/// Writes a read and a sample to buffers of every size up to a record's: each is whole, or says how long it would be.
fn records(attr: &PerfEventAttr, bytes: &[u8]) {
    let Ok(format) = attr.records() else { return };
    let event = EventId::of_index(0);
    let counter = CounterSet::ALL.iter().next().unwrap();
    let sample = Sample::<()>::of(EventOverflow { event, period: 1, counter, tag: 2 }, None);
    let call_chain: Vec<_> = bytes.iter().take(9).map(|byte| u64::from(*byte)).collect();
    let context = SampleContext { call_chain: &call_chain, ..SampleContext::default() };
    let counts = [(3, EventCount::default()); 2];
    let mut needed = [0; 2];
    for size in [0, 512] {
        let mut buffer = vec![0xFF; size];
        let read = format.read(&counts, &mut buffer);
        let sampled = format.sample(&sample, &context, &counts, &mut buffer);
        for (needed, written) in needed.iter_mut().zip([read, sampled]) {
            match written {
                Ok(length) => assert_eq!(length, *needed),
                Err(PerfError::NoSpace { needed: length }) if size == 0 => *needed = length,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(needed.iter().all(|length| length % 8 == 0), "{needed:?}");
}

/// Runs one input, as a text and as bytes.
pub fn run(bytes: &[u8]) {
    text(&String::from_utf8_lossy(bytes));
    attributes(bytes);
}
