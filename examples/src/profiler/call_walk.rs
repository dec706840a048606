//! The callers of what a signal interrupted, by the frame pointers on this thread's stack: for a handler, so
//! without lock or allocation. A ring hands them to the thread that reads them.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::io;

/// The most callers that are kept of a sample.
const DEPTH: usize = 62;

/// The room for samples that were not read yet: those of seconds, where they are read each 50 ms.
const CAPACITY: usize = 4096;

/// The samples between a handler and a reader.
pub struct Ring {
    samples: UnsafeCell<[MaybeUninit<Walked>; CAPACITY]>,
    written: AtomicUsize,
    read: AtomicUsize,
}

/// A sample of the thread that owns the timer.
#[derive(Clone, Copy, Debug)]
pub struct Walked {
    /// Its time in nanoseconds.
    pub time: u64,
    /// The number of interrupts that it stands for.
    pub interrupts: u32,
    addresses: [u64; DEPTH + 1],
    length: usize,
}

impl Walked {
    /// Returns the sampled address and its callers', the innermost first.
    pub fn addresses(&self) -> &[u64] {
        self.addresses.get(..self.length).unwrap_or_default()
    }
}

// SAFETY: `samples` is reached by one writer at places that are free, and one reader at places that are not:
// `push` and `pop` say so, and hand a place over by a release and an acquire of the two counts.
unsafe impl Sync for Ring {}

impl Ring {
    /// An empty ring.
    pub(super) const fn new() -> Self {
        let samples = UnsafeCell::new([const { MaybeUninit::uninit() }; CAPACITY]);
        Self { samples, written: AtomicUsize::new(0), read: AtomicUsize::new(0) }
    }

    /// Adds a sample; drops it where there is no room.
    ///
    /// # Safety
    /// No other call of this runs at the same time.
    pub unsafe fn push(&self, sample: Walked) {
        let written = self.written.load(Ordering::Relaxed);
        if written.wrapping_sub(self.read.load(Ordering::Acquire)) == CAPACITY {
            return;
        }
        let place = self.samples.get().cast::<MaybeUninit<Walked>>();
        // SAFETY: the index is below the capacity, the reader leaves the place alone until it is written,
        // and by the caller's promise there is no other writer.
        unsafe { (*place.add(written % CAPACITY)).write(sample) };
        self.written.store(written.wrapping_add(1), Ordering::Release);
    }

    /// Takes the oldest sample.
    ///
    /// # Safety
    /// No other call of this runs at the same time.
    pub unsafe fn pop(&self) -> Option<Walked> {
        let read = self.read.load(Ordering::Relaxed);
        if read == self.written.load(Ordering::Acquire) {
            return None;
        }
        let place = self.samples.get().cast::<MaybeUninit<Walked>>();
        // SAFETY: the index is below the capacity, the place was written before `written` said so, the writer
        // leaves it alone until it is read, and by the caller's promise there is no other reader.
        let sample = unsafe { (*place.add(read % CAPACITY)).assume_init_read() };
        self.read.store(read.wrapping_add(1), Ordering::Release);
        Some(sample)
    }
}

/// The end of the profiled thread's stack; 0: no callers are looked for.
static STACK_END: AtomicU64 = AtomicU64::new(0);

/// Lets [`walk`] find the callers of what the calling thread executes; without `callers`, it finds none.
///
/// # Errors
/// The system does not tell where the stack is.
pub fn begin(callers: bool) -> io::Result<()> {
    let end = if callers { own_stack()?.end } else { 0 };
    STACK_END.store(end, Ordering::Relaxed);
    Ok(())
}

/// Returns the calling thread's stack.
fn own_stack() -> io::Result<Range<u64>> {
    let (mut start, mut size) = (core::ptr::null_mut(), 0);
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: the pointer is valid for the call, which makes the attributes; they are read and destroyed only
    // after it succeeded.
    let error = unsafe {
        match libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) {
            0 => {
                let error = libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut size);
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
                error
            }
            error => error,
        }
    };
    match error {
        0 => Ok(start as u64..start as u64 + size as u64),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Walks the calling thread's stack from these registers.
///
/// # Safety
/// The registers are those of the calling thread, interrupted now, and [`begin`] was called on it.
pub unsafe fn walk(pc: u64, sp: u64, frame: u64, time: u64, interrupts: u32) -> Walked {
    let mut walked = Walked { time, interrupts, addresses: [pc; DEPTH + 1], length: 1 };
    let stack = sp..STACK_END.load(Ordering::Relaxed);
    // SAFETY: what is between a thread's stack pointer and the end of its stack can be read.
    let read = |address: u64| unsafe { (address as *const u64).read() };
    for (place, caller) in walked.addresses[1..].iter_mut().zip(Callers { stack, frame, read }) {
        *place = caller;
        walked.length += 1;
    }
    walked
}

/// The return addresses along a chain of frame pointers.
struct Callers<R> {
    stack: Range<u64>,
    frame: u64,
    read: R,
}

impl<R: Fn(u64) -> u64> Iterator for Callers<R> {
    type Item = u64;

    /// A frame is the caller's frame pointer with the return address above it. A register that holds something
    /// else points elsewhere, or not upwards.
    fn next(&mut self) -> Option<u64> {
        let Self { stack, frame, read } = self;
        let last = stack.end.checked_sub(16)?;
        if *frame % 8 != 0 || !(stack.start..=last).contains(frame) {
            return None;
        }
        let caller = read(*frame + 8);
        stack.start = *frame + 16;
        *frame = read(*frame);
        (caller != 0).then_some(caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers(words: &[u64], frame: u64) -> Vec<u64> {
        const START: u64 = 0x1000;
        let stack = START..START + 8 * words.len() as u64;
        let read = |address: u64| words[((address - START) / 8) as usize];
        Callers { stack, frame, read }.collect()
    }

    #[test]
    fn callers_are_found_along_frame_pointers_and_nothing_outside_the_stack_is_read() {
        // Two frames, at 0x1008 and 0x1020; above the second is none.
        let words = [7, 0x1020, 0xA, 7, 0, 0xB, 7];
        assert_eq!(callers(&words, 0x1008), [0xA, 0xB]);
        // Not on the stack, not aligned, half beyond its end.
        for frame in [0, 0xFF8, 0x1009, 0x1030, 0x1038, u64::MAX - 7] {
            assert!(callers(&words, frame).is_empty(), "{frame:#x}");
        }
        // A frame that points at itself or downwards ends the walk.
        assert_eq!(callers(&[0x1000, 0xA, 7, 7], 0x1000), [0xA]);
        assert_eq!(callers(&[7, 7, 0x1000, 0xA], 0x1010), [0xA]);
    }

    #[test]
    fn a_full_ring_drops_the_newest_and_keeps_the_order() {
        static RING: Ring = Ring::new();
        let sample = |time| Walked { time, interrupts: 1, addresses: [0; DEPTH + 1], length: 1 };
        for time in 0..CAPACITY as u64 + 3 {
            // SAFETY: this thread alone uses the ring.
            unsafe { RING.push(sample(time)) };
        }
        // SAFETY: as above.
        let times: Vec<u64> =
            core::iter::from_fn(|| unsafe { RING.pop() }).map(|s| s.time).collect();
        assert_eq!(times, (0..CAPACITY as u64).collect::<Vec<_>>());
    }
}
