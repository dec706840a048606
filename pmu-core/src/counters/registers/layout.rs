//! The layout of a processor's counters and of its event selects, which a vendor's crate describes. A `CounterUnit` is
//! made of both.

use crate::counters::names::{CounterSet, GenericEvent};
use crate::counters::registers::counter::{CounterBank, FixedCounters, FullWidth};
use crate::counters::registers::unit::GlobalRegisters;
use crate::counters::registers::unused::PreciseSampling;

/// The counters of a processor and their registers.
///
/// The register addresses are those that all processors of a vendor share. Everything else comes from the
/// identification of one processor, such as its CPUID. [`CounterUnit::of`](crate::CounterUnit::of) calls each method
/// once. Interrupts use the [`CounterUnit`](crate::CounterUnit), which is plain data.
///
/// # Safety
/// On the processor that the value describes:
/// - For each general counter in [`counters`](Self::counters), [`general`](Self::general) gives the addresses of its
///   event select and of its value register. For each fixed counter, [`fixed`](Self::fixed) gives the addresses of the
///   shared control register and of the counter's value register. No value of these registers makes the processor write
///   to memory.
/// - Reading the capability register of [`full_width`](Self::full_width) has no effect. If its bit declares the
///   full-width addresses, a write to address *n* writes the value register of general counter *n*.
///
/// ```
/// use pmu_core::registers::{CounterBank, CounterLayout, SelectLayout};
/// use pmu_core::{CounterSet, CounterUnit};
///
/// static LEGACY: CounterBank = CounterBank {
///     select: 0xC001_0000,
///     value: 0xC001_0004,
///     step: 1,
///     indexed: 0,
///     sign_extended: false,
///     counts_every_number: false,
/// };
///
/// /// Any AMD64 processor.
/// struct Legacy;
///
/// // SAFETY: 0xC0010000–3 are event selects and 0xC0010004–7 counters of every AMD64 processor (APM vol. 2, §13.2.1).
/// unsafe impl CounterLayout for Legacy {
///     fn counters(&self) -> CounterSet {
///         CounterSet::from_bits(0b1111)
///     }
///     fn general(&self) -> (&'static CounterBank, u8) {
///         (&LEGACY, 48)
///     }
/// }
/// impl SelectLayout for Legacy {
///     fn event_bits(&self) -> u64 {
///         0xFFFF_FFFF
///     }
/// }
/// assert_eq!(CounterUnit::of(&Legacy).counters().len(), 4);
/// ```
///
/// Wrong: `CounterSet::from_bits(0x1FFF)` above. The select of a fifth counter would be the first counter's value, and
/// the value of a thirteenth 0xC0010010, SYSCFG, which controls memory encryption. Also wrong: registers of fixed
/// counters for Intel's architectural version 1, which has none, or a [`FullWidth`] whose bit declares another feature,
/// such as `PEBS_BASELINE`.
pub unsafe trait CounterLayout {
    /// Returns the processor's counters. A counter's bit is that of the [global registers](Self::global). Fixed
    /// counters without registers are left out of the unit: see [`fixed`](Self::fixed).
    fn counters(&self) -> CounterSet;

    /// Returns the registers of the general counters, and the width of each in bits (32–64).
    fn general(&self) -> (&'static CounterBank, u8);

    /// Returns the registers of the fixed counters, and the width of each in bits (32–64). The default is `None`. A
    /// processor without these registers, or without [global registers](Self::global), has no fixed counters, whatever
    /// [`counters`](Self::counters) says.
    fn fixed(&self) -> Option<(&'static FixedCounters, u8)> {
        None
    }

    /// Returns the full-width addresses of the general counters. A bit of a capability register declares these
    /// addresses. The default is `None`.
    fn full_width(&self) -> Option<&'static FullWidth> {
        None
    }

    /// Returns the registers that control all counters together. The default is `None`.
    fn global(&self) -> Option<&'static GlobalRegisters> {
        None
    }

    /// Returns the register that enables precise sampling (PEBS) by one bit per counter.
    /// [`take`](crate::CounterSession::take) disables precise sampling that firmware left enabled. The default is
    /// `None`.
    ///
    /// Auto counter reload, and Intel's architectural PEBS, have one register per counter: see
    /// [`UnusedRegisters`](crate::registers::UnusedRegisters).
    fn precise_sampling(&self) -> Option<&'static PreciseSampling> {
        None
    }

    /// Returns whether the interrupt controller may mask the performance interrupt when it delivers it. With `true`,
    /// [`service`](crate::service) unmasks the interrupt each time, as it does where the interrupt
    /// [is a level](crate::Platform::is_level_interrupt). The default is `false`.
    fn is_masked_on_delivery(&self) -> bool {
        false
    }
}

/// The event selects of a processor: which bits an event may set, and what they mean.
///
/// Bits 16 and 17 of every select are the modes of x86, user and kernel; the backend of another architecture translates
/// them. [`CounterUnit::of`](crate::CounterUnit::of) calls each method once.
///
/// ```
/// use pmu_core::GenericEvent;
/// use pmu_core::registers::SelectLayout;
///
/// /// A processor whose events have eight bits. It counts cycles by event 0x11, and instructions by event 0x08.
/// struct Small;
///
/// impl SelectLayout for Small {
///     fn event_bits(&self) -> u64 {
///         0x3_00FF
///     }
///     fn generic_events(&self) -> (&'static [u64; GenericEvent::COUNT], u8) {
///         (&[0x11, 0x08, 0, 0, 0, 0, 0], u8::MAX)
///     }
/// }
/// ```
pub trait SelectLayout {
    /// Returns the mask of the select bits that an event may set, the mode bits 16 and 17 among them: without these, no
    /// generic event and no profile source can be opened. Setting any other bit faults, or changes something other than
    /// the event.
    fn event_bits(&self) -> u64;

    /// Returns the event number and unit mask of each [`GenericEvent`], in the order of [`GenericEvent::ALL`], and a
    /// mask with a bit for each. The processor lacks an event if its bit is clear, or if its value is 0. The default
    /// has no events.
    fn generic_events(&self) -> (&'static [u64; GenericEvent::COUNT], u8) {
        (&[0; _], 0)
    }

    /// Returns whether each counter has a control bit that denies RDPMC above privilege level 0. In an event select
    /// this is bit 37. In the control register of the fixed counters, this is bit 33 + 4*n* for counter *n*. The
    /// default is `false`.
    fn denies_user_reads(&self) -> bool {
        false
    }

    /// Returns the select bits that confine an event to guests, and to the host. These bits may be set in a select only
    /// while virtualization is on. The default is `[0, 0]`: there are none.
    fn guest_bits(&self) -> [u64; 2] {
        [0; 2]
    }

    /// Returns whether the processor cannot run guests. [Events outside guests](crate::Event::outside_guests) are then
    /// counted all the time. The default is `false`.
    fn runs_no_guests(&self) -> bool {
        false
    }

    /// Returns the numbers of two events: the first may happen more than 15 times per cycle. A counter counts this
    /// event correctly only while the next counter counts the second event. These crates do not support pairs of
    /// counters. Opening the second event fails. Opening the first needs the
    /// [promise](crate::Event::at_most_15_per_cycle) of at most 15 per cycle. The default is `[0, 0]`: there are none.
    fn merged_events(&self) -> [u16; 2] {
        [0; 2]
    }
}
