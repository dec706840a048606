//! Counters and events of traced PMC: `EventTraceProfileCounterListInformation` (0x0F) and
//! `EventTraceProfileEventListInformation` (0x0E).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::{fmt, mem};

use heapless::Vec;
use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{KProfileSource, NtStatus};
use pmu_core::windows::Rules;

use crate::affinity::{Affinity, MAX_GROUPS, mask_of, processors_in};
use crate::trace::record::MAX_PMC_VALUES;

/// Maximum number of counters that can be selected for a logger's records, in any Windows version.
pub const MAX_TRACED_COUNTERS: usize = 8;

/// Maximum number of events whose records can have counter values: the length of `ETW_PMC_SUPPORT.HookId`.
pub const MAX_TRACED_HOOKS: usize = 4;

/// Facts about a logger, and about the caller that sends a request to the logger. Only the kernel knows these facts.
///
/// # Examples
/// ```
/// use pmu_kprofile::trace::LoggerFacts;
///
/// /// What this kernel keeps of a logger.
/// struct Logger {
///     is_running: bool,
///     has_paged_buffers: bool,
///     /// Room for what the logger remembers, allocated before it is asked.
///     room: Option<Vec<u8>>,
/// }
///
/// /// Returns the facts about the logger of a trace handle; `None`: the handle is that of no logger.
/// fn facts(logger: Option<&Logger>, may_enable: bool) -> LoggerFacts {
///     LoggerFacts {
///         is_active: logger.is_some_and(|logger| logger.is_running),
///         may_enable,
///         is_paged: logger.is_some_and(|logger| logger.has_paged_buffers),
///         has_memory: logger.is_some_and(|logger| logger.room.is_some()),
///     }
/// }
/// # assert!(!facts(None, true).is_active);
/// # let logger = Logger { is_running: true, has_paged_buffers: false, room: None };
/// # assert!(facts(Some(&logger), true).is_active);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LoggerFacts {
    /// `true` if the trace handle in the request names an active logger. If `false`, the request fails with
    /// `STATUS_WMI_INSTANCE_NOT_FOUND`.
    pub is_active: bool,
    /// `true` if the caller has the access right `TRACELOG_GUID_ENABLE`. If `false`, the request fails with
    /// `STATUS_ACCESS_DENIED`.
    pub may_enable: bool,
    /// `true` if the logger's buffers are paged memory. If `true`, the request fails with `STATUS_INVALID_PARAMETER`.
    pub is_paged: bool,
    /// `true` if the kernel allocated memory for the logger's selection of counters and events. If `false`, the request
    /// fails with `STATUS_NO_MEMORY`.
    pub has_memory: bool,
}

/// Selects the counters whose values a logger records, and the events whose records have these values. Windows stores
/// this selection in the structure `ETW_PMC_SUPPORT`.
///
/// ```
/// use pmu_core::profile::{KProfileSource, NtStatus};
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
    counters: OnceList<MAX_TRACED_COUNTERS>,
    hooks: OnceList<MAX_TRACED_HOOKS>,
    /// The processors on which counters are allocated.
    allocated: [AtomicU64; MAX_GROUPS],
}

impl TracedPmc {
    /// Creates an empty selection for one logger: no counters and no events.
    pub const fn new(rules: Rules) -> Self {
        Self {
            rules,
            counters: OnceList::new(),
            hooks: OnceList::new(),
            allocated: [const { AtomicU64::new(0) }; MAX_GROUPS],
        }
    }

