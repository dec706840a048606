//! Profile sources: their tables, and the sessions that run them.

mod added;
mod events_as_sources;
mod hard_cases;
mod names;
mod saved_counters;
mod session_interrupts;
mod sessions;
mod support;
mod tables;
mod zen_told_honestly;
