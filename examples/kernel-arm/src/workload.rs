//! Loops of two instructions per turn.

use core::ops::Range;

unsafe extern "C" {
    safe fn half_of_it(turns: u64);
    safe fn three_tenths(turns: u64);
    safe fn two_tenths(turns: u64);
    fn run_at_el0(entry: u64, argument: u64) -> u64;
    fn user_loop();
    fn user_cycles();
    fn user_counter_0();
    static workload_start: u8;
    static workload_end: u8;
}

/// Distance to the addresses at which EL0 can read and execute the image.
const USER_OFFSET: u64 = 0x4000_0000;

/// Counts down at EL1.
pub fn count_down(turns: u64) {
    half_of_it(turns);
}

/// Counts down at EL0.
pub fn count_down_at_el0(turns: u64) {
    let entry = user_loop as *const () as u64 + USER_OFFSET;
    // SAFETY: the loop uses x0 alone, and ends with SVC.
    unsafe { run_at_el0(entry, turns) };
}

/// Reads a counter at EL0 by two instructions, by an index of a page: 0, or 31 for the cycle counter.
pub fn read_at_el0(index: u32) -> Option<u64> {
    let entry = match index {
        0 => user_counter_0 as *const (),
        31 => user_cycles as *const (),
        _ => return None,
    };
    // SAFETY: it uses x1 alone, and ends with SVC.
    Some(unsafe { run_at_el0(entry as u64 + USER_OFFSET, 0) })
}

/// Executes half of so many turns in one loop, three tenths in another, and two tenths in a third.
pub fn mixed(turns: u64) {
    half_of_it(turns / 10 * 5);
    three_tenths(turns / 10 * 3);
    two_tenths(turns / 10 * 2);
}

/// The loops of [`mixed`], with their shares in tenths.
pub fn shares() -> [(&'static str, u64, u64); 3] {
    [
        ("half_of_it", half_of_it as *const () as u64, 5),
        ("three_tenths", three_tenths as *const () as u64, 3),
        ("two_tenths", two_tenths as *const () as u64, 2),
    ]
}

/// Addresses of the loops.
pub fn text() -> Range<u64> {
    (&raw const workload_start) as u64..(&raw const workload_end) as u64
}

/// The same at EL0.
pub fn text_at_el0() -> Range<u64> {
    let Range { start, end } = text();
    start + USER_OFFSET..end + USER_OFFSET
}
