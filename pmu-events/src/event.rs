//! An event of a core type, with its encodings and constraints.

use core::fmt;

use pmu_core::access::RegisterAddress;
use pmu_core::registers::EventSelect;
use pmu_core::{CounterSet, Event};

use crate::format::{Dictionary, Precise, Record};
use crate::name::EventName;
use crate::name::hash::{ROOM, Wanted};
use crate::tables::ERRATA;

/// An event of a core type, as the vendor's list describes it: name, encodings, and the counters that can count the
/// event.
///
/// ```
/// use pmu_core::{CounterSet, Event};
/// let event = pmu_events::SKYLAKE.event("offcore_response.demand_data_rd.any_response")?;
/// let [first, second] = [0, 1].map(|place| event.encodings().nth(place).unwrap());
/// assert_eq!(first.select.select_bits(), 0x01B7);
/// assert_eq!(first.extra.map(|extra| (extra.register, extra.value)), Some((0x1A6, 0x10001)));
/// assert_eq!(second.select.select_bits(), 0x01BB); // the same, by the other register
/// assert_eq!(second.extra.map(|extra| extra.register), Some(0x1A7));
///
/// // For the counter layer: on the counters that can count it.
/// let slots = pmu_events::ICELAKE.event("TOPDOWN.SLOTS")?;
/// assert!(slots.is_fixed_only());
/// assert_eq!(slots.counters(), CounterSet::fixed(0b1000));
/// let slots: Event = slots.into();
/// # let _ = slots;
/// # Ok::<(), pmu_events::EventError>(())
/// ```
#[derive(Clone, Copy)]
pub struct PmuEvent {
    record: Record,
    dictionary: &'static Dictionary,
}

impl PmuEvent {
    pub(crate) const fn new(record: Record, dictionary: &'static Dictionary) -> Self {
        Self { record, dictionary }
    }

    /// Returns the name of the event, as the vendor's list spells it.
    pub fn name(&self) -> EventName {
        let mut name = EventName::EMPTY;
        for token in self.dictionary.tokens(self.record.name) {
            token.push_to(&mut name);
        }
        name
    }

    /// Returns the event's select: event number, unit mask with its extension, and qualifiers. The mode bits, the
    /// interrupt bit and the enable bit are 0.
    ///
    /// If the event has several encodings, the function returns the select of the first encoding. For an event that
    /// only a fixed counter counts, the function returns the encoding in the vendor's list. Do not write this encoding
    /// to an event-select register.
    pub const fn select(&self) -> EventSelect {
        EventSelect::from_bits(self.record.select)
    }

    /// Returns the counters of the core type that can count the event.
    ///
    /// A processor of the core type may lack some of these counters. For every event of an AMD core type, the result
    /// has all general counters.
    ///
    /// ```
    /// use pmu_core::CounterSet;
    /// let misses = pmu_events::SAPPHIRERAPIDS.event("mem_load_retired.l3_miss")?;
    /// assert_eq!(misses.counters(), CounterSet::from_bits(0b1111)); // four of the eight general counters
    /// # Ok::<(), pmu_events::EventError>(())
    /// ```
    pub const fn counters(&self) -> CounterSet {
        CounterSet::from_bits(self.record.shape.counters)
    }

    /// Returns whether the event can happen more than 15 times per cycle. Only a merged pair of counters counts such an
    /// event correctly.
    ///
    /// An example is the event of retired floating-point operations on AMD Zen processors. `pmu-core` does not merge
    /// counters, so it [refuses](pmu_core::error::CounterError::NeedsCounterPair) such an event. `pmu-core` accepts the
    /// event if the caller declares, by [`at_most_15_per_cycle`](Event::at_most_15_per_cycle), that the event happens
    /// at most 15 times per cycle.
    ///
    /// ```
    /// use pmu_core::Event;
    /// let operations = pmu_events::ZEN4.event("fp_ret_sse_avx_ops.all")?;
    /// assert!(operations.needs_counter_pair());
    /// let scalar_code = Event::from(operations).at_most_15_per_cycle();
    /// # let _ = scalar_code;
    /// # Ok::<(), pmu_events::EventError>(())
    /// ```
    pub const fn needs_counter_pair(&self) -> bool {
        self.record.shape.needs_pair
    }

    /// Returns whether only a fixed counter can count the event.
    ///
    /// If the result is `true`, do not program a general counter with the event's [`select`](Self::select): the counter
    /// would not count the event.
    pub const fn is_fixed_only(&self) -> bool {
        self.record.shape.counters & CounterSet::GENERAL.bits() == 0
    }

