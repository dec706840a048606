//! Processors that come up, go down, and are suspended.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::error::{CounterError, NoInterface};
use pmu_core::interrupt::EventOverflow;
use pmu_core::lending::LentCounters;
use pmu_core::profile::{InterfaceError, Session};
use pmu_core::{CounterSet, CounterUnit, Event, EventSource, GenericEvent, Sample};
use pmu_kprofile::ProfileError;

use crate::kernel::architecture::{FacilityOf, ProcessorOf};
use crate::kernel::cross_calls::number;
use crate::kernel::facilities::{Facilities, KernelFunctions};
use crate::kernel::pmu::{LocalState, Pmu, PmuError};
use crate::kernel::profile::close;
use crate::kernel::required::{Kernel, KernelHooks};
use crate::kernel::sample::PmuSample;
use crate::per_processor::Busy;
use crate::watchdog::Watchdog;

/// The counters of a processor that declares some which do not answer.
static UNRESPONSIVE: CounterUnit = CounterUnit::absent(NoInterface::Unresponsive);

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Takes ownership of the counters of the processor that executes the call, and starts the sources of all started
    /// profiles on that processor. `this_processor` says which counters that processor has: on x86,
    /// the [`Snapshot`](pmu_core::x86::Snapshot) of its CPUID. The first call also detects the
    /// [`Machine`](crate::Machine).
    ///
    /// Returns the counters that the call took. On a processor without counters the call succeeds, because software
    /// events and profiles by time need none, and the result has none. The reason is in the error of each operation
    /// that needs a counter, [`NoCounters`](pmu_core::error::CounterError::NoCounters): the processor declares none, or
    /// those that it declares do not keep what is written to them, as on virtual processors of AMD without a PMU, and
    /// in some emulators ([`Unresponsive`](pmu_core::error::NoInterface::Unresponsive)). The next
    /// [`processor_down`](Self::processor_down) and `processor_up` try again. A processor without counters on a machine
    /// whose first processor has some is refused, as another type of processor.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative;
    /// use pmu::{Pmu, PmuError, Snapshot};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Each processor, as it comes up, and when it comes back. Returns whether events can be counted on it.
    /// fn on_this_processor() -> Result<bool, PmuError> {
    ///     let counters = PMU.processor_up(&Snapshot::capture(CpuIdReaderNative))?;
    ///     Ok(!counters.is_empty())
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor that comes up.
    ///
    /// # Errors
    /// - [`IsUp`](PmuError::IsUp): the processor is already up.
    /// - [`Session`](PmuError::Session): the processor's number is `P` or more.
    /// - [`Interface`](PmuError::Interface): the call could not take ownership of the counters.
    /// - [`Profile`](PmuError::Profile): the processor is up, but a started profile does not run on it. The kernel
    ///   calls [`processor_resumed`](Self::processor_resumed), which starts the profiles that do not run.
    pub fn processor_up(
        &'static self,
        this_processor: &ProcessorOf<K>,
    ) -> Result<CounterSet, PmuError> {
        let (this, counters) = K::pinned(|| {
            let index = K::this_processor();
            let of = self.processors.get(index).ok_or(Busy::NoSlot { processor: index })?;
            let machine = self.detect(this_processor);
            self.session_slot(|slot| {
                if slot.is_some() {
                    return Err(PmuError::IsUp);
                }
                // SAFETY: (1) the value is this processor's, as is the source with its facility; (2) the kernel
                // promises the rest.
                unsafe {
                    let kernel = const { &KernelFunctions::of::<K>() };
                    of.facilities.detect(this_processor, &K::registers(), kernel);
                }
                let (mut unit, mut wanted) = (machine.unit_of(this_processor), K::counters());
                let session = loop {
                    match Session::take(
                        self.events(of, machine),
                        this_processor,
                        wanted,
                        (K::registers(), KernelHooks::new()),
                        &of.counters,
                    ) {
                        // Software events and time need no counter.
                        Err(InterfaceError::Counters(CounterError::Unresponsive))
                            if !wanted.is_empty() =>
                        {
                            (unit, wanted) = (UNRESPONSIVE, CounterSet::NONE);
                        }
                        session => break session?,
                    }
                };
                let counters = session.counters().usable;
                *slot = Some(LocalState { session, unit, is_suspended: false });
                of.is_unlisted.store(true, Relaxed);
                of.is_up.store(true, Relaxed);
                Ok((index, counters))
            })?
        })?;
        // Not pinned: this may wait for a task that is changing profiles.
        self.update_lists(this)?;
        Ok(counters)
    }

    /// Stops all profiles, events and the watchdog of the processor that executes the call, and releases the
    /// processor's counters. Started profiles continue on the other processors.
    ///
    /// The call closes all events of the processor. After the next [`processor_up`](Self::processor_up), a new event
    /// may get the [`EventId`](pmu_core::EventId) of a closed event. So before this call, the kernel closes its own
    /// events, and switches out the events of threads. The kernel also discards the `EventId`s of the closed events.
    ///
    /// # Context
    /// Task, on the processor that goes down.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session).
    /// - [`Interface`](PmuError::Interface): accesses to a counter's register failed. The processor is still up, and
    ///   the kernel may call this again.
    /// - [`Profile`](PmuError::Profile): the processor is down, but the lists of started profiles were not updated.
    ///   [`ProfileObject::runs_on`](pmu_kprofile::ProfileObject::runs_on) may still return `true` for this processor.
    ///   The kernel may call this again, to update the lists.
    pub fn processor_down(&'static self) -> Result<(), PmuError> {
        let this = K::pinned(|| {
            let index = K::this_processor();
            let of = self.processors.get(index).ok_or(PmuError::NotUp)?;
            self.session_slot(|slot| {
                let Some(local) = slot else {
                    // After an error of the profiles, only the lists are left to do.
                    return of.is_unlisted.load(Relaxed).then_some(index).ok_or(PmuError::NotUp);
                };
                // If this fails, the session stays, because its counters may still run.
                local.session.shut_down()?;
                *slot = None;
                of.watchdog.unwatch();
                of.is_unlisted.store(true, Relaxed);
                of.is_up.store(false, Relaxed);
                Ok(index)
            })?
        })?;
        // The processor is inactive by now, so this only records that no source runs on it.
        self.update_lists(this)
    }

    /// Starts the sources of all started profiles on a processor that came up, or records that no source runs any more
    /// on one that went down.
    fn update_lists(&'static self, index: usize) -> Result<(), PmuError> {
        self.change(|profiles, hardware| {
            profiles.try_restart_processor(number(index), hardware).map(|()| self.listed(index))
        })
    }

    /// Notes that the lists of started profiles tell what runs on a processor.
    fn listed(&self, index: usize) {
        if let Some(of) = self.processors.get(index) {
            of.is_unlisted.store(false, Relaxed);
        }
    }

    /// Stops the executing processor's counters before a suspend, and keeps the counts in memory. The registers may
    /// then lose their contents. [`processor_resumed`](Self::processor_resumed) programs the registers again.
    ///
    /// Until the processor resumes, operations on it fail with [`Suspended`](PmuError::Suspended), except
    /// [`processor_down`](Self::processor_down). Other processors may request that this processor start or stop a
    /// profile's source. Such a request waits until this processor resumes. [`Kernel::sampled`] takes each pending
    /// sample of an event that the kernel opened, but for clocks, whose samples come after the resume.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// fn sleep(until_wake: fn()) -> Result<(), PmuError> {
    ///     PMU.processor_suspended()?;
    ///     until_wake();
    ///     PMU.processor_resumed().or_else(|_| PMU.processor_resumed()).map(|_| ())
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor that is about to be suspended.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session), [`Suspended`](PmuError::Suspended).
    /// - [`Interface`](PmuError::Interface): accesses to a counter's register failed, and the processor is not
    ///   suspended. If a counter's register caused the error, the source or event on this counter no longer runs.
    ///
    /// # Limitations
    /// A kernel that does not call this before a suspend loses counts: an event then lacks what its counter counted
    /// since the counter's last interrupt.
    pub fn processor_suspended(&'static self) -> Result<(), PmuError> {
        K::pinned(|| {
            self.with_local(|local| {
                match local.session.suspend(K::now(), self.of_kernel()) {
                    // A processor without counters has nothing to stop.
                    Ok(()) | Err(InterfaceError::Counters(CounterError::NotAvailable(_))) => {}
                    Err(error) => return Err(error.into()),
                }
                local.is_suspended = true;
                Ok(())
            })?
        })
    }

    /// Programs the executing processor's counters again after a suspend. In the suspend, the counters' registers lost
    /// their contents. Profiles, events and the watchdog continue. Returns the set of counters whose values the call
    /// restored: see [`CounterSession::resume`](pmu_core::CounterSession::resume).
    ///
    /// If the kernel called [`processor_suspended`](Self::processor_suspended) before the suspend, each opened event
    /// continues with its count and with the remainder of its period. If the kernel did not call `processor_suspended`,
    /// each event loses the count since its counter's last interrupt. The event's count can then be lower than a count
    /// that the kernel read before the suspend. The call does not report overflows that were pending at the suspend,
    /// because their interrupted addresses are unknown.
    ///
    /// The call also programs the [`Facilities`](crate::facilities::Facilities) of the processor, with the records of a
    /// [`BranchRecorder`](pmu_core::branch_recording::BranchRecorder).
    ///
    /// # Context
    /// Task, on the processor that resumed.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session).
    /// - [`Interface`](PmuError::Interface), [`Profile`](PmuError::Profile), [`Counters`](PmuError::Counters): accesses
    ///   to a counter's register failed, so some profiles or events, or the watchdog, do not run on the processor. The
    ///   kernel may call this again: then all run whose registers answer, without the counts since their last
    ///   interrupts.
    pub fn processor_resumed(&'static self) -> Result<CounterSet, PmuError> {
        let (this, resumed, restarted) = K::pinned(|| {
            self.session_slot(|slot| {
                let local = slot.as_mut().ok_or(PmuError::NotUp)?;
                local.is_suspended = false;
                let resumed = local.session.resume(K::now(), |_| ());
                // The tick has yet to come.
                self.touch();
                let restarted = local.session.counters_mut().restart_faulted(K::now());
                Ok::<_, PmuError>((number(K::this_processor()), resumed, restarted))
            })?
        })?;
        let of = self.processors.get(this.index());
        let is_unlisted = of.is_some_and(|of| of.is_unlisted.load(Relaxed));
        let profiles = self.change(|profiles, hardware| {
            // With the session in use, no source stops in between.
            let started = self.with_local(|local| {
                let mut outcome = Ok(());
                for source in profiles.try_running_sources(this)? {
                    if !local.session.is_running(source) {
                        outcome = outcome.and(local.session.start_at(source, K::now()));
                    }
                }
                outcome.map_err(|error| ProfileError::Hardware { processor: this, error })
            });
            // The error of the session is that of the next call.
            let started = started.unwrap_or(Ok(()));
            if is_unlisted {
                // Some did not start as the processor came up.
                let missing = profiles.try_update_processor(this, hardware);
                return started.and(missing.map(|()| self.listed(this.index())));
            }
            started
        });
        // Only now: a register that fails must not keep profiles and the watchdog from going on.
        let lost = resumed?;
        restarted?;
        profiles.map(|()| lost)
    }

    /// Does what the kernel's timer tick does on the processor that executes the call: gives other
    /// [rotating](pmu_core::Event::rotating) events the counters, adapts the periods of events with a
    /// [frequency](pmu_core::Event::at_frequency), lets throttled events be sampled again, and tells the
    /// [watchdog](Self::watch) that the timer tick runs. The kernel calls this on every processor, as often as
    /// [`Kernel::TICK`] says.
    ///
    /// If the period of an event that is let go on, or whose period got much shorter, has ended by then,
    /// [`Kernel::sampled`] takes its overflow.
    ///
    /// If the interrupted task uses the processor's session, the events wait for the next tick. On a processor that is
    /// not up, or is suspended, the call does nothing.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// static PMU: pmu::Pmu<MyKernel, 8> = pmu::Pmu::new();
    ///
    /// fn timer_interrupt() {
    ///     if let Err(error) = PMU.tick() {
    ///         println!("events that take turns: {error}");
    ///     }
    /// }
    /// ```
    ///
    /// # Context
    /// The handler of the timer tick, or task. Not an NMI. The call is [pinned](Kernel::pinned).
    ///
    /// # Errors
    /// [`Counters`](PmuError::Counters): an access to a register failed. For the other events, the call has done
    /// everything.
    pub fn tick(&'static self) -> Result<(), PmuError> {
        K::pinned(|| {
            // First, because the session may be in use: the processor is alive all the same.
            self.touch();
            let tick = |local: &mut LocalState<K>| {
                // Events of sources and the watchdog are not throttled, and have no frequency.
                local.session.counters_mut().tick(K::TICK, K::now(), overflowed::<K>)
            };
            match self.with_local(tick) {
                Ok(ticked) => Ok(ticked?),
                // The tick may have interrupted a task that uses the session. The next tick makes up for this one.
                Err(PmuError::Session(_) | PmuError::NotUp | PmuError::Suspended) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    /// Lends the counters of the processor that executes the call while `guest` runs, for example to a virtual
    /// processor. All events and [`Facilities`](crate::facilities::Facilities) stop meanwhile, the profiles by events
    /// and the watchdog too, and continue afterwards with the counts and periods that they had. On a processor without
    /// counters, `guest` runs with none. [`Kernel::sampled`] takes each pending sample of an event that the kernel
    /// opened, but for clocks, whose samples come afterwards; those of profiles are lost.
    ///
    /// While `guest` runs, the handler passes an interrupt on to the guest if
    /// [`Interrupted::lent`](crate::Interrupted::lent) is set. If `guest` panics and unwinds, the counters stay lent:
    /// the kernel calls [`processor_resumed`](Self::processor_resumed).
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// fn run(enter_guest: fn(global_control: u64)) -> Result<(), PmuError> {
    ///     PMU.lend(|lent| {
    ///         enter_guest(lent.global_control());
    ///         lent.set_programmed(true); // the guest wrote to the registers of the counters
    ///     })
    /// }
    /// ```
    ///
    /// # Context
    /// Task. The call, and so `guest`, is [pinned](Kernel::pinned). An interrupt may come at any time.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session): `guest` was
    ///   not run.
    /// - [`Interface`](PmuError::Interface): accesses to registers failed, before `guest`, which was not run, or after
    ///   it. In the latter case all other counters are programmed again, and what was on the counters that did not
    ///   answer no longer runs. The kernel calls [`processor_resumed`](Self::processor_resumed), until that succeeds.
    pub fn lend(&'static self, guest: impl FnOnce(&mut LentCounters)) -> Result<(), PmuError> {
        K::pinned(|| {
            self.with_local(|local| {
                let mut window = match local.session.lend(K::now(), self.of_kernel()) {
                    Err(InterfaceError::Counters(CounterError::NotAvailable(_))) => {
                        guest(&mut LentCounters::unowned(CounterSet::NONE, 0));
                        return Ok(());
                    }
                    window => window?,
                };
                self.hide_pages(); // The guest may not come back here.
                guest(window.lent());
                let Err(error) = window.end(K::now()) else { return Ok(()) };
                // No event can use a counter that could not be restored before its registers are programmed again.
                local.session.reprogram(|_| ())?;
                // A facility alone is programmed again by now.
                if error.counters.is_empty() {
                    Ok(())
                } else {
                    Err(CounterError::from(error).into())
                }
            })?
            .map_err(PmuError::Interface)
        })
    }

    /// Returns a function that passes on the samples of the events that the kernel opened.
    pub(super) fn of_kernel(&'static self) -> impl FnMut(Sample<'_, FacilityOf<K>>) {
        let here = self.processors.get(K::this_processor()).zip(self.machine());
        let here = here.map(|(of, machine)| (self.events(of, machine), of.watchdog_tag()));
        move |sample| {
            if here.is_some_and(|(events, tag)| {
                sample.tag != tag && events.overflow(&sample).is_none()
            }) {
                report_by_task::<K>(&sample);
            }
        }
    }

    /// Watches the processor that executes the call. If the processor's timer tick does not call [`touch`](Self::touch)
    /// for `seconds` seconds, the watchdog's counter raises an interrupt. In the result of
    /// [`interrupt`](Self::interrupt), [`is_stuck`](crate::Interrupted::is_stuck) is then `true`. `hertz` is the
    /// highest frequency of the processor: see [`Watchdog::event`].
    ///
    /// If the processor is already watched, the call restarts its watchdog. If the watchdog's counter failed, the call
    /// gives the watchdog another counter.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session).
    /// - [`Counters`](PmuError::Counters): the processor has no event that counts cycles, or no free counter for this
    ///   event, or `E` events are open.
    pub fn watch(&'static self, hertz: u64, seconds: u32) -> Result<(), PmuError> {
        self.watch_with(|unit| {
            let cycles = Event::generic(GenericEvent::Cycles);
            let why = || unit.counters_of(&cycles).err();
            let event = Watchdog::event(unit, hertz, seconds);
            event.ok_or_else(|| why().unwrap_or(CounterError::NoCounterForEvent))
        })
    }

    /// Watches the processor that executes the call, as [`watch`](Self::watch) does, by an event of the kernel's
    /// choice: for example a raw event on a processor whose cycles these crates do not know. The event's period is
    /// longer than the timer tick.
    ///
    /// # Errors
    /// - The errors of [`watch`](Self::watch).
    /// - [`Counters`](PmuError::Counters): the event has no period, or the processor cannot count it. A [software
    ///   event](Event::software) cannot watch: no call of the kernel counts it on a processor that is stuck. Nor can an
    ///   event with a [frequency](Event::at_frequency), whose period gets shorter than the tick.
    pub fn watch_by(&'static self, event: &Event) -> Result<(), PmuError> {
        self.watch_with(|_| match (event.period(), event.software_event()) {
            (Some(_), None) if event.frequency().is_none() => Ok(*event),
            (period, _) => Err(CounterError::Period(period.unwrap_or(0))),
        })
    }

    fn watch_with(
        &'static self,
        event: impl FnOnce(&CounterUnit) -> Result<Event, CounterError>,
    ) -> Result<(), PmuError> {
        K::pinned(|| {
            self.unwatch()?;
            let Some(of) = self.processors.get(K::this_processor()) else {
                return Err(PmuError::NotUp);
            };
            self.with_local(|local| {
                let event = event(&local.unit)?;
                let counters = local.session.counters_mut();
                let event = event.tagged(of.watchdog_tag()).unlisted();
                let id = counters.open(&local.unit, &[event]).map_err(CounterError::from)?;
                // Before the start, so that the first interrupt finds it.
                of.watchdog.watch(id);
                counters.enable(id, K::now()).map_err(|error| {
                    of.watchdog.unwatch();
                    // The first error is the reason.
                    let _ = close(local, id, &mut []);
                    error.reason
                })
            })?
            .map_err(PmuError::Counters)
        })
    }

    /// Stops watching the processor that executes the call, if it is watched.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session).
    /// - [`Counters`](PmuError::Counters): accesses to the register of the watchdog counter failed. The processor is no
    ///   longer watched.
    pub fn unwatch(&'static self) -> Result<(), PmuError> {
        K::pinned(|| {
            let Some(of) = self.processors.get(K::this_processor()) else {
                return Err(PmuError::NotUp);
            };
            self.with_local(|local| {
                let event = of.watched(local);
                // Before the event is closed, whose identity another event may get.
                of.watchdog.unwatch();
                event.map_or(Ok(()), |event| close(local, event, &mut []))
            })?
            .map_err(|error| PmuError::Counters(error.reason))
        })
    }

    /// Tells the watchdog that the executing processor's timer tick runs. The kernel's timer tick calls this, or
    /// [`tick`](Self::tick).
    ///
    /// # Context
    /// Any.
    #[inline]
    pub fn touch(&self) {
        if let Some(of) = self.processors.get(K::this_processor()) {
            of.watchdog.touch();
        }
    }
}

/// Passes on a sample that a task reports.
#[inline(never)] // 304 bytes of a kernel like Hermit.
fn report_by_task<K: Kernel>(sample: &Sample<'_, FacilityOf<K>>) {
    K::sampled(&PmuSample::new(sample, None, None));
}

/// Passes on an overflow that a task reports, of an event that the kernel opened.
pub(super) fn overflowed<K: Kernel>(overflow: EventOverflow) {
    report_by_task::<K>(&Sample::of(overflow, None));
}
