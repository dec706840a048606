//! Events of the uncore units, as data. The rest of this crate is about counters of cores.
//!
//! Uses names (`name`) and the form of core types (`format`).

// To add a list: a CSV file in `uncore`, ascending by unit and name, which is included as it is; its line below; and
// the numbers in `tests/tests/events/uncore.rs`.

use core::fmt;

use crate::format::CoreType;
use crate::name::matches;

/// An event of an uncore unit: a unit outside the cores, such as the L3 cache, the data fabric or a memory controller.
///
/// An `UncoreEvent` has the data for a driver of the unit: name, unit and encoding. The unit has its own counters, and
/// all cores that use the unit share these counters. `pmu-core` does not program these counters, so an `UncoreEvent`
/// cannot be converted to an [`Event`](pmu_core::Event).
///
/// ```
/// use pmu_events::ZEN5;
/// use pmu_events::uncore::Uncore;
/// let units = Uncore::of(&ZEN5).unwrap();
/// let reads = units.matching("umc_cas_cmd.rd").next().unwrap();
/// assert_eq!((reads.unit(), reads.field("event"), reads.field("rdwrmask")), ("amd_umc", Some(0xA), Some(1)));
/// assert_eq!(reads.to_string(), "amd_umc/event=0xa,rdwrmask=0x1/"); // as perf's command line takes it
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UncoreEvent {
    pub(crate) unit: &'static str,
    pub(crate) name: &'static str,
    /// `field=value`, separated by spaces.
    pub(crate) fields: &'static str,
}

impl UncoreEvent {
    /// Returns the name of the event, as the vendor's list spells it.
    ///
    /// Different units may have events of the same name, for instance for their clocks.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the name of the unit, as Linux' perf calls its PMU: `uncore_imc`, `uncore_cha`, `amd_l3`.
    ///
    /// If a processor has several units of one kind, Linux appends an underscore and a number to the name of each unit.
    pub const fn unit(&self) -> &'static str {
        self.unit
    }

    /// Returns the name and value of each field in the event's encoding. The names are those of perf.
    ///
    /// Some fields of an L3 event select threads, cores or slices. If such a field is not returned, the event counts
    /// for all threads, cores or slices. Every other field that is not returned is 0.
    ///
    /// The position of a field in the unit's registers is in Linux' files `/sys/bus/event_source/devices/*/format`, and
    /// in the vendor's manual: for Intel the uncore performance monitoring reference manual of the processor, for AMD
    /// the Processor Programming Reference, sections "L3 Cache Performance Monitor Counters", "Data Fabric Performance
    /// Monitor Counters" and "UMC Performance Monitors".
    ///
    /// ```
    /// use pmu_events::HASWELLX;
    /// use pmu_events::uncore::Uncore;
    /// let units = Uncore::of(&HASWELLX).unwrap();
    /// for (field, value) in units.matching("unc_m_cas_count.rd").flat_map(|event| event.fields()) {
    ///     println!("{field}: {value:#x}");
    /// }
    /// ```
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> + Clone + use<> {
        self.fields.split(' ').filter_map(|field| {
            // The files have every value in hexadecimal.
            let (name, value) = field.split_once("=0x")?;
            Some((name, u64::from_str_radix(value, 16).ok()?))
        })
    }

    /// Returns the value of a field in the event's encoding, or `None` if the event does not set the field.
    pub fn field(&self, name: &str) -> Option<u64> {
        self.fields().find(|(field, _)| *field == name).map(|(_, value)| value)
    }
}

/// Writes the event in the syntax of perf's command line: `amd_l3/event=0x4,umask=0xff/`.
impl fmt::Display for UncoreEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.unit)?;
        for (place, (field, value)) in self.fields().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{field}={value:#x}")?;
        }
        f.write_str("/")
    }
}

/// The uncore events of the processors that share one event list: events of L3 caches, data fabric, memory controllers
/// and links.
///
/// The events are linked only into a program that uses this type.
///
/// ```
/// use pmu_events::CoreType;
/// use pmu_events::uncore::Uncore;
/// let units = Uncore::of(CoreType::named("skylakex")?).unwrap();
/// println!("{} events, from {}", units.events().count(), units.source());
/// let reads = units.matching("unc_m_cas_count.rd").next().unwrap();
/// assert_eq!((reads.field("event"), reads.field("umask")), (Some(4), Some(3)));
/// # Ok::<(), pmu_events::UnknownCoreType>(())
/// ```
///
/// # Limitations
/// - The events are data: no counter of these units is driven. They are from Linux 6.12 (AMD's from Linux 7.2), without
///   those that Intel marks as experimental or deprecated.
/// - They are missing for Nehalem and Westmere, for Arrow Lake, Lunar Lake, Clearwater Forest and later ones. Of small
///   cores they are there for Gracemont, Crestmont, Snow Ridge, Grand Ridge and Sierra Forest alone.
#[derive(Debug)]
pub struct Uncore {
    /// Names, separated by spaces.
    pub(crate) core_types: &'static str,
    pub(crate) source: &'static str,
    /// Lines `unit,name,fields` below a line with these words.
    pub(crate) text: &'static str,
}

