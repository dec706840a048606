//! Loops of two instructions per turn, of one cycle each, as QEMU executes them.

use core::ops::Range;

use pmu_virt::mock::MockPmuv3;

use crate::embedding::{interrupts, model};

const HALF_OF_IT: u64 = 0x4008_0000;
const THREE_TENTHS: u64 = HALF_OF_IT + 64;
const TWO_TENTHS: u64 = HALF_OF_IT + 128;
const USER_LOOP: u64 = HALF_OF_IT + 192;
const USER_OFFSET: u64 = 0x4000_0000;

/// Executes instructions at a place, each in a cycle.
fn execute(place: u64, level: u8, instructions: u64) {
    interrupts(place, level); // one that was masked
    for event in [MockPmuv3::INST_RETIRED, MockPmuv3::CPU_CYCLES] {
        let mut left = instructions;
        while left > 0 {
            left -= model().happen(event, level, left);
            interrupts(place, level);
        }
    }
}

pub(crate) fn count_down(turns: u64) {
    execute(HALF_OF_IT, model().level(), 2 * turns);
}

/// The last instruction is SVC.
pub(crate) fn count_down_at_el0(turns: u64) {
    execute(USER_LOOP + USER_OFFSET, 0, 2 * turns + 1);
}

/// MRS, which is counted before it reads, and SVC.
pub(crate) fn read_at_el0(index: u32) -> Option<u64> {
    execute(USER_LOOP + USER_OFFSET, 0, 1);
    let value = model().read_at_el0(index);
    execute(USER_LOOP + USER_OFFSET, 0, 1);
    value
}

pub(crate) fn mixed(turns: u64) {
    for (_, place, tenths) in shares() {
        execute(place, model().level(), 2 * (turns / 10 * tenths));
    }
}

pub(crate) fn shares() -> [(&'static str, u64, u64); 3] {
    [
        ("half_of_it", HALF_OF_IT, 5),
        ("three_tenths", THREE_TENTHS, 3),
        ("two_tenths", TWO_TENTHS, 2),
    ]
}

pub(crate) fn text() -> Range<u64> {
    HALF_OF_IT..USER_LOOP + 64
}

pub(crate) fn text_at_el0() -> Range<u64> {
    text().start + USER_OFFSET..text().end + USER_OFFSET
}
