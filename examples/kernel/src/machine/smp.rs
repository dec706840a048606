//! The other processors: starting them, and running a function on one.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use spin::Once;
use x86_64::instructions::interrupts::{disable, enable, enable_and_hlt};

use crate::line;
use crate::machine::processor::{self, MAX_PROCESSORS};
use crate::machine::serial::{End, exit};
use crate::machine::{apic, clock, interrupts};

/// Page at which the others begin, in real mode, where the loader has no map of the memory: firmware and loaders leave
/// it alone.
const USUAL_PAGE: usize = 0x8000;
/// Time to wait for them.
const PATIENCE_MS: u64 = 100;
/// Time that a function may take on another processor.
pub const CALL_MS: u64 = 10_000;
/// Time until it is asked again.
const AGAIN_MS: u64 = 10;

unsafe extern "C" {
    static trampoline_start: u8;
    static trampoline_end: u8;
    static next_processor: AtomicU32;
    static processor_limit: AtomicU32;
    static parked_processors: AtomicU32;
}

/// Number that have arrived; those that come too late are not used.
static ARRIVED: AtomicUsize = AtomicUsize::new(1);
static PAGE: AtomicUsize = AtomicUsize::new(USUAL_PAGE);
static PROCESSORS: AtomicUsize = AtomicUsize::new(1);
static APIC_IDS: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];
/// The work of a processor that is busy.
static WORK: Once<fn()> = Once::new();
static BUSY: AtomicBool = AtomicBool::new(false);
static CALLS: [Place; MAX_PROCESSORS] = [const { Place::new() }; MAX_PROCESSORS];

/// Returns the number of processors to use.
pub fn processors() -> usize {
    PROCESSORS.load(Ordering::Acquire)
}

/// Starts whatever other processors there are, and waits a while for them. Boot processor. `work` is a turn of what
/// they execute where they are [busy](set_busy). More than `most` of them, the boot processor included, and more than
/// [`MAX_PROCESSORS`], are parked. `page` is a free page below 1 MiB, by the loader's map.
pub fn start(work: fn(), most: usize, page: Option<usize>) {
    WORK.call_once(|| work);
    let most = most.min(MAX_PROCESSORS);
    // SAFETY: an aligned word in `boot.s`.
    unsafe { processor_limit.store(most as u32, Ordering::Relaxed) };
    interrupts::prepare_parking();
    let page = page.unwrap_or(USUAL_PAGE);
    PAGE.store(page, Ordering::Relaxed);
    let (start, end) = (&raw const trampoline_start, &raw const trampoline_end);
    // SAFETY: the page is unused memory, and the code is shorter.
    unsafe {
        ptr::copy_nonoverlapping(start, page as *mut u8, end.offset_from(start) as usize);
    }
    apic::reset_others();
    clock::wait(10);
    for _ in 0..2 {
        apic::start_others((page >> 12) as u8);
        clock::wait(1);
    }
    // Fewer may come.
    let declared = declared();
    let begin = clock::now();
    while ARRIVED.load(Ordering::Acquire) < declared.min(most)
        && clock::now() - begin < clock::milliseconds(PATIENCE_MS)
    {
        core::hint::spin_loop();
    }
    PROCESSORS.store(ARRIVED.load(Ordering::Acquire), Ordering::Release);
}

/// Returns the number of processors that there can be, by CPUID.
fn declared() -> usize {
    core::arch::x86_64::__cpuid(1).ebx as usize >> 16 & 0xFF
}

