//! `--count step`: instructions and branches, exactly. While a counter runs the guest is stopped after
//! each instruction, which was decoded before.

use core::time::Duration;

use iced_x86::{Code, FlowControl, Instruction, OpKind};
use kvm_bindings::{kvm_regs, kvm_sregs};
use pmu_virt::{Feed, Privilege, VirtualPmu};

use super::{Fed, Quantity, Source, Stop};
use crate::error::Error;
use crate::guest::{self, Guest};
use crate::instruction::{LONGEST, address, decode, value};
use crate::pvm;

/// What single steps tell of. Cycles stand in, one an instruction: there are drivers that use no PMU
/// without them.
pub(crate) const QUANTITIES: [Quantity; 5] = [
    Quantity::Instructions,
    Quantity::Branches,
    Quantity::TakenBranches,
    Quantity::Cycles,
    Quantity::ReferenceCycles,
];

/// The source.
pub(crate) struct Step {
    fed: Fed,
    /// What the guest is about to execute, or did not finish.
    next: Option<Next>,
    /// An instruction that the monitor executed for the guest, and that was not counted yet.
    owed: Option<Next>,
    kvm_pvm: bool,
}

/// An instruction before its execution.
struct Next {
    instruction: Instruction,
    privilege: Privilege,
    /// Where it goes if it is a branch and is taken, as far as that can be foreseen.
    target: Option<u64>,
}

impl Step {
    pub(crate) fn new(fed: Fed) -> Self {
        Self { fed, next: None, owed: None, kvm_pvm: pvm::is_there() }
    }

    fn retired(
        &self,
        happened: &mut Feed,
        instruction: &Instruction,
        privilege: Privilege,
        rip: u64,
    ) {
        let mut add = |what| self.fed.add(happened, what, privilege, 1);
        add(Quantity::Instructions);
        add(Quantity::Cycles);
        add(Quantity::ReferenceCycles);
        if is_branch(instruction) {
            add(Quantity::Branches);
            if rip != instruction.next_ip() {
                add(Quantity::TakenBranches);
            }
        }
    }
}

impl Source for Step {
    fn fed(&self) -> &Fed {
        &self.fed
    }

    fn steps(&self) -> bool {
        true
    }

    fn enter(&mut self, guest: Guest<'_>, _: &VirtualPmu) -> Result<bool, Error> {
        let (registers, system) = (guest.registers(), guest.system());
        self.owed = self.next.take().filter(|last| {
            let code = last.instruction.code();
            let by_monitor = code == Code::Rdpmc || self.kvm_pvm && pvm::emulates(code);
            by_monitor && last.instruction.next_ip() == registers.rip
        });
        let instruction = decode(guest, &system, registers.rip);
        let privilege = privilege_of(&system);
        let target = target(guest, &registers, &system, &instruction);
        if self.kvm_pvm && instruction.code() == Code::Iretq {
            pvm::step_through_iret(guest, &registers);
        }
        self.next = Some(Next { instruction, privilege, target });
        Ok(true)
    }

    /// An instruction counts if the counter runs when it retires.
    fn leave(&mut self, guest: Guest<'_>, stop: Stop, happened: &mut Feed) -> Result<(), Error> {
        if let Some(Next { instruction, privilege, .. }) = self.owed.take() {
            self.retired(happened, &instruction, privilege, instruction.next_ip());
        }
        let Some(next) = &self.next else { return Ok(()) };
        let (rip, instruction) = (guest.registers().rip, &next.instruction);
        let jumped = is_branch(instruction) && next.target.is_none_or(|target| target == rip);
        let retired = if rip == instruction.ip() {
            // Nothing happened yet, or one repetition of a string instruction, or `jmp .`.
            jumped && next.target.is_some() && stop == Stop::Stepped
        } else {
            jumped || rip == instruction.next_ip()
        };
        if retired {
            self.retired(happened, instruction, next.privilege, rip);
            self.next = None;
        } else if stop == Stop::Stepped && rip != instruction.ip() {
            let next = self.next.take();
            let system = guest.system();
            let one_further = |start: u64| {
                let first = decode(guest, &system, start);
                let to_here = rip == first.next_ip() || rip == first.near_branch_target();
                to_here.then_some(first)
            };
            if let Some(Next { instruction, privilege, target: Some(target) }) = &next
                && let Some(first) = one_further(*target)
            {
                // There was no stop after the branch: kvm-pvm does not after IRET.
                self.retired(happened, instruction, *privilege, *target);
                self.retired(happened, &first, privilege_of(&system), rip);
            } else if let Some(first) = handlers_near(guest, rip).find_map(one_further) {
                // An exception or interrupt came first, and the step is its handler's.
                self.retired(happened, &first, Privilege::Kernel, rip);
            }
        }
        Ok(())
    }

    /// The guest is looked at after each instruction anyway.
    fn due(&self, _: &VirtualPmu) -> Option<Duration> {
        None
    }
}

/// The guest's handlers that begin at most an instruction before `rip`.
fn handlers_near(guest: Guest<'_>, rip: u64) -> impl Iterator<Item = u64> {
    let system = guest.system();
    let handlers = (0..=u8::MAX).filter_map(move |vector| guest.handler(&system, vector));
    handlers.filter(move |handler| rip.wrapping_sub(*handler) <= LONGEST as u64)
}

fn privilege_of(system: &kvm_sregs) -> Privilege {
    match guest::privilege_level(system) {
        0 => Privilege::Kernel,
        _ => Privilege::User,
    }
}

/// Where a branch in 64-bit code goes, if it is taken. Far branches are not foreseen.
fn target(
    guest: Guest<'_>,
    registers: &kvm_regs,
    system: &kvm_sregs,
    instruction: &Instruction,
) -> Option<u64> {
    if guest::bitness(system) != 64 || !is_branch(instruction) {
        return None;
    }
    match (instruction.code(), instruction.op0_kind()) {
        (_, OpKind::NearBranch64) => Some(instruction.near_branch_target()),
        (Code::Retnq | Code::Retnq_imm16 | Code::Iretq, _) => {
            guest.read_words(registers.rsp).map(|[target]| target)
        }
        (Code::Jmp_rm64 | Code::Call_rm64, OpKind::Register) => {
            value(registers, system, instruction.op0_register())
        }
        (Code::Jmp_rm64 | Code::Call_rm64, _) => {
            let address = address(registers, system, instruction, 0)?;
            guest.read_words(address).map(|[target]| target)
        }
        _ => None,
    }
}

/// What "branch instructions retired" counts: every instruction that changes the flow of control.
fn is_branch(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::ConditionalBranch
        | FlowControl::Return
        | FlowControl::Call
        | FlowControl::IndirectCall
        | FlowControl::Interrupt => true,
        FlowControl::Next | FlowControl::XbeginXabortXend | FlowControl::Exception => false,
    }
}
