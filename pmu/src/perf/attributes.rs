//! The fields of `perf_event_attr` that select an event, and the [`Event`]s that they stand for.

use core::fmt;
use core::str::FromStr;

use pmu_core::access::RegisterAddress;
use pmu_core::registers::{EventList, EventSelect};
use pmu_core::{CounterSet, Event, GenericEvent, SoftwareEvent};
use pmu_intel::precise::registers::MSR_PEBS_LD_LAT_THRESHOLD;

use crate::perf::error::PerfError;
use crate::perf::sampled_ops::{PERF_TYPE_IBS_FETCH, PERF_TYPE_IBS_OP};

/// Type of perf's generic events, `PERF_TYPE_HARDWARE`: the configuration is the number of an event in
/// [`HARDWARE_EVENTS`].
pub const PERF_TYPE_HARDWARE: u32 = 0;

/// Type of perf's software events, `PERF_TYPE_SOFTWARE`: the configuration is the number of a
/// [`SoftwareEvent`](pmu_core::SoftwareEvent).
pub const PERF_TYPE_SOFTWARE: u32 = 1;

/// Type of raw events, `PERF_TYPE_RAW`: the configuration is a [`RawConfig`].
pub const PERF_TYPE_RAW: u32 = 4;

/// The hardware events of perf that are [`GenericEvent`]s, with their numbers: `PERF_COUNT_HW_CPU_CYCLES`,
/// `PERF_COUNT_HW_INSTRUCTIONS` and others. Three events are not in this list: bus cycles (6), stalled cycles of the
/// front end (7) and stalled cycles of the back end (8). For these, [`PerfAttributes::event`] returns raw events of a
/// processor.
pub const HARDWARE_EVENTS: [(u64, GenericEvent); GenericEvent::COUNT] = [
    (0, GenericEvent::Cycles),
    (1, GenericEvent::Instructions),
    (2, GenericEvent::CacheReferences),
    (3, GenericEvent::CacheMisses),
    (4, GenericEvent::Branches),
    (5, GenericEvent::BranchMisses),
    (9, GenericEvent::ReferenceCycles),
];

/// Extra register of each of Intel's events that have one, by event and unit mask: off-core response, Nova Lake's
/// off-module response, load latency, and front end. An event that several registers serve has several numbers.
///
/// Source: SDM vol. 4 (the registers), vol. 3B (the events); Linux' `arch/x86/events/intel/core.c` (that `config1` is
/// their value).
const EXTRA_REGISTERS: [(u16, u32); 17] = [
    (0x01B7, 0x1A6),
    (0x01BB, 0x1A7),
    (0x02B7, 0x1A7),
    (0x012A, 0x1A6),
    (0x012B, 0x1A7),
    (0x01D6, 0x3E0),
    (0x02D6, 0x3E1),
    (0x04D6, 0x3E2),
    (0x08D6, 0x3E3),
    (0x100B, 0x3F6),
    (0x01CD, 0x3F6),
    (0x05D0, 0x3F6),
    (0x01C6, 0x3F7),
    (0x02C6, 0x3F7),
    (0x03C6, 0x3F7),
    (0x04C2, 0x3F7),
    (0x40AD, 0x3F7),
];

/// Returns the extra register of the event with these bits.
fn extra_register(config: u64) -> Option<RegisterAddress> {
    let known = EXTRA_REGISTERS.iter().find(|(event, _)| u64::from(*event) == config & 0xFFFF);
    // SAFETY: masks and thresholds of events; none holds an address.
    known.map(|(_, register)| unsafe { RegisterAddress::new(*register) })
}

/// Returns whether this is the register of the event of load latencies.
fn is_latency(register: Option<RegisterAddress>) -> bool {
    register.is_some_and(|register| register.get() == MSR_PEBS_LD_LAT_THRESHOLD)
}

