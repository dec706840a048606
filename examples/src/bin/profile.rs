//! Shows where a program spends its time, or whatever else the processor's counters count.

use std::process::ExitCode;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> ExitCode {
    pmu_examples::profiler::cli::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> ExitCode {
    eprintln!("profile: needs Linux on x86-64; `pmcsources` works here");
    ExitCode::from(2)
}
