//! A core type, as the generator writes it.

use core::fmt;

use crate::format::table::Table;

/// A microarchitecture of cores, such as `skylake` or `zen4`, with its name, its events, and the source of the events.
///
/// Each core type is a static, for instance [`SKYLAKE`](crate::SKYLAKE). A program contains only the tables of the
/// statics that the program uses.
///
/// ```
/// use pmu_events::{EventError, SKYLAKE};
/// let event = SKYLAKE.event("inst_retired.any_p")?;
/// assert_eq!(event.name(), "INST_RETIRED.ANY_P");
/// assert_eq!(event.select().select_bits(), 0x00C0);
/// println!("{}, from {}, version {}", SKYLAKE.name(), SKYLAKE.source(), SKYLAKE.version());
/// # Ok::<(), EventError>(())
/// ```
pub struct CoreType {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) published: Option<&'static str>,
    pub(crate) source: &'static str,
    /// The bits of a select that are the event's number.
    pub(crate) number: u64,
    pub(crate) perf_pmu: &'static str,
    pub(crate) table: Table,
}

impl CoreType {
    /// Returns the name of the core type, such as `skylake` or `alderlake_goldencove`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the file from which the core type's events were taken: a file of Intel's perfmon repository, or of
    /// Linux' perf.
    pub const fn source(&self) -> &'static str {
        self.source
    }

    /// Returns the version of the [`source`](Self::source) of the core type's events: the version of Intel's event
    /// list, or of Linux.
    pub const fn version(&self) -> &'static str {
        self.version
    }

    /// Returns the date on which Intel published this [`version`](Self::version) of the event list, such as
    /// `2024-04-04`. Returns `None` if the list has no date.
    pub const fn published(&self) -> Option<&'static str> {
        self.published
    }

    /// Returns the name that Linux' perf gives to the PMU of cores of this type: `cpu`; on a hybrid, `cpu_core` or
    /// `cpu_atom`.
    ///
    /// ```
    /// // Linux has the number of the PMU, the `type` that perf_event_open takes, in a file.
    /// let pmu = pmu_events::ALDERLAKE_GRACEMONT.perf_pmu();
    /// let number = format!("/sys/bus/event_source/devices/{pmu}/type");
    /// assert_eq!(number, "/sys/bus/event_source/devices/cpu_atom/type");
    /// ```
    pub const fn perf_pmu(&self) -> &'static str {
        self.perf_pmu
    }
}

/// Compares two core types by their names.
impl PartialEq for CoreType {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for CoreType {}

impl fmt::Debug for CoreType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for CoreType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for CoreType {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{=str}", self.name);
    }
}
