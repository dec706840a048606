//! Branch records: formats, detection, the recorder of a task, and samples of the counters' interrupt.

mod asked;
mod call_chains;
mod detection;
mod disturbed;
mod formats;
mod interrupted;
mod lent;
mod of_events;
mod outsiders;
mod platforms;
mod recorder;
mod registers;
mod samples;
mod sampling;
mod support;
mod threads;
mod xsaves;