    /// Returns the encodings of the event. Some events need a value in an MSR in addition to the select, and can use
    /// either of two MSRs, such as `OFFCORE_RSP_0` and `OFFCORE_RSP_1`. Such an event has one encoding per MSR. All
    /// encodings of an event give the same count.
    ///
    /// ```
    /// use pmu_events::{Encoding, EventError, SKYLAKE};
    /// // The other encoding, while the first one's MSR has a value for another event.
    /// let event = SKYLAKE.event("offcore_response.demand_data_rd.any_response")?;
    /// let is_free = |way: &Encoding| way.extra.is_none_or(|extra| extra.register != 0x1A6);
    /// let way = event.encodings().find(is_free).unwrap();
    /// assert_eq!(way.select.select_bits(), 0x01BB);
    /// # Ok::<(), EventError>(())
    /// ```
    pub fn encodings(&self) -> impl ExactSizeIterator<Item = Encoding> + Clone {
        let Record { select, shape, value, .. } = self.record;
        let value = value.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        // `others` are differences, so that events with different numbers can have the same shape: a shape's place is
        // one byte of a record.
        (0..shape.others.len() + 1).map(move |place| {
            let other = place.checked_sub(1).and_then(|place| shape.others.get(place)).copied();
            let register = shape.registers.get(place).copied();
            Encoding {
                select: EventSelect::from_bits(select ^ u64::from(other.unwrap_or(0))),
                extra: register.map(|register| ExtraMsr { register: register.into(), value }),
            }
        })
    }

    /// Returns the MSR of the event's first [encoding](Encoding), with the value that the event needs in the MSR.
    /// Returns `None` if this encoding has no MSR.
    ///
    /// ```
    /// // The latency in cycles above which loads are counted is in an MSR.
    /// let slow = pmu_events::SKYLAKE.event("mem_trans_retired.load_latency_gt_64")?;
    /// let extra = slow.extra().unwrap();
    /// assert_eq!((extra.register, extra.value), (0x3F6, 64));
    /// # Ok::<(), pmu_events::EventError>(())
    /// ```
    pub fn extra(&self) -> Option<ExtraMsr> {
        self.encodings().next().and_then(|encoding| encoding.extra)
    }

    /// Returns whether precise sampling (PEBS) of the event is impossible, possible or required.
    pub const fn precise(&self) -> Precise {
        self.record.shape.precise
    }

    /// Returns the numbers of the vendor's errata about the event, separated by semicolons, for example
    /// `SKL091;SKL044`. The result is `None` if there are no such errata.
    ///
    /// ```
    /// let event = pmu_events::SKYLAKE.event("inst_retired.any_p")?;
    /// for erratum in event.errata().into_iter().flat_map(|errata| errata.split(';')) {
    ///     println!("{}: see erratum {erratum} in the specification update", event.name());
    /// }
    /// # assert!(event.errata().is_some());
    /// # Ok::<(), pmu_events::EventError>(())
    /// ```
    ///
    /// # Limitations
    /// Only the core types whose lists are in Linux 6.1 have errata.
    pub fn errata(&self) -> Option<&'static str> {
        self.record.erratum.and_then(|place| ERRATA.get(usize::from(place)).copied())
    }

    /// Returns the fields `config` and `config1` of Linux' `perf_event_attr`, to open the event as `PERF_TYPE_RAW`.
    ///
    /// ```
    /// let event = pmu_events::SKYLAKE.event("mem_trans_retired.load_latency_gt_64")?;
    /// let (config, config1) = event.perf_config();
    /// // As perf's command line takes it.
    /// assert_eq!(format!("cpu/config={config:#x},config1={config1:#x}/"), "cpu/config=0x1cd,config1=0x40/");
    /// # Ok::<(), pmu_events::EventError>(())
    /// ```
    ///
    /// `config1` is the value that the event needs in the [extra MSR](Self::extra), or 0. `config` is the event's
    /// [`select`](Self::select), with two exceptions. If only fixed counter 0 counts the event, `config` has event
    /// number 0xC0 and unit mask 0. If only fixed counter 1 counts the event, `config` has event number 0x3C and unit
    /// mask 0. These are the encodings for a general counter, which perf expects. Source: the constraints in Linux'
    /// `arch/x86/events/intel/core.c`.
    pub fn perf_config(&self) -> (u64, u64) {
        let qualifiers = self.record.select & !0xFFFF;
        // Linux knows these two events by the encodings of general counters: its constraints put 0xC0 and 0x3C on the
        // fixed counters.
        let config = match (self.is_fixed_only(), self.record.select & 0xFFFF) {
            (true, 0x0100) => qualifiers | 0x00C0,
            (true, 0x0200) => qualifiers | 0x003C,
            _ => self.record.select,
        };
        (config, self.extra().map_or(0, |extra| extra.value))
    }

    /// Returns the event with another value in a field of its select, by perf's name of the field.
    pub(crate) fn with_field(mut self, field: &str, value: u8) -> Option<Self> {
        let (shift, mask) = match field {
            "umask" => (8, 0xFF),
            "edge" => (18, 1),
            "cmask" => (24, 0xFF),
            // A field that was left out would make the event another one; without the event, the metric says what it
            // lacks.
            _ => return None,
        };
        let cleared = self.record.select & !(mask << shift);
        self.record.select = cleared | (u64::from(value) & mask) << shift;
        Some(self)
    }

    /// Returns whether this is its name, in letters of either case.
    #[inline]
    pub(crate) fn is_named(&self, name: &Wanted<'_>) -> bool {
        let mut at = 0;
        for token in self.dictionary.tokens(self.record.name) {
            // The mask is 0 behind the token, so tokens of every length are compared as one number of 16 bytes.
            if (name.window(at) ^ token.spelled) & token.mask != 0 {
                return false;
            }
            // Never wraps, because no name fills its room: the remainder shows the compiler that `window` stays within
            // it.
            at = (at + usize::from(token.len)) % ROOM;
        }
        // A wanted name may continue behind the last token. One that ends before it has failed already: no token
        // matches the zeros there.
        at == name.len()
    }
}

