//! The error of ending a window.

use core::fmt;

use crate::counters::error::CounterError;
use crate::counters::names::counter_id::{CounterId, CounterSet};
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::msr::fault::MsrFault;

/// Failure to restore some counters at the end of a [window](crate::lending::CounterWindow).
///
/// ```
/// use pmu_core::CounterSet;
/// use pmu_core::msr::{MsrErrorKind, MsrFault, MsrOperation};
/// use pmu_core::lending::WindowError;
/// let (operation, kind) = (MsrOperation::Write, MsrErrorKind::GeneralProtection);
/// let fault = MsrFault { operation, register: 0x186, kind };
/// let error = WindowError { counters: CounterSet::from_bits(0b1), fault };
/// assert!(error.to_string().contains("0x186"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct WindowError {
    /// Counters that could not be restored. Their events do not run. No event uses these counters before the next call
    /// of [`reprogram`](crate::CounterSession::reprogram). The set is empty if the only failure was that a
    /// [facility](crate::facility::EventFacility) could not be resumed.
    pub counters: CounterSet,
    /// The first register access that failed.
    pub fault: MsrFault,
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counters, fault } = self;
        write!(f, "the counters {:#X} could not be brought back: {fault}", counters.bits())
    }
}

impl core::error::Error for WindowError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.fault)
    }
}

impl From<WindowError> for CounterError {
    fn from(error: WindowError) -> Self {
        Self::Faulted(error.fault)
    }
}

/// The counters that failed, and the first fault.
#[derive(Default)]
pub(crate) struct Failures {
    pub(crate) counters: CounterSet,
    pub(crate) fault: Option<MsrFault>,
}

impl Failures {
    /// Notes that a counter faulted, and marks its slot.
    pub(crate) fn note(&mut self, counter: CounterId, slot: &CounterSlot, fault: MsrFault) {
        slot.store(SlotState::Faulted);
        self.add(counter, fault);
    }

    /// Adds a counter that faulted.
    pub(crate) fn add(&mut self, counter: CounterId, fault: MsrFault) {
        self.counters = self.counters | counter.only();
        self.fault.get_or_insert(fault);
    }

    pub(crate) fn outcome(self) -> Result<(), WindowError> {
        match self.fault {
            Some(fault) => Err(WindowError { counters: self.counters, fault }),
            None => Ok(()),
        }
    }
}
