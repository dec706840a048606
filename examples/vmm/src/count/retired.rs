//! The instructions that retired between two stops of the guest.
//!
//! A single step should end after one instruction. Where it ends elsewhere, the instructions are decoded from the
//! guest's old place to its new one: straight on, along branches whose target is known, and through the frame that an
//! exception or interrupt pushed. Where the two do not meet there is no answer.

use core::cell::Cell;

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, MemorySize, OpAccess, OpKind, Register,
};
use kvm_bindings::{kvm_regs, kvm_sregs};
use pmu_virt::Privilege;

use crate::guest::{self, Frame, Memory};
use crate::instruction::{Access, access, address, decode, value};

/// Greatest number of instructions of one way.
const LONGEST_WAY: usize = 16;
/// Greatest number of nested exceptions and interrupts whose handlers executed no instruction.
const NESTED: u32 = 3;
/// Greatest number of memory accesses for one step. Every vector at every level takes 18, and the tables of some
/// guests are circular.
const LOOKS: u32 = 20_000;

/// Memory that can be read a limited number of times.
struct Limited<'m, M> {
    memory: &'m M,
    left: Cell<u32>,
}

impl<M: Memory> Memory for Limited<'_, M> {
    fn read<'b>(&self, address: u64, buffer: &'b mut [u8]) -> &'b [u8] {
        match self.left.get().checked_sub(1) {
            Some(left) => {
                self.left.set(left);
                self.memory.read(address, buffer)
            }
            None => &[],
        }
    }
}

/// The processor before an instruction, as far as it is known.
#[derive(Clone)]
pub(crate) struct Point {
    rip: u64,
    /// The general registers, unless an instruction on the way may have changed them.
    registers: Option<kvm_regs>,
    system: kvm_sregs,
    privilege: Privilege,
}

impl Point {
    pub(crate) fn new(registers: kvm_regs, system: kvm_sregs) -> Self {
        let privilege = guest::privilege(&system);
        Self { rip: registers.rip, registers: Some(registers), system, privilege }
    }

    pub(crate) fn is_user(&self) -> bool {
        self.privilege == Privilege::User
    }

    /// Returns the top of the stack, in long mode and out of it. SDM vol. 3A, "Stack Segment".
    fn stack(&self) -> Option<u64> {
        let pointer = self.registers?.rsp;
        Some(match (guest::bitness(&self.system), self.system.ss.db != 0) {
            (64, _) => pointer,
            (_, true) => self.system.ss.base.wrapping_add(pointer & 0xFFFF_FFFF),
            (_, false) => self.system.ss.base.wrapping_add(pointer & 0xFFFF),
        })
    }
}

/// An instruction before its execution.
#[derive(Clone)]
pub(crate) struct Next {
    at: Point,
    instruction: Instruction,
    /// Its target as a taken branch, if that can be foreseen.
    target: Option<u64>,
    /// The frame that IRET is about to pop.
    frame: Option<Frame>,
}

/// An instruction that retired.
pub(crate) struct Retired {
    pub(crate) instruction: Instruction,
    /// The processor before the instruction; `None` of an instruction that the monitor executed.
    before: Option<Point>,
    pub(crate) privilege: Privilege,
    /// The guest did not continue at the next instruction.
    pub(crate) taken: bool,
    /// Address and privilege at which the guest continued.
    pub(crate) to: u64,
    pub(crate) to_privilege: Privilege,
}

impl Retired {
    /// Creates an instruction at which the guest continued with the next.
    pub(crate) fn passed(instruction: Instruction, privilege: Privilege) -> Self {
        let to = instruction.next_ip();
        let before = None;
        Self { instruction, before, privilege, taken: false, to, to_privilege: privilege }
    }

    /// Returns the instruction's access to memory. `None`: there is none, or its address is not known.
    pub(crate) fn access(&self) -> Option<Access> {
        let before = self.before.as_ref()?;
        access(before.registers.as_ref()?, &before.system, &self.instruction)
    }

    /// Returns whether "branch instructions retired" counts the instruction: every instruction that changes the flow of
    /// control.
    pub(crate) fn is_branch(&self) -> bool {
        match self.instruction.flow_control() {
            FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::ConditionalBranch
            | FlowControl::Return
            | FlowControl::Call
            | FlowControl::IndirectCall
            | FlowControl::Interrupt => !is_hypercall(&self.instruction),
            FlowControl::Next | FlowControl::XbeginXabortXend | FlowControl::Exception => false,
        }
    }
}

impl Next {
    fn at(memory: &impl Memory, at: Point) -> Self {
        let instruction = decode(memory, &at.system, at.rip);
        let frame = match (instruction.code(), &at.registers) {
            (Code::Iretq, Some(registers)) => Frame::read(memory, registers.rsp),
            _ => None,
        };
        let target = target(memory, &at, &instruction);
        Self { at, instruction, target, frame }
    }

    /// Returns the instruction after which the guest continued at `to`.
    fn retired(&self, taken: bool, to: &Point) -> Retired {
        let (to, to_privilege) = (to.rip, to.privilege);
        let before = Some(self.at.clone());
        let passed = Retired::passed(self.instruction, self.at.privilege);
        Retired { before, taken, to, to_privilege, ..passed }
    }

