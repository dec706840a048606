//! An event of an uncore unit.

use core::fmt;

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
