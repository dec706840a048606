//! The profile interface: what a vendor crate says of its counters, and what follows from it.

use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(doc)]
use crate::Claim;
use crate::interrupt::{self, Overflow, Serviced};
use crate::msr::{MsrAccess, retry_once};
use crate::{
    Counter, CounterMemory, EventSelect, InterfaceError, Interval, IntervalLimits, IntervalUnit,
    KProfileSource, MsrAddress, MsrBackend, MsrFault, MsrUpdate, Platform, PmcIndex, ProfileSource,
    Session, Snapshot,
};

/// A family of counters and its table of profile sources, for the whole machine.
///
/// One value serves all processors: it is decided from the boot processor, is immutable but for the
/// intervals, and is shared with interrupt handlers. What differs by processor is in a
/// [`CounterMemory`] (interrupt path) and a [`Session`] (control path).
///
/// A vendor implements what its manual says; the operations are the same for all and provided.
pub trait ProfileInterface {
    /// The event-select register.
    type Select: EventSelect;
    /// A row of the table.
    type Source: ProfileSource<Select = Self::Select> + 'static;
    /// A counter.
    type Counter: Counter;

    /// The interface's name.
    const NAME: &'static str;

    /// Whether too little lent memory is an error of [`initialise`](Self::initialise), or leaves
    /// every source unsupported.
    const MEMORY_REQUIRED: bool;

    /// The table, ascending by value; its first row is `ProfileTime`.
    fn sources(&self) -> &'static [Self::Source];

    /// Where in the table a source is.
    fn row(&self, source: KProfileSource) -> Option<usize>;

    /// Where in the table the source is that has this name: the documented spelling or Windows' own,
    /// letters' case as written.
    fn row_named(&self, name: &str) -> Option<usize>;

    /// Whether the processor declares the event of a row of the table.
    fn is_declared(&self, row: usize) -> bool;

    /// How many counters each processor has, from 0 to [`MAX_COUNTERS`](crate::MAX_COUNTERS).
    fn counters(&self) -> u8;

    /// The counter with this number, if it is below [`counters`](Self::counters).
    fn counter(&self, number: u8) -> Option<Self::Counter>;

    /// The counters of this interface that a processor has, one bit each; 0 if it is of another kind.
    /// On a hybrid machine processors differ.
    fn counters_of(&self, processor: &Snapshot) -> u64;

    /// The registers that control all counters together, where the processor has them.
    fn global(&self) -> Option<GlobalRegisters>;

    /// The enable register of precise sampling, where a processor declares it.
    fn precise_sampling(&self, processor: &Snapshot) -> Option<PreciseSampling> {
        let _ = processor;
        None
    }

    /// Whether the local APIC may mask its performance entry when it delivers the interrupt, so that
    /// each interrupt must unmask it.
    fn entry_masked_on_delivery(&self) -> bool;

    /// Where the interval of a row of the table is kept, for the whole machine.
    fn interval_cell(&self, row: usize) -> Option<&AtomicU32>;

    /// What is known of a source without touching a register: at best
    /// [`Declared`](Availability::Declared). Any context.
    fn query(&self, source: KProfileSource) -> SourceInformation {
        let row = self.row(source).filter(|row| self.is_declared(*row));
        let limits = IntervalLimits::of(unit_of(source));
        match row.and_then(|row| self.interval_cell(row)) {
            Some(cell) => SourceInformation {
                source,
                availability: Availability::Declared,
                interval: cell.load(Ordering::Relaxed),
                limits,
            },
            None => SourceInformation {
                source,
                availability: Availability::Unsupported,
                interval: 0,
                limits,
            },
        }
    }

    /// Sets the machine-wide interval of a source.
    ///
    /// A running counter takes it up when it next overflows; a running timer, at
    /// [`Session::apply_interval`]. It stays until it is set again.
    ///
    /// # Errors
    /// [`UnsupportedSource`](InterfaceError::UnsupportedSource), or
    /// [`Interval`](InterfaceError::Interval) with the limits. Task context.
    fn set_interval(&self, source: KProfileSource, units: u64) -> Result<Interval, InterfaceError> {
        let cell = self.declared_cell(source)?;
        let interval = IntervalLimits::of(unit_of(source)).check(units)?;
        cell.store(interval.get(), Ordering::Relaxed);
        Ok(interval)
    }

