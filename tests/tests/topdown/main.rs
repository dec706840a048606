//! Top-down counts: detected, counted, interrupted, failing, and of threads, E-cores and guests.

mod closed;
mod detection;
mod disturbed;
mod ended;
mod model;
mod names;
mod registers;
mod shares;
mod support;
mod threads;
