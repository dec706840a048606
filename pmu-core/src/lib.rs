#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

pub mod branch_recording;
#[doc(alias = "lbr")]
pub mod branches;
mod counters;
mod detection;
pub mod frame;
pub mod interval;
mod platform;
pub mod profile;
pub mod reload;
pub mod windows;
mod write_once;
pub mod x86;

#[cfg(feature = "testing")]
pub mod testing;

pub use counters::control::handle::{CounterSession, SessionCounters};
pub use counters::control::opened::status::EventStatus;
pub use counters::events::count::EventCount;
pub use counters::events::event::Event;
pub use counters::events::software::SoftwareEvent;
pub use counters::interrupt::sample::Sample;
pub use counters::interrupt::service::{Claim, service};
pub use counters::names::{CounterSet, EventId, GenericEvent};
pub use counters::registers::unit::CounterUnit;
pub use platform::{Hardware, Platform};
pub use profile::event_source::EventSource;
pub use profile::events::Events;
pub use write_once::WriteOnce;

/// The errors of counters, events and interrupts, and the reasons why a processor has no counters or no facility.
pub mod error {
    pub use crate::counters::error::{CounterError, EventsError, ServiceError};
    pub use crate::detection::{NoFacility, NoInterface};
    pub use crate::platform::PlatformError;
}

/// Hardware beside the counters that events can ask for: the traits that a vendor's crate implements, and what a
/// session hands to an implementation.
pub mod facility {
    pub use crate::counters::hooks::division::{Division, DivisionMemory};
    pub use crate::counters::hooks::event_facility::{EventFacility, UnitAccess};
    pub use crate::counters::hooks::facility::{Facility, Interrupted};
    pub use crate::counters::hooks::facility_source::FacilitySource;
    pub use crate::counters::hooks::running::{
        Asked, EventControl, Recorded, Running, RunningEvent, Unsettled,
    };
    pub use crate::counters::hooks::software::SoftwareEvents;
}

/// Values of the interrupt's handler: the overflow of an event, and the result of a [`service`].
pub mod interrupt {
    pub use crate::counters::events::count::EventOverflow;
    pub use crate::counters::interrupt::service::Serviced;
}

/// The counters in the hands of another owner for a while: windows, in which a guest or a firmware has them.
pub mod lending {
    pub use crate::counters::control::opened::guests::{GuestControl, guest_control};
    pub use crate::counters::control::window::restore::WindowError;
    pub use crate::counters::control::window::{CounterWindow, LentCounters};
}

/// The memory that a kernel lends for a processor's counters and events.
pub mod memory {
    pub use crate::counters::shared::entry::EventEntry;
    pub use crate::counters::shared::memory::CounterMemory;
    pub use crate::counters::shared::slot::CounterSlot;
    pub use crate::counters::shared::table::EventTable;
}

/// Reads of counts by an interrupt handler, by user space, and by another processor.
pub mod reading {
    pub use crate::counters::events::user_view::UserView;
    pub use crate::counters::interrupt::reload::user_view;
    pub use crate::counters::interrupt::sample::{SampleRead, sample_read};
    pub use crate::counters::shared::remote_count::{RemoteCount, remote_count};
}

/// A processor's counters as data: their names, their registers, and the values that those registers take.
pub mod registers {
    pub use crate::counters::control::gate::stop_all;
    pub use crate::counters::events::list::EventList;
    pub use crate::counters::names::{CounterId, MAX_COUNTERS, MAX_FIXED, MAX_GENERAL};
    pub use crate::counters::registers::counter::{
        Counter, CounterBank, CounterControl, EventSelect, FixedCounters, FullWidth,
    };
    pub use crate::counters::registers::layout::{CounterLayout, SelectLayout};
    pub use crate::counters::registers::unit::GlobalRegisters;
    pub use crate::counters::registers::unused::{PreciseSampling, UnusedRegisters};
}

/// Counters that the two logical processors of a core share.
pub mod shared_core {
    pub use crate::counters::hooks::facility_source::OnSharedCore;
    pub use crate::counters::shared::core_counters::{CoreCounters, CoreThread};
}

/// Events and counters that are saved and continued, as a kernel switches threads.
pub mod thread {
    pub use crate::counters::control::switch::saved::{SavedCounter, SavedCounters};
    pub use crate::counters::events::saved::SavedEvent;
    pub use crate::counters::events::thread::ThreadEvent;
    pub use crate::counters::shared::period::Waiting;
    pub use crate::counters::shared::rate::Tick;
}

/// Access to the registers of the processor that executes the call: on x86 the model-specific registers, on another
/// architecture what its backend translates to their layout.
#[doc(alias = "msr")]
pub mod access {
    pub(crate) mod address;
    pub(crate) mod backend;

    pub use address::{CounterIndex, RegisterAddress, RegisterBits, RegisterUpdate};
    pub use backend::{
        AccessError, AccessErrorKind, AccessFault, AccessOperation, RegisterAccess, RegisterBackend,
    };
}

/// A processor's record of one sampled instruction, in vendor-neutral terms.
///
/// This floor is plain data, and imports nothing from the other floors. The vendors' crates decode their registers and
/// records into the types of this floor.
#[doc(alias = "pebs")]
#[doc(alias = "ibs")]
pub mod precise {
    pub(crate) mod request;
    pub(crate) mod sample;

    pub use request::{NotPrecise, Precision, SampleParts};
    pub use sample::{
        AccessType, BranchOutcome, DataAccess, DataSource, InstructionFetch, LineState, PageSize,
        PreciseSample, Translation,
    };
}
