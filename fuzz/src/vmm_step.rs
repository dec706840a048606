//! The monitor's single steps: arbitrary instructions in a guest's memory, and those that retired between two stops;
//! where the way is plain, compared with a count one by one.
//!
//! The bytes: the code's width and the privilege level; RIP, RSP and the other registers of both stops; an
//! interrupt's vector and the number of instructions before it; then the code, and pieces of memory.

use core::cell::Cell;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment, kvm_sregs};
use pmu_virt::Privilege;

use crate::input::Input;
use crate::vmm::count::retired::{Point, Retired, ahead, between};
use crate::vmm::guest::{Memory, segment};
use crate::vmm::instruction::decode;

/// Addresses of the pieces in the first 64 KiB.
const CODE: u64 = 0x1000;
const IDT: u64 = 0x2000;
const GDT: u64 = 0x4000;
const HANDLER: u64 = 0x5000;
const STACK: u64 = 0x8000;
const SIZE: usize = 0x1_0000;
/// Kernel code and data, user code and data, in long mode.
const DESCRIPTORS: [u64; 5] =
    [0, 0x00AF_9B00_0000_FFFF, 0x00CF_9300_0000_FFFF, 0x00AF_FB00_0000_FFFF, 0x00CF_F300_0000_FFFF];
/// Greatest number of the monitor's reads for one step.
const MOST_READS: usize = 25_000;

/// Memory, with the number of its reads.
struct Ram {
    bytes: Vec<u8>,
    reads: Cell<usize>,
}

impl Ram {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        for (place, byte) in (address as usize..SIZE).zip(bytes) {
            self.bytes[place] = *byte;
        }
    }

    fn words(&mut self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(address, &bytes);
    }
}

impl Memory for Ram {
    fn read<'b>(&self, address: u64, buffer: &'b mut [u8]) -> &'b [u8] {
        self.reads.set(self.reads.get() + 1);
        let from = usize::try_from(address).ok().and_then(|address| self.bytes.get(address..));
        let from = from.unwrap_or_default();
        let length = buffer.len().min(from.len());
        buffer[..length].copy_from_slice(&from[..length]);
        &buffer[..length]
    }
}

/// The processor's tables and segments. Long mode's segments have their descriptors in the table.
fn system(bitness: u32, user: bool) -> kvm_sregs {
    let (code, stack) = if user { (0x1B, 0x23) } else { (0x08, 0x10) };
    let mut system = kvm_sregs { efer: 1 << 10, ..Default::default() };
    system.cs = segment(code, DESCRIPTORS[usize::from(code) / 8]);
    system.ss = segment(stack, DESCRIPTORS[usize::from(stack) / 8]);
    if bitness != 64 {
        let db = u8::from(bitness == 32);
        system.efer = 0;
        system.cs = kvm_segment { l: 0, db, ..system.cs };
    }
    system.idt = kvm_dtable { base: IDT, limit: 0xFFF, ..Default::default() };
    system.gdt = kvm_dtable { base: GDT, limit: 0x27, ..Default::default() };
    system
}

fn registers(input: &mut Input<'_>, rip: u64, rsp: u64) -> kvm_regs {
    let (rax, rbx, rcx, rdx) = (input.u16(), input.u16(), input.u16(), input.u16());
    let [rax, rbx, rcx, rdx] = [rax, rbx, rcx, rdx].map(u64::from);
    kvm_regs { rax, rbx, rcx, rdx, rsi: rax ^ rdx, rdi: rbx ^ rcx, rsp, rip, ..Default::default() }
}

/// The instructions from `rip` on, as a decoder of a whole program has them.
fn listing(ram: &Ram, bitness: u32, rip: u64) -> Vec<Instruction> {
    let code = ram.bytes.get(rip as usize..).unwrap_or_default();
    Decoder::with_ip(bitness, code, rip, DecoderOptions::NONE).iter().take(20).collect()
}

