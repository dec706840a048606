//! Intel's precise records.

mod again;
mod beside;
mod branch_trace;
mod control_area;
mod cycles;
mod decode;
mod deviating;
mod disturbed;
mod due_together;
mod event_sequences;
mod events;
mod frontend;
mod interrupted;
mod kept_apart;
mod latency;
mod load_sources;
mod malformed;
mod neighbors;
mod refused;
mod registers;
mod samples;
mod scene;
mod support;
mod trace_interrupted;
mod windows;
