//! Requests for precise samples, as far as a processor can meet them.

use pmu_core::facility::Asked;
use pmu_core::msr::MsrAddress;
use pmu_core::precise::{NotPrecise, Precision, SampleParts};
use pmu_core::{CounterError, CounterSet, Event, EventSelect};

use crate::precise::model::LatencyEvent;
use crate::precise::registers::{MSR_PEBS_FRONTEND, MSR_PEBS_LD_LAT_THRESHOLD};
use crate::precise::unit::PreciseUnit;

/// Bits of a select that say what is counted: all but the modes, `EN`, `INT`, `PC`, and the bits from 32 on.
const EVENT: u64 = 0xFF84_FFFF;

impl PreciseUnit {
    /// Meets a request for precise samples that the processor can record.
    pub(crate) fn resolve(
        &self,
        asked: &mut Asked,
        counters: CounterSet,
    ) -> Result<CounterSet, CounterError> {
        // A sampling unit's is another facility's.
        let precision = asked.precision.filter(|_| !asked.select.is_of_unit());
        let Some(precision) = precision else { return Ok(counters) };
        let capable = self.capable_of(asked, precision, counters);
        let capable = capable.map_err(CounterError::NotPrecise)?;
        let mut counters = counters & capable;
        if let Some(instead) = self.instead(asked.select, precision) {
            let others = asked.select.select_bits() & !EVENT;
            asked.select = EventSelect::from_bits(others | instead.select_bits());
            counters = counters & self.counters.counters_of(&Event::raw(instead))?;
        }
        // SAFETY: the value selects loads, and changes no memory.
        let register = unsafe { MsrAddress::new(MSR_PEBS_LD_LAT_THRESHOLD) };
        asked.latency_register = asked.latency.take().map(|_| register);
        (asked.precision, asked.parts) = (None, SampleParts::NONE);
        Ok(counters)
    }

    /// Returns the counters that can record an event, which these counters can count.
    fn capable_of(
        &self,
        asked: &mut Asked,
        precision: Precision,
        counters: CounterSet,
    ) -> Result<CounterSet, NotPrecise> {
        if !asked.samples {
            return Err(NotPrecise::NoPeriod);
        }
        if asked.in_guests_only || !self.takes_extra(asked) {
            return Err(NotPrecise::Unsupported);
        }
        let select = self.instead(asked.select, precision).unwrap_or(asked.select);
        if !self.can_record(select) {
            return Err(NotPrecise::Event);
        }
        if precision > Precision::ConstantSkid && !self.format().has_own_address() {
            return Err(NotPrecise::NextAddressOnly);
        }
        let lacking = asked.parts.without(self.groups());
        if !lacking.is_empty() {
            return Err(NotPrecise::Parts(lacking));
        }
        let mut capable = self.counters();
        let number = select.select_bits() as u16;
        match self.model.latency_event().filter(|latency| latency.event == number) {
            Some(_) if asked.latency.is_none_or(|cycles| cycles == 0) => {
                return Err(NotPrecise::NoLatency);
            }
            Some(LatencyEvent { counters, beside, .. }) => {
                capable = capable & counters;
                asked.beside = (beside != 0).then_some(beside);
            }
            None if asked.latency.is_some() => return Err(NotPrecise::NotLatencyEvent),
            None => {}
        }
        if precision == Precision::ZeroSkidRequired {
            let only = self.model.exact_event;
            capable = capable & self.exact_counters();
            if (counters & capable).is_empty() || only != 0 && only != number && !self.is_baseline()
            {
                return Err(NotPrecise::NoExactCounter);
            }
        }
        Ok(capable)
    }

    /// Returns whether records can be written of an event with its extra register: only the condition of a front-end
    /// event.
    fn takes_extra(&self, asked: &Asked) -> bool {
        let Some((register, condition)) = asked.extra else { return true };
        asked.latency.is_none()
            && self.has_frontend()
            && register.get() == MSR_PEBS_FRONTEND
            && FRONTEND_EVENTS.contains(&(asked.select.select_bits() as u16))
            && condition & !FRONTEND_BITS == 0
    }

    /// Returns the event that is counted in place of cycles, if the processor writes no records of cycles.
    fn instead(&self, select: EventSelect, precision: Precision) -> Option<EventSelect> {
        let is_cycles = select.select_bits() & EVENT == 0x3C;
        self.model.cycles(precision).filter(|_| is_cycles)
    }
}

/// Front-end events: `FRONTEND_RETIRED` with its unit masks, and the events of E-cores.
const FRONTEND_EVENTS: [u16; 5] = [0x01C6, 0x02C6, 0x03C6, 0x04C2, 0x40AD];

/// The bits of `MSR_PEBS_FRONTEND`.
const FRONTEND_BITS: u64 = 0x7F_FFFF;
