//! A perf-like subsystem as a kernel has it, in scenarios, and another one at random, against naive models of each
//! event.

mod kernel;
mod perf;
mod random;
mod scenarios;