    /// Like [`set_interval`](Self::set_interval), but takes the nearest interval within the limits,
    /// and says which.
    fn set_interval_clamped(
        &self,
        source: KProfileSource,
        units: u64,
    ) -> Result<Interval, InterfaceError> {
        let cell = self.declared_cell(source)?;
        let interval = IntervalLimits::of(unit_of(source)).clamp(units);
        cell.store(interval.get(), Ordering::Relaxed);
        Ok(interval)
    }

    /// The interval's cell of a source that the processor declares.
    #[doc(hidden)]
    fn declared_cell(&self, source: KProfileSource) -> Result<&AtomicU32, InterfaceError> {
        self.row(source)
            .filter(|row| self.is_declared(*row))
            .and_then(|row| self.interval_cell(row))
            .ok_or(InterfaceError::UnsupportedSource(source))
    }

    /// Takes over the counters of the processor that executes the call, which `processor` describes.
    ///
    /// Loads zero into the event select of each counter that the processor shares with the interface,
    /// proves the counter by writing and reading it back (by RDMSR and by RDPMC), and leaves it zero. Then
    /// acknowledges what its predecessor left of their overflows, takes their precise sampling away,
    /// enables their bits of the global control register where there is one, and unmasks the local APIC's
    /// entry.
    ///
    /// A counter that does not answer, or for which no slot was lent, is left out and untouched from then
    /// on: [`Session::counters`] tells which.
    ///
    /// # Context
    /// Task, on the processor on which the session then lives. An interrupt may come at any time.
    ///
    /// # Errors
    /// - [`MemoryInUse`](InterfaceError::MemoryInUse): a session has this memory, another processor's for
    ///   instance, or one that was dropped without [`shut_down`](Session::shut_down).
    /// - [`OtherProcessor`](InterfaceError::OtherProcessor): the processor has none of these counters.
    /// - [`InsufficientMemory`](InterfaceError::InsufficientMemory): no slot was lent, and the interface
    ///   [requires](Self::MEMORY_REQUIRED) one. Otherwise every source is unsupported.
    /// - [`CountersUnresponsive`](InterfaceError::CountersUnresponsive): no counter answers.
    /// - [`Access`](InterfaceError::Access): a global register faulted.
    ///
    /// Afterwards no counter runs, and time is what remains: see [`DefaultInterface`].
    fn initialise<'a, M: MsrBackend, P: Platform>(
        &'a self,
        processor: &Snapshot,
        msr: M,
        platform: P,
        memory: &'a CounterMemory,
    ) -> Result<Session<'a, Self, M, P>, InterfaceError>
    where
        Self: Sized,
    {
        Session::initialise(self, processor, msr, platform, memory)
    }

    /// Services the performance interrupt of the processor that executes the call: finds the overflowed
    /// counters, re-arms them, reports each overflow to `overflowed` once, and lets the interrupt recur.
    ///
    /// `memory` is the processor's. Where no session has it, nothing is touched and the answer is
    /// [`NotOurs`](Claim::NotOurs); but one interrupt that comes late, after
    /// [`shut_down`](Session::shut_down), is claimed. A nested call, from an interrupt that interrupted
    /// this one, returns [`Ours`](Claim::Ours) at once, and the call under way looks once more.
    ///
    /// # Context
    /// Interrupt or NMI, and any other. Bounded by the number of counters, once more for each nested
    /// interrupt; takes no lock, does not allocate and does not panic unless `overflowed` does. If that
    /// unwinds, later interrupts are only noted, until [`reprogram`](Session::reprogram).
    ///
    /// # Errors
    /// Returns the first access that failed after one retry; the remaining accesses are still attempted.
    /// The interrupt is then to be counted as [`OursAndMore`](Claim::OursAndMore). A counter that may no
    /// longer count or interrupt is marked as faulted: its source does not
    /// [run](Session::is_running).
    #[inline]
    fn service<M: MsrBackend, P: Platform>(
        &self,
        msr: &M,
        platform: &P,
        memory: &CounterMemory,
        overflowed: impl FnMut(Overflow),
    ) -> Result<Serviced, MsrFault>
    where
        Self: Sized,
    {
        interrupt::service(self, msr, platform, memory, overflowed)
    }
}

