//! A processor's part of the trace: accesses, interrupts and handlers. Without a trace, each call is one comparison.

use iced_x86::Instruction;
use pmu_virt::{Delivery, PmiOutcome, Privilege};

use crate::count::source::Stop;
use crate::guest::{Guest, Memory};
use crate::processor::state::Processor;
use crate::trace::What;
use crate::vcpu::msr;

/// The LVT entry of performance interrupts: its offset in the local APIC's page, and its number in x2APIC mode. SDM
/// vol. 3A, tables "Local APIC Register Address Map" and "Local APIC Register Address Map Supported by x2APIC".
const LVTPC: u64 = 0x340;
const LVTPC_X2APIC: u32 = 0x834;
/// AMD's extended entries in x2APIC mode. APM vol. 2, "x2APIC Register Address Space".
const EXTENDED_ENTRIES: core::ops::Range<u32> = 0x850..0x854;
/// Words of the structure that Linux describes a local APIC by, at least as far as its function for writes.
const STRUCTURE_WORDS: usize = 32;
/// The vector of NMIs, and their delivery mode.
const NMI: (u32, u64) = (2, 4);

impl Processor {
    /// Traces an access; `value` is `None` where the guest gets #GP.
    pub(crate) fn trace(&self, what: What, register: u32, value: Option<u64>, rip: u64) {
        if let Some(trace) = &self.machine.trace {
            trace.line(self.number, what, register, value, Some(rip));
        }
    }

    /// Traces the RDMSR or WRMSR at which the guest is: of the PMU's registers, and of others that KVM does not know.
    pub(crate) fn trace_msr(&self, what: What, register: u32, value: Option<u64>) {
        if self.machine.trace.is_some() {
            let what = match what {
                What::Write if EXTENDED_ENTRIES.contains(&register) => What::Entry,
                _ if register == msr::MARKED => return,
                what => what,
            };
            self.trace(what, register, value, self.vcpu.sync_regs().regs.rip);
        }
    }

    /// Traces an interrupt that was raised, with the address at which it finds the guest.
    pub(crate) fn trace_interrupt(&mut self, outcome: PmiOutcome) {
        if outcome == PmiOutcome::Raised(Delivery::NonMaskable) && self.traces_handlers() {
            self.handler.raised();
        }
        let (vector, mode) = match outcome {
            PmiOutcome::Raised(Delivery::NonMaskable) => NMI,
            PmiOutcome::Raised(Delivery::Fixed(vector)) => (vector.into(), 0),
            PmiOutcome::Raised(Delivery::Other(_))
            | PmiOutcome::Masked
            | PmiOutcome::NotPending => return,
        };
        self.trace(What::Interrupt, vector, Some(mode), self.vcpu.sync_regs().regs.rip);
    }

    fn traces_handlers(&self) -> bool {
        self.machine.trace.as_ref().is_some_and(|trace| trace.handlers)
    }

    /// Returns whether the guest is ever stopped after one instruction.
    pub(crate) fn may_step(&self) -> bool {
        self.source.may_step() || self.traces_handlers()
    }

    /// Notes an instruction that the monitor executed for the guest.
    pub(crate) fn executed(&mut self, instruction: Instruction, privilege: Privilege) {
        self.source.executed(instruction, privilege);
        self.handler.executed(instruction, privilege);
    }

    /// Counts what a handler of an NMI executed since the last stop, and traces it at its end.
    pub(crate) fn trace_handler(&mut self, stop: Stop) {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        if let Some(instructions) = self.handler.leave(guest, stop) {
            self.trace(What::Handler, NMI.0, Some(instructions), guest.registers().rip);
        }
    }

    /// Returns the guest's function that writes its local APIC, if writes are traced.
    pub(crate) fn apic_writer(&self) -> Option<u64> {
        let writers = self.machine.trace.as_ref()?.writers.as_ref()?;
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let structure = guest.read_number(writers.variable, 8)?;
        let words: [u64; STRUCTURE_WORDS] = guest.read_words(structure)?;
        words.into_iter().find(|word| writers.functions.contains(word))
    }

    /// Traces a write of LVTPC, with the address of the caller: the guest is at the first instruction of the function
    /// that performs it.
    pub(crate) fn trace_apic_write(&self) {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let registers = guest.registers();
        if registers.rdi & u64::from(u32::MAX) == LVTPC {
            let caller = guest.read_words(registers.rsp).map_or(0, |[caller]| caller);
            let value = registers.rsi & u64::from(u32::MAX);
            self.trace(What::Entry, LVTPC_X2APIC, Some(value), caller);
        }
    }
}
