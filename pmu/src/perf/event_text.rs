//! An event as perf's command line has it: `cpu/event=0xd1,umask=0x20,period=100003/u`.

use pmu_core::registers::EventList;
use pmu_core::x86::Snapshot;

use crate::perf::attributes::{
    PERF_TYPE_HARDWARE, PERF_TYPE_RAW, PERF_TYPE_SOFTWARE, RawConfig, number,
};
use crate::perf::branch_samples::BranchSamples;
use crate::perf::error::{Facility, PerfError};
use crate::perf::event_attr::{AttrFlags, PerfEventAttr};
use crate::perf::generic;
use crate::perf::generic::{CacheEvent, PERF_TYPE_HW_CACHE};

/// Core type of a hybrid processor. The texts `cpu_core/…/` and `cpu_atom/…/` confine an event to one core type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CoreKind {
    /// `cpu_core`: performance cores.
    Core,
    /// `cpu_atom`: efficient cores.
    Atom,
}

impl CoreKind {
    /// Returns whether a processor has this core type. `processor` is the snapshot that was taken on that processor. On
    /// a machine that is not hybrid, the result is `false` for both core types.
    ///
    /// Source: SDM vol. 2A, CPUID, leaf 1AH: core type.
    pub fn is_of(self, processor: &Snapshot) -> bool {
        let kind = processor.leaf(0x1A, 0).eax >> 24;
        match self {
            Self::Core => kind == 0x40,
            Self::Atom => kind == 0x20,
        }
    }
}

/// An event, parsed from a text in the syntax of perf's command line. A text has one or more of these parts:
///
/// - A name is a generic event (`cycles`, `stalled-cycles-frontend`), a cache event (`L1-dcache-load-misses`), a raw
///   configuration (`r1a8`), or an event of the vendor's [list](EventList).
/// - Terms are between slashes, as in `cpu/event=0xd1,umask=0x20/`. Possible terms are the terms of [`RawConfig`]; the
///   name of an event; `config1` to `config4`; `offcore_rsp`, `ldlat` and `frontend`, for the event's extra register;
///   `period`, `freq`, `name`, `inherit` and `no-inherit`; `branch_type`, with a name of perf's `--branch-filter`, such
///   as `any`, `any_call` or `stack`. A term has one name, and each further name is a term of its own. `cpu_core` or
///   `cpu_atom` in place of `cpu` selects the core type. Terms may also follow a name or a raw configuration:
///   `cycles/period=10007/`, `r1a8/period=5000/`.
/// - Modifiers follow a colon or the last slash: `u`, `k`, `h` (user, kernel, hypervisor); `G`, `H` (guest, host); `I`
///   (non-idle); `p`, `pp`, `ppp` (precision 1 to 3); `P` (the greatest precision of the processor); `D` (pinned), `e`
///   (exclusive), `W` (weak group), `S` (the group's counts with each sample). An event with neither `u` nor `k` counts
///   at every privilege level. An event with neither `G` nor `H` counts in guests and outside guests.
///
/// If the text has a modifier `p`, `pp`, `ppp` or `P`, [`PerfEventAttr::event`] returns a
/// [precise](pmu_core::Event::precise) event. For `P`, use the attributes that [`attempts`](Self::attempts) returns.
///
/// If the text asks for a facility in addition to a counter, the error [`PerfError::Needs`] names the facility.
///
/// ```
/// use pmu::{Event, Snapshot};
/// use pmu::perf::PerfEvent;
/// use pmu_events::Processor;
///
/// /// Returns the event of a text, for the processor with this CPUID.
/// fn event(text: &str, this: &Snapshot) -> Result<Event, Box<dyn core::error::Error>> {
///     let core_type = Processor::detect(this)?.core_type();
///     Ok(PerfEvent::parse(text, core_type)?.attr.event(core_type)?)
/// }
/// # let dump = pmu::core::x86::dump::CpuidDump::parse(
/// #     "   0x00000000 0x00: eax=0x00000020 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
/// #         0x00000001 0x00: eax=0x000806f8 ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
/// # )?;
/// # let this = Snapshot::capture(&dump);
/// let misses = event("cpu/mem_load_retired.l3_miss,period=10007/u", &this)?;
/// assert_eq!(misses, event("cpu/event=0xd1,umask=0x20,period=10007/u", &this)?);
/// assert_eq!(misses.period(), Some(10_007));
/// assert_eq!(event("LLC-load-misses", &this)?.extra().unwrap().1, 0x3F_BFC0_0001);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// Source: perf-list(1), "Event modifiers", "Raw Hardware Event Descriptor", "Parameterized Events"; perf-record(1),
/// "Event Selection".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PerfEvent<'a> {
    /// Attributes of the event, as a caller of `perf_event_open` passes them.
    pub attr: PerfEventAttr,
    /// `name=`: the user's own name for the event.
    pub name: Option<&'a str>,
    /// Core type that the text names; `None` if the text names no core type.
    pub core: Option<CoreKind>,
    /// `:W`: if the event's group does not fit on the counters, each member of the group is counted separately.
    pub weak_group: bool,
    /// `:P`: the event is to be sampled with the greatest precision that the processor has for this event. The value
    /// of [`PerfEventAttr::precise_ip`] is 3, and [`attempts`](Self::attempts) returns the values to try.
    pub precise_max: bool,
}