/// The unit of a source's interval.
pub(crate) fn unit_of(source: KProfileSource) -> IntervalUnit {
    if source == KProfileSource::TIME {
        IntervalUnit::HundredNanoseconds
    } else {
        IntervalUnit::Events
    }
}

/// The registers that control all counters of a processor together.
///
/// A session owns the bits of its counters in them, and no others. Other owners do not write the control
/// register while a session lives, but have it set their bits
/// ([`Session::set_others_control`]); of the status they acknowledge their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GlobalRegisters {
    /// One bit per counter: it counts while the bit is set (and its event select says so).
    pub control: MsrAddress,
    /// One bit per counter: it overflowed.
    pub status: MsrAddress,
    /// Writing 1 clears the bit of the status.
    pub acknowledge: MsrAddress,
    /// Whether the counters are stopped while their interrupt is serviced: two writes more, and none
    /// of the events of servicing itself are counted.
    pub stop_while_serviced: bool,
    /// Bit of the status that says that the processor froze the counters, and whose acknowledgement
    /// releases them. 0: a processor that freezes clears the control register instead.
    pub frozen: u64,
    /// The control by which the processor freezes the counters itself, where it can.
    pub freeze: Option<Freeze>,
}

/// The bit that makes a processor stop all its counters as it raises the performance interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Freeze {
    register: u32,
    pub(crate) bit: u64,
}

impl Freeze {
    /// `bit` of `register` freezes.
    ///
    /// # Safety
    /// - Setting and clearing `bit` of `register`, with its other bits as they are, does not break
    ///   memory safety.
    pub const unsafe fn new(register: u32, bit: u64) -> Self {
        Self { register, bit }
    }

    /// Sets the bit or clears it.
    pub(crate) const fn set(&self, freezes: bool) -> MsrUpdate {
        let (clear, set) = if freezes { (0, self.bit) } else { (self.bit, 0) };
        // SAFETY: by the promise of `new`.
        unsafe { MsrUpdate::new(self.register, clear, set) }
    }

    /// Reads the register.
    pub(crate) const fn read(&self) -> MsrUpdate {
        MsrUpdate::read(self.register)
    }
}

/// The register whose bits make an overflow write a record to memory instead of interrupting, one bit per
/// counter: `IA32_PEBS_ENABLE`. A predecessor may have left bits of it set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PreciseSampling {
    enable: u32,
    capability: u32,
    unavailable: u64,
}

impl PreciseSampling {
    /// Bits of `enable` enable it, unless `unavailable` of the register `capability` says that there is no
    /// such register.
    ///
    /// # Safety
    /// - Clearing bits of `enable`, with its other bits as they are, does not break memory safety.
    pub const unsafe fn new(enable: u32, capability: u32, unavailable: u64) -> Self {
        Self { enable, capability, unavailable }
    }

    /// Takes it away from these counters, and returns those from which it could not be taken.
    pub(crate) fn disable(&self, msr: &impl MsrBackend, counters: u64) -> u64 {
        let capability = retry_once(|| msr.change(MsrUpdate::read(self.capability)));
        if capability.is_ok_and(|capability| capability & self.unavailable == 0) {
            // SAFETY: by the promise of `new`.
            let disable = unsafe { MsrUpdate::new(self.enable, counters, 0) };
            if retry_once(|| msr.change(disable)).is_err() {
                // A register that cannot even be read is not there.
                return msr.change(MsrUpdate::read(self.enable)).unwrap_or(0) & counters;
            }
        }
        0
    }
}

/// How far a source can be relied upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Availability {
    /// Not in the table, or the processor says that the event is not available.
    Unsupported,
    /// CPUID declares it; no counter was touched.
    Declared,
    /// The counters of this processor gave back what was written to them.
    Proven,
}

/// What is known of a source: `HAL_PROFILE_SOURCE_INFORMATION_EX`, with the availability in place
/// of a boolean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SourceInformation {
    /// The source asked for.
    pub source: KProfileSource,
    /// Whether it can be started.
    pub availability: Availability,
    /// The interval now in force; 0 if the source is unsupported.
    pub interval: u32,
    /// The interval's unit, default and limits.
    pub limits: IntervalLimits,
}

