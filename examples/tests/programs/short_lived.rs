//! A program for the tests of `profile`: `short-lived threads|processes NUMBER MICROSECONDS` works for so
//! long in each of so many threads or processes, one after the other, and then as long in all in its main
//! thread. It prints the processor time that the kernel says it and they took, in nanoseconds.
//! `short-lived jit 1 0 private|shared` executes a loop in such memory of no file, and does not end; its map file
//! names it.

use std::process::ExitCode;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> ExitCode {
    linux::run().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod linux {
    use core::hint::black_box;
    use core::mem::zeroed;
    use core::ptr::null_mut;
    use core::time::Duration;
    use std::{env, thread};

    use pmu_examples::profiler::processor::thread_time;

    /// So few steps between two looks at the clock that a short turn ends on time in a debug build too.
    const STEPS: u32 = 4096;

    macro_rules! work {
        ($function:ident, $multiplier:literal) => {
            #[inline(never)]
            fn $function(time: Duration) {
                let end = thread_time() + time;
                let mut value: u64 = black_box($multiplier);
                while thread_time() < end {
                    let mut left = STEPS;
                    while left != 0 {
                        value = (value ^ (value >> 7)).wrapping_mul($multiplier);
                        left -= 1;
                    }
                }
                black_box(value);
            }
        };
    }

    // The multipliers differ so that the functions are not merged.
    work!(in_short_ones, 0x9E37_79B9_7F4A_7C15);
    work!(in_main, 0xD1B5_4A32_D192_ED03);

    pub(crate) fn run() -> Option<()> {
        let mut arguments = env::args().skip(1);
        let what = arguments.next()?;
        let number: u32 = arguments.next()?.parse().ok()?;
        let each = Duration::from_micros(arguments.next()?.parse().ok()?);
        for _ in 0..number {
            match &*what {
                "threads" => thread::spawn(move || in_short_ones(each)).join().ok()?,
                "processes" => in_process(each)?,
                "jit" => execute_in_memory(&arguments.next()?)?,
                _ => return None,
            }
        }
        in_main(each * number);
        let used = used(libc::RUSAGE_SELF)? + used(libc::RUSAGE_CHILDREN)?;
        println!("{}", used.as_nanos());
        Some(())
    }

    /// Works in a process that is forked for it.
    fn in_process(each: Duration) -> Option<()> {
        // SAFETY: there is one thread, so the child may do whatever this process may.
        match unsafe { libc::fork() } {
            ..0 => None,
            0 => {
                in_short_ones(each);
                // SAFETY: nothing is left to be done at the child's end.
                unsafe { libc::_exit(0) }
            }
            // SAFETY: waitpid takes a null pointer.
            child => (unsafe { libc::waitpid(child, null_mut(), 0) } == child).then_some(()),
        }
    }

    /// Executes a loop in memory of no file.
    fn execute_in_memory(sharing: &str) -> Option<()> {
        let shared = if sharing == "shared" { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = shared | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe { libc::mmap(null_mut(), 4096, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return None;
        }
        let map = format!("/tmp/perf-{}.map", std::process::id());
        std::fs::write(map, format!("{:x} 1000 jitted loop\n", memory as usize)).ok()?;
        // `jmp` to itself.
        // SAFETY: the mapping has 4096 bytes, which nothing else uses.
        unsafe { memory.cast::<[u8; 2]>().write([0xEB, 0xFE]) };
        // SAFETY: the memory is executable and holds an instruction, after which nothing is executed.
        let looping = unsafe { core::mem::transmute::<*mut libc::c_void, extern "C" fn()>(memory) };
        looping();
        Some(())
    }

    /// The processor time that was used, as getrusage(2) has it.
    fn used(who: libc::c_int) -> Option<Duration> {
        // SAFETY: plain data, for which zero is a valid value of every field.
        let mut usage: libc::rusage = unsafe { zeroed() };
        // SAFETY: the pointer is valid for the call.
        let done = unsafe { libc::getrusage(who, &mut usage) } == 0;
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        };
        done.then(|| time(usage.ru_utime) + time(usage.ru_stime))
    }
}
