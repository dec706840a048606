//! Links the kernel by its own script.

use std::env;

fn main() {
    let directory = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed=kernel.ld");
    println!("cargo:rustc-link-arg-bins=-T{directory}/kernel.ld");
    // The image runs where it is linked, and is not relocated.
    println!("cargo:rustc-link-arg-bins=--no-pie");
}