impl<'a> PerfEvent<'a> {
    /// Parses an event. `list` has the events of the processor, for instance as a `CoreType` of `pmu-events`, or `&()`.
    ///
    /// # Errors
    /// - [`Term`](PerfError::Term): a name or a term is unknown, a term conflicts with a term before it, or the closing
    ///   slash is missing.
    /// - [`Value`](PerfError::Value): the value of a term is missing, is not a number, or is too great.
    /// - [`Modifier`](PerfError::Modifier): a modifier is unknown or repeated, or no modifier follows the colon.
    /// - [`Needs`](PerfError::Needs): the text asks for a facility in addition to a counter.
    /// - [`Bits`](PerfError::Bits): the raw configuration has bits that belong to no term.
    ///
    /// # Limitations
    /// An event that needs more than a counter is an error that names the [`Facility`](crate::perf::Facility): retire
    /// latencies (`:R`), processor traces, trace points, units outside the cores, and the software events that
    /// [`SoftwareEvent`](pmu_core::SoftwareEvent) lacks. Terms of records (`call-graph=`, `max-stack=`) and groups in
    /// braces are unknown. Cache events of memory nodes are not counted, nor are those for which a processor's list has
    /// no event. The kernel itself removes the PMU type that perf puts into the upper half of a generic event's
    /// `config`.
    pub fn parse(text: &'a str, list: &dyn EventList) -> Result<Self, PerfError> {
        let mut parser = Parser {
            event: PerfEvent {
                attr: PerfEventAttr::default(),
                name: None,
                core: None,
                weak_group: false,
                precise_max: false,
            },
            selected: Selected::Nothing,
        };
        let (modifiers, at) = match text.split_once('/') {
            Some((unit, rest)) => {
                let start = unit.len() + 1;
                let unclosed = PerfError::Term { at: text.len() };
                let (terms, modifiers) = rest.split_once('/').ok_or(unclosed)?;
                parser.unit(unit, list)?;
                parser.terms(terms, start, list)?;
                let at = start + terms.len() + 1;
                match modifiers.strip_prefix(':') {
                    Some(modifiers) => (Some(modifiers), at + 1),
                    None => ((!modifiers.is_empty()).then_some(modifiers), at),
                }
            }
            None => {
                let (name, modifiers) =
                    text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
                if !parser.named(name, 0, list)? {
                    let config = if name.starts_with('r') && !name.contains('-') {
                        RawConfig::of_raw(name, 0)?
                    } else {
                        return Err(unknown(name, modifiers.is_some()));
                    };
                    parser.raw(config, 0)?;
                }
                (modifiers, name.len() + 1)
            }
        };
        if let Some(modifiers) = modifiers {
            let modifiers = apply_modifiers(modifiers, at, &mut parser.event.attr)?;
            parser.event.weak_group = modifiers.weak_group;
            parser.event.precise_max = modifiers.precise_max;
        }
        Ok(parser.event)
    }

    /// Returns the attributes that a kernel tries one after the other until the processor accepts them. With the
    /// modifier `P`, these are attributes with [`precise_ip`](PerfEventAttr::precise_ip) 3, 2, 1 and 0. Without `P`,
    /// the only item is [`attr`](Self::attr). perf tries the same values.
    ///
    /// ```
    /// use pmu::Kernel;
    /// use pmu::processors::PmuSession;
    /// use pmu::core::{CounterUnit, EventId};
    /// use pmu::core::error::{CounterError, EventsError};
    /// use pmu::perf::PerfEvent;
    ///
    /// /// Opens the event of a text such as `cycles/period=100003/P`, as precisely as this processor can sample it.
    /// fn open<K: Kernel>(
    ///     session: &mut PmuSession<K>,
    ///     unit: &CounterUnit,
    ///     text: &str,
    /// ) -> Result<EventId, Box<dyn core::error::Error>> {
    ///     let mut refused = None;
    ///     for attr in PerfEvent::parse(text, &())?.attempts() {
    ///         match session.counters_mut().open(unit, &[attr.event(&())?]) {
    ///             Err(EventsError { reason: CounterError::NotPrecise(why), .. }) => refused = Some(why),
    ///             opened => return Ok(opened?),
    ///         }
    ///     }
    ///     // No `P`, and the processor does not have the requested precision.
    ///     Err(refused.ok_or("no attempt")?.into())
    /// }
    /// ```
    pub fn attempts(&self) -> impl Iterator<Item = PerfEventAttr> + use<> {
        let attr = self.attr;
        let lowest = if self.precise_max { 0 } else { attr.precise_ip };
        (lowest..=attr.precise_ip).rev().map(move |precise_ip| PerfEventAttr { precise_ip, ..attr })
    }
}

