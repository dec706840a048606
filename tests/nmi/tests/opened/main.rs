//! The performance interrupt at every instruction of every operation on opened events, in a release build:
//! beside a source, on general and on fixed counters, counted only and interrupting, and with a watchdog.
//!
//! `instructions` has the operations on sources. The expected counts are those of the chip, which records each event
//! that happened while a counter counted it.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod events;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[test]
fn skipped() {
    println!("skipped: interrupts at every instruction: this is not x86-64 Linux");
}
