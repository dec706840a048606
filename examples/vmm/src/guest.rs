//! View of a guest's processor: its registers, and memory by virtual address.

use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};
use kvm_ioctls::{SyncReg, VcpuFd};
use pmu_virt::Privilege;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::error::Error;

const PAGE: u64 = 0x1000;
const EFER_LMA: u64 = 1 << 10;
pub(crate) const CR4_PCE: u64 = 1 << 8;
const CR4_LA57: u64 = 1 << 12;

/// One virtual processor, while it is outside of the guest.
#[derive(Clone, Copy)]
pub(crate) struct Guest<'a> {
    pub(crate) vcpu: &'a VcpuFd,
    pub(crate) memory: &'a GuestMemoryMmap,
}

impl Guest<'_> {
    /// Returns the registers at the last exit; KVM leaves them in `kvm_run`.
    pub(crate) fn registers(&self) -> kvm_regs {
        self.vcpu.sync_regs().regs
    }

    pub(crate) fn system(&self) -> kvm_sregs {
        self.vcpu.sync_regs().sregs
    }

    /// Returns whether KVM is to deliver an exception or an interrupt when it enters the guest, before an NMI.
    pub(crate) fn is_interrupted(&self) -> bool {
        let events = self.vcpu.get_vcpu_events();
        events.is_ok_and(|events| {
            let exception = events.exception.injected | events.exception.pending;
            exception | events.interrupt.injected != 0
        })
    }

    /// Translates a virtual address. In long mode it does without KVM, which would cost an ioctl: SDM vol. 3A,
    /// "4-Level Paging and 5-Level Paging".
    fn place(&self, address: u64) -> Option<GuestAddress> {
        const PRESENT: u64 = 1;
        const LARGE: u64 = 1 << 7;
        const FRAME: u64 = 0x000F_FFFF_FFFF_F000;
        let system = self.system();
        if !is_long(&system) {
            let translation = self.vcpu.translate_gva(address).ok()?;
            return (translation.valid != 0).then_some(GuestAddress(translation.physical_address));
        }
        let levels = if system.cr4 & CR4_LA57 != 0 { 5 } else { 4 };
        let mut entry = system.cr3;
        for level in (0..levels).rev() {
            let shift = 12 + 9 * level;
            let place = (entry & FRAME) + (address >> shift & 0x1FF) * 8;
            entry = self.memory.read_obj(GuestAddress(place)).ok()?;
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || level <= 2 && entry & LARGE != 0 {
                let offset = (1 << shift) - 1;
                return Some(GuestAddress(entry & FRAME & !offset | address & offset));
            }
        }
        None
    }

    /// Returns the physical address of a linear one, if it is mapped.
    pub(crate) fn physical(&self, linear: u64) -> Option<u64> {
        self.place(linear).map(|place| place.0)
    }

    /// Writes bytes from a linear address on, up to the first that is not mapped. Returns how many were written.
    pub(crate) fn write(&self, linear: u64, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let at = linear.wrapping_add(done as u64);
            let in_page = ((PAGE - at % PAGE) as usize).min(bytes.len() - done);
            let part = &bytes[done..done + in_page];
            if !self.physical(at).is_some_and(|at| self.write_physical(at, part)) {
                break;
            }
            done += in_page;
        }
        done
    }

    /// Writes bytes from a physical address on. Returns whether there is memory.
    pub(crate) fn write_physical(&self, physical: u64, bytes: &[u8]) -> bool {
        self.memory.write_slice(bytes, GuestAddress(physical)).is_ok()
    }

    /// Changes a 64-bit word, if it is mapped and within one page.
    pub(crate) fn write_word(&self, address: u64, word: u64) {
        if let Some(place) = self.place(address).filter(|_| address % PAGE <= PAGE - 8) {
            // A word outside of the memory is not the guest's.
            let _ = self.memory.write_obj(word, place);
        }
    }
}

impl Memory for Guest<'_> {
    fn read<'b>(&self, address: u64, buffer: &'b mut [u8]) -> &'b [u8] {
        let mut done = 0;
        while done < buffer.len() {
            let at = address.wrapping_add(done as u64);
            let in_page = ((PAGE - at % PAGE) as usize).min(buffer.len() - done);
            let Some(place) = self.place(at) else { break };
            let part = &mut buffer[done..done + in_page];
            if self.memory.read_slice(part, place).is_err() {
                break;
            }
            done += in_page;
        }
        &buffer[..done]
    }
}