impl PerfAttributes {
    /// Takes the latency of the event of load latencies out of `config1`: `None` if the event is another one, or has no
    /// latency.
    pub(crate) fn take_latency(&mut self) -> Option<u16> {
        let register = extra_register(self.config).filter(|_| self.type_ == PERF_TYPE_RAW);
        let latency = u16::try_from(self.config1).ok().filter(|latency| *latency != 0)?;
        is_latency(register).then(|| {
            self.config1 = 0;
            latency
        })
    }

    /// Converts the attributes into an event.
    ///
    /// `list` has the events of the processor, for instance as a `CoreType` of `pmu-events`, or `&()`. A raw event is
    /// [confined](Event::on) to the counters that can count it. Cache events, bus cycles and stalled cycles,
    /// which processors encode differently, are raw events of the list. If the list has the event that Linux counts,
    /// the function returns that event. Page walks are an exception on some processors: there, Linux counts the walks
    /// that began, but the returned event counts the walks that completed.
    ///
    /// In perf, user mode can read the count of an event that has a period. A kernel that supports such reads calls
    /// [`with_total`](Event::with_total) on the event. perf can also multiplex events. A kernel that supports
    /// multiplexing calls [`rotating`](Event::rotating) on the event.
    ///
    /// ```
    /// use pmu::{Event, Snapshot};
    /// use pmu::perf::{PERF_TYPE_RAW, PerfAttributes, RawConfig};
    /// use pmu_events::Processor;
    ///
    /// /// Returns the event of a text such as `cpu/event=0xd1,umask=0x20/`, for the processor with this CPUID.
    /// fn event(text: &str, this: &Snapshot) -> Result<Event, Box<dyn core::error::Error>> {
    ///     let core_type = Processor::detect(this)?.core_type();
    ///     let config = text.parse::<RawConfig>()?.bits();
    ///     let attributes = PerfAttributes { type_: PERF_TYPE_RAW, config, ..PerfAttributes::default() };
    ///     Ok(attributes.event(core_type)?)
    /// }
    /// # let dump = pmu::core::x86::dump::CpuidDump::parse(
    /// #     "   0x00000000 0x00: eax=0x00000020 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
    /// #         0x00000001 0x00: eax=0x000806f8 ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
    /// # )?;
    /// # use pmu::CounterSet;
    /// # use pmu::core::registers::EventSelect;
    /// # let confined = event("cpu/event=0xd1,umask=0x20/", &Snapshot::capture(&dump))?;
    /// # let counters = CounterSet::from_bits(0b1111) | CounterSet::FIXED;
    /// # assert_eq!(confined, Event::raw(EventSelect::from_bits(0x20D1)).on(counters));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Type`](PerfError::Type), [`Hardware`](PerfError::Hardware), [`Software`](PerfError::Software),
    /// [`Bits`](PerfError::Bits), [`ExcludesAll`](PerfError::ExcludesAll),
    /// [`NoExtraRegister`](PerfError::NoExtraRegister), [`NotOnProcessor`](PerfError::NotOnProcessor): the attributes
    /// select no event.
    pub fn event(self, list: &dyn EventList) -> Result<Event, PerfError> {
        self.resolved(list)?.event_with(false, list)
    }

