//! A perf-like subsystem at random, against a naive model of each event.

mod perf;
mod random;
