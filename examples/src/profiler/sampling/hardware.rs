//! Perf events as profile hardware: a source starts on a processor by opening its event there.

use std::io;

use pmu_core::error::PlatformError;
use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, KProfileSource};
use pmu_kprofile::{Affinity, ProfileHardware};

use super::super::error::Error;
use super::super::perf::{Callers, Event, OpenError, PerfEvents, Request, Scope};
use super::thinning::Thinning;
use crate::machine::Source;

/// The period of a processor's clock, in intervals. With the golden ratio it never falls into step with
/// what repeats with the interval, such as a program that a timer wakes each millisecond.
const SYSTEM_WIDE_PERIOD: f64 = 0.618_033_988_75;

/// The number of periods of a thread's clock in an interval. What a thread executes after its last period
/// is not sampled, so the period is short.
const PERIODS_PER_THREAD: u64 = 16;

/// The shortest period of a thread's clock, in nanoseconds: a sample takes a microsecond or more.
const SHORTEST_PERIOD: u64 = 50_000;

/// The perf events of a source.
pub(super) struct Hardware<E> {
    pub(super) events: E,
    /// The source's event.
    pub(super) request: Request,
    /// The source's interval, in the period's unit.
    pub(super) interval: u64,
    active: Affinity,
    source: KProfileSource,
    /// Chooses among the event's samples. Absent until the event is opened on the first processor; the
    /// others then have the same event.
    thinning: Option<Thinning>,
    /// The reason for which the last event was not opened.
    refusal: Option<OpenError>,
}

impl<E: PerfEvents> Hardware<E> {
    pub(super) fn new(
        events: E,
        source: &Source,
        interval: u32,
        callers: Callers,
    ) -> Result<Self, Error> {
        let processors = events.processors().map_err(Error::Perf)?;
        let active = processors.into_iter().map(ProcessorNumber::from_index).collect();
        let (event, unit) = if source.id == KProfileSource::TIME {
            (Event::Clock, 100)
        } else {
            (Event::Raw(source.raw), 1)
        };
        let interval = u64::from(interval) * unit;
        let mut hardware = Self {
            events,
            request: Request {
                event,
                period: interval,
                scope: Scope::SystemWide,
                kernel: true,
                callers,
            },
            interval,
            active,
            source: source.id,
            thinning: None,
            refusal: None,
        };
        match hardware.events.recorded_period() {
            // All samples of a recording are the target's, and each is one interrupt.
            Some(period) => {
                (hardware.interval, hardware.request.scope) = (period, Scope::PerThread);
                hardware.request.period = period;
            }
            None => hardware.request.period = hardware.period(),
        }
        Ok(hardware)
    }

    /// Returns how many interrupts the next sample is.
    pub(super) fn interrupts(&mut self) -> u32 {
        self.thinning.as_mut().map_or(1, Thinning::interrupts)
    }

    pub(super) fn source(&self) -> KProfileSource {
        self.source
    }

    /// Returns the period that samples an interval best.
    fn period(&self) -> u64 {
        match (self.request.event, self.request.scope) {
            (Event::Raw(_), _) => self.interval,
            // Sixteen copies of the stack in an interval would be more than the thread's own work.
            (Event::Clock, Scope::PerThread)
                if matches!(self.request.callers, Callers::Stack(_)) =>
            {
                self.interval
            }
            (Event::Clock, Scope::SystemWide) => {
                (self.interval as f64 * SYSTEM_WIDE_PERIOD).round() as u64
            }
            (Event::Clock, Scope::PerThread) => {
                let rate = self.events.setting().max_rate.unwrap_or(u64::MAX).max(1);
                // Half the rate, as the kernel pauses a clock that exceeds it for a moment.
                let allowed = (2_000_000_000 / rate).max(SHORTEST_PERIOD);
                (self.interval / PERIODS_PER_THREAD).max(allowed).min(self.interval)
            }
        }
    }

    /// Asks for less: own threads instead of processors, and then not the kernel's execution. Returns
    /// false if nothing less is left.
    fn ask_for_less(&mut self) -> bool {
        match (self.request.scope, self.request.kernel) {
            (Scope::SystemWide, _) => self.request.scope = Scope::PerThread,
            (Scope::PerThread, true) => self.request.kernel = false,
            (Scope::PerThread, false) => return false,
        }
        self.request.period = self.period();
        true
    }

    /// Returns why the source did not start, if an event was refused.
    pub(super) fn refusal(&mut self, source: &'static str) -> Option<Error> {
        let error = match self.refusal.take()? {
            OpenError::Ring(error) => return Some(Error::Ring(error)),
            OpenError::Event(error) => error,
        };
        Some(match (error.raw_os_error(), self.request.event) {
            _ if is_forbidden(&error) => Error::Forbidden { error, setting: self.events.setting() },
            (
                Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL),
                Event::Raw(_),
            ) => Error::NoCounter { source, error },
            _ => Error::Perf(error),
        })
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

impl<E: PerfEvents> ProfileHardware for Hardware<E> {
    fn this_processor(&self) -> ProcessorNumber {
        // The records are taken in by one thread, never while it examines one.
        self.active.iter().next().unwrap_or_default()
    }

    fn in_interrupt(&self) -> bool {
        false
    }

    fn active_processors(&self) -> Affinity {
        self.active
    }

    fn supports(&self, source: KProfileSource) -> bool {
        source == self.source
    }

    fn start(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        let index = processor.index() as u16;
        let refusal = loop {
            match self.events.open(index, &self.request) {
                Ok(()) => {
                    let thinning = || Thinning::new(self.request.period, self.interval);
                    self.thinning.get_or_insert_with(thinning);
                    return Ok(());
                }
                // Most users may sample their own programs, but nothing else.
                Err(OpenError::Event(error))
                    if is_forbidden(&error) && self.thinning.is_none() && self.ask_for_less() => {}
                Err(refusal) => break refusal,
            }
        };
        self.refusal = Some(refusal);
        Err(match self.request.event {
            Event::Clock => InterfaceError::Platform(PlatformError::NoTimer),
            Event::Raw(_) => InterfaceError::UnsupportedSource(source),
        })
    }

    fn stop(
        &mut self,
        processor: ProcessorNumber,
        _: KProfileSource,
    ) -> Result<(), InterfaceError> {
        self.events.close(processor.index() as u16);
        Ok(())
    }
}
