//! The machine's profile interface, whichever it is.

use core::sync::atomic::AtomicU32;

use pmu_amd::Amd64;
use pmu_core::{
    CounterUnit, DefaultInterface, NoInterface, Snapshot, SourceInterface, SourceTable,
};
use pmu_intel::Emon;

/// The profile interface of a machine: Intel's, AMD's, or time alone.
///
/// It is one type, so that a kernel keeps it in one static and its interrupt handler needs no generics.
/// Every operation is that of [`ProfileInterface`](pmu_core::ProfileInterface).
///
/// ```
/// use pmu::Machine;
/// use pmu::core::{CpuidDump, KProfileSource, ProfileInterface, Snapshot};
///
/// let dump = CpuidDump::parse(
///     "   0x00000000 0x00: eax=0x0000000a ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
///         0x0000000a 0x00: eax=0x07300404 ebx=0x00000000 ecx=0x00000000 edx=0x00000603",
/// )?;
/// let machine = Machine::detect(&Snapshot::capture(&dump));
/// assert!(machine.query(KProfileSource::TOTAL_CYCLES).is_supported());
///
/// // No processor that has counters: time remains, and the reason is known.
/// let nothing = Machine::detect(&Snapshot::capture(&CpuidDump::parse(
///     "   0x00000000 0x00: eax=0x00000001 ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
/// )?));
/// assert!(nothing.query(KProfileSource::TIME).is_supported());
/// assert!(nothing.why_time_only().unwrap().to_string().contains("no profile interface"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a machine has one, in a static, and there is no heap"
)]
pub enum Machine {
    /// Architectural performance monitoring.
    Intel(Emon),
    /// AMD's core counters.
    Amd(Amd64),
    /// No counters, for this reason.
    TimeOnly(DefaultInterface, NoInterface),
}

impl Machine {
    /// Decides by the boot processor, which `snapshot` describes. Task context, once.
    pub fn detect(snapshot: &Snapshot) -> Self {
        match (Emon::detect(snapshot), Amd64::detect(snapshot)) {
            (Ok(emon), _) => Self::Intel(emon),
            (_, Ok(amd64)) => Self::Amd(amd64),
            (Err(intel), Err(amd)) => Self::TimeOnly(DefaultInterface::new(), intel.or(amd)),
        }
    }

    /// Returns the reason why the machine has no counters, if it has none.
    pub const fn why_time_only(&self) -> Option<NoInterface> {
        match self {
            Self::Intel(_) | Self::Amd(_) => None,
            Self::TimeOnly(_, why) => Some(*why),
        }
    }
}

/// The same call of whichever interface it is.
macro_rules! whichever {
    ($machine:expr, $interface:ident => $call:expr) => {
        match $machine {
            Machine::Intel($interface) => $call,
            Machine::Amd($interface) => $call,
            Machine::TimeOnly($interface, _) => $call,
        }
    };
}

impl SourceInterface for Machine {
    fn name(&self) -> &'static str {
        whichever!(self, interface => interface.name())
    }

    fn requires_memory(&self) -> bool {
        whichever!(self, interface => interface.requires_memory())
    }

    #[inline]
    fn table(&self) -> &'static SourceTable {
        whichever!(self, interface => interface.table())
    }

    #[inline]
    fn unit(&self) -> &CounterUnit {
        whichever!(self, interface => interface.unit())
    }

    fn unit_of(&self, processor: &Snapshot) -> CounterUnit {
        whichever!(self, interface => interface.unit_of(processor))
    }

    fn is_declared(&self, row: usize) -> bool {
        whichever!(self, interface => interface.is_declared(row))
    }

    #[inline]
    fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
        whichever!(self, interface => interface.interval_cell(row))
    }
}
