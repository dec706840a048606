//! The performance interrupt as an NMI at every register access of every operation.

mod event_operations;
mod events;
mod guests;
mod interrupted_faults;
mod source_operations;
mod sources;
mod world;
