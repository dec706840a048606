//! Counters that a session lends to a guest, and guests on real counters.

mod guests;
mod lent;
mod machine;
mod mediated;
mod two_owners;
