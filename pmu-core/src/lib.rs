#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

mod clocks;
mod counters;
mod detection;
mod dump;
mod frame;
mod msr;
mod platform;
mod profile;
mod snapshot;

#[cfg(feature = "testing")]
pub mod testing;

pub use clocks::{ClockReading, Clocks, tsc_hertz};
pub use counters::counter::{Counter, CounterControl};
pub use counters::entry::{EventCount, EventEntry, StoppedEvent};
pub use counters::error::{CounterError, ServiceError};
pub use counters::event::{Event, EventId, NamedEvent};
pub use counters::group::{GroupError, GroupId};
pub use counters::id::{CounterId, CounterSet, MAX_COUNTERS, MAX_FIXED, MAX_GENERAL};
pub use counters::interrupt::{Claim, EventOverflow, Serviced, service};
pub use counters::left_over::UnusedRegisters;
pub use counters::lend::{CounterWindow, LentCounters, WindowError};
pub use counters::memory::CounterMemory;
pub use counters::processor::{Counters, SessionCounters};
pub use counters::select::EventSelect;
pub use counters::silence::silence;
pub use counters::slot::CounterSlot;
pub use counters::sources::{EventSource, OpenedEvents};
pub use counters::switch::{SavedCounter, SavedCounters};
pub use counters::table::EventTable;
pub use counters::thread::{SwitchError, ThreadEvent};
pub use counters::unit::{
    CounterBank, CounterUnit, FixedCounters, Freeze, FullWidth, GlobalRegisters, PreciseSampling,
};
pub use counters::user::UserView;
pub use detection::NoInterface;
pub use dump::{CpuidDump, DumpError};
pub use frame::{InterruptFrame, ProcessId, ProcessorNumber};
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub use msr::native::NativeMsr;
#[cfg(all(feature = "native", target_arch = "x86_64"))]
pub use msr::native::{FaultFixup, FixupMsr};
pub use msr::{
    MsrAddress, MsrBackend, MsrError, MsrErrorKind, MsrFault, MsrOperation, MsrUpdate, PmcIndex,
};
pub use platform::{Platform, TimerUnavailable};
pub use profile::added::{AddSourceError, AddedSlot, AddedSource, AddedSources};
pub use profile::classes;
pub use profile::error::InterfaceError;
pub use profile::interface::{
    Availability, CounterAnswer, DefaultInterface, Overflow, ProfileInterface, SourceInformation,
    SourceInterface,
};
pub use profile::interval::{Interval, IntervalError, IntervalLimits, IntervalUnit};
pub use profile::session::{Session, SessionPlatform};
pub use profile::source::{KProfileSource, NotASource, ProfileSource};
pub use profile::source_index::{SourceIndex, SourceTable};
pub use profile::status::NtStatus;
pub use profile::windows::{HalInterface, PointerWidth, Rules, WindowsVersion};
pub use profile::with_events::{Report, WithEvents};
pub use profile::with_sources::WithSources;
pub use raw_cpuid;
pub use snapshot::Snapshot;
