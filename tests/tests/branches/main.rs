//! Branch records: the recorder of a task, and samples of the counters' interrupt.

mod recorder;
mod samples;
mod support;
