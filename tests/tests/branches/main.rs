//! Branch records: formats, detection, the recorder of a task, and samples of the counters' interrupt.

mod anew;
mod as_plain;
mod asked;
mod call_chains;
mod detection;
mod failed_calls;
mod formats;
mod interrupted;
mod lent;
mod of_events;
mod of_rows;
mod outsiders;
mod overflows;
mod platforms;
mod recorder;
mod registers;
mod samples;
mod sampling;
mod scene;
mod sequences;
mod stacks;
mod support;
mod threads;
mod xsaves;
mod zen_3;
