//! One virtual processor: a thread that runs the guest and serves its exits.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;

use kvm_bindings::{
    CpuId, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP,
    KVM_INTERNAL_ERROR_EMULATION, KVM_MP_STATE_HALTED, KVM_MP_STATE_RUNNABLE,
    KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN, KVM_VCPUEVENT_VALID_SHADOW,
    kvm_debug_exit_arch, kvm_guest_debug, kvm_mp_state,
};
use kvm_ioctls::{VcpuExit, VcpuFd};
use pmu_virt::{Feed, Read, VirtualPmu, Write};

use crate::apic::LocalApic;
use crate::cli::say;
use crate::count::{Source, Stop};
use crate::deviating::Deviating;
use crate::error::Error;
use crate::guest::{self, Guest, Memory};
use crate::inverted::Inverted;
use crate::kick::Kicks;
use crate::machine::{End, Machine};
use crate::reset::PowerUp;
use crate::stats::{Access, Exit, Register, Stats};
use crate::{init, instruction, msr, offered, pvm, rdpmc};

/// A PMI that is due sooner waits this long, which bounds the monitor's work between two instructions of the guest.
const SOONEST: Duration = Duration::from_micros(50);

/// Time between two looks at the LVT entry, where a deviation needs them.
const LOOK: Duration = Duration::from_millis(1);

const RFLAGS_IF: u64 = 1 << 9;
/// DR6: breakpoints 0 to 2, single step. DR7: breakpoints 0 to 2, on execution.
const DR6_B: u64 = 0b111;
const DR6_BS: u64 = 1 << 14;
const DR7_EXECUTE: [u64; 3] = [1 << 1 | 1 << 10, 1 << 3 | 1 << 10, 1 << 5 | 1 << 10];

/// One virtual processor.
pub(crate) struct Processor {
    pub(crate) number: u8,
    pub(crate) machine: Arc<Machine>,
    pub(crate) vcpu: VcpuFd,
    /// CPUID as the guest sees it.
    pub(crate) seen: CpuId,
    pub(crate) pmu: VirtualPmu,
    pub(crate) source: Box<dyn Source>,
    pub(crate) debugging: Debugging,
    pub(crate) stats: Stats,
    pub(crate) inverted: Option<Inverted>,
    pub(crate) deviating: Deviating,
}

/// Debugging state that was passed to KVM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Debugging {
    /// The guest's handler of #GP: see [`rdpmc`].
    breakpoint: Option<u64>,
    /// Its handler of #DB, where kvm-pvm takes the steps of ring 3: see [`pvm`].
    trap: Option<u64>,
    /// Its handler of #PF, where kvm-pvm leaves SYSCALL unfinished: see [`pvm::SystemCall`].
    page_fault: Option<u64>,
    /// A breakpoint was hit and its handler runs next: one instruction without breakpoints.
    passing: bool,
    step: bool,
}