impl Uncore {
    /// Returns the version of Linux from which the event list was taken, and the name of the list in Linux.
    pub const fn source(&self) -> &'static str {
        self.source
    }

    /// Returns all events, sorted by unit, and within each unit by name.
    pub fn events(&self) -> impl Iterator<Item = UncoreEvent> + Clone + use<> {
        self.text.lines().skip(1).filter_map(|line| {
            let (unit, rest) = line.split_once(',')?;
            let (name, fields) = rest.split_once(',')?;
            Some(UncoreEvent { unit, name, fields })
        })
    }

    /// Finds the events whose names match a pattern: `*` stands for any text, `?` for any one character. Uppercase and
    /// lowercase letters are equal.
    ///
    /// # Context
    /// Task: the function compares the pattern with the names of all events, at most 1,298.
    pub fn matching<'p>(&self, pattern: &'p str) -> impl Iterator<Item = UncoreEvent> + use<'p> {
        self.events().filter(|event| matches(pattern.as_bytes(), event.name.as_bytes()))
    }

    /// Returns the uncore events of processors with this core type; `None` if this crate has no list of these events.
    pub fn of(core_type: &CoreType) -> Option<&'static Self> {
        let is_of = |list: &&Self| list.core_types.split(' ').any(|name| name == core_type.name());
        LISTS.iter().find(is_of)
    }
}

/// A list: its core types, where Linux has it, and the name of its file, with which the list's name in Linux ends.
macro_rules! list {
    ($core_types:literal, $linux:literal, $file:literal) => {
        Uncore {
            core_types: $core_types,
            source: concat!($linux, $file),
            text: include_str!(concat!("../uncore/", $file, ".csv")),
        }
    };
}

/// One list per kind of processor. Intel's lists leave out events that are deprecated or marked as experimental.
static LISTS: [Uncore; 27] = [
    list!("alderlake_goldencove alderlake_gracemont", "Linux 6.12 ", "alderlake"),
    list!("broadwell", "Linux 6.12 ", "broadwell"),
    list!("broadwellde", "Linux 6.12 ", "broadwellde"),
    list!("broadwellx", "Linux 6.12 ", "broadwellx"),
    list!("cascadelakex", "Linux 6.12 ", "cascadelakex"),
    list!("emeraldrapids sapphirerapids", "Linux 6.12 ", "emeraldrapids"),
    list!("grandridge", "Linux 6.12 ", "grandridge"),
    list!("graniterapids", "Linux 6.12 ", "graniterapids"),
    list!("haswell", "Linux 6.12 ", "haswell"),
    list!("haswellx", "Linux 6.12 ", "haswellx"),
    list!("icelake rocketlake", "Linux 6.12 ", "icelake"),
    list!("icelakex", "Linux 6.12 ", "icelakex"),
    list!("ivybridge sandybridge", "Linux 6.12 ", "ivybridge"),
    list!("ivytown", "Linux 6.12 ", "ivytown"),
    list!("jaketown", "Linux 6.12 ", "jaketown"),
    list!("knightslanding", "Linux 6.12 ", "knightslanding"),
    list!("meteorlake_crestmont meteorlake_redwoodcove", "Linux 6.12 ", "meteorlake"),
    list!("sierraforest", "Linux 6.12 ", "sierraforest"),
    list!("skylake", "Linux 6.12 ", "skylake"),
    list!("skylakex", "Linux 6.12 ", "skylakex"),
    list!("snowridgex", "Linux 6.12 ", "snowridgex"),
    list!("tigerlake", "Linux 6.12 ", "tigerlake"),
    list!("zen1 zen2", "Linux 7.2 amd", "zen1"),
    list!("zen3", "Linux 7.2 amd", "zen3"),
    list!("zen4", "Linux 7.2 amd", "zen4"),
    list!("zen5", "Linux 7.2 amd", "zen5"),
    list!("zen6", "Linux 7.2 amd", "zen6"),
];
