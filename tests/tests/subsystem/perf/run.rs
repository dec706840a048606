//! A run of the subsystem: operations at random, and a comparison after each.

use super::operations::Faults;
use super::state::{Subsystem, feed_of};

impl Subsystem<'_, '_> {
    /// Does something, so many times, and compares everything after each.
    pub(crate) fn run(&mut self, steps: u32, faults: Faults) {
        for step in 0..steps {
            let cpu = self.random.below(self.cpus.len() as u64) as usize;
            self.context = format!("{:?}, step {step}, processor {cpu}", self.cpus[cpu].processor);
            self.operate(cpu, faults);
            self.pass();
            self.check();
        }
        self.end();
    }

    /// Lets time pass and events happen on every processor.
    fn pass(&mut self) {
        let passed = 1 + self.random.below(20);
        self.now += passed;
        for cpu in 0..self.cpus.len() {
            let counts = self.some_counts(cpu);
            let mut feed = feed_of(&counts);
            self.count(cpu, passed, &counts);
            self.cpus[cpu].mock.advance(&mut feed);
        }
    }
}
