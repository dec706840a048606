//! Tests on memory that they fill, without KVM. The ways are counted by hand.

use iced_x86::code_asm::*;
use kvm_bindings::{kvm_dtable, kvm_segment};

use super::*;

const CODE: u64 = 0x1000;
const IDT: u64 = 0x2000;
const GDT: u64 = 0x4000;
const HANDLERS: u64 = 0x5000;
const STACK: u64 = 0x8000;
const FLAGS: u64 = 2;
/// Selectors of the descriptor table below.
const KERNEL: (u64, u64) = (0x08, 0x10);
const USER: (u64, u64) = (0x18 | 3, 0x20 | 3);

/// The first 64 KiB.
struct Ram(Vec<u8>);

impl Memory for Ram {
    fn read<'b>(&self, address: u64, buffer: &'b mut [u8]) -> &'b [u8] {
        let from = self.0.get(address as usize..).unwrap_or_default();
        let length = buffer.len().min(from.len());
        buffer[..length].copy_from_slice(&from[..length]);
        &buffer[..length]
    }
}

type Assembled = Result<(), iced_x86::IcedError>;
type Body = fn(&mut CodeAssembler) -> Assembled;

impl Ram {
    fn new(code: Body) -> Self {
        let mut ram = Self(vec![0; 0x1_0000]);
        let segments: [u64; 5] = [
            0,
            0x00AF_9B00_0000_FFFF,
            0x00CF_9300_0000_FFFF,
            0x00AF_FB00_0000_FFFF,
            0x00CF_F300_0000_FFFF,
        ];
        ram.words(GDT, &segments);
        ram.assemble(64, CODE, code);
        ram
    }