fn told(retired: Option<Vec<Retired>>) -> Option<Vec<(Privilege, bool)>> {
    Some(retired?.iter().map(|retired| (retired.privilege, retired.taken)).collect())
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let bitness = [16, 32, 64, 64][usize::from(input.u8() % 4)];
    let user = input.bool();
    let privilege = if user { Privilege::User } else { Privilege::Kernel };
    let (before, after) = (input.u16(), input.u16());
    let (top, top_after) = (input.u16(), input.u16());
    let from = registers(&mut input, before.into(), top.into());
    let to = registers(&mut input, after.into(), top_after.into());
    let (vector, steps) = (input.u8(), usize::from(input.u8() % 16));
    let mut ram = Ram { bytes: vec![0; SIZE], reads: Cell::new(0) };
    ram.words(GDT, &DESCRIPTORS);
    let length = usize::from(input.u8());
    ram.put(CODE, input.bytes(length));
    while !input.is_empty() {
        let (address, length) = (input.u16(), input.u8().into());
        ram.put(address.into(), input.bytes(length));
    }
    let system = system(bitness, user);
    let start = Point::new(from, system);
    let between = |ram: &Ram, to: &Point| {
        ram.reads.set(0);
        let ways = ahead(ram, start.clone(), |_| false);
        let retired = told(between(ram, &ways, to, false));
        assert!(ram.reads.get() <= MOST_READS, "{} reads for one step", ram.reads.get());
        retired
    };

    // Anywhere: the same answer twice, and never more than there can be on so few ways.
    let anywhere = Point::new(to, system);
    let retired = between(&ram, &anywhere);
    assert_eq!(between(&ram, &anywhere), retired);
    assert!(retired.is_none_or(|retired| retired.len() <= 16 * 8));

    // One by one, as listed, unless the code goes round.
    let listing = listing(&ram, bitness, from.rip);
    let Some(first) = listing.first() else { return };
    assert_eq!(decode(&ram, &system, from.rip), *first);
    let straight = listing.iter().take_while(|instruction| {
        !instruction.is_invalid()
            && instruction.flow_control() == FlowControl::Next
            && instruction.next_ip() > from.rip
    });
    let straight = straight.count();
    let at = |count: usize| listing.get(count).map(|instruction| instruction.ip());
    for count in
        [1, steps, straight.min(15)].into_iter().filter(|count| (1..=straight).contains(count))
    {
        let Some(rip) = at(count) else { break };
        let there = Point::new(kvm_regs { rip, ..to }, system);
        assert_eq!(between(&ram, &there), Some(vec![(privilege, false); count]), "{rip:#x}");
    }
    // A near branch goes on, or where it says.
    let near = matches!(
        first.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    ) && first.near_branch_target() != 0;
    if near && first.near_branch_target() != first.next_ip() {
        let there = kvm_regs { rip: first.near_branch_target(), ..to };
        let taken = between(&ram, &Point::new(there, system));
        assert_eq!(taken, Some(vec![(privilege, true)]), "{first:?}");
    }

    // An interrupt's handler, to which the code does not lead: its frame has the instructions' end.
    let (steps, leads) = (steps.min(straight), straight.min(15));
    let leads_there = listing.get(leads).is_none_or(|behind| {
        !matches!(behind.flow_control(), FlowControl::Next) || behind.is_invalid()
    });
    let elsewhere = !(HANDLER - 0x1000..HANDLER + 0x100).contains(&from.rip);
    let Some(rip) = at(steps).filter(|_| bitness == 64 && elsewhere && !leads_there) else {
        return;
    };
    let gate = HANDLER & 0xFFFF | 8 << 16 | 0x8E00 << 32;
    ram.put(IDT, &[0; 0x1000]);
    ram.words(IDT + u64::from(vector) * 16, &[gate, 0]);
    let (code, stack) = (u64::from(system.cs.selector), u64::from(system.ss.selector));
    let mut frame = vec![rip, code, 2, top.into(), stack];
    if matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30) {
        frame.insert(0, 0);
    }
    let pushed = STACK - 8 * frame.len() as u64;
    ram.words(pushed, &frame);
    ram.words(GDT, &DESCRIPTORS);
    if super_imposed(&ram, &listing, bitness, from.rip) {
        return;
    }
    let handler = kvm_regs { rip: HANDLER, rsp: pushed, ..to };
    let kernel = Point::new(handler, self::system(64, false));
    assert_eq!(between(&ram, &kernel), Some(vec![(privilege, false); steps]), "vector {vector}");
}

/// Returns whether the latest change of memory is in the code.
fn super_imposed(ram: &Ram, before: &[Instruction], bitness: u32, rip: u64) -> bool {
    listing(ram, bitness, rip) != before
}
