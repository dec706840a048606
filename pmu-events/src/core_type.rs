//! Core types, and the processors that have them: the events of each, found by name, by pattern and by encoding.
//!
//! Uses [events](crate::event), and what is below them.

use core::fmt;

use pmu_core::CounterSet;
use pmu_core::registers::{EventList, EventSelect};
use pmu_core::x86::Snapshot;

use crate::event::PmuEvent;
use crate::format::{CoreType, Dictionary, Model, Precise, Record, Shape, Table};
use crate::name::hash::{MAX_NAME, Wanted, odd_character};
use crate::name::{distance, matches};
use crate::tables::{CORE_TYPES, MODELS};
use crate::uncore::{Uncore, UncoreEvent};

/// A processor whose core type was detected from CPUID. Use this type to find the processor's events.
///
/// On a hybrid machine, P-cores and E-cores have different events, so take a CPUID snapshot on each core.
///
/// ```
/// # use pmu_core::x86::dump::CpuidDump;
/// # use pmu_core::x86::Snapshot;
/// # let dump = CpuidDump::parse(
/// #     "   0x00000000 0x00: eax=0x00000016 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
/// #         0x00000001 0x00: eax=0x000506e3 ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
/// # )?;
/// # let snapshot = Snapshot::capture(&dump);
/// use pmu_core::Event;
/// use pmu_events::Processor;
/// let processor = Processor::detect(&snapshot)?;
/// assert_eq!(processor.core_type().name(), "skylake");
/// let misses: Event = processor.event("mem_load_retired.l3_miss")?.into();
/// # let _ = misses;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Processor(&'static Model);

impl Processor {
    /// Detects the core type of a processor from its CPUID snapshot, by family, model and stepping. On a hybrid, leaf
    /// 0x1A is the kind of core.
    ///
    /// # Errors
    /// - [`Model`](UnknownCoreType::Model): this crate has no table for the processor's model and stepping.
    /// - [`Core`](UnknownCoreType::Core): this crate has no table for this kind of core of a hybrid.
    pub fn detect(processor: &Snapshot) -> Result<Self, UnknownCoreType> {
        let (vendor, family) = (processor.vendor(), processor.family());
        let (model, stepping) = (processor.model(), processor.stepping());
        // The kind of core (bits 31:24) is not enough: the two kinds of E-cores of Arrow Lake H differ in the native
        // model alone (SDM vol. 2A, CPUID, leaf 1AH).
        let core = processor.leaf(0x1A, 0).eax;
        let mut unknown = UnknownCoreType::Model { vendor, family, model, stepping };
        for row in &MODELS {
            if row.is_of(vendor, family, model, stepping) {
                if row.core.is_none_or(|known| known == core) {
                    return Ok(Self(row));
                }
                // Another row of the model may have this core. Without one, the model is still known, and the error
                // says what is not.
                unknown = UnknownCoreType::Core(core);
            }
        }
        Err(unknown)
    }

    /// Returns the processor's core type.
    pub const fn core_type(&self) -> &'static CoreType {
        self.0.core_type
    }

    /// Returns the other core types of processors with the same family and model. These are the core types of other
    /// steppings and, on a hybrid, the core types of the other cores.
    ///
    /// ```
    /// # use pmu_core::x86::dump::CpuidDump;
    /// # use pmu_core::x86::Snapshot;
    /// # let dump = CpuidDump::parse(
    /// #     "   0x00000000 0x00: eax=0x00000020 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
    /// #         0x00000001 0x00: eax=0x00090672 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    /// #         0x0000001a 0x00: eax=0x40000001 ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
    /// # )?;
    /// # let snapshot = Snapshot::capture(&dump);
    /// use pmu_events::{EventError, Processor};
    /// let performance_core = Processor::detect(&snapshot)?; // of Alder Lake
    /// let mut others = performance_core.other_core_types();
    /// assert_eq!(others.next().unwrap().name(), "alderlake_gracemont");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn other_core_types(&self) -> impl Iterator<Item = &'static CoreType> {
        let Self(own) = *self;
        MODELS.iter().filter_map(move |row| {
            // The rows of a model differ by stepping or by kind of core, and have the same range of models.
            let same = row.vendor == own.vendor
                && row.family == own.family
                && row.models == own.models
                && row.core_type != own.core_type;
            same.then_some(row.core_type)
        })
    }

    /// Finds the event with this name among the events of the processor's core type. The search ignores the case of
    /// letters.
    ///
    /// ```
    /// use pmu_core::x86::Snapshot;
    /// use pmu_events::{EventError, Processor};
    /// fn explain(this_processor: &Snapshot, name: &str) -> String {
    ///     let processor = match Processor::detect(this_processor) {
    ///         Ok(processor) => processor,
    ///         Err(unknown) => return unknown.to_string(),
    ///     };
    ///     match processor.event(name) {
    ///         Ok(event) => format!("{event:?} on {:?}", event.counters()),
    ///         Err(EventError::OtherCore(other)) => format!("{name}: pin the task to a core of {other}"),
    ///         Err(error) => format!("{name}: {error}"),
    ///     }
    /// }
    /// # let _ = explain;
    /// ```
    ///
    /// # Errors
    /// - The errors of [`CoreType::event`].
    /// - [`OtherCore`](EventError::OtherCore): the processor's core type does not have the event, but another core type
    ///   of the processor's model has it.
    pub fn event(&self, name: &str) -> Result<PmuEvent, EventError> {
        self.core_type().event(name).map_err(|error| {
            let mut others = self.other_core_types();
            match others.find(|other| other.event(name).is_ok()) {
                Some(other) => EventError::OtherCore(other),
                None => error,
            }
        })
    }
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "processor of {}", self.core_type())
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Processor {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "processor of {}", self.core_type());
    }
}