/// The guest's memory by virtual address.
pub(crate) trait Memory {
    /// Reads the mapped bytes from an address on, up to the buffer's length.
    fn read<'b>(&self, address: u64, buffer: &'b mut [u8]) -> &'b [u8];

    /// Reads a number of up to 8 bytes.
    fn read_number(&self, address: u64, size: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        let complete = self.read(address, bytes.get_mut(..size)?).len() == size;
        complete.then_some(u64::from_le_bytes(bytes))
    }

    /// Reads 64-bit words from an address on.
    fn read_words<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (place, word) in (0..).zip(&mut words) {
            *word = self.read_number(address.wrapping_add(place * 8), 8)?;
        }
        Some(words)
    }

    /// Returns the address of the guest's handler of an exception or interrupt, if it has one and is in long mode.
    /// SDM vol. 3A, "64-Bit Mode IDT".
    fn handler(&self, system: &kvm_sregs, vector: u8) -> Option<u64> {
        let offset = u64::from(vector) * 16;
        if !is_long(system) || u64::from(system.idt.limit) < offset + 15 {
            return None;
        }
        let [low, high] = self.read_words(system.idt.base.wrapping_add(offset))?;
        let present = low >> 47 & 1 != 0;
        present.then_some(low & 0xFFFF | low >> 32 & 0xFFFF_0000 | high << 32)
    }
}

/// Makes KVM leave the registers in `kvm_run` at each exit.
pub(crate) fn expose_registers(vcpu: &mut VcpuFd) {
    vcpu.set_sync_valid_reg(SyncReg::Register);
    vcpu.set_sync_valid_reg(SyncReg::SystemRegister);
}

/// Changes the registers. The bitmap is of an interrupt that KVM is about to deliver, and may be out of
/// date: KVM would deliver it again. An empty one changes nothing.
pub(crate) fn set_registers(
    vcpu: &mut VcpuFd,
    registers: kvm_regs,
    system: kvm_sregs,
) -> Result<(), Error> {
    let system = kvm_sregs { interrupt_bitmap: [0; 4], ..system };
    vcpu.set_sregs(&system).map_err(Error::kvm("KVM_SET_SREGS"))?;
    vcpu.set_regs(&registers).map_err(Error::kvm("KVM_SET_REGS"))?;
    let exposed = vcpu.sync_regs_mut();
    (exposed.regs, exposed.sregs) = (registers, system);
    Ok(())
}

/// Raises an exception without error code at the guest's next run.
pub(crate) fn raise(vcpu: &VcpuFd, vector: u8) -> Result<(), Error> {
    let mut events = vcpu.get_vcpu_events().map_err(Error::kvm("KVM_GET_VCPU_EVENTS"))?;
    events.exception.injected = 1;
    events.exception.nr = vector;
    events.exception.has_error_code = 0;
    vcpu.set_vcpu_events(&events).map_err(Error::kvm("KVM_SET_VCPU_EVENTS"))
}

/// The frame that an exception pushed, without an error code. SDM vol. 3A, "64-Bit Mode Stack Frame".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) flags: u64,
    pub(crate) rsp: u64,
    pub(crate) ss: u64,
}

impl Frame {
    /// Bytes on the stack.
    const SIZE: u64 = 5 * 8;

    pub(crate) fn read(memory: &impl Memory, address: u64) -> Option<Self> {
        let [rip, cs, flags, rsp, ss] = memory.read_words(address)?;
        Some(Self { rip, cs, flags, rsp, ss })
    }

    /// Returns the registers as before the exception, except those that are not in the frame.
    pub(crate) fn undo(
        &self,
        memory: &impl Memory,
        registers: kvm_regs,
        mut system: kvm_sregs,
    ) -> (kvm_regs, kvm_sregs) {
        let Self { rip, flags, rsp, .. } = *self;
        for (segment_register, selector) in
            [(&mut system.cs, self.cs as u16), (&mut system.ss, self.ss as u16)]
        {
            let place = system.gdt.base.wrapping_add(u64::from(selector & !7));
            // A null selector is the stack's in ring 0; local tables are not supported.
            let descriptor = if selector & !3 == 0 { None } else { memory.read_words::<1>(place) };
            match descriptor {
                Some([descriptor]) => *segment_register = segment(selector, descriptor),
                None => segment_register.selector = selector,
            }
        }
        (kvm_regs { rip, rsp, rflags: flags, ..registers }, system)
    }
}

/// Returns whether the processor is in long mode.
pub(crate) fn is_long(system: &kvm_sregs) -> bool {
    system.efer & EFER_LMA != 0
}

/// Returns the current privilege level: that of the stack segment. SDM vol. 3A, "Privilege Levels".
pub(crate) fn privilege_level(system: &kvm_sregs) -> u8 {
    system.ss.dpl
}

/// Returns the privilege that counters distinguish.
pub(crate) fn privilege(system: &kvm_sregs) -> Privilege {
    if privilege_level(system) == 0 { Privilege::Kernel } else { Privilege::User }
}

