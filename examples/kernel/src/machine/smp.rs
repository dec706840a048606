//! The other processors: starting them, and running a function on one.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use spin::Once;
use x86_64::instructions::interrupts;

use crate::line;
use crate::machine::processor::{self, MAX_PROCESSORS};
use crate::machine::serial::{End, exit};
use crate::machine::{apic, clock};

/// Page at which the others begin, in real mode, and which firmware and loaders leave alone.
const TRAMPOLINE: usize = 0x8000;
/// Time to wait for them.
const PATIENCE_MS: u64 = 100;
/// Time that a function may take on another processor.
pub const CALL_MS: u64 = 10_000;
/// Time until it is asked again.
const AGAIN_MS: u64 = 10;

unsafe extern "C" {
    static trampoline_start: u8;
    static trampoline_end: u8;
}

/// Number that have arrived; those that come too late are not used.
static ARRIVED: AtomicUsize = AtomicUsize::new(1);
static PROCESSORS: AtomicUsize = AtomicUsize::new(1);
static APIC_IDS: [AtomicU8; MAX_PROCESSORS] = [const { AtomicU8::new(0) }; MAX_PROCESSORS];
/// The work of a processor that is busy.
static WORK: Once<fn()> = Once::new();
static BUSY: AtomicBool = AtomicBool::new(false);
static CALLS: [Place; MAX_PROCESSORS] = [const { Place::new() }; MAX_PROCESSORS];

/// Returns the number of processors to use.
pub fn processors() -> usize {
    PROCESSORS.load(Ordering::Acquire)
}

/// Starts whatever other processors there are, and waits a while for them. Boot processor. `work` is a turn of what
/// they execute where they are [busy](set_busy).
pub fn start(work: fn()) {
    WORK.call_once(|| work);
    let (start, end) = (&raw const trampoline_start, &raw const trampoline_end);
    // SAFETY: the page is unused memory, and the code is shorter.
    unsafe {
        ptr::copy_nonoverlapping(start, TRAMPOLINE as *mut u8, end.offset_from(start) as usize);
    }
    apic::reset_others();
    clock::wait(10);
    for _ in 0..2 {
        apic::start_others((TRAMPOLINE >> 12) as u8);
        clock::wait(1);
    }
    // CPUID says how many there can be; fewer may come.
    let declared = core::arch::x86_64::__cpuid(1).ebx as usize >> 16 & 0xFF;
    let begin = clock::now();
    while ARRIVED.load(Ordering::Acquire) < declared.min(MAX_PROCESSORS)
        && clock::now() - begin < clock::milliseconds(PATIENCE_MS)
    {
        core::hint::spin_loop();
    }
    PROCESSORS.store(ARRIVED.load(Ordering::Acquire), Ordering::Release);
}

/// Begins on another processor, called from `boot.s` with interrupts off.
#[unsafe(no_mangle)]
extern "C" fn processor_main(number: usize) -> ! {
    processor::initialize(number);
    crate::machine::interrupts::initialize();
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
            interrupts::enable();
            work();
        } else {
            interrupts::disable();
            if !BUSY.load(Ordering::Relaxed) {
                interrupts::enable_and_hlt();
            }
        }
    }
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