    /// Converts [resolved](Self::resolved) attributes into an event. `physical` adds physical addresses to the samples
    /// of sampled ops and fetches.
    pub(crate) fn event_with(
        self,
        physical: bool,
        list: &dyn EventList,
    ) -> Result<Event, PerfError> {
        let event = match self.type_ {
            PERF_TYPE_HARDWARE => {
                let known = HARDWARE_EVENTS.iter().find(|(number, _)| *number == self.config);
                let (_, name) = known.ok_or(PerfError::Hardware(self.config))?;
                Event::generic(*name)
            }
            PERF_TYPE_SOFTWARE => return self.software(),
            PERF_TYPE_IBS_FETCH | PERF_TYPE_IBS_OP => {
                let sampling = self.sampling()?;
                if physical { sampling.with_physical_addresses() } else { sampling }.event()
            }
            PERF_TYPE_RAW => {
                let select = RawConfig::new(self.config)?.select();
                Event::raw(select).on(list.constraints(select).unwrap_or(CounterSet::ALL))
            }
            other => return Err(PerfError::Type(other)),
        };
        let raw = self.type_ == PERF_TYPE_RAW;
        let event = match extra_register(self.config).filter(|_| raw) {
            _ if self.config1 == 0 || self.is_of_ibs() => event,
            Some(register) => event.with_extra(register, self.config1),
            None => return Err(PerfError::NoExtraRegister(self.config)),
        };
        let event = self.in_modes(event)?;
        let event = match (self.exclude_host, self.exclude_guest) {
            (false, false) => event,
            (true, false) => event.in_guests(),
            (false, true) => event.outside_guests(),
            (true, true) => return Err(PerfError::ExcludesAll),
        };
        Ok(if self.sample_period == 0 { event } else { event.every(self.sample_period) })
    }

    /// Converts the attributes of a software event. As in Linux, it does not know of guests, and a clock's shortest
    /// period takes the place of a shorter one.
    fn software(self) -> Result<Event, PerfError> {
        let what = SoftwareEvent::of_number(self.config);
        let what = what.ok_or(PerfError::Software(self.config))?;
        let event = self.in_modes(Event::software(what))?;
        Ok(match self.sample_period {
            0 => event,
            period if what.is_clock() => event.every(period.max(SoftwareEvent::MIN_CLOCK_PERIOD)),
            period => event.every(period),
        })
    }

    const fn in_modes(self, event: Event) -> Result<Event, PerfError> {
        match (self.exclude_user, self.exclude_kernel) {
            (false, false) => Ok(event),
            (true, false) => Ok(event.kernel_only()),
            (false, true) => Ok(event.user_only()),
            (true, true) => Err(PerfError::ExcludesAll),
        }
    }
}

/// Fields of perf's `perf_event_attr` that select an event and its privilege levels. If all fields are 0, the event
/// counts cycles at all privilege levels, and does not interrupt.
///
/// ```
/// use pmu::Event;
/// use pmu::core::registers::EventSelect;
/// use pmu::perf::{PERF_TYPE_RAW, PerfAttributes};
/// // perf stat -e r1a8:u
/// let attributes = PerfAttributes {
///     type_: PERF_TYPE_RAW,
///     config: 0x1A8,
///     exclude_kernel: true,
///     ..PerfAttributes::default()
/// };
/// let event = Event::try_from(attributes)?;
/// assert_eq!(event, Event::raw(EventSelect::from_bits(0x1A8)).user_only());
/// assert_eq!(PerfAttributes::try_from(event)?, attributes);
/// # Ok::<(), pmu::perf::PerfError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PerfAttributes {
    /// `type`: [`PERF_TYPE_HARDWARE`], [`PERF_TYPE_SOFTWARE`],
    /// [`PERF_TYPE_HW_CACHE`](crate::perf::PERF_TYPE_HW_CACHE), [`PERF_TYPE_RAW`], [`PERF_TYPE_IBS_OP`] or
    /// [`PERF_TYPE_IBS_FETCH`].
    pub type_: u32,
    /// `config`: the event, in the encoding that `type` selects.
    pub config: u64,
    /// `config1`: value of the event's [extra register](Event::with_extra), if the event has one. perf's terms
    /// `offcore_rsp`, `ldlat` and `frontend` set this value. If `config1` is 0, the extra register is not written. Some
    /// events can use one of two extra registers. For these events, `config` selects the register.
    pub config1: u64,
    /// `sample_period`: number of events between two interrupts; 0 for no interrupt.
    pub sample_period: u64,
    /// `exclude_user`: does not count above privilege level 0.
    pub exclude_user: bool,
    /// `exclude_kernel`: does not count at privilege level 0.
    pub exclude_kernel: bool,
    /// `exclude_host`: counts only while a guest runs.
    pub exclude_host: bool,
    /// `exclude_guest`: counts only while no guest runs.
    pub exclude_guest: bool,
}

