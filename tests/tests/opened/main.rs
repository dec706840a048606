//! Opened events on one processor: assigned, counted, reported, and read.

mod assignment;
mod at_random;
mod bad_input;
mod beside_others;
mod events;
mod exact;
mod faulted_service;
mod faults;
mod guest_control;
mod remote_count;
mod sample_read;
mod shared_registers;
mod taking;
mod task_context;
mod totals;
