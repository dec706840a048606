//! The performance interrupt at every instruction of every operation, in a release build.
//!
//! The processor's trap flag raises SIGTRAP after each instruction. The signal's handler then forks: the
//! child takes the interrupt right there, executes the rest and checks what became of everything; its
//! parent goes on to the next instruction. Of a loop, the first rounds are interrupted.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod steps;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[test]
fn skipped() {
    println!("skipped: interrupts at every instruction: this is not x86-64 Linux");
}
