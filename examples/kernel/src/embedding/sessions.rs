//! All processors, up and down.

use pmu::apic::Delivery;
use pmu::core::error::CounterError;
use pmu::core::profile::InterfaceError;
use pmu::core::{CounterSet, EventSource};
use pmu::processors::{PmuHardware, PmuSession};
use pmu::{Machine, PmuError};

use crate::embedding::cpuid::snapshot;
use crate::embedding::memory::PMU;
use crate::embedding::platform::{Kernel, set_counters, set_delivery};
use crate::machine::processor::MAX_PROCESSORS;
use crate::machine::smp;

/// One processor's control handle.
pub type Control = PmuSession<Kernel>;

/// The sessions of all processors that run.
#[derive(Debug)]
pub struct Sessions {
    counters: CounterSet,
    freeze: bool,
}

/// Brings this processor up. This kernel has a machine of time alone for processors whose counters do not answer.
///
/// # Errors
/// The errors of [`Pmu::processor_up`](pmu::Pmu::processor_up), and `Unresponsive` if no counter answers.
pub fn processor_up() -> Result<(), PmuError> {
    let taken = PMU.processor_up(&snapshot())?;
    let declared = PMU.machine().map_or(CounterSet::NONE, |machine| machine.unit().counters());
    if taken.is_empty() && !(declared & <Kernel as pmu::Kernel>::counters()).is_empty() {
        PMU.processor_down()?;
        return Err(InterfaceError::Counters(CounterError::Unresponsive).into());
    }
    Ok(())
}

impl Sessions {
    /// Takes over the general counters of every processor, which a machine of time alone has not; with `freeze`, lets
    /// them, where they can, stop by themselves while an interrupt is serviced. Boot processor, task context.
    ///
    /// # Errors
    /// The first processor's whose counters do not answer.
    pub fn open(machine: &Machine, freeze: bool) -> Result<Self, PmuError> {
        let global = machine.unit().global();
        let freeze = freeze && global.is_some_and(|global| global.freeze.is_some());
        let sessions = Self { counters: machine.unit().counters() & CounterSet::GENERAL, freeze };
        sessions.take()?;
        Ok(sessions)
    }

    /// Brings every processor up, or none.
    fn take(&self) -> Result<(), PmuError> {
        set_counters(self.counters);
        let each = (0..smp::processors()).try_for_each(|number| {
            smp::run_on(number, || {
                processor_up()?;
                if self.freeze { Ok(PMU.with(|s, _| s.freeze_on_interrupt())??) } else { Ok(()) }
            })
        });
        each.inspect_err(|_| _ = self.shut_down())
    }

    /// Returns the machine, whose intervals are those of its sources.
    pub fn machine(&self) -> &'static Machine {
        PMU.machine().expect("a processor came up")
    }

    /// Uses the session of a processor, there.
    pub fn on<R: Send>(&self, number: usize, function: impl FnOnce(&mut Control) -> R + Send) -> R {
        let result = smp::run_on(number, || PMU.with(|session, _| function(session)));
        result.expect("every processor is up, and its session is used once at a time")
    }

    /// Returns the hardware that profile objects start and stop.
    pub fn hardware(&self) -> PmuHardware<Kernel, MAX_PROCESSORS, 8, 8> {
        PMU.hardware()
    }

    /// Changes the delivery of the performance interrupt, for which each processor's counters are given back and taken
    /// again. No source is running.
    ///
    /// # Errors
    /// The first register's that did not answer.
    pub fn deliver(&self, delivery: Delivery) -> Result<(), PmuError> {
        self.shut_down()?;
        set_delivery(delivery);
        self.take()
    }

    /// Stops everything, and gives the counters back.
    ///
    /// # Errors
    /// The first register's that did not answer; every session was shut down all the same.
    pub fn shut_down(&self) -> Result<(), PmuError> {
        let each = (0..smp::processors()).map(|number| {
            match smp::run_on(number, || PMU.processor_down()) {
                Err(PmuError::NotUp) => Ok(()),
                down => down,
            }
        });
        each.fold(Ok(()), Result::and)
    }
}