/// The guest's request to the monitor.
enum Wants {
    Nothing(Exit),
    Rdmsr(u32),
    Wrmsr(u32, u64),
    Debug(kvm_debug_exit_arch),
    End(End),
    /// KVM does not know the instruction.
    Emulation,
    /// KVM cannot continue.
    Stuck(String),
    TripleFault,
}

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
            let counting = self.pmu.running().next().is_some();
            let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
            let due = if counting { self.source.due(guest, &mut self.pmu) } else { None };
            let due = if self.deviating.looks() { Some(LOOK) } else { due };
            kicks.after(due.map(|due| due.max(SOONEST))).map_err(Error::system("timer_settime"))?;
            let mut step = false;
            if counting {
                self.halt()?;
                let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
                step = self.source.enter(guest, &self.pmu)?;
            } else {
                self.source.idle();
            }
            self.debug(Debugging { step, ..self.debugging })?;
            let (phase, wants) = self.run_guest()?;
            if may_init && init::happened(&self.vcpu) {
                self.stats.init(phase);
                self.deviating.init(&mut self.pmu);
                self.find_handlers()?;
            }
            let taken_back = self.take_back_step(&wants)?;
            if counting {
                let stop = match &wants {
                    _ if taken_back => Stop::Stepped,
                    Wants::Debug(why) if why.dr6 & DR6_BS != 0 => Stop::Stepped,
                    _ => Stop::Ran,
                };
                let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
                if !self.source.leave(guest, stop, &mut self.pmu, &mut happened)? {
                    self.stats.unreconciled(phase);
                }
                self.pmu.advance_through(&mut happened).expect("the feed is of the PMU's events");
                self.deliver_pmi(phase)?;
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

    /// Performs RESET: the processor and its PMU are as after power-up, and wait to be started.
    fn reset(&mut self, power_up: &PowerUp) -> Result<(), Error> {
        // KVM completes the last exit's access when it is entered again, and then finds that it is to exit.
        self.vcpu.set_kvm_immediate_exit(1);
        while !self.machine.is_stopping() && self.vcpu.run().is_ok() {}
        self.vcpu.set_kvm_immediate_exit(0);
        power_up.restore(&mut self.vcpu)?;
        self.pmu.reset();
        self.source.idle();
        self.debug(Debugging::default())
    }

    /// Runs the guest until its next request, in a phase of the statistics.
    fn run_guest(&mut self) -> Result<(u8, Wants), Error> {
        let ports = &self.machine.ports;
        let exit = self.machine.rendezvous.inside(|| self.vcpu.run());
        let phase = ports.phase();
        let wants = match exit {
            Ok(VcpuExit::X86Rdmsr(access)) => Wants::Rdmsr(access.index),
            Ok(VcpuExit::X86Wrmsr(access)) => Wants::Wrmsr(access.index, access.data),
            Ok(VcpuExit::IoIn(port, bytes)) => {
                ports.read(port, bytes);
                Wants::Nothing(Exit::PortIn)
            }
            Ok(VcpuExit::IoOut(port, bytes)) => {
                ports.write(port, bytes).map_or(Wants::Nothing(Exit::PortOut), Wants::End)
            }
            Ok(VcpuExit::MmioRead(_, bytes)) => {
                bytes.fill(0xFF);
                Wants::Nothing(Exit::Mmio)
            }
            Ok(VcpuExit::MmioWrite(..)) => Wants::Nothing(Exit::Mmio),
            Ok(VcpuExit::Debug(why)) => Wants::Debug(why),
            Ok(VcpuExit::Shutdown) => Wants::TripleFault,
            Ok(VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_SHUTDOWN, _)) => {
                Wants::End(End::Orderly("shut down"))
            }
            Ok(VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_RESET, _)) => {
                Wants::End(End::Orderly("reset the machine"))
            }
            Ok(VcpuExit::InternalError) => {
                // SAFETY: the exit was KVM_EXIT_INTERNAL_ERROR, for which KVM fills this part of the
                // union.
                let internal = unsafe { self.vcpu.get_kvm_run().__bindgen_anon_1.internal };
                match internal.suberror {
                    KVM_INTERNAL_ERROR_EMULATION => Wants::Emulation,
                    suberror => Wants::Stuck(format!("internal error {suberror}")),
                }
            }
            Ok(VcpuExit::FailEntry(reason, _)) => {
                Wants::Stuck(format!("no entry, hardware's reason is {reason:#x}"))
            }
            Ok(VcpuExit::Intr | VcpuExit::IrqWindowOpen) => Wants::Nothing(Exit::Other),
            Ok(other) => Wants::Stuck(format!("{other:?}")),
            Err(error) if error.errno() == libc::EINTR => Wants::Nothing(Exit::Kick),
            // A processor that waits for its start-up was woken.
            Err(error) if error.errno() == libc::EAGAIN => Wants::Nothing(Exit::Other),
            Err(error) => return Err(Error::kvm("KVM_RUN")(error)),
        };
        Ok((phase, wants))
    }

    /// Serves the guest's request.
    fn serve(&mut self, phase: u8, wants: Wants) -> Result<Option<End>, Error> {
        match wants {
            Wants::Nothing(exit) => {
                self.stats.exit(phase, exit);
                if exit == Exit::Kick {
                    self.vcpu.set_kvm_immediate_exit(0);
                    self.find_handlers()?;
                    self.machine.report(self.number, self.is_parked()?);
                }
            }
            Wants::Rdmsr(address) => {
                self.stats.exit(phase, Exit::Rdmsr);
                let value = match self.pmu.read(address) {
                    Read::Value(value) => Some(value),
                    Read::Shared { value, mask } => {
                        msr::read(&self.vcpu, address).map(|own| own & !mask | value)
                    }
                    Read::GeneralProtection => None,
                    Read::Unhandled => msr::read(&self.vcpu, address),
                };
                let value = value.map(|value| value ^ Inverted::bit_of(self.inverted, address));
                let value = self.deviating.read(address, value);
                self.stats.access(phase, Access::Rdmsr(named(address)), value.is_none());
                self.answer(value);
            }
            Wants::Wrmsr(address, value) => {
                self.stats.exit(phase, Exit::Wrmsr);
                let done = self.write(address, value);
                self.stats.access(phase, Access::Wrmsr(named(address)), done.is_none());
                self.answer(done.map(|()| value));
                // A guest that reads counters has its handler by now.
                self.find_handlers()?;
            }
            Wants::Debug(why) => self.debugged(phase, why)?,
            Wants::End(end) => return Ok(Some(end)),
            Wants::TripleFault => {
                return Err(self.triple_fault());
            }
            Wants::Emulation => {
                let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
                if !self.offers(guest) {
                    self.stats.exit(phase, Exit::Emulation);
                    guest::raise(&self.vcpu, offered::UNDEFINED)?;
                    return Ok(None);
                }
                let emulated = self.machine.kvm_pvm.then(|| pvm::emulate(guest)).flatten();
                let Some(pvm::Emulated { instruction, registers, exception }) = emulated else {
                    return Err(self.stuck("no emulation of the instruction".into()));
                };
                self.stats.exit(phase, Exit::Emulation);
                let system = guest.system();
                self.source.executed(instruction, guest::privilege(&system));
                guest::set_registers(&mut self.vcpu, registers, system)?;
                if let Some(vector) = exception {
                    guest::raise(&self.vcpu, vector)?;
                }
            }
            Wants::Stuck(why) => return Err(self.stuck(why)),
        }
        Ok(None)
    }

    /// Executes WRMSR. `None`: #GP, and nothing was changed.
    fn write(&mut self, address: u32, mut value: u64) -> Option<()> {
        if let Some(answer) = self.deviating.write(address, &mut value) {
            return answer;
        }
        // The processor's part of a shared register comes first, since it can be undone.
        let before = match self.pmu.read(address) {
            Read::Shared { mask, .. } => {
                let before = msr::read(&self.vcpu, address)?;
                msr::write(&self.vcpu, address, before & mask | value & !mask)?;
                Some(before)
            }
            _ => None,
        };
        match self.pmu.write(address, value).answer {
            Write::Done | Write::Shared { .. } => Some(()),
            Write::Unhandled => msr::write(&self.vcpu, address, value),
            Write::GeneralProtection => {
                msr::write(&self.vcpu, address, before?)?;
                None
            }
        }
    }

    /// Answers an RDMSR with its value, or a WRMSR with any `Some`; `None`: #GP.
    fn answer(&mut self, value: Option<u64>) {
        let run = self.vcpu.get_kvm_run();
        // SAFETY: the last exit was KVM_EXIT_X86_RDMSR or KVM_EXIT_X86_WRMSR, for which KVM reads
        // this part of the union.
        let msr = unsafe { &mut run.__bindgen_anon_1.msr };
        msr.error = value.is_none().into();
        msr.data = value.unwrap_or(msr.data);
    }

    fn deliver_pmi(&mut self, phase: u8) -> Result<(), Error> {
        if !self.pmu.pmi_pending() {
            return Ok(());
        }
        let (machine, vcpu, id) = (&self.machine, &self.vcpu, self.number);
        let mut apic = LocalApic { machine, vcpu, id, error: None };
        let outcome = self.pmu.deliver_pmi(&mut apic);
        self.deviating.delivered(outcome, &mut self.pmu, &mut apic);
        self.stats.pmi(phase, outcome);
        apic.error.map_or(Ok(()), |error| Err(Error::kvm("a PMI")(error)))
    }

    /// Executes a HLT that would be stepped: kvm-pvm halts only when it steps no more.
    fn halt(&mut self) -> Result<(), Error> {
        if !self.machine.kvm_pvm || !self.source.steps() {
            return Ok(());
        }
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let system = guest.system();
        let Some(pvm::Emulated { instruction, registers, .. }) = pvm::halt(guest) else {
            return Ok(());
        };
        self.source.executed(instruction, guest::privilege(&system));
        guest::set_registers(&mut self.vcpu, registers, system)?;
        // Ends the shadow of an STI before HLT.
        let mut events = self.vcpu.get_vcpu_events().map_err(Error::kvm("KVM_GET_VCPU_EVENTS"))?;
        events.flags = KVM_VCPUEVENT_VALID_SHADOW;
        events.interrupt.shadow = 0;
        self.vcpu.set_vcpu_events(&events).map_err(Error::kvm("KVM_SET_VCPU_EVENTS"))?;
        let halted = kvm_mp_state { mp_state: KVM_MP_STATE_HALTED };
        self.vcpu.set_mp_state(halted).map_err(Error::kvm("KVM_SET_MP_STATE"))
    }

    /// Takes a guest that is at its handler of #DB after a step back to the end of the step.
    fn take_back_step(&mut self, wants: &Wants) -> Result<bool, Error> {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let may_be = matches!(wants, Wants::Debug(_) | Wants::Nothing(Exit::Kick));
        if !may_be || Some(guest.registers().rip) != self.debugging.trap {
            return Ok(false);
        }
        let Some((registers, system)) = pvm::step_to_handler(guest, self.debugging.step) else {
            return Ok(false);
        };
        guest::set_registers(&mut self.vcpu, registers, system)?;
        Ok(true)
    }

    /// Serves a stop after a single step, or at one of the guest's handlers.
    fn debugged(&mut self, phase: u8, why: kvm_debug_exit_arch) -> Result<(), Error> {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let passed = Debugging { passing: false, ..self.debugging };
        if why.dr6 & DR6_BS != 0 && self.debugging.passing {
            self.stats.exit(phase, Exit::Breakpoint);
            return self.debug(passed);
        }
        if why.dr6 & DR6_B == 0 {
            self.stats.exit(phase, Exit::SingleStep);
            return Ok(());
        }
        self.stats.exit(phase, Exit::Breakpoint);
        let general_protection = Some(why.pc) == self.debugging.breakpoint;
        if let Some(fault) = rdpmc::fault(guest).filter(|_| general_protection) {
            let counter = Access::Rdpmc(named_counter(fault.counter));
            let read = self.pmu.read_pmc(fault.counter, fault.mode);
            self.stats.access(phase, counter, !matches!(read, Read::Value(_)));
            if let Read::Value(value) = read {
                let instruction = fault.instruction;
                let (registers, system) = fault.finish(guest, value);
                self.source.executed(instruction, guest::privilege(&system));
                return guest::set_registers(&mut self.vcpu, registers, system);
            }
        }
        if Some(why.pc) == self.debugging.page_fault
            && let Some(call) = pvm::SystemCall::of(&self.vcpu)
            && let Some((registers, system)) =
                call.finish(&guest, guest.registers(), guest.system())
        {
            return guest::set_registers(&mut self.vcpu, registers, system);
        }
        self.debug(Debugging { passing: true, ..self.debugging })
    }

    /// Passes the debugging state to KVM, if it changed. A single step is requested each time: KVM sets the trap flag
    /// at the request, and the guest's next flags may lack it.
    fn debug(&mut self, debugging: Debugging) -> Result<(), Error> {
        if debugging == self.debugging && !debugging.step {
            return Ok(());
        }
        let mut control = kvm_guest_debug::default();
        let handlers = [debugging.breakpoint, debugging.trap, debugging.page_fault];
        for (number, (handler, execute)) in handlers.into_iter().zip(DR7_EXECUTE).enumerate() {
            if let Some(handler) = handler.filter(|_| !debugging.passing) {
                control.control |= KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
                control.arch.debugreg[number] = handler;
                control.arch.debugreg[7] |= execute;
            }
        }
        if debugging.step || debugging.passing {
            control.control |= KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP;
        }
        self.debugging = debugging;
        self.vcpu.set_guest_debug(&control).map_err(Error::kvm("KVM_SET_GUEST_DEBUG"))
    }

    /// Finds the guest's present handlers of the exceptions that the monitor intercepts.
    fn find_handlers(&mut self) -> Result<(), Error> {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let (system, kvm_pvm) = (guest.system(), self.machine.kvm_pvm);
        let handler = |vector, wanted: bool| guest.handler(&system, vector).filter(|_| wanted);
        let debugging = Debugging {
            breakpoint: handler(rdpmc::GENERAL_PROTECTION, self.machine.has_pmu),
            trap: handler(pvm::DEBUG, kvm_pvm && self.source.steps()),
            page_fault: handler(pvm::PAGE_FAULT, kvm_pvm),
            ..self.debugging
        };
        self.debug(debugging)
    }

    /// Returns whether only an NMI or another processor can wake it.
    fn is_parked(&self) -> Result<bool, Error> {
        let state = self.vcpu.get_mp_state().map_err(Error::kvm("KVM_GET_MP_STATE"))?;
        Ok(match state.mp_state {
            KVM_MP_STATE_RUNNABLE => false,
            KVM_MP_STATE_HALTED => self.vcpu.sync_regs().regs.rflags & RFLAGS_IF == 0,
            // It was not started yet.
            _ => true,
        })
    }

    /// Returns whether the guest's CPUID offers the instruction at which it is. One that cannot be read is not known.
    fn offers(&self, guest: Guest<'_>) -> bool {
        let system = guest.system();
        let rip = guest.registers().rip;
        let instruction = instruction::decode(&guest, &system, rip);
        !instruction::is_readable(&guest, &system, rip)
            || offered::is_offered(&instruction, &self.seen, &system)
    }

    /// Creates the error of a guest that KVM cannot continue, with its place.
    fn stuck(&self, why: String) -> Error {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let why = format!("{why} at {}", place(&guest));
        Error::Stuck { processor: self.number.into(), why }
    }

    /// Creates the error of a processor that shut down, with the exception that KVM knows of.
    fn triple_fault(&self) -> Error {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let exception = self.vcpu.get_vcpu_events().map(|events| events.exception);
        let known = exception.is_ok_and(|exception| exception.injected | exception.pending != 0);
        let exception = match exception {
            Ok(exception) if known => {
                format!("exception {} with error {:#x}", exception.nr, exception.error_code)
            }
            _ => "an exception that KVM does not tell".into(),
        };
        let at = format!("at {}, CR2 {:#x}, {exception}", place(&guest), guest.system().cr2);
        Error::TripleFault { processor: self.number.into(), at }
    }
}

