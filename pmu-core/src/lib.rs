#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

mod branch_recording;
mod branches;
mod clocks;
mod counters;
mod detection;
mod dump;
mod frame;
mod interval;
mod msr;
mod platform;
mod precise;
mod profile;
mod reload;
mod snapshot;
mod windows;
mod write_once;

#[cfg(feature = "testing")]
pub mod testing;

pub use branch_recording::area::{BranchArea, SaveBranches, XsaveFault};
pub use branch_recording::error::{BranchError, NoBranches};
pub use branch_recording::recorder::BranchRecorder;
pub use branches::call_stack_frame::CallStackFrame;
pub use branches::filter::BranchFilter;
pub use branches::kind::{BranchKind, BranchKinds};
pub use branches::memory::{BranchMemory, BranchSlot};
pub use branches::record::{Branch, BranchPath, BranchTransaction, RawBranch};
pub use branches::sampled::Branches;
pub use branches::saved::SavedBranches;
pub use branches::unit::{
    BranchEnable, BranchFormat, BranchFreeze, BranchOffers, BranchOrder, BranchRegisters,
    BranchUnit,
};
pub use clocks::{ClockReading, Clocks, tsc_hertz};
pub use counters::control::handle::{CounterSession, SessionCounters};
pub use counters::control::opened::guest_control::{GuestControl, guest_control};
pub use counters::control::opened::status::EventStatus;
pub use counters::control::stop_all::stop_all;
pub use counters::control::switch::saved::{SavedCounter, SavedCounters};
pub use counters::control::window::error::WindowError;
pub use counters::control::window::lend::CounterWindow;
pub use counters::control::window::lent_counters::LentCounters;
pub use counters::error::{CounterError, GroupError, ServiceError, SwitchError};
pub use counters::events::count::EventCount;
pub use counters::events::event::Event;
pub use counters::events::saved::SavedEvent;
pub use counters::events::thread_event::ThreadEvent;
pub use counters::events::user_view::UserView;
pub use counters::hooks::asked::{Asked, EventControl};
pub use counters::hooks::division::{Division, DivisionMemory};
pub use counters::hooks::event_facility::{EventFacility, UnitAccess};
pub use counters::hooks::event_source::EventSource;
pub use counters::hooks::facility::{Facility, Interrupted};
pub use counters::hooks::on_shared_core::OnSharedCore;
pub use counters::hooks::opened_events::OpenedEvents;
pub use counters::hooks::recorded::Recorded;
pub use counters::hooks::running::{Running, RunningEvent, Unsettled};
pub use counters::interrupt::claim::{Claim, Serviced};
pub use counters::interrupt::overflow::EventOverflow;
pub use counters::interrupt::sample::Sample;
pub use counters::interrupt::sample_read::{SampleRead, sample_read};
pub use counters::interrupt::service::service;
pub use counters::interrupt::user_view::user_view;
pub use counters::names::counter_id::{
    CounterId, CounterSet, MAX_COUNTERS, MAX_FIXED, MAX_GENERAL,
};
pub use counters::names::event_id::EventId;
pub use counters::names::generic_event::GenericEvent;
pub use counters::names::group_id::GroupId;
pub use counters::registers::banks::{CounterBank, FixedCounters, FullWidth};
pub use counters::registers::counter::{Counter, CounterControl};
pub use counters::registers::global::GlobalRegisters;
pub use counters::registers::precise::PreciseSampling;
pub use counters::registers::select::EventSelect;
pub use counters::registers::unit::CounterUnit;
pub use counters::registers::unused::UnusedRegisters;
pub use counters::shared::core_counters::{CoreCounters, CoreThread};
pub use counters::shared::entry::EventEntry;
pub use counters::shared::memory::CounterMemory;
pub use counters::shared::remote_count::{RemoteCount, remote_count};
pub use counters::shared::slot::CounterSlot;
pub use counters::shared::table::EventTable;
pub use counters::shared::waiting::Waiting;
pub use detection::NoInterface;
pub use dump::{CpuidDump, DumpError};
pub use frame::{InterruptFrame, PlainFrame, ProcessId, ProcessorNumber, SampledFrame};
pub use interval::{Interval, IntervalError, IntervalLimits, IntervalUnit};
pub use msr::access::MsrAccess;
pub use msr::address::{MsrAddress, PmcIndex};
pub use msr::backend::MsrBackend;
pub use msr::fault::{MsrError, MsrErrorKind, MsrFault, MsrOperation};
#[cfg(all(feature = "native", any(target_arch = "x86", target_arch = "x86_64")))]
pub use msr::native::NativeMsr;
#[cfg(all(feature = "native", target_arch = "x86_64"))]
pub use msr::native::{FaultFixup, FixupMsr};
pub use msr::register_bits::RegisterBits;
pub use msr::update::MsrUpdate;
pub use platform::{ExtendedEntryError, Platform, TimerUnavailable};
pub use precise::access::{AccessType, DataAccess, DataSource, LineState};
pub use precise::branch::BranchOutcome;
pub use precise::error::NotPrecise;
pub use precise::fetch::InstructionFetch;
pub use precise::parts::SampleParts;
pub use precise::precision::Precision;
pub use precise::sample::PreciseSample;
pub use precise::tlb::{PageSize, Translation};
pub use profile::added::{AddSourceError, AddedSlot, AddedSource, AddedSources};
pub use profile::classes;
pub use profile::counter_answer::CounterAnswer;
pub use profile::default_interface::DefaultInterface;
pub use profile::error::InterfaceError;
pub use profile::information::{Availability, SourceInformation};
pub use profile::interface::ProfileInterface;
pub use profile::overflow::Overflow;
pub use profile::session::Session;
pub use profile::session_platform::SessionPlatform;
pub use profile::source::{KProfileSource, NotASource, ProfileSource};
pub use profile::source_index::{SourceIndex, SourceTable};
pub use profile::source_interface::SourceInterface;
pub use profile::status::NtStatus;
pub use profile::with_added_sources::WithAddedSources;
pub use profile::with_opened_events::{Report, WithOpenedEvents};
pub use profile::with_shared_core::WithSharedCore;
pub use raw_cpuid;
pub use reload::{AutoCounterReload, CounterReload, ReloadMemory};
pub use snapshot::Snapshot;
pub use windows::{HalInterface, PointerWidth, Rules, WindowsVersion};
pub use write_once::WriteOnce;
