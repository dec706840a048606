//! Counters and events of traced PMC: `EventTraceProfileCounterListInformation` (0x0F) and
//! `EventTraceProfileEventListInformation` (0x0E).

use core::fmt;
use core::mem;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use heapless::Vec;
use pmu_core::{KProfileSource, NtStatus, ProcessorNumber, Rules};

use super::record::MAX_PMC_VALUES;
use crate::affinity::{mask_of, processors_in};
use crate::{Affinity, MAX_GROUPS};

/// Maximum number of sources of traced PMC, in any version.
pub const MAX_TRACED_COUNTERS: usize = 8;

/// Maximum number of hooks of traced PMC: `ETW_PMC_SUPPORT.HookId`.
pub const MAX_TRACED_HOOKS: usize = 4;

/// The counters that a kernel lends to traced PMC: `HalAllocatePmcCounterSet` and `HalFreePmcCounterSet`.
///
/// ```
/// use pmu_core::{KProfileSource, NtStatus, ProcessorNumber};
/// use pmu_kprofile::Affinity;
/// use pmu_kprofile::trace::CounterSets;
/// # fn open_and_start(_: ProcessorNumber, _: KProfileSource) -> Result<(), NtStatus> { Ok(()) }
/// # fn close_all(_: ProcessorNumber) {}
///
/// struct Kernel;
///
/// impl CounterSets for Kernel {
///     fn active_processors(&self) -> Affinity {
///         Affinity::first(2)
///     }
///     fn counters(&self) -> usize {
///         4
///     }
///     fn allocate(&mut self, on: ProcessorNumber, sources: &[KProfileSource]) -> Result<(), NtStatus> {
///         // Each is an event of `Counters` there, which is only counted.
///         sources.iter().try_for_each(|source| open_and_start(on, *source)).inspect_err(|_| close_all(on))
///     }
///     fn free(&mut self, on: ProcessorNumber) {
///         close_all(on);
///     }
/// }
/// ```
pub trait CounterSets {
    /// Returns the active processors.
    fn active_processors(&self) -> Affinity;

    /// Returns the number of counters of a processor, which limits the sources from version 1903 on:
    /// `HalQueryProfileNumberOfCounters`.
    fn counters(&self) -> usize;

    /// Allocates counters for the sources on a processor, and starts them.
    ///
    /// # Errors
    /// The status that the service is to return, for instance `STATUS_NOT_SUPPORTED`. Nothing is allocated there.
    fn allocate(&mut self, on: ProcessorNumber, sources: &[KProfileSource])
    -> Result<(), NtStatus>;

    /// Frees what was allocated on a processor, if it is still active.
    fn free(&mut self, on: ProcessorNumber);
}

/// Facts about a logger, and about its caller, that only the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LoggerFacts {
    /// Set if the trace handle is that of an active logger.
    pub is_active: bool,
    /// Set if the caller has `TRACELOG_GUID_ENABLE`.
    pub may_enable: bool,
    /// Set if the logger's buffers are paged memory.
    pub is_paged: bool,
    /// Set if there is memory for what the logger is to remember.
    pub has_memory: bool,
}

/// The counters and the hooks of one logger's traced PMC: `ETW_PMC_SUPPORT`. The record of each such event has the
/// values of the counters.
///
/// ```
/// use pmu_core::{KProfileSource, NtStatus};
/// use pmu_kprofile::Rules;
/// use pmu_kprofile::trace::{CONTEXT_SWITCH_HOOK, CounterSets, Extended, LoggerFacts, TracedPmc};
///
/// static TRACED: TracedPmc = TracedPmc::new(Rules::LATEST); // of the logger
/// # fn read(_: KProfileSource) -> Option<u64> { None }
///
/// fn count_on_context_switches(logger: LoggerFacts, kernel: &mut impl CounterSets) -> Result<(), NtStatus> {
///     // The arrays of the requests, as they are in memory: TotalCycles; and the context switch.
///     TRACED.set_counters(&0x13u32.to_le_bytes(), logger, kernel)?;
///     TRACED.set_hooks(&u32::from(CONTEXT_SWITCH_HOOK).to_le_bytes(), logger)
/// }
///
/// /// What a scheduler gives to `SwitchTrace::record`.
/// fn extended() -> Extended {
///     Extended { pmc_values: TRACED.values(CONTEXT_SWITCH_HOOK, read), ..Extended::default() }
/// }
/// # assert!(extended().pmc_values.is_empty());
/// ```
pub struct TracedPmc {
    rules: Rules,
    counters: List<MAX_TRACED_COUNTERS>,
    hooks: List<MAX_TRACED_HOOKS>,
    /// The processors on which counters are allocated.
    allocated: [AtomicU64; MAX_GROUPS],
}