/// Converts a `PmuEvent` to an [`Event`], which `pmu-core` can count. The [`Event`] has all encodings of the
/// `PmuEvent`, and the [extra registers](Event::with_extra) of these encodings.
///
/// The event is counted at every privilege level, on the counters that can count it.
///
/// Get the `PmuEvent` from the [`Processor`](crate::Processor) of the core that counts the event. On a core of another
/// type, the same select may count a different event. `pmu-core` cannot detect this mistake.
impl From<PmuEvent> for Event {
    fn from(event: PmuEvent) -> Self {
        let plain = Self::raw(event.select()).on(event.counters());
        // An alternative is 16 bits, because the generator refuses encodings that differ in more than event number and
        // unit mask.
        event.encodings().enumerate().fold(plain, |plain, (place, Encoding { select, extra })| {
            match extra.and_then(|extra| Some((extra.address()?, extra.value))) {
                Some((register, value)) if place == 0 => plain.with_extra(register, value),
                Some((register, _)) => plain.or_with_extra(select.select_bits() as u16, register),
                None => plain,
            }
        })
    }
}

impl fmt::Debug for PmuEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.name(), self.select())
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for PmuEvent {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{} ({})", self.name(), self.select());
    }
}

/// One way to count an event: an event select and, for some events, the value of a further MSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Encoding {
    /// Event select, without mode, interrupt and enable bits.
    pub select: EventSelect,
    /// MSR that the event needs in addition to its select, or `None` if the select is enough.
    pub extra: Option<ExtraMsr>,
}

/// An MSR that an event needs in addition to its select, and the value that the event needs in the MSR. Linux has these
/// MSRs in `extra_regs`.
///
/// Events that need different values in the same MSR cannot be counted at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ExtraMsr {
    /// Address of the MSR: `OFFCORE_RSP_0` and `OFFCORE_RSP_1` (0x1A6, 0x1A7), `PEBS_LD_LAT_THRESHOLD` (0x3F6),
    /// `PEBS_FRONTEND` (0x3F7), or the off-module response registers (0x3E0–0x3E3).
    pub register: u32,
    /// Value that the event needs in the MSR.
    pub value: u64,
}

impl ExtraMsr {
    /// Returns the address of the MSR as a [`RegisterAddress`] of `pmu-core`. Returns `None` if no event in this
    /// crate's tables needs an MSR with this address.
    pub const fn address(&self) -> Option<RegisterAddress> {
        // The field is public, so it may have any number. An unknown register might hold an address, to which the
        // processor writes.
        match self.register {
            0x1A6 | 0x1A7 | 0x3E0..=0x3E3 | 0x3F6 | 0x3F7 => {
                // SAFETY: masks and thresholds of events (SDM vol. 4); none holds an address.
                Some(unsafe { RegisterAddress::new(self.register) })
            }
            _ => None,
        }
    }
}

impl fmt::Debug for ExtraMsr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MSR {:#X} = {:#X}", self.register, self.value)
    }
}