/// Returns the privilege at which it ran until it stopped: if ring 0's stack holds only the frame of an exception or
/// interrupt from ring 3, its handler has not begun.
pub(crate) fn privilege_before(
    memory: &impl Memory,
    registers: &kvm_regs,
    system: &kvm_sregs,
) -> Privilege {
    let handler_begins = || {
        let (frame, place) = frame_from_ring_3(memory, system)?;
        let code_and_frame = [0, 8].map(|code| place.wrapping_sub(code));
        Some(code_and_frame.contains(&registers.rsp) && frame.cs & 3 == 3)
    };
    if handler_begins() == Some(true) { Privilege::User } else { privilege(system) }
}

/// Returns the frame that the last exception or interrupt from ring 3 pushed on ring 0's stack, and its address, in
/// long mode. An error code is below it. APM vol. 2, "64-Bit Task State Segment".
pub(crate) fn frame_from_ring_3(memory: &impl Memory, system: &kvm_sregs) -> Option<(Frame, u64)> {
    const RSP0: u64 = 4;
    if !is_long(system) {
        return None;
    }
    let [stack] = memory.read_words(system.tr.base.wrapping_add(RSP0))?;
    let place = stack.wrapping_sub(Frame::SIZE);
    Some((Frame::read(memory, place)?, place))
}

/// Returns the bits of code that the processor executes: 16, 32 or 64.
pub(crate) fn bitness(system: &kvm_sregs) -> u32 {
    match (is_long(system) && system.cs.l != 0, system.cs.db != 0) {
        (true, _) => 64,
        (false, true) => 32,
        (false, false) => 16,
    }
}

/// Returns the segment that a descriptor of 8 bytes describes. SDM vol. 3A, "Segment Descriptors".
pub(crate) fn segment(selector: u16, descriptor: u64) -> kvm_segment {
    let bits = |from: u32, count: u32| (descriptor >> from & ((1 << count) - 1)) as u32;
    let granular = bits(55, 1) != 0;
    let limit = bits(0, 16) | bits(48, 4) << 16;
    kvm_segment {
        base: (bits(16, 24) | bits(56, 8) << 24).into(),
        limit: if granular { limit << 12 | 0xFFF } else { limit },
        selector,
        type_: bits(40, 4) as u8,
        present: bits(47, 1) as u8,
        dpl: bits(45, 2) as u8,
        db: bits(54, 1) as u8,
        s: bits(44, 1) as u8,
        l: bits(53, 1) as u8,
        g: granular.into(),
        avl: bits(52, 1) as u8,
        ..Default::default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Pieces of memory, at their addresses.
    pub(crate) struct Pieces(pub(crate) Vec<(u64, Vec<u8>)>);

    impl Pieces {
        pub(crate) fn words(address: u64, words: &[u64]) -> (u64, Vec<u8>) {
            (address, words.iter().flat_map(|word| word.to_le_bytes()).collect())
        }
    }

    impl Memory for Pieces {
        fn read<'b>(&self, address: u64, buffer: &'b mut [u8]) -> &'b [u8] {
            let size = buffer.len();
            let found = self.0.iter().find_map(|(start, bytes)| {
                let place = usize::try_from(address.checked_sub(*start)?).ok()?;
                bytes.get(place..place + size)
            });
            let Some(found) = found else { return &[] };
            buffer.copy_from_slice(found);
            buffer
        }
    }

    #[test]
    fn time_until_an_interrupt_of_ring_3_was_spent_in_ring_3() {
        const TASK: u64 = 0x1004; // RSP0 is 4 bytes behind the start
        const TOP: u64 = 0x8000;
        let frame = |cs| Pieces::words(TOP - 48, &[6, 0x40_1000, cs, 0x202, 0x7000, 0x2B]);
        let before = |cs, rsp| {
            let memory = Pieces(vec![Pieces::words(TASK + 4, &[TOP]), frame(cs)]);
            let mut system = kvm_sregs { efer: EFER_LMA, ..Default::default() };
            system.tr.base = TASK;
            privilege_before(&memory, &kvm_regs { rsp, ..Default::default() }, &system)
        };
        let (user, kernel) = (0x33, 0x10);
        assert_eq!(before(user, TOP - 40), Privilege::User);
        assert_eq!(before(user, TOP - 48), Privilege::User, "with an error code");
        assert_eq!(before(user, TOP - 56), Privilege::Kernel, "the handler pushed something");
        assert_eq!(before(user, TOP), Privilege::Kernel);
        assert_eq!(before(kernel, TOP - 40), Privilege::Kernel, "an interrupt of ring 0");
    }
}