/// Names the instruction at which a guest is: its address and bytes.
fn place(guest: &Guest<'_>) -> String {
    let mut bytes = [0; 8];
    let rip = guest.registers().rip;
    let code = guest.read(rip, &mut bytes);
    format!("RIP {rip:#x}, at instruction bytes {code:02x?}")
}

fn named(address: u32) -> Register {
    if msr::is_intercepted(address) { Register::Number(address) } else { Register::Other }
}

/// Names ECX of an RDPMC, if there can be such a counter: bit 30 is for the fixed ones.
fn named_counter(ecx: u32) -> Register {
    if ecx & !(1 << 30 | 0x1F) == 0 { Register::Number(ecx) } else { Register::Other }
}

/// A processor's last report whether it is parked.
#[derive(Debug, Default)]
pub(crate) struct Report {
    asked: AtomicBool,
    parked: AtomicBool,
}

impl Report {
    /// Requests a new report.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
    }

    pub(crate) fn answer(&self, parked: bool) {
        self.parked.store(parked, Ordering::Relaxed);
        self.asked.store(false, Ordering::Release);
    }

    /// Returns whether it reported, and is parked.
    pub(crate) fn is_parked(&self) -> bool {
        !self.asked.load(Ordering::Acquire) && self.parked.load(Ordering::Relaxed)
    }
}
