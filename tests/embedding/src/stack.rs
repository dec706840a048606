//! Measurement of a function's depth of stack.

use core::arch::asm;
use core::cell::UnsafeCell;

const SIZE: usize = 0x4000;
const PAINT: u8 = 0xA5;

#[repr(align(16))]
struct Stack(UnsafeCell<[u8; SIZE]>);

// SAFETY: the program has one thread.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([PAINT; SIZE]));

/// Calls a function on a painted stack, and returns the number of bytes written, the return address included.
pub fn depth_of<F: FnMut()>(function: &mut F) -> usize {
    let bottom = STACK.0.get().cast::<u8>();
    for place in 0..SIZE {
        // SAFETY: one of the stack's bytes, which is not in use yet.
        unsafe { bottom.add(place).write_volatile(PAINT) };
    }
    // SAFETY: the function runs on a stack of its own, from its top, and comes back to this one, which is
    // kept in a register that a callee preserves; its argument is borrowed for the call.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) bottom.add(SIZE),
            function = in(reg) call::<F> as extern "C" fn(&mut F),
            inout("rdi") function => _,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    // SAFETY: one of the stack's bytes, which is no longer in use.
    let painted = |place: &usize| unsafe { bottom.add(*place).read_volatile() } == PAINT;
    SIZE - (0..SIZE).take_while(painted).count()
}

extern "C" fn call<F: FnMut()>(function: &mut F) {
    function();
}
