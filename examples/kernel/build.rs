//! Links the kernel by its own script, and defmt's section by defmt's.

use std::env;

fn main() {
    let directory = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed=kernel.ld");
    println!("cargo:rustc-link-arg-bins=-T{directory}/kernel.ld");
    println!("cargo:rustc-link-arg-bins=-zmax-page-size=4096");
    // The image runs where it is linked, and is not relocated.
    println!("cargo:rustc-link-arg-bins=--no-pie");
    if env::var_os("CARGO_FEATURE_DEFMT").is_some() {
        println!("cargo:rustc-link-arg-bins=-Tdefmt.x");
    }
}