impl CoreType {
    /// Finds the core type with this name, such as `skylake` or `alderlake_goldencove`. The search ignores the case of
    /// letters.
    ///
    /// ```
    /// use pmu_events::{CoreType, UnknownCoreType};
    /// // The name may come from a command line. Tables of all core types are linked.
    /// let core_type = CoreType::named("Zen4")?;
    /// println!("{core_type}: {} events", core_type.events().len());
    /// assert_eq!(CoreType::named("zen40"), Err(UnknownCoreType::Name));
    /// # Ok::<(), UnknownCoreType>(())
    /// ```
    ///
    /// # Errors
    /// [`Name`](UnknownCoreType::Name): no core type has this name.
    pub fn named(name: &str) -> Result<&'static Self, UnknownCoreType> {
        let mut all = CORE_TYPES.into_iter();
        all.find(|core_type| core_type.name.eq_ignore_ascii_case(name)).ok_or(UnknownCoreType::Name)
    }

    /// Returns all core types, in ascending order of their names.
    ///
    /// ```
    /// use pmu_events::CoreType;
    /// // The core types that have top-down slots.
    /// let with_slots = CoreType::all().filter(|of| of.event("topdown.slots").is_ok());
    /// assert!(with_slots.clone().any(|of| of.name() == "icelake"));
    /// assert!(with_slots.count() < CoreType::all().len());
    /// ```
    pub fn all() -> impl ExactSizeIterator<Item = &'static Self> + Clone {
        CORE_TYPES.into_iter()
    }

    /// Finds the event with this name. The search ignores the case of letters.
    ///
    /// ```
    /// use pmu_events::{EventError, SKYLAKE};
    /// let name = "inst_retird.any";
    /// match SKYLAKE.event(name) {
    ///     Ok(event) => println!("{event:?}"),
    ///     Err(EventError::Unknown) => {
    ///         let [nearest] = SKYLAKE.nearest(name);
    ///         println!("{name}: no event. Did you mean {}?", nearest.unwrap().name());
    ///     }
    ///     Err(error) => println!("{name}: {error}"),
    /// }
    /// ```
    ///
    /// # Context
    /// Any. Finding a name that exists takes at most 400 instructions.
    ///
    /// # Errors
    /// - [`Unknown`](EventError::Unknown): the core type has no event of this name.
    /// - [`TooLong`](EventError::TooLong), [`Character`](EventError::Character): no event of any core type can have
    ///   this name.
    pub fn event(&self, name: &str) -> Result<PmuEvent, EventError> {
        match Wanted::new(name, &mut [0; _]) {
            // Characters are examined only after a miss: a name that exists does not pay for a better error of one that
            // does not.
            Some(wanted) => find(&self.table, &wanted).ok_or_else(|| unknown(name)),
            None => Err(EventError::TooLong),
        }
    }

    /// Returns all events of the core type, in ascending order of their names.
    ///
    /// ```
    /// use pmu_events::{Precise, SKYLAKE};
    /// let precise = SKYLAKE.events().filter(|event| event.precise() != Precise::No);
    /// println!("{} of {} events can be sampled by PEBS", precise.count(), SKYLAKE.events().len());
    /// ```
    pub fn events(&self) -> Events {
        let Table { records, events, shapes, dictionary, .. } = self.table;
        Events { rest: records, left: events, shapes, dictionary }
    }

    /// Finds the events whose names match a pattern. In the pattern, `*` stands for any text, and `?` for any one
    /// character. The match ignores the case of letters. The result may have no event, or all events.
    ///
    /// ```
    /// let mut loads = pmu_events::SKYLAKE.matching("mem_load_retired.l?_hit")?;
    /// assert_eq!(loads.next().unwrap().name(), "MEM_LOAD_RETIRED.L1_HIT");
    /// assert_eq!(loads.count(), 2);
    /// # Ok::<(), pmu_events::EventError>(())
    /// ```
    ///
    /// # Errors
    /// [`Character`](EventError::Character), [`TooLong`](EventError::TooLong): the pattern cannot match any event's
    /// name.
    pub fn matching<'p>(&self, pattern: &'p str) -> Result<Matching<'p>, EventError> {
        let wildcard = |c: &(usize, u8)| c.1 != b'*' && c.1 != b'?';
        for (at, _) in pattern.bytes().enumerate().filter(wildcard) {
            // A part of a character of several bytes is no text. It is as odd as NUL: names are ASCII.
            if odd_character(pattern.get(at..=at).unwrap_or("\0")).is_some() {
                return Err(EventError::Character { at });
            }
        }
        if pattern.len() > MAX_NAME {
            return Err(EventError::TooLong);
        }
        Ok(Matching { events: self.events(), pattern })
    }

    /// Finds the only event whose name matches a pattern. If no event or more than one event matches, the result is an
    /// error.
    ///
    /// ```
    /// use pmu_events::{EventError, SKYLAKE};
    /// assert_eq!(SKYLAKE.only_match("*l1d_pend*cycles")?.name(), "L1D_PEND_MISS.PENDING_CYCLES");
    /// let error = SKYLAKE.only_match("mem_load_retired.l?_hit").err();
    /// assert_eq!(error, Some(EventError::Ambiguous { matches: 3 }));
    /// # Ok::<(), EventError>(())
    /// ```
    ///
    /// # Errors
    /// - The errors of [`matching`](Self::matching).
    /// - [`Unknown`](EventError::Unknown): no event matches.
    /// - [`Ambiguous`](EventError::Ambiguous): several events match.
    pub fn only_match(&self, pattern: &str) -> Result<PmuEvent, EventError> {
        let mut matching = self.matching(pattern)?;
        let event = matching.next().ok_or(EventError::Unknown)?;
        match matching.count() {
            0 => Ok(event),
            others => Err(EventError::Ambiguous { matches: others + 1 }),
        }
    }

    /// Finds the event with this name, as [`event`](Self::event) does. If an uncore unit, such as a memory controller,
    /// has an event of this name, the error contains that event.
    ///
    /// A program that calls this function contains the event lists of all uncore units.
    ///
    /// ```
    /// use pmu_events::{EventError, ZEN4};
    /// assert!(ZEN4.event_or_uncore("ex_ret_instr").is_ok());
    /// let Err(EventError::Uncore(clock)) = ZEN4.event_or_uncore("umc_mem_clk") else { panic!() };
    /// assert_eq!(clock.unit(), "amd_umc");
    /// ```
    ///
    /// # Errors
    /// - [`Uncore`](EventError::Uncore): an uncore unit has an event of this name.
    /// - The errors of [`event`](Self::event): neither the core type nor an uncore unit has an event of this name.
    pub fn event_or_uncore(&self, name: &str) -> Result<PmuEvent, EventError> {
        self.event(name).map_err(|error| {
            let named = |event: &UncoreEvent| event.name().eq_ignore_ascii_case(name);
            // Several units may have an event of this name: the first one suffices to say that no counter of a core
            // counts it.
            match Uncore::of(self).and_then(|units| units.events().find(named)) {
                Some(event) => EventError::Uncore(event),
                None => error,
            }
        })
    }

    /// Finds the `COUNT` events whose names are nearest to a misspelled name, by edit distance.
    ///
    /// The nearest event is first. Events with the same distance are in ascending order of their names. All elements
    /// are `None` if `name` is longer than [`MAX_NAME`].
    ///
    /// ```
    /// let nearest: [_; 2] = pmu_events::SKYLAKE.nearest("inst_retird.any");
    /// let names = nearest.map(|event| event.unwrap().name());
    /// assert_eq!(names[0], "INST_RETIRED.ANY");
    /// assert_eq!(names[1], "INST_RETIRED.ANY_P");
    /// ```
    ///
    /// # Context
    /// Task: the function compares `name` with the names of all events, which takes between 100,000 and several million
    /// steps.
    pub fn nearest<const COUNT: usize>(&self, name: &str) -> [Option<PmuEvent>; COUNT] {
        let mut nearest = [None; COUNT];
        if name.len() > MAX_NAME {
            return nearest;
        }
        let mut distances = [usize::MAX; COUNT];
        for event in self.events() {
            let far = distance(event.name().as_str().as_bytes(), name.as_bytes());
            // Behind those that are as near, because the events come in the order of their names.
            let place = distances.partition_point(|other| *other <= far);
            if let (Some(behind), Some(others)) =
                (nearest.get_mut(place..), distances.get_mut(place..))
                && !behind.is_empty()
            {
                // The farthest one comes around to the free place, and is overwritten there.
                behind.rotate_right(1);
                others.rotate_right(1);
                behind[0] = Some(event);
                others[0] = far;
            }
        }
        nearest
    }

    /// Returns the counters that can count the event with this encoding. For a raw event, pass the result to
    /// [`Event::on`](pmu_core::Event::on). The result follows these rules:
    ///
    /// - If the core type's table has no event with this event number, the result is `None`.
    /// - If the event number is 0, the encoding stands for a fixed counter, and the result has only this counter.
    /// - Otherwise the result has the general counters that the table gives for the encoding, and every fixed counter.
    ///   The [`CounterUnit`](pmu_core::CounterUnit) later excludes each fixed counter that does not count this event.
    ///
    /// The function ignores mode bits and other bits that select no event.
    ///
    /// The function looks for matching events in the table. It tries three sets of events in this order, and uses the
    /// first set that is not empty:
    /// 1. the events with the same event number, unit mask and qualifiers;
    /// 2. the events with the same event number and unit mask;
    /// 3. the events with the same event number.
    ///
    /// If this set contains events that must be sampled precisely and also other events, the function uses only the
    /// other events. The result has the counters that can count every used event. If no counter can count every used
    /// event, the result has each counter that can count at least one used event.
    ///
    /// ```
    /// use pmu_core::{CounterSet, Event};
    /// use pmu_core::registers::EventSelect;
    /// // MEM_LOAD_RETIRED.L3_MISS of Sapphire Rapids is confined to counters 0–3.
    /// let select = EventSelect::from_bits(0x20D1);
    /// let counters = pmu_events::SAPPHIRERAPIDS.constraints(select).unwrap_or(CounterSet::ALL);
    /// assert_eq!(counters & CounterSet::GENERAL, CounterSet::from_bits(0b1111));
    /// let event = Event::raw(select).on(counters);
    /// # let _ = event;
    /// ```
    ///
    /// # Context
    /// Task: the function reads every event of the table, at most 2,344.
    pub fn constraints(&self, select: EventSelect) -> Option<CounterSet> {
        const UNIT_MASK: u64 = 0xFF00_0000_FF00;
        /// Edge, any thread, inversion, counter mask.
        const QUALIFIERS: u64 = 0xFFA4_0000;
        let bits = select.select_bits();
        // No list names every unit mask and qualifier that a processor takes, so the rows nearest to the encoding stand
        // for it: events of one number are mostly confined alike.
        let masks = [QUALIFIERS | UNIT_MASK | self.number, UNIT_MASK | self.number, self.number];
        let counters = masks.iter().find_map(|mask| {
            let counted = |precise_only: bool| {
                let mut sets = self.events().filter(|event| {
                    let mut encodings = event.encodings();
                    (event.precise() == Precise::Only) == precise_only
                        && encodings.any(|way| (way.select.select_bits() ^ bits) & mask == 0)
                });
                let first = sets.next()?.counters();
                let both = |(every, any), event: PmuEvent| {
                    (every & event.counters(), any | event.counters())
                };
                let (every, any) = sets.fold((first, first), both);
                // No counter at all would refuse an event that can be counted: Skylake's 0xC0 with unit mask 1 is on
                // counter 1 in one row, and on the others in another.
                Some(if every.is_empty() { any } else { every })
            };
            // PEBS confines some events further: Knights Landing's `ANY_PS` is on counter 0 alone, and its plain
            // `ANY_P` on 0 and 1.
            counted(false).or_else(|| counted(true))
        })?;
        let general = !(counters & CounterSet::GENERAL).is_empty();
        Some(if general { counters | CounterSet::FIXED } else { counters })
    }
}