/// Converts the attributes like [`PerfAttributes::event`], but lets a raw event use any counter. On AMD's processors,
/// every core counter can count every event. On Intel's processors, use `PerfAttributes::event`, because some counters
/// count some events wrongly or not at all.
///
/// # Errors
/// The errors of [`PerfAttributes::event`].
impl TryFrom<PerfAttributes> for Event {
    type Error = PerfError;

    fn try_from(perf: PerfAttributes) -> Result<Self, PerfError> {
        perf.event(&())
    }
}

/// Converts an event into perf's attributes. A property of the event is lost if [`PerfAttributes`] has no field for it.
/// For example, the attributes do not contain the counters that [`on`](Event::on) set, or the tag that
/// [`tagged`](Event::tagged) set.
///
/// # Errors
/// - [`Bits`](PerfError::Bits): the event select of the event has bits that belong to no term.
/// - [`Hardware`](PerfError::Hardware): the event is a generic event that is not in [`HARDWARE_EVENTS`].
/// - [`NoExtraRegister`](PerfError::NoExtraRegister): the event has an extra register that perf does not write for this
///   event, or a [latency](Event::latency_at_least) without being an event of load latencies.
impl TryFrom<Event> for PerfAttributes {
    type Error = PerfError;

    fn try_from(event: Event) -> Result<Self, PerfError> {
        let software = event.software_event().map(SoftwareEvent::number);
        let (type_, config) = match (software, event.select(), event.name()) {
            (Some(number), ..) => (PERF_TYPE_SOFTWARE, number),
            (_, Some(select), _) => (PERF_TYPE_RAW, RawConfig::new(select.select_bits())?.bits()),
            (_, None, name) => {
                let known = HARDWARE_EVENTS.iter().find(|(_, known)| Some(*known) == name);
                let (number, _) = known.ok_or(PerfError::Hardware(u64::MAX))?;
                (PERF_TYPE_HARDWARE, *number)
            }
        };
        let register = if type_ == PERF_TYPE_RAW { extra_register(config) } else { None };
        let config1 = match event.extra() {
            Some((own, value)) if Some(own) == register => value,
            Some(_) => return Err(PerfError::NoExtraRegister(config)),
            None => match event.latency() {
                None => 0,
                Some(latency) if is_latency(register) => latency.into(),
                Some(_) => return Err(PerfError::NoExtraRegister(config)),
            },
        };
        Ok(Self {
            type_,
            config,
            config1,
            sample_period: event.period().unwrap_or(0),
            exclude_user: !event.counts_user(),
            exclude_kernel: !event.counts_kernel(),
            exclude_host: !event.counts_outside_guests(),
            exclude_guest: !event.counts_in_guests(),
        })
    }
}

