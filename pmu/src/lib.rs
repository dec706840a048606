#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

mod current_frame;
mod kernel;
mod local_apic;
mod machine;
mod native_apic;
mod per_processor;
pub mod perf;
pub mod user;
mod watchdog;

pub use kernel::architecture::{Architecture, Arm, X86, X86Kernel};
pub use kernel::events::PmuEvent;
pub use kernel::interrupt::Interrupted;
pub use kernel::pmu::{Pmu, PmuError};
pub use kernel::profile::Profiled;
pub use kernel::required::Kernel;
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub use kernel::required::native_msr;
pub use kernel::sample::PmuSample;
pub use machine::Machine;
pub use pmu_amd as amd;
pub use pmu_arm as arm;
/// The crate `pmu-core`. A glob import of this crate would hide the crate `core` by it: import by name.
pub use pmu_core as core;
pub use pmu_core::branches::BranchFilter;
pub use pmu_core::precise::{Precision, SampleParts};
pub use pmu_core::profile::KProfileSource;
pub use pmu_core::thread::{ThreadEvent, Tick};
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub use pmu_core::x86::NativeMsr;
pub use pmu_core::x86::Snapshot;
pub use pmu_core::{
    Claim, CounterSet, Event, EventCount, EventStatus, GenericEvent, SoftwareEvent,
};
#[cfg(feature = "events")]
pub use pmu_events as events;
pub use pmu_intel as intel;
pub use pmu_kprofile as kprofile;
pub use watchdog::Watchdog;

/// x86's local APIC, whose entry delivers the performance interrupt, and the timer of the source `ProfileTime`.
pub mod apic {
    pub use crate::local_apic::{
        ApicRegisters, Delivery, InvalidVector, LocalApic, LvtEntry, NoTimer, ProfileTimer,
    };
    pub use crate::native_apic::{NativeApic, NoApic};
}

/// The hardware beside the counters that a kernel's events may ask for.
pub mod facilities {
    pub use pmu_core::facility::SoftwareEvents;

    pub use crate::kernel::branch_traces::BranchTraces;
    pub use crate::kernel::branches::BranchRecords;
    pub use crate::kernel::facilities::{
        CounterReloads, Facilities, KernelFunctions, X86Facilities,
    };
    pub use crate::kernel::precise::PreciseRecords;
    pub use crate::kernel::top_down::TopDownParts;
}

/// The frame of an interrupt, which a kernel's handler passes on.
pub mod frame {
    pub use pmu_core::frame::{InterruptFrame, PlainFrame};

    pub use crate::current_frame::CurrentFrame;
}

/// A kernel's processors: memory of each, the session of each, and calls of one by another.
pub mod processors {
    pub use crate::kernel::cross_calls::{CrossCalls, PmuHardware};
    pub use crate::kernel::pmu::{PmuEvents, PmuSession};
    pub use crate::kernel::required::KernelHooks;
    pub use crate::per_processor::{Busy, OnProcessor, PerProcessor, Processors};
}
