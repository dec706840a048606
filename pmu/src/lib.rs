#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

mod current_frame;
mod door;
mod local_apic;
mod machine;
mod native_apic;
mod per_processor;
pub mod perf;
pub mod user;
mod watchdog;

pub use current_frame::CurrentFrame;
pub use door::duties::{Duties, KernelApic};
pub use door::error::PmuError;
pub use door::interrupt::Interrupted;
pub use door::kernel::Kernel;
pub use door::of_processor::PmuSession;
pub use door::pmu::Pmu;
pub use door::profile::Profiled;
pub use door::reach::{PmuHardware, Reach};
pub use door::sources::MachineSources;
pub use local_apic::{ApicRegisters, Delivery, InvalidVector, LocalApic, NoTimer, ProfileTimer};
pub use machine::Machine;
pub use native_apic::{NativeApic, NoApic};
pub use per_processor::{Busy, OnProcessor, PerProcessor, ProcessorLocal, Processors};
pub use pmu_amd as amd;
pub use pmu_core as core;
pub use pmu_intel as intel;
pub use pmu_kprofile as kprofile;
pub use watchdog::Watchdog;
