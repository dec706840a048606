//! Core types and events by their names.

use crate::core_type::error::{EventError, UnknownCoreType};
use crate::event::PmuEvent;
use crate::format::core_type::CoreType;
use crate::format::dictionary::Dictionary;
use crate::format::record::{Record, Shape};
use crate::format::table::Table;
use crate::name::hash::{Wanted, odd_character};
use crate::tables::CORE_TYPES;

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
}

#[inline]
fn find(table: &Table, name: &Wanted<'_>) -> Option<PmuEvent> {
    let seed = *table.seeds.get(name.bucket(table.seeds.len()))?;
    let place = u16::from_le_bytes(*table.slots.get(name.slot(seed, table.slots.len()))?);
    // The offset in an empty slot is beyond the records.
    let (record, _) = Record::read(table.records.get(usize::from(place)..)?, table.shapes)?;
    let event = PmuEvent::new(record, table.dictionary);
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