/// Raw configuration of perf: the bits of an event select, without bits 16, 17, 20 and 22, which perf itself sets.
///
/// As a text, the configuration is written in one of two ways. The first way is hexadecimal, as in `r01c0`, with the
/// event in the low byte and the unit mask in the next byte. The second way is terms, as in
/// `cpu/event=0xc0,umask=0x1/`. A term of one bit may be written without a value, as in `cpu/event=0xc0,inv/`. As in
/// perf, `cpu/r1a8/` and `cpu/config=0x1a8/` mean the same as `r1a8`. The names and bits of the terms are the same as
/// in the Linux kernel's `format` files in sysfs:
///
/// | term | bits |
/// |---|---|
/// | `event` | 7:0, and 35:32 on AMD's processors |
/// | `umask` | 15:8, and 47:40 on Intel's processors with a second unit mask |
/// | `edge`, `pc`, `any`, `inv` | 18, 19, 21, 23 |
/// | `cmask` | 31:24 |
/// | `eq` | 36 |
///
/// A processor's event selects may lack some of these bits. Opening an event fails if its configuration has a bit that
/// the processor's event selects lack. The parser also accepts Intel's terms `in_tx` (bit 32) and `in_tx_cp` (bit 33).
/// [`terms`](Self::terms) writes bits 32 and 33 as high bits of `event`. This text is correct for AMD's processors, but
/// perf on Intel's processors refuses it. The hexadecimal form, such as `r1000001c0`, is correct for both vendors.
///
/// ```
/// use pmu::perf::RawConfig;
/// let config: RawConfig = "cpu/event=0xc0,umask=0x1,cmask=4,inv,edge/".parse()?;
/// assert_eq!(config.bits(), 0x0484_01C0);
/// assert_eq!(config.to_string(), "r48401c0");
/// assert_eq!(config.terms().to_string(), "cpu/event=0xc0,umask=0x1,edge,inv,cmask=0x4/");
/// assert_eq!("r01c0".parse::<RawConfig>()?.bits(), 0x01C0);
/// # Ok::<(), pmu::perf::PerfError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RawConfig(u64);

/// Term of a raw configuration: its name, and its fields' lowest bits and widths, the value's low bits first.
pub(crate) struct Term {
    name: &'static str,
    fields: &'static [(u32, u32)],
}

/// Terms in the order in which they are written. The last two are only read, because the first one has their bits, too.
const TERMS: [Term; 10] = [
    Term { name: "event", fields: &[(0, 8), (32, 4)] },
    Term { name: "umask", fields: &[(8, 8), (40, 8)] },
    Term { name: "edge", fields: &[(18, 1)] },
    Term { name: "pc", fields: &[(19, 1)] },
    Term { name: "any", fields: &[(21, 1)] },
    Term { name: "inv", fields: &[(23, 1)] },
    Term { name: "cmask", fields: &[(24, 8)] },
    Term { name: "eq", fields: &[(36, 1)] },
    Term { name: "in_tx", fields: &[(32, 1)] },
    Term { name: "in_tx_cp", fields: &[(33, 1)] },
];

const WRITTEN: usize = 8;

impl Term {
    fn is_flag(&self) -> bool {
        matches!(self.fields, [(_, 1)])
    }

    /// Returns the configuration bits of this value; `None` if it is too great.
    fn of(&self, value: u64) -> Option<u64> {
        let mut left = value;
        let bits = self.fields.iter().fold(0, |bits, (lowest, width)| {
            let low = left & ((1 << width) - 1);
            left >>= width;
            bits | low << lowest
        });
        (left == 0).then_some(bits)
    }

    /// Returns the term's value in a configuration.
    fn value(&self, bits: u64) -> u64 {
        let fields = self.fields.iter().rev();
        fields
            .fold(0, |value, (lowest, width)| value << width | bits >> lowest & ((1 << width) - 1))
    }

    /// Returns the mask of the term's bits.
    fn mask(&self) -> u64 {
        self.fields.iter().fold(0, |bits, (lowest, width)| bits | ((1 << width) - 1) << lowest)
    }
}

impl RawConfig {
    /// Creates a configuration from its bits.
    ///
    /// # Errors
    /// [`Bits`](PerfError::Bits): some of `bits` belong to no term.
    ///
    /// ```
    /// use pmu::perf::{PerfError, RawConfig};
    /// assert_eq!(RawConfig::new(0x01C0)?.select().select_bits(), 0x01C0);
    /// // Bit 22 enables a counter, which perf does itself.
    /// assert_eq!(RawConfig::new(0x40_01C0), Err(PerfError::Bits(1 << 22)));
    /// # Ok::<(), PerfError>(())
    /// ```
    pub fn new(bits: u64) -> Result<Self, PerfError> {
        let others = TERMS.iter().fold(bits, |left, term| left & !term.mask());
        if others == 0 { Ok(Self(bits)) } else { Err(PerfError::Bits(others)) }
    }

