//! The lower layer: any event on any counter of a processor.
//!
//! [`unit`] describes a vendor's counters as data, [`difference`] how one core of a hybrid machine differs, and
//! [`left_over`] the registers that no driver here uses.
//! [`event`] and [`table`] hold the events, and [`extra`] the MSRs that refine them. [`processor`] takes a processor's
//! counters and programs them; [`opened`], [`group`], [`control`], [`switch`], [`thread`], [`user`] and [`reprogram`]
//! are its operations, and [`lend`] hands the counters to a guest. [`plan`] finds counters for events, [`encodings`]
//! their extra registers, and [`assign`] gives them those. It shares [`memory`] with [`interrupt`].

pub(crate) mod assign;
pub(crate) mod control;
pub(crate) mod counter;
pub(crate) mod difference;
pub(crate) mod encodings;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod extra;
pub(crate) mod group;
pub(crate) mod id;
pub(crate) mod interrupt;
pub(crate) mod left_over;
pub(crate) mod lend;
pub(crate) mod membership;
pub(crate) mod memory;
pub(crate) mod opened;
pub(crate) mod plan;
pub(crate) mod processor;
pub(crate) mod reprogram;
pub(crate) mod select;
pub(crate) mod silence;
pub(crate) mod slot;
pub(crate) mod sources;
pub(crate) mod switch;
pub(crate) mod table;
pub(crate) mod thread;
pub(crate) mod turns;
pub(crate) mod unit;
pub(crate) mod user;