impl EventList for CoreType {
    fn perf_config(&self, name: &str) -> Option<(u64, u64)> {
        Some(self.event(name).ok()?.perf_config())
    }

    fn constraints(&self, select: EventSelect) -> Option<CounterSet> {
        Self::constraints(self, select)
    }
}

#[inline]
fn find(table: &Table, name: &Wanted<'_>) -> Option<PmuEvent> {
    let seed = *table.seeds.get(name.bucket(table.seeds.len()))?;
    let place = u16::from_le_bytes(*table.slots.get(name.slot(seed, table.slots.len()))?);
    // An empty slot needs no mark of its own: its offset is beyond the records, of which none can be read there.
    let (record, _) = Record::read(table.records.get(usize::from(place)..)?, table.shapes)?;
    let event = PmuEvent::new(record, table.dictionary);
    // A perfect hash leads every text to some event: only the comparison tells whether it is this one.
    event.is_named(name).then_some(event)
}

/// Returns the error of a name that was not found.
#[cold]
fn unknown(name: &str) -> EventError {
    odd_character(name).map_or(EventError::Unknown, |at| EventError::Character { at })
}

/// Iterator over the events of a core type, in ascending order of their names. See [`CoreType::events`].
#[derive(Clone)]
pub struct Events {
    rest: &'static [u8],
    left: usize,
    shapes: &'static [Shape],
    dictionary: &'static Dictionary,
}

