//! The events of uncore units, by pattern.

use crate::name::pattern::matches;
use crate::uncore::event::UncoreEvent;

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
}
