//! Names of perf's generic events.

use crate::perf::facility::Facility;

/// Names of `enum perf_hw_id`, each with its number. Source: perf-list(1).
const HARDWARE_NAMES: [(&str, u64); 14] = [
    ("cpu-cycles", 0),
    ("cycles", 0),
    ("instructions", 1),
    ("cache-references", 2),
    ("cache-misses", 3),
    ("branch-instructions", 4),
    ("branches", 4),
    ("branch-misses", 5),
    ("bus-cycles", 6),
    ("stalled-cycles-frontend", 7),
    ("idle-cycles-frontend", 7),
    ("stalled-cycles-backend", 8),
    ("idle-cycles-backend", 8),
    ("ref-cycles", 9),
];

/// Names of `enum perf_sw_ids`. Source: perf-list(1).
const SOFTWARE_NAMES: [&str; 15] = [
    "cpu-clock",
    "task-clock",
    "page-faults",
    "faults",
    "context-switches",
    "cs",
    "cpu-migrations",
    "migrations",
    "minor-faults",
    "major-faults",
    "alignment-faults",
    "emulation-faults",
    "dummy",
    "bpf-output",
    "cgroup-switches",
];

/// Returns the number of the hardware event with this name.
pub(crate) fn hardware_event(name: &str) -> Option<u64> {
    let found = HARDWARE_NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
    found.map(|(_, number)| *number)
}

/// Returns what an event that no counter counts needs; `None` if the name tells nothing.
pub(crate) fn facility(name: &str) -> Option<Facility> {
    if SOFTWARE_NAMES.iter().any(|known| name.eq_ignore_ascii_case(known)) {
        Some(Facility::SoftwareEvents)
    } else if name == "mem" {
        Some(Facility::Breakpoints)
    } else {
        None
    }
}