/// Returns the error of a name that is no counter's event. A colon is in the names of trace points.
fn unknown(name: &str, colon: bool) -> PerfError {
    let trace_point = (colon && !name.is_empty()).then_some(Facility::TracePoints);
    match generic::facility(name).or(trace_point) {
        Some(facility) => PerfError::Needs { facility, at: 0 },
        None => PerfError::Term { at: 0 },
    }
}

/// The part of an event that the text has selected so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Selected {
    Nothing,
    Raw,
    /// A generic event: no term adds to it.
    Generic,
}

struct Parser<'a> {
    event: PerfEvent<'a>,
    selected: Selected,
}

impl<'a> Parser<'a> {
    /// Parses what is before the first slash: a unit, or an event's name.
    fn unit(&mut self, unit: &str, list: &dyn EventList) -> Result<(), PerfError> {
        match unit {
            "" => return Err(PerfError::Term { at: 0 }),
            "cpu" => {}
            "cpu_core" => self.event.core = Some(CoreKind::Core),
            "cpu_atom" => self.event.core = Some(CoreKind::Atom),
            _ if self.named(unit, 0, list)? => {}
            _ if RawConfig::is_raw(unit) => self.raw(RawConfig::of_raw(unit, 0)?, 0)?,
            _ => {
                let facility = generic::facility(unit).unwrap_or(Facility::OtherUnits);
                return Err(PerfError::Needs { facility, at: 0 });
            }
        }
        Ok(())
    }

