//! The erratum of Sandy Bridge to Haswell: memory events corrupt the counters of the core's other logical processor.

use core::fmt;
use core::ops::RangeInclusive;

use pmu_core::registers::EventSelect;
use pmu_core::x86::Snapshot;

/// An erratum of Sandy Bridge, Ivy Bridge and Haswell: with hyper-threading, retired memory events are miscounted. If
/// general counter *n* counts a retired memory event, counter *n* can miss occurrences of the event. An occurrence can
/// also increment counter *n* of the core's other logical processor.
///
/// Take one of these measures:
/// - Give the events of the core's sessions an [`OnSharedCore`](pmu_core::shared_core::OnSharedCore). While one
///   logical processor counts a retired memory event on general counter *n*, the other logical processor's session then
///   leaves its own counter *n* unused.
/// - Call [`check`](Self::check) before opening an event. If the call returns an error, do not open the event.
/// - Accept that the counts of both logical processors can be wrong.
///
/// The erratum has no effect if hyper-threading is off. CPUID does not say whether hyper-threading is off. So call
/// [`detect`](Self::detect) only if the kernel knows that both logical processors of a core are online.
///
/// Source: the specification updates of the second generation (BJ122), third generation (BV98) and fourth generation
/// (HSD29) of Intel Core, "Performance Monitor Counters May Produce Incorrect Results"; Linux'
/// `arch/x86/events/intel/core.c` (the list of affected models, and the rule that only one logical processor of a core
/// counts these events).
///
/// ```
/// use pmu_core::{CounterUnit, Events};
/// use pmu_core::memory::EventTable;
/// use pmu_core::shared_core::{CoreCounters, CoreThread, OnSharedCore};
/// use pmu_intel::SiblingErratum;
/// /// Returns the events of a logical processor of an affected core, which is the core's `second`, or its first.
/// fn events<'a>(
///     unit: &'a CounterUnit,
///     opened: &'a EventTable,
///     core: &'a CoreCounters,
///     second: bool,
/// ) -> Events<'a, CounterUnit, OnSharedCore<'a>> {
///     let thread = CoreThread::new(core, second, SiblingErratum::EVENTS);
///     Events::new(unit, opened).with(OnSharedCore::new(thread, ()))
/// }
/// # let _ = events;
/// ```
///
/// # Limitations
/// A kernel on Sandy Bridge to Haswell with hyper-threading chooses between exclusive scheduling,
/// [`check`](Self::check), and wrong counts of memory events. A guest to which counters are lent can corrupt the
/// counters of the sibling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SiblingErratum {
    id: &'static str,
}

impl SiblingErratum {
    /// The event numbers that the erratum affects: `MEM_UOPS_RETIRED`, `MEM_LOAD_UOPS_RETIRED`, and the events of loads
    /// that hit or missed the last-level cache. Every unit mask of these events is affected.
    pub const EVENTS: RangeInclusive<u16> = 0xD0..=0xD3;

    /// Returns the erratum, or `None` if the processor's model does not have the erratum.
    pub fn detect(processor: &Snapshot) -> Option<Self> {
        if processor.vendor() != *b"GenuineIntel" || processor.family() != 6 {
            return None;
        }
        let id = match processor.model() {
            // Sandy Bridge.
            0x2A | 0x2D => "BJ122",
            // Ivy Bridge.
            0x3A | 0x3E => "BV98",
            // Haswell.
            0x3C | 0x3F | 0x45 | 0x46 => "HSD29",
            _ => return None,
        };
        Some(Self { id })
    }

    /// Returns the erratum's name in the specification update, for example "BJ122".
    pub const fn id(self) -> &'static str {
        self.id
    }

    /// Checks that an event select does not select an affected event.
    ///
    /// ```
    /// use pmu_core::x86::Snapshot;
    /// use pmu_core::x86::dump::CpuidDump;
    /// use pmu_core::registers::EventSelect;
    /// use pmu_intel::SiblingErratum;
    /// # let haswell = CpuidDump::parse(
    /// #     "CPUID 00000000: 00000001-756E6547-6C65746E-49656E69
    /// #      CPUID 00000001: 000306C3-00000000-00000000-00000000",
    /// # )?;
    /// let erratum = SiblingErratum::detect(&Snapshot::capture(&haswell)).unwrap();
    /// let loads = EventSelect::from_bits(0x81D0); // MEM_UOPS_RETIRED.ALL_LOADS
    /// let refused = erratum.check(loads).unwrap_err();
    /// assert!(refused.to_string().contains("HSD29"));
    /// assert_eq!(erratum.check(EventSelect::from_bits(0x00C0)), Ok(()));
    /// # Ok::<(), pmu_core::x86::dump::DumpError>(())
    /// ```
    ///
    /// # Errors
    /// [`CorruptsSibling`]: the event is one of [`EVENTS`](Self::EVENTS).
    pub fn check(self, select: EventSelect) -> Result<(), CorruptsSibling> {
        let event = select.event_number();
        if Self::EVENTS.contains(&event) {
            return Err(CorruptsSibling { event, erratum: self.id });
        }
        Ok(())
    }
}

/// Error for an event that can corrupt the counters of the core's other logical processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CorruptsSibling {
    /// The event number.
    pub event: u16,
    /// The erratum's name in the specification update, for example "BJ122".
    pub erratum: &'static str,
}

impl fmt::Display for CorruptsSibling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, erratum } = self;
        write!(
            f,
            "event {event:#X} corrupts the counters of the other logical processor (erratum {erratum})"
        )
    }
}

impl core::error::Error for CorruptsSibling {}
