//! The claims, in the order in which they are tried. Their ids are those of `hwcheck`'s list.

use crate::check::bench::Bench;
use crate::check::claim::Outcome;
use crate::check::{
    branches, counter, delivery, errata, firmware, freezing, ops, precise, processors,
};

/// A claim's id, and what tries it.
pub type Claim = (&'static str, fn(&Bench) -> Outcome);

/// The claims. Those of the firmware come first, since they read what nothing has written.
pub const CLAIMS: [Claim; 39] = [
    ("firmware.running", firmware::running),
    ("firmware.overflowed", firmware::overflowed),
    ("firmware.frozen", firmware::frozen),
    ("firmware.precise", firmware::precise),
    ("processors.same-counters", processors::same_counters),
    ("driver.take", counter::take),
    ("counter.full-width", counter::full_width),
    ("interrupt.nmi", delivery::by_nmi),
    ("interrupt.vector", delivery::by_vector),
    ("interrupt.mask-on-delivery", delivery::mask_on_delivery),
    ("interrupt.second", delivery::second),
    ("interrupt.while-masked", delivery::while_masked),
    ("interrupt.raise-on-unmask", delivery::raise_on_unmask),
    ("interrupt.again", delivery::again),
    ("interrupt.late", delivery::late),
    ("interrupt.period", delivery::period),
    ("freeze.control", freezing::control),
    ("freeze.acknowledge", freezing::acknowledge),
    ("freeze.counters", freezing::counters),
    ("driver.reprogram", counter::reprogram),
    ("branches.registers", branches::registers),
    ("branches.depth", branches::depth),
    ("branches.filter", branches::filter),
    ("branches.freeze", branches::freeze),
    ("ibs.entry", ops::entry),
    ("ibs.errata", errata::fetch_count),
    ("ibs.fetch-address", errata::fetch_address),
    ("ibs.address", ops::exact_address),
    ("ibs.stop", ops::stop),
    ("precise.registers", precise::registers),
    ("precise.formats", precise::formats),
    ("precise.address", precise::address),
    ("precise.threshold", precise::threshold),
    ("precise.status", precise::status),
    ("precise.index", precise::index),
    ("precise.reload", precise::reload),
    ("precise.collisions", precise::collisions),
    ("precise.freeze", precise::freeze),
    ("init.registers", processors::init),
];
