//! Precise records and the branch trace store of a guest: the manuals' rules, and a naive model on random programs.

mod bytes;
mod guest;
mod mock;
mod models;
mod offered;
mod records;
