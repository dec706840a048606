//! The values that the reload registers of a processor's counters hold.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::counters::names::counter_id::{CounterId, CounterSet, MAX_COUNTERS};
use crate::counters::registers::counter::Counter;
use crate::counters::registers::reload::CounterReload;
use crate::msr::access::MsrAccess;
use crate::msr::address::MsrAddress;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

/// Memory for the reload registers of one processor: 12 bytes per counter.
///
/// The embedder lends the memory to a session, through [`WithCounterReload`](crate::WithCounterReload).
///
/// ```
/// use pmu_core::ReloadMemory;
/// static RELOADS: [ReloadMemory; 2] = [const { ReloadMemory::new() }; 2]; // one per processor
/// # let _ = &RELOADS;
/// ```
#[derive(Debug)]
pub struct ReloadMemory {
    /// The counters that reload each counter, and above them [`KNOWN`].
    causes: [AtomicU64; MAX_COUNTERS],
    values: [AtomicU32; MAX_COUNTERS],
}

/// Set if the register holds the bits below.
const KNOWN: u64 = 1 << 63;

impl ReloadMemory {
    /// Creates memory for a processor whose reload registers still hold unknown values.
    pub const fn new() -> Self {
        Self {
            causes: [const { AtomicU64::new(0) }; MAX_COUNTERS],
            values: [const { AtomicU32::new(0) }; MAX_COUNTERS],
        }
    }

    /// Notes that the registers hold unknown values.
    pub(crate) fn forget(&self) {
        self.causes.iter().for_each(|causes| causes.store(0, Relaxed));
    }

    /// Lets the overflows of `causes` reload a counter with `value`, if there are causes. A register that holds its
    /// value already is not written.
    pub(crate) fn set(
        &self,
        msr: &impl MsrBackend,
        reload: &CounterReload,
        (counter, registers): (CounterId, &Counter),
        (causes, value): (CounterSet, u32),
    ) -> Result<(), MsrFault> {
        let place = counter.place();
        let (Some(known), Some(loaded)) = (self.causes.get(place), self.values.get(place)) else {
            return Ok(());
        };
        let wanted = KNOWN | causes.bits();
        let has_causes = known.load(Relaxed) == wanted;
        let has_value = causes.is_empty() || has_causes && loaded.load(Relaxed) == value;
        if has_causes && has_value || !reload.reloaded.contains(counter) {
            return Ok(());
        }
        let first = registers.value_register().get();
        // SAFETY: the registers of reloading, by the promise of `CounterReload::new`.
        let register = |distance: u32| unsafe { MsrAddress::new(first.wrapping_add(distance)) };
        known.store(0, Relaxed);
        if !has_value {
            msr.wrmsr_retrying(register(reload.value), value.into())?;
            loaded.store(value, Relaxed);
        }
        if !has_causes {
            msr.wrmsr_retrying(register(reload.causes), causes.bits())?;
        }
        known.store(wanted, Relaxed);
        Ok(())
    }
}

impl Default for ReloadMemory {
    fn default() -> Self {
        Self::new()
    }
}
