//! Files as recordings: whatever a file has, reading ends, and finds no more records than there is room for.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use pmu_examples::profiler::perf::{PerfEvents, What};
use pmu_examples::profiler::perf_data::reader::Reader;

/// The bytes of the shortest record: a header.
const SHORTEST: usize = 8;

/// Runs one input: the file.
pub fn run(bytes: &[u8]) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
    let path = folder.join(format!("pmu-fuzz-recording-{}-{number}", std::process::id()));
    fs::write(&path, bytes).expect("room for a file");
    let opened = Reader::open(&path);
    let _ = fs::remove_file(&path);
    let Ok(mut reader) = opened else { return };
    let most = bytes.len() / SHORTEST;
    let mut records = Vec::new();
    for _ in 0..=most {
        if reader.has_ended() {
            break;
        }
        reader.read(&mut records);
        assert!(records.len() <= most);
    }
    assert!(reader.has_ended());
    for record in &records {
        if let What::Sample(sample) = &record.what {
            assert!(sample.callers.len() * 8 <= bytes.len());
        }
    }
}
