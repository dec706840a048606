//! Counters that a session lends to a guest, and guests on real counters.

mod borrower;
mod enabled_time;
mod forgotten;
mod guests;
mod lent;
mod lent_faults;
mod machine;
mod mediated;
mod mediated_faults;
mod mediated_interrupts;
mod mediated_random;
mod recorders;
mod suspended;
mod two_owners;