impl Iterator for Events {
    type Item = PmuEvent;

    fn next(&mut self) -> Option<PmuEvent> {
        let (record, rest) = Record::read(self.rest, self.shapes)?;
        self.rest = rest;
        self.left = self.left.saturating_sub(1);
        Some(PmuEvent::new(record, self.dictionary))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Events {}

/// Iterator over the events whose names match a pattern, in ascending order of their names. See [`CoreType::matching`].
#[derive(Clone)]
pub struct Matching<'p> {
    events: Events,
    pattern: &'p str,
}

impl Iterator for Matching<'_> {
    type Item = PmuEvent;

    fn next(&mut self) -> Option<PmuEvent> {
        let pattern = self.pattern.as_bytes();
        self.events.find(|event| matches(pattern, event.name().as_str().as_bytes()))
    }
}

/// Reason why a search by name or pattern found no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum EventError {
    /// The core type has no event of this name; [`nearest`](CoreType::nearest) finds similar names.
    #[error("no event has this name")]
    Unknown,
    /// The name or pattern has a character that no event's name contains.
    #[error("no event's name has the character at byte {at}")]
    Character {
        /// Byte offset of the character in the name or pattern.
        at: usize,
    },
    /// The name or pattern is longer than [`MAX_NAME`] bytes. No event has such a long name.
    #[error("longer than {} bytes, as no event's name is", MAX_NAME)]
    TooLong,
    /// Several events match the pattern passed to [`only_match`](CoreType::only_match), which expects exactly one
    /// match.
    #[error("{matches} events match, not one")]
    Ambiguous {
        /// Number of matching events.
        matches: usize,
    },
    /// The processor's core type lacks the event. The value is a core type that has the event and belongs to the same
    /// processor model. On a hybrid processor, the value is the type of its P-cores or of its E-cores. On other
    /// processors, the value is the core type of another stepping.
    #[error("an event of {0}, which is another core type of the same model")]
    OtherCore(&'static CoreType),
    /// The core type lacks the event, and an uncore unit, such as a memory controller, has an event of this name. No
    /// counter of a core counts the event. Only [`event_or_uncore`](CoreType::event_or_uncore) returns this error.
    #[error("an event of {}, an uncore unit: no counter of a core counts it", .0.unit())]
    Uncore(UncoreEvent),
}

/// Reason why no core type was found by name or for a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum UnknownCoreType {
    /// No core type has the name that was passed to [`CoreType::named`].
    #[error("no core type has this name")]
    Name,
    /// This crate has no table for a processor of this model and stepping.
    #[error(
        "no events are known of {} family {family:#X} model {model:#X} stepping {stepping}", .vendor.trim_ascii().escape_ascii()
    )]
    Model {
        /// The vendor's name in ASCII, from CPUID leaf 0.
        vendor: [u8; 12],
        /// The processor's family.
        family: u16,
        /// The processor's model.
        model: u8,
        /// The processor's stepping.
        stepping: u8,
    },
    /// The processor is a hybrid, and this crate has no table for this kind of core.
    ///
    /// The value is EAX of CPUID leaf 0x1A, which contains the core's type and native model ID. If the value is 0,
    /// CPUID does not identify the core.
    #[error("no events are known of a hybrid's core {0:#010X}")]
    Core(u32),
}