    /// Returns whether this is a string instruction that may be repeated.
    fn is_repeated(&self) -> bool {
        let repeats = self.instruction.has_rep_prefix() || self.instruction.has_repne_prefix();
        repeats && self.instruction.is_string_instruction()
    }

    /// Returns whether it leads to `rip` by a jump; `None` if it does not lead there. Also `None` for a conditional
    /// jump to the instruction behind it, which leads there either way.
    fn leads_to(&self, rip: u64) -> Option<bool> {
        let jumps = self.target == Some(rip);
        let passes = passes(&self.instruction) && self.instruction.next_ip() == rip;
        (jumps != passes).then_some(jumps)
    }

    /// Returns the point after the instruction, if it is known.
    fn after(&self, memory: &impl Memory) -> Option<Point> {
        let instruction = &self.instruction;
        match (instruction.code(), instruction.flow_control()) {
            (Code::Iretq, _) => {
                let (registers, system) =
                    self.frame?.undo(memory, self.at.registers?, self.at.system);
                Some(Point::new(registers, system))
            }
            (_, FlowControl::Next) => {
                let changed = writes(instruction, |_| true)?;
                let registers = self.at.registers.filter(|_| !changed);
                Some(Point { rip: instruction.next_ip(), registers, ..self.at.clone() })
            }
            (_, FlowControl::UnconditionalBranch) if is_near(instruction) => {
                Some(Point { rip: self.target?, ..self.at.clone() })
            }
            _ => None,
        }
    }

    /// Returns the address of the frame that IRET is about to pop, if it returns to ring 3.
    pub(crate) fn frame_to_ring_3(&self) -> Option<u64> {
        self.frame.filter(|frame| frame.cs & 3 == 3)?;
        self.at.registers.map(|registers| registers.rsp)
    }
}

/// Returns the next instruction and, while the last one is `unstopped` (the guest does not stop behind it), the one
/// behind it.
pub(crate) fn ahead(
    memory: &impl Memory,
    at: Point,
    unstopped: impl Fn(Code) -> bool,
) -> Vec<Next> {
    let mut next = Next::at(memory, at);
    let mut ahead = Vec::new();
    while unstopped(next.instruction.code())
        && ahead.len() < LONGEST_WAY
        && let Some(point) = next.after(memory)
    {
        ahead.push(next);
        next = Next::at(memory, point);
    }
    ahead.push(next);
    ahead
}

/// Returns the instructions that retired on the way from the instructions ahead to a point. `None`: they do not meet.
///
/// If the guest is still at the first of them, it did not move if it `may_stay`, or if the instruction is repeated;
/// otherwise it jumped back.
pub(crate) fn between(
    memory: &impl Memory,
    ahead: &[Next],
    to: &Point,
    may_stay: bool,
) -> Option<Vec<Retired>> {
    let first = ahead.first()?;
    if first.at.rip == to.rip && (may_stay || first.is_repeated()) {
        return Some(Vec::new());
    }
    explain(&Limited { memory, left: Cell::new(LOOKS) }, ahead, to, NESTED)
}

fn explain(memory: &impl Memory, ahead: &[Next], to: &Point, nested: u32) -> Option<Vec<Retired>> {
    let by_handler = || {
        let nested = nested.checked_sub(1)?;
        (0..=u8::MAX).find_map(|vector| through_handler(memory, ahead, to, nested, vector))
    };
    walk(memory, ahead, to).or_else(by_handler)
}

/// Walks from instruction to instruction. Memory is read as it is now; the instructions decoded ahead are as they
/// were.
fn walk(memory: &impl Memory, ahead: &[Next], to: &Point) -> Option<Vec<Retired>> {
    let (mut next, mut ahead) = (ahead.first()?.clone(), ahead.iter().skip(1));
    let mut retired = Vec::new();
    while retired.len() < LONGEST_WAY {
        if let Some(taken) = next.leads_to(to.rip) {
            retired.push(next.retired(taken, to));
            return Some(retired);
        }
        let following = match ahead.next() {
            Some(following) => following.clone(),
            None => Next::at(memory, next.after(memory)?),
        };
        let taken = following.at.rip != next.instruction.next_ip();
        retired.push(next.retired(taken, &following.at));
        next = following;
    }
    None
}

/// Walks through the entry of an exception's or interrupt's handler, at which the guest now is. Its frame has the
/// guest's previous place.
fn through_handler(
    memory: &impl Memory,
    ahead: &[Next],
    to: &Point,
    nested: u32,
    vector: u8,
) -> Option<Vec<Retired>> {
    let rip = memory.handler(&to.system, vector)?;
    let first = Point { rip, registers: None, privilege: Privilege::Kernel, ..to.clone() };
    let since = match to.rip == rip {
        true => Vec::new(),
        false => walk(memory, &[Next::at(memory, first)], to)?,
    };
    let registers = to.registers?;
    let mut pushed = registers.rsp;
    for Retired { instruction, .. } in &since {
        pushed = pushed.wrapping_sub_signed(stack_change(instruction)?);
    }
    let place = pushed.wrapping_add(if has_error_code(vector) { 8 } else { 0 });
    let mut frame = Frame::read(memory, place)?;
    for Retired { instruction, .. } in since.iter().rev() {
        frame.rip = frame.rip.wrapping_sub(added(instruction, &registers, &to.system, place));
    }
    let (registers, system) = frame.undo(memory, registers, to.system);
    let interrupted = Point::new(registers, system);
    let mut retired = match interrupted.rip == ahead.first()?.at.rip {
        true => Vec::new(),
        false => explain(memory, ahead, &interrupted, nested)?,
    };
    retired.extend(since);
    Some(retired)
}

