//! Writes the tables of `pmu-events` from its CSV files: `cargo run -p pmu-events-generator`.
//!
//! To add a core type, or a later version of its list: in `data`, its events in a CSV file of its name, its row in
//! `core_types.csv`, and its models in `processors.csv`. Then run this program, which stops at a line that contradicts
//! another. In `tests/tests/events/encodings.rs`, the core type's name in libpfm4, if that knows it; its row in
//! `tests/data/libpfm4_coverage.csv`, which that test prints; and the numbers of core types and events in the crate's
//! README.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let events = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let written = pmu_events_generator::generate(&events.join("data")).and_then(|files| {
        for (name, contents) in files {
            let path = events.join(name);
            std::fs::write(&path, contents)
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("pmu-events-generator: {message}");
            ExitCode::FAILURE
        }
    }
}
