//! Writes the tables of `pmu-events` from its CSV files: `cargo run -p pmu-events-generator`.

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
