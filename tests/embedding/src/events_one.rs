//! The events of the core type that has most, alone. It is linked to be measured: the read-only data is what its
//! table takes.
#![no_std]
#![no_main]

mod bare;

use core::hint::black_box;

use pmu_events::CASCADELAKEX;

fn main() -> i32 {
    let found = CASCADELAKEX.event(black_box("inst_retired.any")).is_ok();
    let lost = CASCADELAKEX.event(black_box("no_such_event")).is_err();
    let [nearest] = CASCADELAKEX.nearest(black_box("inst_retird.any"));
    let matching = CASCADELAKEX.matching(black_box("*")).map_or(0, Iterator::count);
    i32::from(!(found && lost && nearest.is_some() && matching == CASCADELAKEX.events().len()))
}