/// Returns whether the exception pushes an error code. SDM vol. 3A, table "Protected-Mode Exceptions and Interrupts",
/// and APM vol. 2, "Vectors": #VC and #SX.
const fn has_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
}

/// Returns whether the instruction behind it may be the next.
fn passes(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => true,
        FlowControl::Call => is_hypercall(instruction),
        FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::Return
        | FlowControl::IndirectCall
        | FlowControl::Interrupt
        | FlowControl::Exception => false,
    }
}

/// Returns whether it calls the hypervisor, which is not a branch for the guest.
fn is_hypercall(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Vmcall | Code::Vmmcall)
}

fn is_near(instruction: &Instruction) -> bool {
    matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    )
}

/// Returns the target of a taken branch. Those of SYSCALL, SYSENTER and their returns are not foreseen.
fn target(memory: &impl Memory, at: &Point, instruction: &Instruction) -> Option<u64> {
    let popped = |size| memory.read_number(at.stack()?, size);
    let handler = |vector| memory.handler(&at.system, vector);
    match instruction.code() {
        Code::Int3 => handler(3),
        Code::Into => handler(4),
        Code::Int_imm8 => handler(instruction.immediate8()),
        Code::Retnw | Code::Retnw_imm16 | Code::Retfw | Code::Retfw_imm16 | Code::Iretw => {
            popped(2)
        }
        Code::Retnd | Code::Retnd_imm16 | Code::Retfd | Code::Retfd_imm16 | Code::Iretd => {
            popped(4)
        }
        Code::Retnq | Code::Retnq_imm16 | Code::Retfq | Code::Retfq_imm16 | Code::Iretq => {
            popped(8)
        }
        _ => match (instruction.flow_control(), instruction.op0_kind()) {
            _ if is_near(instruction) => Some(instruction.near_branch_target()),
            (_, OpKind::FarBranch16) => Some(instruction.far_branch16().into()),
            (_, OpKind::FarBranch32) => Some(instruction.far_branch32().into()),
            (FlowControl::IndirectBranch | FlowControl::IndirectCall, OpKind::Register) => {
                value(at.registers.as_ref()?, &at.system, instruction.op0_register())
            }
            (FlowControl::IndirectBranch | FlowControl::IndirectCall, OpKind::Memory) => {
                // A far pointer has its selector behind the offset.
                let size = match instruction.memory_size() {
                    MemorySize::SegPtr16 => 2,
                    MemorySize::SegPtr32 => 4,
                    MemorySize::SegPtr64 => 8,
                    near => near.size(),
                };
                let pointer = address(at.registers.as_ref()?, &at.system, instruction, 0)?;
                memory.read_number(pointer, size)
            }
            _ => None,
        },
    }
}

/// Returns whether the instruction may write one of these registers; `None` for an invalid instruction.
fn writes(instruction: &Instruction, of: impl Fn(Register) -> bool) -> Option<bool> {
    if instruction.is_invalid() {
        return None;
    }
    let mut factory = InstructionInfoFactory::new();
    let mut used = factory.info(instruction).used_registers().iter();
    Some(used.any(|used| {
        let read_only = matches!(
            used.access(),
            OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        );
        !read_only && of(used.register().full_register())
    }))
}

/// Returns the amount that an instruction added to a word in memory. (A handler may begin by advancing its return
/// address. If it wrote another one, the way ends.)
fn added(instruction: &Instruction, registers: &kvm_regs, system: &kvm_sregs, place: u64) -> u64 {
    let adds = matches!(instruction.code(), Code::Add_rm64_imm8 | Code::Add_rm64_imm32)
        && instruction.op0_kind() == OpKind::Memory
        && address(registers, system, instruction, 0) == Some(place);
    if adds { instruction.immediate(1) } else { 0 }
}

/// Returns the amount by which an instruction changes RSP, if that is known: the first ones of a handler make room.
fn stack_change(instruction: &Instruction) -> Option<i64> {
    if !writes(instruction, |register| register == Register::RSP)? {
        return Some(0);
    }
    let amount = || {
        let made =
            matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
        made.then(|| instruction.immediate(1) as i64)
    };
    match instruction.code() {
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 => amount().map(i64::wrapping_neg),
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 => amount(),
        _ => {
            instruction.is_stack_instruction().then(|| instruction.stack_pointer_increment().into())
        }
    }
}

#[cfg(test)]
mod tests;