    /// Returns the configuration as a value of perf's field `config`.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the configuration as an event select. In this event select, the bits for privilege levels are clear.
    pub const fn select(self) -> EventSelect {
        EventSelect::from_bits(self.0)
    }

    /// Returns a value whose `Display` writes the configuration as terms: `cpu/event=0xc0,umask=0x1/`. Terms with the
    /// value 0 are omitted, except `event`.
    pub const fn terms(self) -> RawTerms {
        RawTerms(self)
    }

    /// Parses the terms between the slashes.
    fn of_terms(text: &str, start: usize) -> Result<Self, PerfError> {
        let (mut config, mut at) = (0, start);
        for part in text.split(',') {
            config |= Self::term(part, at).ok_or(PerfError::Term { at })??.0;
            at += part.len() + 1;
        }
        Ok(Self(config))
    }

    /// Parses one term; `None` if there is none of its name.
    pub(crate) fn term(part: &str, at: usize) -> Option<Result<Self, PerfError>> {
        let (name, value) = part.split_once('=').map_or((part, None), |(n, v)| (n, Some(v)));
        let invalid = PerfError::Value { at: at + name.len() + usize::from(value.is_some()) };
        let value = value.map(number);
        Some(match (TERMS.iter().find(|term| term.name == name), value) {
            (Some(term), Some(value)) => {
                value.and_then(|value| term.of(value)).map(Self).ok_or(invalid)
            }
            (Some(term), None) if term.is_flag() => Ok(Self(term.mask())),
            (Some(_), None) => Err(invalid),
            (None, Some(value)) if name == "config" => value.ok_or(invalid).and_then(Self::new),
            (None, None) if name.starts_with('r') => Self::of_raw(name, at),
            _ => return None,
        })
    }

    /// Returns whether a name is `r` and hexadecimal digits. Units may have other names with an `r`.
    pub(crate) fn is_raw(name: &str) -> bool {
        !matches!(Self::of_raw(name, 0), Err(PerfError::Term { .. } | PerfError::Value { .. }))
    }

    /// Parses `r` and hexadecimal digits, with or without a leading `0x`.
    pub(crate) fn of_raw(text: &str, at: usize) -> Result<Self, PerfError> {
        let digits = text.strip_prefix('r').ok_or(PerfError::Term { at })?;
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        Self::new(hexadecimal(digits).ok_or(PerfError::Value { at: at + 1 })?)
    }
}

/// Parses a number as perf's terms have it: decimal, or hexadecimal after `0x`.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => hexadecimal(digits),
        // `parse` would take a sign.
        None => text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse().ok())?,
    }
}

fn hexadecimal(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|c| c.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok())?
}

impl FromStr for RawConfig {
    type Err = PerfError;

    /// Parses a text such as `r01c0`, or terms between `cpu/` and `/`.
    fn from_str(text: &str) -> Result<Self, PerfError> {
        match text.strip_prefix("cpu/") {
            Some(terms) => {
                let unclosed = PerfError::Term { at: text.len() };
                Self::of_terms(terms.strip_suffix('/').ok_or(unclosed)?, "cpu/".len())
            }
            None => Self::of_raw(text, 0),
        }
    }
}

/// Writes `r01c0`.
impl fmt::Display for RawConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{:04x}", self.0)
    }
}

/// A [`RawConfig`] that `Display` writes as terms: see [`RawConfig::terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RawTerms(RawConfig);

impl fmt::Display for RawTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, term) in TERMS.iter().take(WRITTEN).enumerate() {
            let value = term.value(self.0.0);
            let separator = if place == 0 { "cpu/" } else { "," };
            match value {
                0 if place != 0 => {}
                1 if term.is_flag() => write!(f, "{separator}{}", term.name)?,
                _ => write!(f, "{separator}{}={value:#x}", term.name)?,
            }
        }
        f.write_str("/")
    }
}