/// Waits a while until every processor that there can be is used or parked. `false`: some are missing, or on their way.
pub fn wait_for_all() -> bool {
    let begin = clock::now();
    // SAFETY: an aligned word in `boot.s`.
    let parked = || unsafe { parked_processors.load(Ordering::Acquire) as usize };
    while processors() + parked() < declared() {
        if clock::now() - begin > clock::milliseconds(10 * PATIENCE_MS) {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// Begins on another processor, called from `boot.s` with interrupts off.
#[unsafe(no_mangle)]
extern "C" fn processor_main(number: usize) -> ! {
    processor::initialize(number);
    interrupts::initialize();
    apic::initialize();
    APIC_IDS[number].store(apic::id(), Ordering::Relaxed);
    while ARRIVED.load(Ordering::Relaxed) != number {
        core::hint::spin_loop();
    }
    ARRIVED.store(number + 1, Ordering::Release);
    loop {
        if BUSY.load(Ordering::Relaxed)
            && let Some(work) = WORK.get()
        {
            enable();
            work();
        } else {
            disable();
            if !BUSY.load(Ordering::Relaxed) {
                enable_and_hlt();
            }
        }
    }
}

/// Sends INIT to a processor, and starts it again. Returns the number under which it arrives, which is the next: its
/// tables of the number before are in use. `None`: it does not arrive, or there is no number.
pub fn restart(number: usize) -> Option<usize> {
    let (id, arrives) = (APIC_IDS[number].load(Ordering::Relaxed), processors());
    if arrives >= MAX_PROCESSORS {
        return None;
    }
    // SAFETY: aligned words in `boot.s`. Processors that are parked have taken numbers, and do not come back.
    unsafe {
        next_processor.store(arrives as u32, Ordering::Relaxed);
        processor_limit.store(arrives as u32 + 1, Ordering::Relaxed);
    }
    let page = (PAGE.load(Ordering::Relaxed) >> 12) as u8;
    apic::reset(id);
    clock::wait(10);
    for _ in 0..2 {
        apic::start(id, page);
        clock::wait(1);
    }
    let begin = clock::now();
    while ARRIVED.load(Ordering::Acquire) == arrives {
        if clock::now() - begin > clock::milliseconds(50 * PATIENCE_MS) {
            return None;
        }
        core::hint::spin_loop();
    }
    PROCESSORS.store(ARRIVED.load(Ordering::Acquire), Ordering::Release);
    Some(arrives)
}

/// Interrupts another processor, which then serves what it is asked for.
pub fn call(number: usize) {
    if let Some(id) = APIC_IDS.get(number) {
        apic::call(id.load(Ordering::Relaxed));
    }
}

/// Lets the other processors execute their work, or nothing.
pub fn set_busy(busy: bool) {
    BUSY.store(busy, Ordering::Relaxed);
    (1..processors()).for_each(call);
}

/// A function for a processor to run. Each field has one writer.
struct Place {
    /// The requester's.
    call: AtomicPtr<Call>,
    /// The requester's: how many calls there were.
    requested: AtomicUsize,
    /// The processor's: how many it has run.
    served: AtomicUsize,
}

impl Place {
    const fn new() -> Self {
        Self {
            call: AtomicPtr::new(ptr::null_mut()),
            requested: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
        }
    }
}

/// A function to run, in the requester's stack frame.
struct Call {
    run: unsafe fn(*const Call),
}

/// [`Call`] with what it needs and gives.
#[repr(C)]
struct CallOf<F, R> {
    call: Call,
    function: UnsafeCell<Option<F>>,
    result: UnsafeCell<Option<R>>,
}

/// Runs `function` on a processor, in an interrupt if it is another, and waits for it. Boot processor,
/// task context: so one request is made at a time.
pub fn run_on<F: FnOnce() -> R + Send, R: Send>(number: usize, function: F) -> R {
    if number == processor::number() {
        return function();
    }
    /// # Safety
    /// - `call` begins a `CallOf<F, R>`, and nothing else accesses it meanwhile.
    unsafe fn run<F: FnOnce() -> R, R>(call: *const Call) {
        // SAFETY: as promised.
        unsafe {
            let call = &*call.cast::<CallOf<F, R>>();
            if let Some(function) = (*call.function.get()).take() {
                *call.result.get() = Some(function());
            }
        }
    }
    let call = CallOf {
        call: Call { run: run::<F, R> },
        function: UnsafeCell::new(Some(function)),
        result: UnsafeCell::new(None),
    };
    let place = &CALLS[number];
    let ticket = place.requested.load(Ordering::Relaxed) + 1;
    place.call.store(ptr::from_ref(&call).cast::<Call>().cast_mut(), Ordering::Relaxed);
    place.requested.store(ticket, Ordering::Release);
    self::call(number);
    let (begin, mut asked) = (clock::now(), clock::now());
    while place.served.load(Ordering::Acquire) != ticket {
        // An NMI may come between its STI and its HLT, and then the call: it sleeps over what it was woken for.
        if clock::now() - asked > clock::milliseconds(AGAIN_MS) {
            self::call(number);
            asked = clock::now();
        }
        if clock::now() - begin > clock::milliseconds(CALL_MS) {
            line!("failed processor {} does not answer", number);
            exit(End::Wrong);
        }
        core::hint::spin_loop();
    }
    match call.result.into_inner() {
        Some(result) => result,
        None => unreachable!("it was run"),
    }
}

/// Serves the other processor's side of [`run_on`], in the handler of its interrupt.
pub fn serve() {
    let place = &CALLS[processor::number()];
    let ticket = place.requested.load(Ordering::Acquire);
    if ticket != place.served.load(Ordering::Relaxed) {
        let call = place.call.load(Ordering::Relaxed);
        // SAFETY: the requester keeps the call where it is until it is served, and looks at nothing of
        // it before.
        unsafe { ((*call).run)(call) };
        place.served.store(ticket, Ordering::Release);
    }
}