    /// Selects the event of this name; `false` if it is none.
    fn named(&mut self, name: &str, at: usize, list: &dyn EventList) -> Result<bool, PerfError> {
        if let Some(number) = generic::hardware_event(name) {
            self.generic(PERF_TYPE_HARDWARE, number, at)?;
        } else if let Some(event) = generic::software_event(name) {
            self.generic(PERF_TYPE_SOFTWARE, event.number(), at)?;
        } else if let Ok(event) = name.parse::<CacheEvent>() {
            self.generic(PERF_TYPE_HW_CACHE, event.config(), at)?;
        } else if let Some((config, config1)) = list.perf_config(name) {
            self.raw(RawConfig::new(config)?, at)?;
            self.event.attr.select.config1 |= config1;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn generic(&mut self, type_: u32, config: u64, at: usize) -> Result<(), PerfError> {
        if self.selected != Selected::Nothing {
            return Err(PerfError::Term { at });
        }
        self.selected = Selected::Generic;
        let select = &mut self.event.attr.select;
        (select.type_, select.config) = (type_, config);
        Ok(())
    }

    fn raw(&mut self, config: RawConfig, at: usize) -> Result<(), PerfError> {
        if self.selected == Selected::Generic {
            return Err(PerfError::Term { at });
        }
        self.selected = Selected::Raw;
        let select = &mut self.event.attr.select;
        select.type_ = PERF_TYPE_RAW;
        select.config |= config.bits();
        Ok(())
    }

    /// Parses the terms between the slashes.
    fn terms(
        &mut self,
        terms: &'a str,
        start: usize,
        list: &dyn EventList,
    ) -> Result<(), PerfError> {
        let mut at = start;
        for term in terms.split(',') {
            // A name alone, as in `cycles//u`, has no terms.
            if !(terms.is_empty() && self.selected != Selected::Nothing) {
                let known = match term.split_once('=') {
                    Some((name, value)) => self.setting(name, value, at)?,
                    None => self.flag(term, at)? || self.named(term, at, list)?,
                };
                if !known {
                    let config = RawConfig::term(term, at).ok_or(PerfError::Term { at })??;
                    self.raw(config, at)?;
                }
            }
            at += term.len() + 1;
        }
        match self.selected {
            Selected::Nothing => Err(PerfError::Term { at: start }),
            _ => Ok(()),
        }
    }

    /// Parses a term with a value; `false` if it is not one of those that are beside the configuration.
    fn setting(&mut self, name: &str, text: &'a str, at: usize) -> Result<bool, PerfError> {
        let invalid = PerfError::Value { at: at + name.len() + 1 };
        let attr = &mut self.event.attr;
        let value = number(text).ok_or(invalid);
        let at_most =
            |bits: u32| value.and_then(|v| if v >> bits == 0 { Ok(v) } else { Err(invalid) });
        match name {
            "period" => {
                attr.flags = attr.flags.without(AttrFlags::FREQ);
                attr.select.sample_period = at_most(63)?;
            }
            "freq" => {
                attr.flags = attr.flags | AttrFlags::FREQ;
                attr.select.sample_period = value?;
            }
            "config1" | "offcore_rsp" => attr.select.config1 |= value?,
            "ldlat" => attr.select.config1 |= at_most(16)?,
            "frontend" => attr.select.config1 |= at_most(24)?,
            "config2" | "acr_mask" => attr.config2 = value?,
            "config3" => attr.config3 = value?,
            "config4" => attr.config4 = value?,
            "branch_type" => {
                let branches = PerfEventAttr::SAMPLE_BRANCH_STACK;
                (attr.sample_type, attr.branch_sample_type) = match BranchSamples::named(text) {
                    Some(bits) => (attr.sample_type | branches, attr.branch_sample_type | bits),
                    None if text == "no" => (attr.sample_type & !branches, 0),
                    None => return Err(invalid),
                };
            }
            "name" if text.is_empty() => return Err(invalid),
            "name" => self.event.name = Some(text),
            _ => return needs(name, at).map(|()| false),
        }
        Ok(true)
    }

    /// Parses a term without a value, as [`setting`](Self::setting) does.
    fn flag(&mut self, name: &str, at: usize) -> Result<bool, PerfError> {
        let attr = &mut self.event.attr;
        match name {
            "inherit" => attr.flags = attr.flags | AttrFlags::INHERIT,
            "no-inherit" => attr.flags = attr.flags.without(AttrFlags::INHERIT),
            "period" | "freq" | "config1" | "config2" | "config3" | "config4" | "offcore_rsp"
            | "ldlat" | "frontend" | "acr_mask" | "branch_type" | "name" => {
                return Err(PerfError::Value { at: at + name.len() });
            }
            _ => return needs(name, at).map(|()| false),
        }
        Ok(true)
    }
}

/// Refuses a term that asks for more than a counter.
fn needs(name: &str, at: usize) -> Result<(), PerfError> {
    let facility = match name {
        "aux-output" | "aux-sample-size" | "aux-action" => Facility::ProcessorTrace,
        _ => return Ok(()),
    };
    Err(PerfError::Needs { facility, at })
}

/// The modifiers that are not attributes of the event.
pub(crate) struct Modifiers {
    pub(crate) weak_group: bool,
    pub(crate) precise_max: bool,
}

/// Sets the attributes of these modifiers, whose first one is at `at` in the text.
///
/// Source: perf-list(1), "Event modifiers".
fn apply_modifiers(
    modifiers: &str,
    at: usize,
    attr: &mut PerfEventAttr,
) -> Result<Modifiers, PerfError> {
    if modifiers.is_empty() {
        return Err(PerfError::Modifier { at });
    }
    let has = |letter| modifiers.contains(letter);
    for (place, letter) in modifiers.char_indices() {
        let at = at + place;
        let before = modifiers.get(..place).unwrap_or_default();
        match letter {
            // perf's `precise_ip` is at most 3.
            'p' if attr.precise_ip < 3 => attr.precise_ip += 1,
            'R' => {
                return Err(PerfError::Needs { facility: Facility::PreciseSampling, at });
            }
            'b' => return Err(PerfError::Needs { facility: Facility::Bpf, at }),
            'u' | 'k' | 'h' | 'G' | 'H' | 'I' | 'D' | 'e' | 'S' | 'W' | 'P'
                if !before.contains(letter) => {}
            _ => return Err(PerfError::Modifier { at }),
        }
    }
    // Of levels, and of guest and host, those that are not named are excluded as soon as one is.
    if has('u') || has('k') || has('h') {
        attr.select.exclude_user = !has('u');
        attr.select.exclude_kernel = !has('k');
    }
    if has('G') || has('H') {
        attr.select.exclude_guest = !has('G');
        attr.select.exclude_host = !has('H');
    }
    for (set, flag) in [
        ((has('u') || has('k')) && !has('h'), AttrFlags::EXCLUDE_HV),
        (has('I'), AttrFlags::EXCLUDE_IDLE),
        (has('D'), AttrFlags::PINNED),
        (has('e'), AttrFlags::EXCLUSIVE),
    ] {
        if set {
            attr.flags = attr.flags | flag;
        }
    }
    if has('S') {
        attr.sample_type |= PerfEventAttr::SAMPLE_READ;
        attr.read_format |= PerfEventAttr::FORMAT_GROUP;
    }
    if has('P') {
        attr.precise_ip = 3;
    }
    Ok(Modifiers { weak_group: has('W'), precise_max: has('P') })
}
