//! The checks of the kernel for QEMU's machine `virt`, on the model of PMUv3: what passes here and there is counted the
//! same by both.

#[path = "../../../examples/kernel-arm/src/checks.rs"]
#[allow(dead_code, unreachable_pub, reason = "they are the kernel's, with processor 1")]
mod checks;
#[path = "../../../examples/kernel-arm/src/samples.rs"]
#[allow(unreachable_pub, reason = "they are the kernel's")]
mod samples;

mod embedding;
mod machine;
mod spare;
mod workload;

use machine::line;

/// Counters of 32 and of 64 bits, with the kernel at EL1 and at EL2. The checks have numbers in statics.
#[test]
fn the_kernels_checks_pass_on_the_model() {
    for (is_long, level) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        embedding::start(is_long, level, samples::count);
        checks::run().unwrap_or_else(|failure| panic!("{is_long}, EL{level}: {failure}"));
    }
}
