//! A pass on a processor without an overflow status: each counter's value tells whether the counter overflowed.

use crate::counters::hooks::event_source::EventSource;
use crate::counters::hooks::facility::Facility;
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::interrupt::pass::{GENERAL, Pass};
use crate::counters::names::counter_id::CounterSet;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<'a, S, M, P, B, F> Pass<'a, S, M, P, B, F>
where
    S: EventSource,
    M: MsrBackend,
    P: Platform,
    B: Facility,
    F: FnMut(EventOverflow, &B),
{
    /// Serves counters without an overflow status: reads each running counter.
    pub(crate) fn by_value(&mut self) {
        // The counters run meanwhile.
        self.unmask();
        let own = CounterSet::from_bits(self.own & GENERAL).without(self.facility.own_counters());
        self.collect(0, own);
        for counter in own.iter() {
            let Some((slot, running)) = self.at_work(counter) else { continue };
            let registers = self.unit().general(counter);
            let value = registers.read(self.msr);
            let Some(value) = self.note(value) else {
                self.fall_out(Some(running.event));
                continue;
            };
            if registers.has_overflowed(value) {
                self.raised += 1;
                self.reload(counter, slot, running, Some(value));
            }
        }
    }
}
