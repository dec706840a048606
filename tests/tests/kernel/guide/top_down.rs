//! Shares of issue slots.

use pmu::PmuError;
use pmu::intel::topdown::TopDownPart;

use super::{PMU, printed, println};
use crate::top_down::{machine, machines, pass};

// ANCHOR: slots
fn where_slots_go(workload: fn()) -> Result<(), PmuError> {
    let counts = PMU.count_slots(|event| event.kernel_only(), workload)?;
    for part in TopDownPart::LEVEL_1 {
        println!("{part}: {:?} of 1,000", counts.per_mille(part));
    }
    Ok(())
}
// ANCHOR_END: slots

#[test]
fn the_shares_of_a_function_are_printed() {
    for (processors, level_2) in machines() {
        let (machine, _) = machine(processors, level_2);
        machine.up();
        where_slots_go(|| pass(crate::world::machine(), 0, 1_000)).unwrap();
        let lines = printed();
        assert_eq!(lines.len(), 4);
        // 100 of 255 slots (`MIX`).
        assert!(lines[0].ends_with("Some(392) of 1,000"), "{lines:?}");
        machine.down();
    }
}
