//! `Pmu`, used as a kernel of several processors would: through `Kernel` and `Pmu` alone, on the mock.

mod beside_top_down;
mod branches;
mod closed;
mod events;
mod failing;
mod glue;
mod glue_hermit;
mod guide;
mod handler;
mod operations;
mod precise;
mod random;
mod reloads;
mod sampled;
mod sketch_sbi;
mod software;
mod software_alone;
mod software_attack;
mod software_random;
mod suspend;
mod threads;
mod top_down;
mod toy_hardware;
mod toy_vendor;
mod unit_alone;
mod world;
