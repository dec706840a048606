//! A kernel for QEMU's machine `virt` that counts and profiles itself on Arm's PMUv3. Read [`embedding`], which is what
//! a kernel of your own writes, and [`checks`], which uses it.
#![no_std]
#![no_main]

mod checks;
mod embedding;
mod gic;
mod machine;
mod samples;
mod spare;
mod workload;

use core::panic::PanicInfo;

/// Begins on each processor, called from `boot.s` with interrupts off.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(processor: usize) -> ! {
    gic::initialize();
    machine::enable_interrupts();
    let result = if processor == 0 { checks::run() } else { checks::serve() };
    match result {
        Ok(()) => {
            line!("end good");
            machine::exit(0)
        }
        Err(failure) => {
            line!("failed {failure}");
            machine::exit(1)
        }
    }
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    line!("{info}");
    machine::exit(2)
}