    /// Selects the sources that are counted, and allocates counters for these sources on each active processor. The
    /// function handles the request with the information class 0x0F, `EventTraceProfileCounterListInformation`.
    ///
    /// The function makes the same checks as Windows, in the same order. In the request, the member `ProfileSource`
    /// follows the trace handle. `array` contains only the bytes of `ProfileSource`: the numbers of the sources, 32
    /// bits each.
    ///
    /// At most eight sources ([`MAX_TRACED_COUNTERS`]) are accepted, but a record has the values of only the first
    /// seven.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// After an error, no counters stay allocated and the selection is unchanged.
    /// - `STATUS_NOT_IMPLEMENTED`: the Windows version is before 6.2.
    /// - `STATUS_INVALID_PARAMETER`: `array` is empty, or the length of `array` is not a multiple of 4.
    /// - `STATUS_INVALID_PARAMETER`: `array` has more than eight sources, or more than the
    ///   [limit](pmu_core::windows::WindowsVersion::traced_counters_limit) of the Windows version.
    /// - `STATUS_INVALID_PARAMETER`: the logger's buffers are paged memory.
    /// - `STATUS_WMI_INSTANCE_NOT_FOUND`, `STATUS_ACCESS_DENIED`, `STATUS_NO_MEMORY`: see [`LoggerFacts`].
    /// - `STATUS_WMI_ALREADY_ENABLED`: the logger's sources were selected before, and [`stop`](Self::stop) was not
    ///   called since then.
    /// - `STATUS_NOT_SUPPORTED`: no profile source has one of the numbers in `array`.
    /// - The status that [`CounterSets::allocate`] returned.
    pub fn set_counters(
        &self,
        array: &[u8],
        logger: LoggerFacts,
        hardware: &mut impl CounterSets,
    ) -> Result<(), NtStatus> {
        let limit = self.rules.version.traced_counters_limit(hardware.counters());
        let words: Vec<u32, MAX_TRACED_COUNTERS> = self.check(array, limit, logger)?;
        // Begun before the counters are allocated: of two requests at the same time, only one allocates.
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
                // All or none: the processors before this one give their counters back.
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

    /// Selects the events whose records have counter values. [`set_counters`](Self::set_counters) selects the counters.
    /// The function handles the request with the information class 0x0E, `EventTraceProfileEventListInformation`.
    ///
    /// In the request, the member `HookId` follows the trace handle. `array` contains only the bytes of `HookId`: the
    /// hook ids of the events, 32 bits each. **Inferred**: Windows checks this request in the same way as a request of
    /// [`set_counters`](Self::set_counters).
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The errors of [`set_counters`](Self::set_counters), except `STATUS_NOT_SUPPORTED` and the status of
    /// `CounterSets::allocate`. The function also returns `STATUS_INVALID_PARAMETER` if `array` has more than
    /// [`MAX_TRACED_HOOKS`] hook ids, or a hook id above 0xFFFF.
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
        // In Windows' order, which decides the status if several checks fail.
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

    /// Returns the selected sources, in the order in which their values are in a record.
    ///
    /// The names in [`CounterNames`](crate::trace::CounterNames) are in the same order.
    ///
    /// # Context
    /// Any.
    pub fn sources(&self) -> impl Iterator<Item = KProfileSource> {
        self.counters.items().filter_map(KProfileSource::new)
    }

    /// Returns the hook ids of the selected events. The records of these events have counter values.
    ///
    /// # Context
    /// Any.
    pub fn hooks(&self) -> impl Iterator<Item = u16> {
        self.hooks.items().map(|hook| hook as u16)
    }

    /// Returns the counter values for the trace record of a kernel event, such as a context switch. `hook` is the
    /// record's hook id.
    ///
    /// `read` returns the value of a source's counter on the processor that executes the call. `read` returns `None` if
    /// no counter is allocated for the source on this processor. The record then has the value 0 for this source. The
    /// result is empty if the event is not selected, or if no source is selected.
    ///
    /// # Context
    /// Any. The function is wait-free if `read` is wait-free.
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

    /// Ends the recording of counter values, when the logger is stopped. The call frees the counters, and clears the
    /// selection of counters and the selection of events.
    ///
    /// After the call, [`set_counters`](Self::set_counters) and [`set_hooks`](Self::set_hooks) can make new selections.
    ///
    /// # Context
    /// Task.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::profile::NtStatus;
    /// use pmu_kprofile::Rules;
    /// use pmu_kprofile::trace::{CounterSets, LoggerFacts, TracedPmc};
    ///
    /// static TRACED: TracedPmc = TracedPmc::new(Rules::LATEST); // of the logger
    ///
    /// /// Exchanges the counters of a logger, which can be set only once: what was set is cleared before.
    /// fn exchange(sources: &[u8], logger: LoggerFacts, kernel: &mut impl CounterSets) -> Result<(), NtStatus> {
    ///     TRACED.stop(kernel);
    ///     TRACED.set_counters(sources, logger, kernel)
    /// }
    /// ```
    pub fn stop(&self, hardware: &mut impl CounterSets) {
        // The hooks first: without them, no interrupt reads the counters.
        drop(self.hooks.clear());
        // Held until the counters are free, so that no new selection begins before.
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

/// Allocates and frees counters, as Windows' `HalAllocatePmcCounterSet` and `HalFreePmcCounterSet` do. Trace records
/// contain the values of these counters.
///
/// ```
/// use pmu_core::profile::{KProfileSource, NtStatus};
/// use pmu_core::frame::ProcessorNumber;
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
///         // Each is an event of `CounterSession` there, which is only counted.
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

    /// Returns the number of counters that a processor has, as Windows' `HalQueryProfileNumberOfCounters` does. From
    /// Windows version 1903 on, at most this many sources can be selected for a logger.
    fn counters(&self) -> usize;

    /// Allocates counters for the sources on a processor, and starts the counters.
    ///
    /// # Errors
    /// The status that the service is to return, for instance `STATUS_NOT_SUPPORTED`. After an error, nothing is
    /// allocated on the processor.
    fn allocate(&mut self, on: ProcessorNumber, sources: &[KProfileSource])
    -> Result<(), NtStatus>;

    /// Frees the counters that were allocated on a processor, if the processor is still active.
    fn free(&mut self, on: ProcessorNumber);
}

/// A list that is set once.
pub(super) struct OnceList<const N: usize> {
    /// [`UNSET`], [`SETTING`], or 2 more than the length.
    state: AtomicU32,
    items: [AtomicU32; N],
}

const UNSET: u32 = 0;
const SETTING: u32 = 1;
const SET: u32 = 2;

impl<const N: usize> OnceList<N> {
    pub(super) const fn new() -> Self {
        Self { state: AtomicU32::new(UNSET), items: [const { AtomicU32::new(0) }; N] }
    }

    /// Begins to set the list.
    pub(super) fn begin(&self) -> Result<Setting<'_, N>, NtStatus> {
        if self.change(UNSET, SETTING) {
            Ok(Setting(self))
        } else {
            Err(NtStatus::WMI_ALREADY_ENABLED)
        }
    }

    /// Begins to clear the list; `None` if it is not set.
    pub(super) fn clear(&self) -> Option<Setting<'_, N>> {
        let state = self.state.load(Ordering::Acquire);
        (state >= SET && self.change(state, SETTING)).then_some(Setting(self))
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns the items; none while the list is not set.
    pub(super) fn items(&self) -> impl Iterator<Item = u32> {
        let length = self.state.load(Ordering::Acquire).saturating_sub(SET);
        self.items.iter().take(length as usize).map(|item| item.load(Ordering::Relaxed))
    }
}

/// The right to set a list, which is not set until then. Dropped, also by unwinding, it leaves the list unset.
pub(super) struct Setting<'l, const N: usize>(&'l OnceList<N>);

impl<const N: usize> Setting<'_, N> {
    pub(super) fn end(self, items: &[u32]) {
        let list = self.0;
        // Dropped, it would unset the list.
        mem::forget(self);
        list.items.iter().zip(items).for_each(|(to, item)| to.store(*item, Ordering::Relaxed));
        // Last: an interrupt that sees the length also sees the items.
        list.state.store(SET + items.len() as u32, Ordering::Release);
    }
}

impl<const N: usize> Drop for Setting<'_, N> {
    fn drop(&mut self) {
        self.0.state.store(UNSET, Ordering::Release);
    }
}
