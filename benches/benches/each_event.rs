//! The most instructions that it takes to find an event of any core type by its name. Fails beyond the crate's aim.
//! Valgrind has sums; here the processor's trap flag counts each look-up by itself.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
    use pmu_events::CoreType;
    use std::process::exit;

    const LIMIT: u64 = 400;
    stepping::install();
    let around = stepping::count(|| ()).0;
    let mut most = (0, String::new());
    for core_type in CoreType::all() {
        for name in core_type.events().map(|event| event.name()) {
            let text = name.as_str();
            let (steps, found) = stepping::count(|| find(core_type, text));
            assert!(found.is_some_and(|event| event.name() == name), "{core_type} {name}");
            most = most.max((steps - around, format!("{core_type} {name}")));
        }
    }
    let (instructions, name) = most;
    println!("at most {instructions} instructions to find an event: {name}");
    if instructions > LIMIT {
        eprintln!("more than {LIMIT}");
        exit(1);
    }

    #[inline(never)]
    fn find(core_type: &CoreType, name: &str) -> Option<pmu_events::PmuEvent> {
        core_type.event(name).ok()
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("skipped: instructions of each look-up: this is not x86-64 Linux");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stepping {
    use core::arch::asm;
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    static STEPS: AtomicU64 = AtomicU64::new(0);

    extern "C" fn trap(_: libc::c_int) {
        STEPS.fetch_add(1, Relaxed);
    }

    /// Counts the traps of single steps from now on.
    pub(crate) fn install() {
        // SAFETY: the handler is of the type that `signal` takes, and accesses one atomic.
        let before = unsafe { libc::signal(libc::SIGTRAP, trap as *const () as usize) };
        assert_ne!(before, libc::SIG_ERR);
    }

    /// Executes `operation` instruction by instruction; returns their number.
    #[inline(never)]
    pub(crate) fn count<R>(operation: impl FnOnce() -> R) -> (u64, R) {
        STEPS.store(0, Relaxed);
        // SAFETY: sets the trap flag; the stack is left as it was. The red zone is not used where there is inline
        // assembly without `nostack`.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        let result = operation();
        // SAFETY: clears the trap flag, in the same way.
        unsafe { asm!("pushfq", "and qword ptr [rsp], 0xfffffffffffffeff", "popfq") };
        (STEPS.load(Relaxed), result)
    }
}