impl SourceInformation {
    /// Whether the source can be started.
    pub fn is_supported(&self) -> bool {
        self.availability != Availability::Unsupported
    }
}

/// The profile interface of a processor without counters: `ProfileTime` and nothing else.
#[derive(Debug)]
pub struct DefaultInterface {
    time: AtomicU32,
}

impl DefaultInterface {
    /// The interface, with the default interval.
    pub const fn new() -> Self {
        Self { time: AtomicU32::new(IntervalLimits::TIME.default) }
    }
}

impl Default for DefaultInterface {
    fn default() -> Self {
        Self::new()
    }
}

impl ProfileInterface for DefaultInterface {
    type Select = NoSelect;
    type Source = TimeSource;
    type Counter = NoCounter;

    const NAME: &'static str = "Default";
    const MEMORY_REQUIRED: bool = false;

    fn sources(&self) -> &'static [TimeSource] {
        &[TimeSource]
    }

    fn row(&self, source: KProfileSource) -> Option<usize> {
        (source == KProfileSource::TIME).then_some(0)
    }

    fn row_named(&self, name: &str) -> Option<usize> {
        TimeSource.is_named(name).then_some(0)
    }

    fn is_declared(&self, row: usize) -> bool {
        row == 0
    }

    fn counters(&self) -> u8 {
        0
    }

    fn counter(&self, _: u8) -> Option<NoCounter> {
        None
    }

    fn counters_of(&self, _: &Snapshot) -> u64 {
        0
    }

    fn global(&self) -> Option<GlobalRegisters> {
        None
    }

    fn entry_masked_on_delivery(&self) -> bool {
        false
    }

    fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
        (row == 0).then_some(&self.time)
    }
}

/// The one source of [`DefaultInterface`].
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TimeSource;

impl ProfileSource for TimeSource {
    type Select = NoSelect;

    fn source(&self) -> KProfileSource {
        KProfileSource::TIME
    }

    fn name(&self) -> &'static str {
        "ProfileTime"
    }

    fn windows_spelling(&self) -> Option<&'static str> {
        Some("Timer")
    }

    fn select(&self) -> NoSelect {
        NoSelect
    }

    fn canonical(&self) -> Option<KProfileSource> {
        None
    }
}

/// The event select of an interface without counters.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NoSelect;

impl EventSelect for NoSelect {
    fn select_bits(self) -> u64 {
        0
    }
    fn event_number(self) -> u16 {
        0
    }
    fn event_unit_mask(self) -> u8 {
        0
    }
    fn running(self) -> Self {
        self
    }
}

/// The counter of an interface without counters: there is none.
#[derive(Clone, Copy, Debug)]
pub enum NoCounter {}

impl Counter for NoCounter {
    fn select_register(&self) -> MsrAddress {
        match *self {}
    }
    fn value_register(&self) -> MsrAddress {
        match *self {}
    }
    fn rdpmc_index(&self) -> Option<PmcIndex> {
        match *self {}
    }
    fn width(&self) -> u32 {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_interface_has_time_alone() {
        let interface = DefaultInterface::new();
        assert!(interface.query(KProfileSource::TIME).is_supported());
        for value in (1..0x200).filter(|v| *v != KProfileSource::MAXIMUM) {
            let source = KProfileSource::new(value).unwrap();
            assert_eq!(interface.query(source).availability, Availability::Unsupported);
            assert_eq!(
                interface.set_interval(source, 0x1_0000),
                Err(InterfaceError::UnsupportedSource(source))
            );
        }
    }

    #[test]
    fn an_interval_outside_the_limits_changes_nothing() {
        let interface = DefaultInterface::new();
        let error = interface.set_interval(KProfileSource::TIME, 1_220).unwrap_err();
        let expected = crate::IntervalError { requested: 1_220, limits: IntervalLimits::TIME };
        assert_eq!(error, InterfaceError::Interval(expected));
        assert_eq!(interface.query(KProfileSource::TIME).interval, 10_000);
        let set = interface.set_interval_clamped(KProfileSource::TIME, 1_220).unwrap();
        assert_eq!(set.get(), 1_221);
        assert_eq!(interface.query(KProfileSource::TIME).interval, 1_221);
    }
}
