//! The counters of all processors: a session each, used on its own processor only. With a mailbox they are the
//! hardware that profile objects start and stop.

use core::sync::atomic::{AtomicU64, Ordering};

use pmu::core::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu::core::{
    FixupMsr, InterfaceError, KProfileSource, ProcessorNumber, ProfileInterface, Session, Snapshot,
    SourceInterface,
};
use pmu::{Delivery, Machine, PerProcessor};
use pmu_kprofile::{Affinity, Mailbox, Remote, RemoteProcessors, SourceRequest};

use crate::embedding::memory::COUNTERS;
use crate::embedding::msr::control_msr;
use crate::embedding::platform::{Apic, Kernel, apic, set_delivery};
use crate::line;
use crate::machine::processor::{self, MAX_PROCESSORS};
use crate::machine::serial::{End, exit};
use crate::machine::{clock, smp};

/// One processor's control handle.
pub type Control = Session<'static, &'static Machine, FixupMsr, Apic>;

static SESSIONS: PerProcessor<Control, Kernel, MAX_PROCESSORS> = PerProcessor::new();

/// Uses the session of the processor that executes the call.
fn here<R>(function: impl FnOnce(&mut Control) -> R) -> R {
    match SESSIONS.with(|place| place.as_mut().map(function)) {
        Ok(Some(result)) => result,
        Ok(None) | Err(_) => {
            unreachable!("every processor has a session, and uses it once at a time")
        }
    }
}

/// The sessions of all processors that run.
#[derive(Debug)]
pub struct Sessions {
    machine: &'static Machine,
    freeze: bool,
}

impl Sessions {
    /// Takes over the counters of every processor; with `freeze`, lets them, where they
    /// can, stop by themselves while an interrupt is serviced. Boot processor, task context.
    ///
    /// # Errors
    /// The first processor's whose counters do not answer.
    pub fn open(machine: &'static Machine, freeze: bool) -> Result<Self, InterfaceError> {
        let global = machine.unit().global();
        let freeze = freeze && global.is_some_and(|global| global.freeze.is_some());
        let sessions = Self { machine, freeze };
        sessions.take()?;
        Ok(sessions)
    }

    /// Takes the counters of every processor, or none: a session that is dropped would keep its own.
    fn take(&self) -> Result<(), InterfaceError> {
        self.take_each().inspect_err(|_| _ = self.shut_down())
    }

    fn take_each(&self) -> Result<(), InterfaceError> {
        for (number, counters) in COUNTERS.iter().enumerate().take(smp::processors()) {
            smp::run_on(number, || {
                let this = Snapshot::capture(CpuIdReaderNative);
                let session = self.machine.initialize(&this, control_msr(), apic(), counters)?;
                let Ok(()) = SESSIONS.with(|place| *place = Some(session)) else {
                    unreachable!("nothing uses the session meanwhile");
                };
                if self.freeze { here(Session::freeze_on_interrupt) } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    /// Returns the machine.
    pub fn machine(&self) -> &'static Machine {
        self.machine
    }

    /// Uses the session of a processor, there.
    pub fn on<R: Send>(&self, number: usize, function: impl FnOnce(&mut Control) -> R + Send) -> R {
        smp::run_on(number, || here(function))
    }

    /// Returns the hardware that profile objects start and stop.
    pub fn hardware(&self) -> Remote<'static, Kernel, MAX_PROCESSORS> {
        Remote::new(&MAILBOX, Kernel)
    }

    /// Changes the delivery of the performance interrupt, for which each processor's counters are given back and taken
    /// again. No source is running.
    ///
    /// # Errors
    /// The first register's that did not answer.
    pub fn deliver(&self, delivery: Delivery) -> Result<(), InterfaceError> {
        self.shut_down()?;
        set_delivery(delivery);
        self.take()
    }

    /// Stops everything, and gives the counters back.
    ///
    /// # Errors
    /// The first register's that did not answer; every session was shut down all the same.
    pub fn shut_down(&self) -> Result<(), InterfaceError> {
        let each = (0..smp::processors()).map(|number| {
            smp::run_on(number, || match SESSIONS.with(Option::take) {
                Ok(Some(mut session)) => session.shut_down(),
                Ok(None) | Err(_) => Ok(()),
            })
        });
        each.fold(Ok(()), Result::and)
    }
}

/// Requests are served with the session of the processor that serves them. Only the boot processor posts requests, so
/// on the others no task uses the session that the interrupt finds. Nothing here moves a task to another processor; a
/// kernel that does binds the task around `start` and `stop`.
impl RemoteProcessors for Kernel {
    fn this_processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(processor::number() as u16)
    }

    fn in_interrupt(&self) -> bool {
        processor::in_interrupt()
    }

    fn active_processors(&self) -> Affinity {
        Affinity::first(smp::processors())
    }

    fn supports(&self, source: KProfileSource) -> bool {
        here(|session| session.query(source).is_supported())
    }

    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
        here(|session| match request {
            SourceRequest::Start(source) => session.start(source),
            SourceRequest::Stop(source) => session.stop(source),
        })
    }

    fn interrupt(&self, processor: ProcessorNumber) {
        ASKED.store(clock::now(), Ordering::Relaxed);
        smp::call(processor.index());
    }

    fn keep_waiting(&self, turns: u64) -> bool {
        // A call may have been slept over: see `smp::run_on`.
        if turns.is_multiple_of(1 << 20) {
            (1..smp::processors()).for_each(smp::call);
        }
        if clock::now() - ASKED.load(Ordering::Relaxed) > clock::milliseconds(smp::CALL_MS) {
            line!("failed a processor does not answer");
            exit(End::Wrong);
        }
        true
    }
}

/// The requests of profile objects to processors.
static MAILBOX: Mailbox<MAX_PROCESSORS> = Mailbox::new();
/// The time of the request that is being waited for.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Serves the request to this processor, if there is one: in the handler of the interrupt that asks for it.
pub fn drain() {
    MAILBOX.drain(&Kernel);
}
