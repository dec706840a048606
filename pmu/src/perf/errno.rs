//! Linux' numbers of the errors of opening an event.

use pmu_core::CounterError::{self, *};
use pmu_core::precise::NotPrecise as Reason;

/// Returns the `errno` value with which Linux' `perf_event_open` refuses the event, as a positive number: `ENOENT` (2),
/// `EIO` (5), `EBADF` (9), `ENOMEM` (12), `EBUSY` (16), `EINVAL` (22), `ENODATA` (61), `EOPNOTSUPP` (95). For a group,
/// pass [`EventsError::reason`](pmu_core::EventsError::reason).
///
/// Source: `perf_event_open(2)`, "Errors"; Linux' `arch/x86/events/core.c` and `arch/x86/events/intel/core.c`. Linux
/// has no error for a failed register access (here `EIO`) and for a full table (here `ENOMEM`).
///
/// ```
/// use pmu::core::CounterError;
/// use pmu::core::precise::NotPrecise;
/// use pmu::perf::errno;
/// assert_eq!(errno(CounterError::Period(100)), 22);
/// assert_eq!(errno(CounterError::NotPrecise(NotPrecise::NoFacility)), 95);
/// ```
pub const fn errno(error: CounterError) -> i32 {
    match error {
        NoCounters(_) | OtherProcessor | Unresponsive | Unsupported(_) => 2,
        CounterLost(_) | RegistersLost | Unchanged(_) | StateUnknown(_) => 5,
        NoSuchEvent(_) | NoSuchGroup(_) => 9,
        InsufficientMemory { .. } => 12,
        MemoryInUse | NotAvailable(_) => 16,
        NotPrecise(Reason::NeedsBeside(_)) => 61,
        // As an event that no counter can count: Linux' table of precise events gives it no counter.
        NotPrecise(Reason::Event | Reason::NotLatencyEvent) => 22,
        NotPrecise(Reason::NoPeriod | Reason::NoLatency) => 22,
        NotPrecise(_) | BranchesUnsupported => 95,
        SoftwareUnsupported => 2,
        FreezeUnsupported | GuestModeUnsupported | NeedsCounterPair => 95,
        // `CounterError` is `#[non_exhaustive]` in another crate, so the compiler does not ask for the number of a new
        // error: add it here, unless it is EINVAL.
        _ => 22,
    }
}
