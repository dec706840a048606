//! The counters of all processors: a session each, used on its own processor only. It is the hardware
//! that profile objects start and stop.

use core::cell::UnsafeCell;

use pmu_core::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu_core::{
    FixupMsr, InterfaceError, KProfileSource, ProcessorNumber, ProfileInterface, Session, Snapshot,
};
use pmu_kprofile::{Affinity, ProfileHardware};

use crate::pmu::{COUNTERS, Delivery, LocalApic, control_msr, set_delivery};
use crate::processor::{self, MAX_PROCESSORS};
use crate::smp;

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

/// The sessions of all processors that run.
pub struct Sessions<'a, I> {
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
        let sessions = Self { interface, places };
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

    /// The machine's interface.
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

impl<I: ProfileInterface + Sync> ProfileHardware for Sessions<'_, I> {
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

    fn start(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        self.on(processor.index(), |session| session.start(source))
    }

    fn stop(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        self.on(processor.index(), |session| session.stop(source))
    }
}
