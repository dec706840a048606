//! What a predecessor may have left on in registers that nothing here uses.

use crate::msr::{MsrAccess, retry_once};
use crate::{CounterSet, CounterUnit, MsrAddress, MsrBackend};

/// Registers that some counters have beside their control, and that nothing here uses: by what firmware, or the kernel
/// before a kexec, left in them, a counter is loaded or writes records behind the driver's back.
///
/// [`Counters::take`](crate::Counters::take) does not know them, so that a kernel which is never started so does not
/// pay for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UnusedRegisters {
    distance: u32,
    counters: CounterSet,
}

impl UnusedRegisters {
    /// No counter has one.
    pub const NONE: Self = Self { distance: 0, counters: CounterSet::NONE };

    /// Each of these `counters` has one, `distance` after its value register.
    ///
    /// # Safety
    /// - Writing 0 to them does not break memory safety.
    pub const unsafe fn new(distance: u32, counters: CounterSet) -> Self {
        Self { distance, counters }
    }

    /// The counters that have one.
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Clears the registers of those of `counters` that `unit` has, and returns the counters whose register did not
    /// answer twice: they are not to be taken. One write for each register.
    ///
    /// Call it before these counters are taken, after their registers may have lost their contents (suspend), and
    /// before another kernel is started, on the processor that `unit` describes. What was there is not given back.
    ///
    /// # Context
    /// Any. No other owner uses these counters.
    pub fn clear(
        &self,
        unit: &CounterUnit,
        counters: CounterSet,
        msr: &impl MsrBackend,
    ) -> CounterSet {
        let there = unit.counters() & self.counters & counters;
        there.retain(|counter| {
            let value = unit.registers(counter).value.get();
            // SAFETY: only 0 is written, by the promise of `new`.
            let register = unsafe { MsrAddress::new(value.wrapping_add(self.distance)) };
            retry_once(|| msr.wrmsr(register, 0)).is_err()
        })
    }
}
