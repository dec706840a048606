//! The programs are linked with nothing beneath them, so that a panic that can be reached is an error.

fn main() {
    // Without link-time optimization, panics that cannot be reached are linked, too: such a program is measured alone.
    println!("cargo:rerun-if-env-changed=PMU_MEASURED_ALONE");
    if std::env::var_os("PMU_MEASURED_ALONE").is_some() {
        println!("cargo:rustc-link-arg-bins=-Wl,--unresolved-symbols=ignore-all");
    }
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie"] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
