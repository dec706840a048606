#![doc = include_str!("../README.md")]
#![no_std]

#[cfg(test)]
extern crate std;

mod counter;
mod dump;
mod error;
mod frame;
mod global;
mod interface;
mod interrupt;
mod interval;
mod memory;
mod msr;
mod platform;
mod reprogram;
mod select;
mod session;
mod snapshot;
mod source;
mod source_index;
mod status;
mod switch;
mod unit;

#[cfg(feature = "testing")]
pub mod testing;

pub use counter::{Counter, CounterSlot, MAX_COUNTERS};
pub use dump::{CpuidDump, DumpError};
pub use error::{InterfaceError, NoInterface};
pub use frame::{InterruptFrame, ProcessId, ProcessorNumber};
pub use interface::{
    Availability, DefaultInterface, ProfileInterface, SourceInformation, SourceInterface,
};
pub use interrupt::{Claim, Overflow, Serviced};
pub use interval::{Interval, IntervalError, IntervalLimits, IntervalUnit};
pub use memory::CounterMemory;
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub use msr::native::NativeMsr;
#[cfg(all(feature = "native", target_arch = "x86_64"))]
pub use msr::native::{FaultFixup, FixupMsr};
pub use msr::{
    MsrAddress, MsrBackend, MsrError, MsrErrorKind, MsrFault, MsrOperation, MsrUpdate, PmcIndex,
};
pub use platform::{Platform, TimerUnavailable};
pub use raw_cpuid;
pub use select::EventSelect;
pub use session::{Session, SessionCounters};
pub use snapshot::Snapshot;
pub use source::{KProfileSource, NotASource, ProfileSource};
pub use source_index::{SourceIndex, SourceTable};
pub use status::NtStatus;
pub use switch::{SavedCounter, SavedCounters};
pub use unit::{CounterBank, CounterUnit, Freeze, GlobalRegisters, PreciseSampling};
