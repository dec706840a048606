//! Runtime of a bare program: its entry, memory functions, and a panic handler that does not exist.

use core::arch::{asm, global_asm};

#[cfg(feature = "critical-section")]
mod section {
    struct NoInterrupts;
    critical_section::set_impl!(NoInterrupts);

    // SAFETY: one processor, and nothing interrupts it.
    unsafe impl critical_section::Impl for NoInterrupts {
        unsafe fn acquire() -> critical_section::RawRestoreState {}
        unsafe fn release(_: critical_section::RawRestoreState) {}
    }
}

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {main}",
    "mov edi, eax",
    "mov eax, 60",
    "syscall",
    main = sym crate::main,
);

/// Links only if the optimizer removes every call.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn a_panic_can_be_reached() -> !;
    }
    // SAFETY: never linked.
    unsafe { a_panic_can_be_reached() }
}

// `core` is compiled for a host with these; a kernel has its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise of `count` writable bytes.
    unsafe {
        asm!("rep stosb", inout("rdi") to => _, inout("rcx") count => _, in("al") byte as u8);
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise of `count` bytes that do not overlap.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") count => _);
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    for index in 0..count {
        // SAFETY: the caller's promise of `count` readable bytes. Volatile, so that this loop does
        // not become a call to itself.
        let (a, b) = unsafe { (a.add(index).read_volatile(), b.add(index).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    // SAFETY: the caller's promise is the same.
    unsafe { memcmp(a, b, count) }
}
