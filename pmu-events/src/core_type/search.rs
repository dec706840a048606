//! Events by a pattern, and by a misspelled name.

use crate::core_type::error::EventError;
use crate::core_type::lookup::Events;
use crate::event::PmuEvent;
use crate::format::core_type::CoreType;
use crate::name::distance::distance;
use crate::name::hash::{MAX_NAME, odd_character};
use crate::name::pattern::matches;
use crate::uncore::event::UncoreEvent;
use crate::uncore::list::Uncore;

impl CoreType {
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
            let place = distances.partition_point(|other| *other <= far);
            if let (Some(behind), Some(others)) =
                (nearest.get_mut(place..), distances.get_mut(place..))
                && !behind.is_empty()
            {
                behind.rotate_right(1);
                others.rotate_right(1);
                behind[0] = Some(event);
                others[0] = far;
            }
        }
        nearest
    }
}

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