    fn words(&mut self, address: u64, words: &[u64]) {
        for (place, word) in (address as usize..).step_by(8).zip(words) {
            self.0[place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    fn assemble(&mut self, bitness: u32, address: u64, code: Body) {
        let mut assembler = CodeAssembler::new(bitness).unwrap();
        code(&mut assembler).unwrap();
        let bytes = assembler.assemble(address).unwrap();
        self.0[address as usize..][..bytes.len()].copy_from_slice(&bytes);
    }

    /// Adds a handler of a vector, and returns its address.
    fn handle(&mut self, vector: u8, code: Body) -> u64 {
        let handler = HANDLERS + u64::from(vector) * 0x20;
        self.assemble(64, handler, code);
        let gate = handler & 0xFFFF | 8 << 16 | 0x8E00 << 32 | (handler >> 16) << 48;
        self.words(IDT + u64::from(vector) * 16, &[gate, 0]);
        handler
    }

    /// Pushes an exception's frame: RIP, CS, RFLAGS, RSP, SS.
    fn push(&mut self, ip: u64, selectors: (u64, u64), top: u64, at: u64) {
        self.words(at, &[ip, selectors.0, FLAGS, top, selectors.1]);
    }
}

/// Returns a point in 64-bit mode, in ring 0.
fn point(ip: u64, top: u64) -> Point {
    let segment = |l, db| kvm_segment { l, db, ..Default::default() };
    let mut system = kvm_sregs { efer: 1 << 10, ..Default::default() };
    (system.cs, system.ss) = (segment(1, 0), segment(0, 1));
    system.idt = kvm_dtable { base: IDT, limit: 0xFFF, ..Default::default() };
    system.gdt = kvm_dtable { base: GDT, limit: 0x27, ..Default::default() };
    Point::new(kvm_regs { rip: ip, rsp: top, rflags: FLAGS, ..Default::default() }, system)
}

/// Returns whether the instruction is a fence, SWAPGS or IRET.
fn unstopped(code: Code) -> bool {
    matches!(code, Code::Mfence | Code::Lfence | Code::Swapgs | Code::Iretq)
}

/// Returns the instructions that retired from `CODE` on, with the stack's top at `STACK`: for each, whether it is a
/// taken branch.
fn way(ram: &Ram, to: Point) -> Option<Vec<bool>> {
    let ahead = ahead(ram, point(CODE, STACK), unstopped);
    let retired = between(ram, &ahead, &to, false)?;
    Some(retired.iter().map(|retired| retired.is_branch() && retired.taken).collect())
}

#[test]
fn a_stop_two_instructions_further_is_two_instructions() {
    let ram = Ram::new(|a| {
        a.mfence()?; // 3 bytes
        a.nop()?;
        a.rdtsc()
    });
    assert_eq!(way(&ram, point(CODE + 3, STACK)), Some(vec![false]));
    assert_eq!(way(&ram, point(CODE + 4, STACK)), Some(vec![false; 2]));
    assert_eq!(way(&ram, point(CODE + 6, STACK)), Some(vec![false; 3]));
    assert_eq!(way(&ram, point(CODE + 5, STACK)), None, "within an instruction");
    assert_eq!(way(&ram, point(CODE, STACK)), None, "nothing leads back");
}

#[test]
fn a_guest_that_did_not_move_retired_nothing_or_jumped_to_itself() {
    let retired = |code: Body, may_stay| {
        let ram = Ram::new(code);
        let ahead = ahead(&ram, point(CODE, STACK), unstopped);
        between(&ram, &ahead, &point(CODE, STACK), may_stay).map(|retired| retired.len())
    };
    for (code, stepped) in [
        ((|a| a.rep().movsb()) as Body, Some(0)),
        (|a| a.jmp(CODE), Some(1)),
        // The cause of its return is not known.
        (|a| a.movsb(), None),
        (|a| a.nop(), None),
    ] {
        assert_eq!(retired(code, false), stepped);
        assert_eq!(retired(code, true), Some(0));
    }
}

#[test]
fn a_branch_behind_a_fence_goes_where_it_goes() {
    // MFENCE; JNE CODE, of 3 and 2 bytes.
    let mut ram = Ram::new(|a| a.mfence());
    ram.0[CODE as usize + 3..][..2].copy_from_slice(&[0x75, 0xFB]);
    assert_eq!(way(&ram, point(CODE, STACK)), Some(vec![false, true]));
    assert_eq!(way(&ram, point(CODE + 5, STACK)), Some(vec![false; 2]));
    // Beyond a conditional branch there are two ways.
    assert_eq!(way(&ram, point(CODE + 7, STACK)), None);

    let mut ram = Ram::new(|a| {
        a.lfence()?;
        a.ret()
    });
    ram.words(STACK, &[0x1234]);
    assert_eq!(way(&ram, point(0x1234, STACK + 8)), Some(vec![false, true]));
    assert_eq!(way(&ram, point(0x1235, STACK + 8)), None);
    // An instruction that changes registers may have changed the target.
    let ram = Ram::new(|a| {
        a.rdtsc()?;
        a.jmp(rax)
    });
    assert_eq!(way(&ram, point(0, STACK)), None);
}

#[test]
fn a_conditional_jump_to_the_next_instruction_is_not_told_as_either() {
    let mut ram = Ram::new(|_| Ok(()));
    ram.0[CODE as usize..][..2].copy_from_slice(&[0x74, 0x00]);
    assert_eq!(way(&ram, point(CODE + 2, STACK)), None);
    // An unconditional one is taken.
    ram.0[CODE as usize] = 0xEB;
    assert_eq!(way(&ram, point(CODE + 2, STACK)), Some(vec![true]));
}

#[test]
fn an_iret_is_known_by_the_frame_that_it_popped_and_not_by_what_overwrote_it() {
    let mut ram = Ram::new(|a| {
        a.mfence()?;
        a.swapgs()?;
        a.iretq()
    });
    ram.push(0x1800, USER, 0x9000, STACK);
    ram.assemble(64, 0x1800, |a| a.nop());
    let ahead = ahead(&ram, point(CODE, STACK), unstopped);
    assert_eq!(ahead.iter().find_map(Next::frame_to_ring_3), Some(STACK));
    // The trap after the NOP pushed its frame in the same place.
    ram.push(0x1801, USER, 0x9000, STACK);
    let retired = between(&ram, &ahead, &point(0x1801, 0x9000), false).unwrap();
    let told: Vec<_> = retired.iter().map(|retired| (retired.taken, retired.privilege)).collect();
    let kernel = |taken| (taken, Privilege::Kernel);
    assert_eq!(told, [kernel(false), kernel(false), kernel(true), (false, Privilege::User)]);
}

#[test]
fn where_an_exception_or_interrupt_came_its_frame_tells() {
    let mut ram = Ram::new(|a| {
        a.mfence()?;
        a.ud2()
    });
    let (frame, ud2) = (STACK - 40, CODE + 3);
    // By what the handlers do first: nothing, PUSH, SUB RSP, a move of the return address.
    let plain = ram.handle(6, |a| a.cld());
    let pushes = ram.handle(7, |a| a.push(rax));
    let makes_room = ram.handle(9, |a| a.sub(rsp, 0x28));
    let moves_on = ram.handle(16, |a| a.add(qword_ptr(rsp), 2));
    for (ip, top, moved) in [
        (plain + 1, frame, 0),
        (pushes + 1, frame - 8, 0),
        (makes_room + 4, frame - 0x28, 0),
        (moves_on + 5, frame, 2),
    ] {
        ram.push(ud2 + moved, KERNEL, STACK, frame);
        assert_eq!(way(&ram, point(ip, top)), Some(vec![false; 2]), "after the fence: {ip:#x}");
        ram.push(CODE + moved, KERNEL, STACK, frame);
        assert_eq!(way(&ram, point(ip, top)), Some(vec![false]), "before it: {ip:#x}");
        ram.push(ud2 + 7, KERNEL, STACK, frame);
        assert_eq!(way(&ram, point(ip, top)), None, "nowhere near: {ip:#x}");
    }
    // Nothing of the handler was executed.
    ram.push(ud2, KERNEL, STACK, frame);
    assert_eq!(way(&ram, point(plain, frame)), Some(vec![false]));
    ram.push(CODE, KERNEL, STACK, frame);
    assert_eq!(way(&ram, point(plain, frame)), Some(vec![]));
    // #PF pushes an error code.
    let page_fault = ram.handle(14, |a| a.cld());
    ram.words(frame - 8, &[4]);
    assert_eq!(way(&ram, point(page_fault + 1, frame - 8)), Some(vec![false]));
    // An NMI before the handler's first instruction.
    let nmi = ram.handle(2, |a| a.cld());
    ram.push(ud2, KERNEL, STACK, frame);
    ram.push(plain, KERNEL, frame, frame - 40);
    assert_eq!(way(&ram, point(nmi + 1, frame - 40)), Some(vec![false; 2]));
}

#[test]
fn a_software_interrupt_is_a_taken_branch_and_an_exception_is_none() {
    let mut ram = Ram::new(|a| a.int(0x80));
    let handler = ram.handle(0x80, |a| a.nop());
    assert_eq!(way(&ram, point(handler, STACK - 40)), Some(vec![true]));
}

#[test]
fn code_of_32_bits_is_followed() {
    let mut ram = Ram::new(|_| Ok(()));
    ram.assemble(32, CODE, |a| a.ret());
    ram.words(STACK, &[0xFFFF_FFFF_0000_1234]);
    let in_32_bits = |ip, top| {
        let mut point = point(ip, top);
        (point.system.efer, point.system.cs.l, point.system.cs.db) = (0, 0, 1);
        point
    };
    let ahead = ahead(&ram, in_32_bits(CODE, STACK), unstopped);
    let retired = between(&ram, &ahead, &in_32_bits(0x1234, STACK + 4), false).unwrap();
    assert!(retired.len() == 1 && retired[0].taken);
}

/// Every vector leads to one handler, in which a frame says that it was interrupted at its beginning.
#[test]
fn tables_that_lead_round_in_a_circle_are_given_up_after_a_bounded_search() {
    let mut ram = Ram::new(|a| a.ud2());
    let handler = ram.handle(0, |a| a.nop());
    for vector in 1..=0xFF {
        ram.words(IDT + vector * 16, &[handler & 0xFFFF | 8 << 16 | 0x8E00 << 32, 0]);
    }
    let frame = STACK - 40;
    ram.push(handler, KERNEL, frame, frame);
    let ram = Limited { memory: &ram, left: Cell::new(u32::MAX) };
    let ahead = ahead(&ram, point(CODE, STACK), unstopped);
    assert!(between(&ram, &ahead, &point(handler, frame), false).is_none());
    let looks = u32::MAX - ram.left.get();
    assert!((1_000..50_000).contains(&looks), "{looks}");
}