/// A list that is set once.
struct List<const N: usize> {
    /// [`UNSET`], [`SETTING`], or 2 more than the length.
    state: AtomicU32,
    items: [AtomicU32; N],
}

const UNSET: u32 = 0;
const SETTING: u32 = 1;
const SET: u32 = 2;

impl<const N: usize> List<N> {
    const fn new() -> Self {
        Self { state: AtomicU32::new(UNSET), items: [const { AtomicU32::new(0) }; N] }
    }

    /// Begins to set the list.
    fn begin(&self) -> Result<Setting<'_, N>, NtStatus> {
        if self.change(UNSET, SETTING) {
            Ok(Setting(self))
        } else {
            Err(NtStatus::WMI_ALREADY_ENABLED)
        }
    }

    /// Begins to clear the list; `None` if it is not set.
    fn clear(&self) -> Option<Setting<'_, N>> {
        let state = self.state.load(Ordering::Acquire);
        (state >= SET && self.change(state, SETTING)).then_some(Setting(self))
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns the items; none while the list is not set.
    fn items(&self) -> impl Iterator<Item = u32> {
        let length = self.state.load(Ordering::Acquire).saturating_sub(SET);
        self.items.iter().take(length as usize).map(|item| item.load(Ordering::Relaxed))
    }
}

/// The right to set a list, which is not set until then. Dropped, also by unwinding, it leaves the list unset.
struct Setting<'l, const N: usize>(&'l List<N>);

impl<const N: usize> Setting<'_, N> {
    fn end(self, items: &[u32]) {
        let list = self.0;
        mem::forget(self);
        list.items.iter().zip(items).for_each(|(to, item)| to.store(*item, Ordering::Relaxed));
        list.state.store(SET + items.len() as u32, Ordering::Release);
    }
}

impl<const N: usize> Drop for Setting<'_, N> {
    fn drop(&mut self) {
        self.0.state.store(UNSET, Ordering::Release);
    }
}

impl TracedPmc {
    /// Creates the lists of a logger, not set yet.
    pub const fn new(rules: Rules) -> Self {
        Self {
            rules,
            counters: List::new(),
            hooks: List::new(),
            allocated: [const { AtomicU64::new(0) }; MAX_GROUPS],
        }
    }

    /// Sets the sources whose values the records of the [hooks](Self::set_hooks) have, and allocates counters for them
    /// on each active processor: class 0x0F, with Windows' checks in its order. `array` is `ProfileSource`, behind the
    /// request's trace handle, of 32-bit numbers.
    ///
    /// Eight sources, [`MAX_TRACED_COUNTERS`], are accepted at most; a record has the values of the first seven.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// Nothing is changed, nor left allocated.
    /// - `STATUS_NOT_IMPLEMENTED`: before version 6.2.
    /// - `STATUS_INVALID_PARAMETER`: the array is not whole; there is no source, or there are more than
    ///   [the version](pmu_core::WindowsVersion::traced_counters_limit) takes; the logger's memory is paged.
    /// - `STATUS_WMI_INSTANCE_NOT_FOUND`, `STATUS_ACCESS_DENIED`, `STATUS_NO_MEMORY`: see [`LoggerFacts`].
    /// - `STATUS_WMI_ALREADY_ENABLED`: the sources were set, and [`stop`](Self::stop) was not called since.
    /// - `STATUS_NOT_SUPPORTED`: a number is no source; or the status of [`CounterSets::allocate`].
    pub fn set_counters(
        &self,
        array: &[u8],
        logger: LoggerFacts,
        hardware: &mut impl CounterSets,
    ) -> Result<(), NtStatus> {
        let limit = self.rules.version.traced_counters_limit(hardware.counters());
        let words: Vec<u32, MAX_TRACED_COUNTERS> = self.check(array, limit, logger)?;
        let setting = self.counters.begin()?;
        self.allocate(&words, hardware)?;
        setting.end(&words);
        Ok(())
    }

