//! `hwcheck`: see the README of the package.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> std::process::ExitCode {
    pmu_hwcheck::cli::run()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> std::process::ExitCode {
    eprintln!("hwcheck needs Linux on x86-64");
    std::process::ExitCode::FAILURE
}
