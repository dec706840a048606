//! The comparison of the subsystem with the naive model.

use pmu_core::CounterSet;
use pmu_core::thread::ThreadEvent;

use super::state::{Placed, Subsystem};
use pmu_tests::opened::running;

impl Subsystem<'_, '_> {
    /// Compares every event with its model, and the counters that run with those of events.
    pub(crate) fn check(&self) {
        for cpu in 0..self.cpus.len() {
            let here = self.here(cpu);
            let counters = &self.cpus[cpu].counters;
            let context = format!("{}: on processor {cpu}", self.context);
            for Placed { number, id } in &here {
                let event = &self.events[*number];
                let context = format!("{context}, event {number}, {event:?}");
                assert_eq!(counters.is_enabled(*id), event.is_on(), "{context}");
                let told = self.told.of(*number);
                assert!(event.agrees_with(told), "{context}: {told:?}");
                if event.wants_total() {
                    let count = counters.read(*id, self.now);
                    assert_eq!(count, Ok(event.count), "{context}");
                }
                // An event that takes no turns is on a counter while it is started.
                let on = counters.counter_of(*id).is_some();
                if self.is_countable(*number, cpu) {
                    assert!(on || event.rotates || !event.is_on(), "{context}");
                } else {
                    assert!(!on, "{context}: of another type of core");
                }
            }
            let on: CounterSet =
                here.iter().filter_map(|placed| counters.counter_of(placed.id)).collect();
            assert_eq!(running(self.cpus[cpu].mock), on, "{context}");
            for group in &self.groups {
                let members = here.iter().filter(|placed| group.contains(&placed.number));
                let members: Vec<bool> =
                    members.map(|placed| counters.counter_of(placed.id).is_some()).collect();
                assert!(members.windows(2).all(|pair| pair[0] == pair[1]), "{context}: a part");
            }
        }
        for task in &self.tasks {
            for (number, event) in task.numbers.iter().zip(&task.events) {
                if let ThreadEvent::SwitchedOut(stopped) = event {
                    let expected = &self.events[*number];
                    let context = format!("{}: event {number}, {expected:?}", self.context);
                    assert_eq!(stopped.is_enabled(), expected.started, "{context}");
                    expected.check_times(stopped.count(), &context);
                    let told = self.told.of(*number);
                    assert!(expected.agrees_with(told), "{context}: {told:?}");
                }
            }
        }
    }
}
