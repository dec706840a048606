//! Events by name and by number: encodings, constraints, pairs of counters, and perf's names.

mod constraints;
mod counter_pairs;
mod encodings;
mod groups;
mod names;
mod perf_attr;
mod perf_branches;
mod perf_generic;
mod perf_names;
mod perf_rates;
mod perf_records;
mod perf_software;
mod perf_text;
mod throttled;
mod top_down;
mod uncore;
