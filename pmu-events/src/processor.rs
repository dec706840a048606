//! Processors and their core types.

use core::fmt;

use pmu_core::Snapshot;

use crate::core_type::{EventError, UnknownCoreType};
use crate::event::PmuEvent;
use crate::format::{CoreType, Model};
use crate::tables::MODELS;

/// A processor whose core type was detected from CPUID. Use this type to find the processor's events.
///
/// On a hybrid machine, P-cores and E-cores have different events, so take a CPUID snapshot on each core.
///
/// ```
/// # use pmu_core::dump::CpuidDump;
/// # use pmu_core::Snapshot;
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
    /// # use pmu_core::dump::CpuidDump;
    /// # use pmu_core::Snapshot;
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
    /// use pmu_core::Snapshot;
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
