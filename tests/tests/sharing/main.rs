//! Sessions beside others: watchdogs, unlike processors, and what a predecessor left in the registers.

mod interrupts;
mod left_over;
mod left_over_version_6;
mod lost;
mod memory;
mod others;
mod platforms;
mod siblings;
mod support;
mod watchdog;
