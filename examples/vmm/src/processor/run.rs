//! The loop of a processor's thread.

use core::time::Duration;

use pmu_virt::branches::VirtualBranches;
use pmu_virt::ibs::NextSample;
use pmu_virt::{Delivery, Feed, GuestFacility, PerformanceEntry, PmiOutcome, VirtualPmu};

use crate::count::handler::Handler;
use crate::count::source::Stop;
use crate::error::Error;
use crate::guest::{self, Guest};
use crate::messages::say;
use crate::processor::apic::LocalApic;
use crate::processor::debugging::DR6_BS;
use crate::processor::exit::Wants;
use crate::processor::extended_entries::ExtendedEntries;
use crate::processor::state::{Debugging, Processor};
use crate::shared::end::End;
use crate::stats::Exit;
use crate::vcpu::init;
use crate::vcpu::kick::Kicks;
use crate::vcpu::power_up::PowerUp;

/// A PMI that is due sooner waits this long, which bounds the monitor's work between two instructions of the guest.
const SOONEST: Duration = Duration::from_micros(50);

/// Time between two looks at the LVT entry, where a deviation needs them.
const LOOK: Duration = Duration::from_millis(1);

impl Processor {
    /// Runs the guest until the machine stops, or this processor ends it.
    pub(crate) fn run(&mut self) -> Result<Option<End>, Error> {
        let immediate_exit = &raw mut self.vcpu.get_kvm_run().immediate_exit;
        // SAFETY: the byte is in the mapping of `self.vcpu`, which outlives the kicks, and only KVM and `run_guest`,
        // on this thread, access it.
        let mut kicks =
            unsafe { Kicks::new(immediate_exit) }.map_err(Error::system("timer_create"))?;
        guest::expose_registers(&mut self.vcpu);
        // A single processor has no other to wait for.
        let several = self.machine.processors() > 1;
        let may_init = several && init::mark(&self.vcpu);
        if several && !may_init && self.number == 0 {
            say(
                &"this KVM does not let INIT of a processor be seen: a PMI that waits then is not dropped",
            );
        }
        let power_up = match self.number {
            0 => None,
            _ => Some(PowerUp::of(&self.vcpu, &self.machine.registers)?),
        };
        let mut happened = Feed::new(self.pmu.events());
        while !self.machine.is_stopping() {
            let counting = self.is_counting();
            let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
            let due = if counting {
                self.source.due(guest, &mut self.pmu, &self.facilities)
            } else {
                None
            };
            let due = if self.deviating.looks() { Some(LOOK) } else { due };
            kicks.after(due.map(|due| due.max(SOONEST))).map_err(Error::system("timer_settime"))?;
            let mut step = false;
            if counting {
                self.halt()?;
                let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
                step = self.source.enter(guest, &self.pmu, &self.facilities)?;
            } else {
                self.source.idle();
            }
            let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
            step |= self.handler.enter(guest);
            self.debug(Debugging { step, ..self.debugging })?;
            let (phase, wants) = self.run_guest()?;
            if may_init && init::happened(&self.vcpu) {
                self.stats.init(phase);
                self.deviating.init(&mut self.pmu);
                self.extended_entries = ExtendedEntries::new();
                self.find_handlers()?;
            }
            let taken_back = self.take_back_step(&wants)?;
            self.note_trap(taken_back, &wants);
            let stop = match &wants {
                _ if taken_back => Stop::Stepped,
                Wants::Debug(why) if why.dr6 & DR6_BS != 0 => Stop::Stepped,
                _ => Stop::Ran,
            };
            self.trace_handler(stop);
            if counting {
                let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
                if !self.source.leave(
                    guest,
                    stop,
                    &mut self.pmu,
                    &mut self.facilities,
                    &mut happened,
                )? {
                    self.stats.unreconciled(phase);
                }
                let mix = self.source.mix();
                let mut pass = |pmu: &mut VirtualPmu| pmu.advance_through(&mut happened);
                let advanced = match &mut self.facilities.1.1 {
                    Some(top_down) => top_down.observe(&mut self.pmu, &mix, pass),
                    None => pass(&mut self.pmu),
                };
                let advanced = advanced.expect("the feed is of the PMU's events");
                self.facilities.overflowed(advanced.records);
                if advanced.pmi {
                    self.facilities.pmi_raised();
                }
                self.deliver_pmi(phase)?;
                self.deliver_sample(phase)?;
            }
            if self.deviating.looks() {
                let (machine, vcpu, id) = (&self.machine, &self.vcpu, self.number);
                let apic = LocalApic { machine, vcpu, id, error: None };
                self.deviating.look(&mut self.pmu, &apic);
                self.deliver_pmi(phase)?;
            }
            let wants = match wants {
                Wants::Debug(_) if taken_back => Wants::Nothing(Exit::SingleStep),
                wants => wants,
            };
            if let Some(end) = self.serve(phase, wants)? {
                return Ok(Some(end));
            }
            if let Some(power_up) = &power_up
                && self.machine.ports.resets.is_requested(self.number)
            {
                self.reset(power_up)?;
                self.machine.ports.resets.done(self.number);
            }
        }
        Ok(None)
    }

