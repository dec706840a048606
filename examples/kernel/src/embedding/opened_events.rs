//! Events beside the profile sources, opened on the counters of the processor that executes the call.

use pmu::PmuError;
use pmu::core::x86::FixupMsr;
use pmu::core::{CounterSession, CounterSet, CounterUnit};
use pmu::processors::{KernelHooks, PmuEvents};

use crate::embedding::memory::PMU;
use crate::embedding::platform::{Kernel, set_counters};
use crate::embedding::sessions::processor_up;

/// The counters of a processor, with its events.
pub type Counters = CounterSession<'static, PmuEvents<Kernel>, (FixupMsr, KernelHooks<Kernel>)>;

/// Takes this processor's counters, fixed ones included, and gives them back.
///
/// # Errors
/// Those of the counters, and of `function`.
pub fn with_events<R, E: From<PmuError>>(
    function: impl FnOnce(&mut Counters, &CounterUnit) -> Result<R, E>,
) -> Result<R, E> {
    set_counters(CounterSet::ALL);
    processor_up()?;
    let result = PMU.with(|session, unit| function(session.counters_mut(), unit));
    PMU.processor_down()?;
    result?
}
