//! Tracing of interrupts and context switches: records, rings, and the control of them.

mod call_chains;
mod control;
mod masks;
mod records;
mod rings;
mod switches;
mod traced_pmc;