    /// Returns whether the source has to know what the guest executes next.
    fn is_counting(&self) -> bool {
        let ((branches, precise), (sampling, _)) = &self.facilities;
        let recording = branches.as_ref().is_some_and(VirtualBranches::is_recording)
            || precise.as_ref().is_some_and(|precise| precise.is_tracing());
        self.pmu.running().next().is_some()
            || recording && self.source.steps(&self.facilities)
            || sampling
                .as_ref()
                .is_some_and(|sampling| sampling.next_sample() != NextSample::default())
    }

    /// Performs RESET: the processor and its PMU are as after power-up, and wait to be started.
    fn reset(&mut self, power_up: &PowerUp) -> Result<(), Error> {
        // KVM completes the last exit's access when it is entered again, and then finds that it is to exit.
        self.vcpu.set_kvm_immediate_exit(1);
        while !self.machine.is_stopping() && self.vcpu.run().is_ok() {}
        self.vcpu.set_kvm_immediate_exit(0);
        power_up.restore(&mut self.vcpu)?;
        self.pmu.reset();
        self.facilities.reset();
        self.extended_entries = ExtendedEntries::new();
        self.source.idle();
        self.handler = Handler::new();
        self.debug(Debugging::default())
    }

    /// Delivers the interrupt of a sampled op or fetch: through the extended entry, where the guest can access it;
    /// otherwise as an NMI.
    fn deliver_sample(&mut self, phase: u8) -> Result<(), Error> {
        let has_entries = self.has_extended_entries();
        let Some(sampling) = self.facilities.1.0.as_mut().filter(|one| one.interrupt_pending())
        else {
            return Ok(());
        };
        let (machine, vcpu, id) = (&self.machine, &self.vcpu, self.number);
        let mut apic = LocalApic { machine, vcpu, id, error: None };
        let number = sampling.configuration().lvt_entry;
        let outcome = match number.filter(|_| has_entries) {
            Some(number) => sampling.deliver(&mut self.extended_entries.entry(number, &mut apic)),
            None => {
                sampling.set_interrupt_pending(false);
                apic.raise(Delivery::NonMaskable);
                PmiOutcome::Raised(Delivery::NonMaskable)
            }
        };
        let error = apic.error;
        self.stats.pmi(phase, outcome);
        self.trace_interrupt(outcome);
        error.map_or(Ok(()), |error| Err(Error::kvm("an interrupt")(error)))
    }

    fn deliver_pmi(&mut self, phase: u8) -> Result<(), Error> {
        if !self.pmu.pmi_pending() {
            return Ok(());
        }
        let (machine, vcpu, id) = (&self.machine, &self.vcpu, self.number);
        let mut apic = LocalApic { machine, vcpu, id, error: None };
        let outcome = self.pmu.deliver_pmi(&mut apic);
        self.deviating.delivered(outcome, &mut self.pmu, &mut apic);
        let error = apic.error;
        self.stats.pmi(phase, outcome);
        self.trace_interrupt(outcome);
        error.map_or(Ok(()), |error| Err(Error::kvm("a PMI")(error)))
    }
}
