//! Stopping a processor's counters without a session: in a panic, or before another kernel is started.

use crate::counters::names::counter_id::CounterSet;
use crate::counters::registers::counter::CounterControl;
use crate::counters::registers::unit::CounterUnit;
use crate::msr::access::MsrAccess;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

/// Stops every counter of the processor that executes the call, regardless of its owner, and cancels pending
/// interrupts.
///
/// The call clears the global control register, each event select, the fixed counters' control register, and the
/// overflow status. The counters' values stay unchanged, and so do the
/// [`UnusedRegisters`](crate::registers::UnusedRegisters). To clear the unused registers, call
/// [`clear`](crate::registers::UnusedRegisters::clear).
///
/// The call needs no session, and does not end sessions. After this call, use this processor's sessions only for
/// [`reprogram`](crate::CounterSession::reprogram), which starts the sessions' events again. A performance interrupt
/// may still come after this call. If its handler calls [`service`](crate::service), `service` may write the global
/// control register once more. Each counter's own control bits stay clear, so no counter counts.
///
/// # Context
/// Any: task, interrupt, NMI, panic handler.
///
/// # Errors
/// A failed access is retried once. The error is the first access whose retry also failed. The remaining accesses are
/// still attempted.
///
/// ```
/// # use pmu_core::CounterUnit;
/// # use pmu_core::msr::MsrBackend;
/// fn before_kexec(unit: &CounterUnit, msr: &impl MsrBackend) {
///     // A register that does not answer does not keep the next kernel from starting.
///     let _ = pmu_core::stop_all(unit, msr);
/// }
/// ```
pub fn stop_all(unit: &CounterUnit, msr: &impl MsrBackend) -> Result<(), MsrFault> {
    let mut outcome = Ok(());
    let mut clear = |register| {
        outcome = outcome.and(msr.wrmsr_retrying(register, 0));
    };
    if let Some(global) = unit.global() {
        clear(global.control);
    }
    for (_, counter) in unit.iter() {
        if let CounterControl::Select(select) = counter.control() {
            clear(select);
        }
    }
    if !(unit.counters() & CounterSet::FIXED).is_empty() {
        clear(unit.fixed_control());
    }
    if let Some(global) = unit.global() {
        let acknowledge = |bits| msr.wrmsr_retrying(global.acknowledge, bits);
        let own = unit.counters().bits() | global.frozen;
        let pending = || msr.rdmsr_retrying(global.status);
        outcome = outcome.and(pending().and_then(|status| match status {
            0 => Ok(()),
            // Buffers' bits too; a processor may have some that it does not let software clear.
            _ => acknowledge(status).or_else(|_| acknowledge(status & own)),
        }));
        // Zhaoxin's ZX-C takes an acknowledgement only while counters are enabled here: their own controls are clear.
        let left = pending().map_or(0, |status| status & unit.counters().bits());
        if left != 0 && outcome.is_ok() {
            outcome = msr.wrmsr_retrying(global.control, left).and_then(|()| acknowledge(left));
            outcome = msr.wrmsr_retrying(global.control, 0).and(outcome);
        }
    }
    outcome
}