    /// Allocates counters on each active processor, or on none.
    fn allocate(&self, words: &[u32], hardware: &mut impl CounterSets) -> Result<(), NtStatus> {
        let mut sources = Vec::<KProfileSource, MAX_TRACED_COUNTERS>::new();
        for word in words {
            let source = KProfileSource::try_from(*word).map_err(|_| NtStatus::NOT_SUPPORTED)?;
            sources.push(source).map_err(|_| NtStatus::INVALID_PARAMETER)?;
        }
        for processor in hardware.active_processors().iter() {
            if let Err(status) = hardware.allocate(processor, &sources) {
                self.free(hardware);
                return Err(status);
            }
            if let Some(mask) = self.allocated.get(usize::from(processor.group)) {
                mask.fetch_or(mask_of(processor), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Frees what is allocated.
    fn free(&self, hardware: &mut impl CounterSets) {
        let active = hardware.active_processors();
        let allocated = |group: usize| {
            let mask = self.allocated.get(group);
            mask.map_or(0, |mask| mask.load(Ordering::Relaxed)) & active.mask(group)
        };
        processors_in(allocated).for_each(|processor| hardware.free(processor));
        self.allocated.iter().for_each(|mask| mask.store(0, Ordering::Relaxed));
    }

    /// Sets the hooks whose records have the values of the [counters](Self::set_counters): class 0x0E. `array` is
    /// `HookId`, behind the request's trace handle, of 32-bit numbers. That the checks are those of the counters is
    /// inferred.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// Those of [`set_counters`](Self::set_counters), with at most [`MAX_TRACED_HOOKS`] hooks, and without counters to
    /// allocate. `STATUS_INVALID_PARAMETER` as well: a hook is wider than 16 bits.
    pub fn set_hooks(&self, array: &[u8], logger: LoggerFacts) -> Result<(), NtStatus> {
        let words: Vec<u32, MAX_TRACED_HOOKS> = self.check(array, MAX_TRACED_HOOKS, logger)?;
        if words.iter().any(|hook| *hook > u16::MAX.into()) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        self.hooks.begin()?.end(&words);
        Ok(())
    }

    /// Checks a request, and returns the numbers of its array.
    fn check<const M: usize>(
        &self,
        array: &[u8],
        limit: usize,
        logger: LoggerFacts,
    ) -> Result<Vec<u32, M>, NtStatus> {
        if !self.rules.version.traces_pmc_interrupts() {
            return Err(NtStatus::NOT_IMPLEMENTED);
        }
        let (words, rest) = array.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        if !logger.is_active {
            return Err(NtStatus::WMI_INSTANCE_NOT_FOUND);
        }
        if !logger.may_enable {
            return Err(NtStatus::ACCESS_DENIED);
        }
        if words.is_empty() || words.len() > limit || logger.is_paged {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        if !logger.has_memory {
            return Err(NtStatus::NO_MEMORY);
        }
        let mut numbers = Vec::new();
        for word in words {
            numbers.push(u32::from_le_bytes(*word)).map_err(|_| NtStatus::INVALID_PARAMETER)?;
        }
        Ok(numbers)
    }

    /// Returns the sources, in the order of the values: those of [`CounterNames`](super::CounterNames).
    ///
    /// # Context
    /// Any.
    pub fn sources(&self) -> impl Iterator<Item = KProfileSource> {
        self.counters.items().filter_map(KProfileSource::new)
    }

    /// Returns the hooks whose records have values.
    ///
    /// # Context
    /// Any.
    pub fn hooks(&self) -> impl Iterator<Item = u16> {
        self.hooks.items().map(|hook| hook as u16)
    }

    /// Returns the values that a record of a hook has, each read by `read` on this processor: none if the hook is not
    /// listed, or no source is. Where `read` has no value, the processor's counters were not allocated, it is 0.
    ///
    /// # Context
    /// Any; wait-free if `read` is.
    pub fn values(
        &self,
        hook: u16,
        mut read: impl FnMut(KProfileSource) -> Option<u64>,
    ) -> Vec<u64, MAX_PMC_VALUES> {
        let listed = self.hooks().any(|listed| listed == hook);
        let mut values = Vec::new();
        for source in self.sources().filter(|_| listed).take(MAX_PMC_VALUES) {
            // There is room for as many.
            let _ = values.push(read(source).unwrap_or(0));
        }
        values
    }

    /// Ends traced PMC as its logger is stopped: frees the counters, and forgets both lists, which may then be set
    /// again.
    ///
    /// # Context
    /// Task.
    pub fn stop(&self, hardware: &mut impl CounterSets) {
        drop(self.hooks.clear());
        if let Some(_clearing) = self.counters.clear() {
            self.free(hardware);
        }
    }
}

impl fmt::Debug for TracedPmc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources: Vec<_, MAX_TRACED_COUNTERS> = self.sources().collect();
        let hooks: Vec<_, MAX_TRACED_HOOKS> = self.hooks().collect();
        f.debug_struct("TracedPmc").field("sources", &sources).field("hooks", &hooks).finish()
    }
}
