//! The extra registers of precise events.

use pmu_core::{
    CounterError, CounterId, CounterSession, CounterSet, EventSource, MsrAddress, MsrBackend,
    Platform,
};

use crate::precise::registers::{MSR_PEBS_FRONTEND, MSR_PEBS_LD_LAT_THRESHOLD};

/// A register that selects further what an event counts, and of which a processor has one for all counters.
#[derive(Debug)]
pub(crate) struct ExtraRegister {
    register: MsrAddress,
    /// The counters whose events use the register.
    counters: CounterSet,
    /// The value for these events.
    value: u32,
}

impl ExtraRegister {
    /// The least latency of the loads that are recorded.
    pub(crate) const fn latency() -> Self {
        // SAFETY: the value selects loads, and changes no memory.
        Self::new(unsafe { MsrAddress::new(MSR_PEBS_LD_LAT_THRESHOLD) })
    }

    /// The condition of front-end events.
    pub(crate) const fn frontend() -> Self {
        // SAFETY: the value selects events, and changes no memory.
        Self::new(unsafe { MsrAddress::new(MSR_PEBS_FRONTEND) })
    }

    const fn new(register: MsrAddress) -> Self {
        Self { register, counters: CounterSet::NONE, value: 0 }
    }

    /// Returns the counters whose events use the register.
    pub(crate) const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Returns the register's value if it excludes an event that needs `value`. An event with 0 needs none.
    pub(crate) fn conflict(&self, value: u32) -> Option<u32> {
        (value != 0 && !self.counters.is_empty() && value != self.value).then_some(self.value)
    }

    /// Gives the register the value that a counter's event needs. The session's own events then use no other value.
    pub(crate) fn reserve<S: EventSource, M: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, M, P>,
        counter: CounterId,
        value: u32,
    ) -> Result<(), CounterError> {
        if value == 0 {
            return Ok(());
        }
        session.reserve_extra_register(self.register, value.into())?;
        (self.counters, self.value) = (self.counters | counter.only(), value);
        Ok(())
    }

    /// Gives the register its value again, after the registers lost their contents.
    pub(crate) fn reserve_again<S: EventSource, M: MsrBackend, P: Platform>(
        &self,
        session: &mut CounterSession<'_, S, M, P>,
    ) -> Result<(), CounterError> {
        if self.counters.is_empty() {
            return Ok(());
        }
        session.reserve_extra_register(self.register, self.value.into())
    }

    /// Ends the use of the register by these counters' events.
    pub(crate) fn release<S: EventSource, M: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, M, P>,
        counters: CounterSet,
    ) {
        self.counters = self.counters.without(counters);
        if self.counters.is_empty() {
            session.release_extra_register(self.register);
        }
    }
}
