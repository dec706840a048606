//! The counters of all processors: a session each, used on its own processor only. With a mailbox they are the
//! hardware that profile objects start and stop.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pmu_core::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu_core::{
    FixupMsr, InterfaceError, KProfileSource, ProcessorNumber, ProfileInterface, Session, Snapshot,
};
use pmu_kprofile::{Affinity, Mailbox, Processors, Remote, SourceRequest};

use crate::pmu::{COUNTERS, Delivery, LocalApic, control_msr, set_delivery};
use crate::processor::{self, MAX_PROCESSORS};
use crate::serial::{End, exit};
use crate::{clock, line, smp};

/// One processor's control handle.
pub type Control<'a, I> = Session<'a, &'a I, FixupMsr, LocalApic>;

struct Place<'a, I>(UnsafeCell<Option<Control<'a, I>>>);

impl<'a, I> Place<'a, I> {
    fn get(&self) -> *mut Option<Control<'a, I>> {
        self.0.get()
    }
}

// SAFETY: a place is accessed by its own processor alone, in what `smp::run_on` runs there, and that is
// one function at a time.
unsafe impl<I: Sync> Sync for Place<'_, I> {}

/// The first member of [`Sessions`]: lets a handler that does not know their interface type have them serve a request.
struct Server {
    serve: unsafe fn(*const Server, SourceRequest) -> Result<(), InterfaceError>,
}

/// The sessions of all processors that run.
#[repr(C)]
pub struct Sessions<'a, I> {
    server: Server,
    interface: &'a I,
    places: [Place<'a, I>; MAX_PROCESSORS],
}

impl<'a, I: ProfileInterface + Sync> Sessions<'a, I> {
    /// Takes over the counters of every processor; with `freeze`, lets them, where they
    /// can, stop by themselves while an interrupt is serviced. Boot processor, task context.
    ///
    /// # Errors
    /// The first processor's whose counters do not answer.
    pub fn open(interface: &'a I, freeze: bool) -> Result<Self, InterfaceError> {
        let places = [const { Place(UnsafeCell::new(None)) }; MAX_PROCESSORS];
        /// # Safety
        /// - `server` begins `Sessions<'_, I>`.
        unsafe fn serve<I: ProfileInterface + Sync>(
            server: *const Server,
            request: SourceRequest,
        ) -> Result<(), InterfaceError> {
            // SAFETY: as promised; the sessions are shared.
            let sessions = unsafe { &*server.cast::<Sessions<'_, I>>() };
            Processors::serve(&sessions, request)
        }
        let sessions = Self { server: Server { serve: serve::<I> }, interface, places };
        let freeze =
            freeze && interface.unit().global().is_some_and(|global| global.freeze.is_some());
        let processors = sessions.places.iter().zip(&COUNTERS).enumerate();
        for (number, (place, counters)) in processors.take(smp::processors()) {
            smp::run_on(number, || {
                let this = Snapshot::capture(CpuIdReaderNative);
                let mut session =
                    interface.initialize(&this, control_msr(), LocalApic, counters)?;
                if freeze {
                    session.freeze_on_interrupt()?;
                }
                // SAFETY: on the place's own processor, and one at a time.
                unsafe { *place.get() = Some(session) };
                Ok::<(), InterfaceError>(())
            })?;
        }
        Ok(sessions)
    }

    /// Returns the machine's interface.
    pub fn interface(&self) -> &'a I {
        self.interface
    }

    /// Uses the session of a processor, there.
    pub fn on<R: Send>(
        &self,
        number: usize,
        function: impl FnOnce(&mut Control<'a, I>) -> R + Send,
    ) -> R {
        let place = &self.places[number];
        smp::run_on(number, || {
            // SAFETY: on the place's own processor, and one at a time; nothing is borrowed from it.
            let Some(mut session) = (unsafe { (*place.get()).take() }) else {
                unreachable!("every processor has a session, and uses it once at a time");
            };
            let result = function(&mut session);
            // SAFETY: as above.
            unsafe { *place.get() = Some(session) };
            result
        })
    }

    /// Returns the hardware that profile objects start and stop.
    pub fn hardware(&self) -> Remote<'static, &Self, MAX_PROCESSORS> {
        Remote::new(&MAILBOX, self)
    }

    /// Changes how the performance interrupt is delivered. No counter source is running.
    pub fn deliver(&self, delivery: Delivery) {
        set_delivery(delivery);
        for number in 0..smp::processors() {
            smp::run_on(number, || {
                pmu_core::Platform::unmask_performance_interrupt(&LocalApic);
            });
        }
    }

    /// Stops everything, and gives the counters back.
    ///
    /// # Errors
    /// The first register's that did not answer; every session was shut down all the same.
    pub fn shut_down(self) -> Result<(), InterfaceError> {
        (0..smp::processors())
            .map(|number| self.on(number, Control::shut_down))
            .fold(Ok(()), Result::and)
    }
}

impl<I: ProfileInterface + Sync> Processors for &Sessions<'_, I> {
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
        self.on(processor::number(), |session| session.query(source).is_supported())
    }

    /// Serves a request with this processor's session. Only the boot processor posts requests, so on the others no task
    /// uses the session that the interrupt finds.
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
        self.on(processor::number(), |session| match request {
            SourceRequest::Start(source) => session.start(source),
            SourceRequest::Stop(source) => session.stop(source),
        })
    }

    fn interrupt(&self, processor: ProcessorNumber) {
        ASKER.store(ptr::from_ref(&self.server).cast_mut(), Ordering::Release);
        ASKED.store(clock::now(), Ordering::Relaxed);
        smp::call(processor.index());
    }

    fn keep_waiting(&self, turns: u64) -> bool {
        // A call may have been slept over: see `smp::run_on`.
        if turns.is_multiple_of(1 << 20) {
            (1..smp::processors()).for_each(smp::call);
        }
        if clock::now() - ASKED.load(Ordering::Relaxed) > clock::milliseconds(smp::CALL_MS) {
            // `drain` counts on it that the asker waits.
            line!("failed a processor does not answer");
            exit(End::Wrong);
        }
        true
    }
}

/// The requests of profile objects to processors.
static MAILBOX: Mailbox<MAX_PROCESSORS> = Mailbox::new();
/// The sessions of who asks, and since when it waits.
static ASKER: AtomicPtr<Server> = AtomicPtr::new(ptr::null_mut());
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Serves the request to this processor, if there is one: the handler of the interrupt that asks for it, which knows no
/// interface.
pub fn drain() {
    MAILBOX.drain(&ThisProcessor);
}

/// The processor that drains its requests, and leaves the rest to the sessions of who asks.
struct ThisProcessor;

impl Processors for ThisProcessor {
    fn this_processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(processor::number() as u16)
    }

    fn in_interrupt(&self) -> bool {
        true
    }

    fn active_processors(&self) -> Affinity {
        Affinity::first(smp::processors())
    }

    fn supports(&self, _: KProfileSource) -> bool {
        false
    }

    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
        let server = ASKER.load(Ordering::Acquire);
        // SAFETY: (1) a request was found, so its asker waits until it is answered, or ends the kernel; (2) it stored
        // its server before it interrupted this processor, and borrows the sessions meanwhile.
        unsafe { ((*server).serve)(server, request) }
    }

    fn interrupt(&self, _: ProcessorNumber) {}

    fn keep_waiting(&self, _: u64) -> bool {
        false
    }
}
