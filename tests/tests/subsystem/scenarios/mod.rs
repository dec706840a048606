//! Scenarios of a kernel's perf on every kind of processor and on hybrid pairs: every count, time, sample and page is
//! that of a naive model.

mod naive;
mod world;

mod counting;
mod faults;
mod guests;
mod lifetime;
mod sampling;
