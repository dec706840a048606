//! A third party's facility whose hardware writes records, against the public traits alone. Whenever a counter
//! overflows that its register names, the hardware writes a record, and loads the counter again. The status reports the
//! overflow too.

use core::cell::{Cell, RefCell};
use std::collections::VecDeque;

use pmu_core::access::{AccessFault, RegisterAccess, RegisterAddress, RegisterBackend};
use pmu_core::error::CounterError;
use pmu_core::facility::{
    Asked, EventControl, EventFacility, Facility, Interrupted, Recorded, Running, RunningEvent,
    Unsettled,
};
use pmu_core::precise::PreciseSample;
use pmu_core::registers::CounterId;
use pmu_core::thread::Waiting;
use pmu_core::{CounterSet, EventId};

/// The register of the counters that write records. No processor of the tests has it.
pub(crate) const ENABLE: u32 = 0x7000_0000;
pub(crate) const PERIOD: u64 = 100;

/// A record, and the event that left its counter while it waited, with the period that it ended.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    pub(crate) counter: CounterId,
    pub(crate) number: u64,
    pub(crate) left: Option<(EventId, u64)>,
}

/// The driver's knowledge of the events, and the buffer that the hardware fills.
#[derive(Default)]
pub(crate) struct Lent {
    /// The counters' events, and the numbers of events for which the hardware loads the counters.
    slots: RefCell<Vec<(CounterId, EventId, u64)>>,
    recording: Cell<u64>,
    known: Cell<Option<u64>>,
    pub(crate) buffer: RefCell<VecDeque<Written>>,
    /// The records that an interrupt is reporting.
    batch: RefCell<VecDeque<Written>>,
    pub(crate) interrupts: Cell<u32>,
}

#[derive(Clone, Copy)]
pub(crate) struct Recorder<'a> {
    pub(crate) lent: &'a Lent,
    pub(crate) shown: Option<u64>,
}

impl Lent {
    pub(crate) fn slot(&self, counter: CounterId) -> Option<(EventId, u64)> {
        let slots = self.slots.borrow();
        slots.iter().find(|(of, ..)| *of == counter).map(|(_, event, reload)| (*event, *reload))
    }

    fn recording(&self) -> CounterSet {
        CounterSet::from_bits(self.recording.get())
    }

    /// Calls `act` with each record of the event that is on a counter.
    fn each_of(&self, counter: CounterId, mut act: impl FnMut(&mut Written)) {
        for records in [&self.batch, &self.buffer] {
            let mut records = records.borrow_mut();
            let its = records.iter_mut();
            its.filter(|of| of.counter == counter && of.left.is_none()).for_each(&mut act);
        }
    }
}

/// Returns the register's address.
fn enable() -> RegisterAddress {
    // SAFETY: no processor is behind it.
    unsafe { RegisterAddress::new(ENABLE) }
}

impl Facility for Recorder<'_> {
    const RECORDS: bool = true;

    fn own_counters(&self) -> CounterSet {
        self.lent.recording()
    }

    fn collect<M: RegisterBackend>(
        &mut self,
        _: &M,
        _: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        self.lent.batch.borrow_mut().append(&mut self.lent.buffer.borrow_mut());
        Ok(self.lent.interrupts.take())
    }

    fn has_records(&self) -> bool {
        !self.lent.batch.borrow().is_empty()
    }

    fn next_record(&mut self) -> Option<Recorded> {
        self.shown = None;
        let Written { counter, number, left } = self.lent.batch.borrow_mut().pop_front()?;
        let (event, reloaded) = self.lent.slot(counter)?;
        self.shown = Some(number);
        let event = left.map_or(event, |(event, _)| event);
        let left = left.map(|(_, period)| period);
        Some(Recorded { counter, event, reloaded, left, hidden: false })
    }

    fn set_reload<M: RegisterBackend>(
        &self,
        _: &M,
        counter: CounterId,
        events: u64,
    ) -> Result<(), AccessFault> {
        let mut slots = self.lent.slots.borrow_mut();
        slots.iter_mut().filter(|(of, ..)| *of == counter).for_each(|slot| slot.2 = events);
        Ok(())
    }
}

impl EventFacility for Recorder<'_> {
    const OFFERS: bool = true;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        let is_met = asked.precision.take().is_some();
        Ok(if is_met { counters & CounterSet::GENERAL } else { counters })
    }

    fn control(&self, event: &RunningEvent<'_>) -> EventControl {
        EventControl { silent: event.precision().is_some(), ..EventControl::default() }
    }

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let precise = |counter| running.on(counter).filter(|of| of.precision().is_some());
        let counters = running.counters().iter();
        let wanted: CounterSet = counters.filter(|counter| precise(*counter).is_some()).collect();
        for (counter, event) in wanted.iter().filter_map(|on| Some((on, precise(on)?))) {
            if self.lent.recording().contains(counter) {
                continue;
            }
            let reload = event.reloaded(&running.registers(counter));
            let mut slots = self.lent.slots.borrow_mut();
            slots.retain(|(of, ..)| *of != counter);
            slots.push((counter, event.id(), reload));
        }
        self.lent.recording.set(wanted.bits());
        if self.lent.known.replace(None) != Some(wanted.bits()) {
            msr.write_retrying(enable(), wanted.bits())
                .map_err(|fault| Unsettled { counters: wanted, fault })?;
        }
        self.lent.known.set(Some(wanted.bits()));
        Ok(())
    }

    fn lose(&self) {
        self.lent.known.set(None);
    }

    /// The facility's register is written while the event's slot is not free yet.
    fn leave<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        event: &RunningEvent<'_>,
    ) -> Result<Waiting, AccessFault> {
        let (waiting, mut period) = (self.waiting(msr, counter)?, event.period_under_way());
        self.lent.each_of(counter, |record| {
            record.left = Some((event.id(), period));
            period = waiting.reloaded;
        });
        let others = self.lent.recording().without(counter.only()).bits();
        self.lent.recording.set(others);
        self.lent.known.set(None);
        msr.write_retrying(enable(), others)?;
        self.lent.known.set(Some(others));
        Ok(waiting)
    }

    fn waiting<M: RegisterBackend>(
        &self,
        _: &M,
        counter: CounterId,
    ) -> Result<Waiting, AccessFault> {
        let (mut records, slot) = (0, self.lent.slot(counter));
        if !self.lent.recording().contains(counter) {
            return Ok(Waiting::NONE);
        }
        self.lent.each_of(counter, |_| records += 1);
        let waiting = slot.filter(|_| records != 0);
        Ok(waiting.map_or(Waiting::NONE, |(_, reloaded)| Waiting { records, reloaded }))
    }

    fn has_waiting<M: RegisterBackend>(&self, _: &M) -> Result<bool, AccessFault> {
        Ok(!self.lent.buffer.borrow().is_empty())
    }

    fn instruction(&self, _: CounterId) -> Option<PreciseSample> {
        let address = Some(0x40_0000 + self.shown?);
        Some(PreciseSample { address, ..PreciseSample::default() })
    }
}
