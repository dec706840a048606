//! The frame of the interrupt that is being handled, for a kernel whose handlers get no frame.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use pmu_core::frame::{PlainFrame, ProcessId};

/// Per-processor storage for the [frame](pmu_core::frame::InterruptFrame) of the current interrupt. A kernel needs this
/// storage if its interrupt handlers do not receive the frame as an argument.
///
/// The trap entry stores the frame and then calls the handler. The handler of the performance interrupt reads the
/// frame. If an NMI interrupts the handler, the trap entry of the NMI stores the NMI's frame. When the NMI returns, the
/// storage has the handler's frame again.
///
/// ```
/// use pmu::frame::CurrentFrame;
/// use pmu::frame::PlainFrame;
/// # struct TrapFrame { rip: u64, cs: u64, rflags: u64 }
/// # fn processor() -> usize { 0 }
/// # fn handler_of(_vector: u8) -> fn() { || assert_eq!(interrupted().unwrap().pc, 0x1000) }
/// # fn reschedule_if_needed() {}
///
/// static FRAMES: [CurrentFrame; 8] = [const { CurrentFrame::new() }; 8];
///
/// /// The kernel's trap entry.
/// fn interrupt(vector: u8, trap: &TrapFrame) {
///     let processor = processor();
///     let frame = PlainFrame { pc: trap.rip, cs: trap.cs as u16, flags: trap.rflags, processor, process: None };
///     match FRAMES.get(processor) {
///         Some(current) => current.enter(&frame, handler_of(vector)),
///         None => handler_of(vector)(),
///     }
///     reschedule_if_needed(); // only here: within `enter` the task stays on its processor
/// }
///
/// /// In the handler of the performance interrupt.
/// fn interrupted() -> Option<PlainFrame> {
///     FRAMES.get(processor()).map(CurrentFrame::get)
/// }
/// # interrupt(0xE1, &TrapFrame { rip: 0x1000, cs: 8, rflags: 2 });
/// # assert_eq!(interrupted().unwrap().pc, 0);
/// ```
#[derive(Debug, Default)]
pub struct CurrentFrame {
    pc: AtomicU64,
    flags: AtomicU64,
    /// Bits 15:0 are the code segment selector, 63:16 the processor.
    place: AtomicU64,
    /// 0: none.
    process: AtomicU64,
}

impl CurrentFrame {
    /// Creates empty storage. Until the first call of [`enter`](Self::enter), the current frame is all zeros.
    pub const fn new() -> Self {
        Self {
            pc: AtomicU64::new(0),
            flags: AtomicU64::new(0),
            place: AtomicU64::new(0),
            process: AtomicU64::new(0),
        }
    }

    /// Calls `handler` with `frame` as the current frame. When `handler` returns, the previous frame becomes the
    /// current frame again. So calls of `enter` can nest: an NMI that interrupts `handler` may call `enter`, too.
    ///
    /// # Context
    /// Interrupt or NMI, on the processor of this storage. `handler` must stay on this processor.
    #[inline]
    pub fn enter<R>(&self, frame: &PlainFrame, handler: impl FnOnce() -> R) -> R {
        let before = self.get();
        self.set(frame);
        let result = handler();
        self.set(&before);
        result
    }

    /// Returns the current frame.
    ///
    /// # Context
    /// Interrupt or NMI, on the processor of this storage.
    #[inline]
    pub fn get(&self) -> PlainFrame {
        let place = self.place.load(Relaxed);
        PlainFrame {
            pc: self.pc.load(Relaxed),
            cs: place as u16,
            flags: self.flags.load(Relaxed),
            processor: (place >> 16) as usize,
            process: ProcessId::new(self.process.load(Relaxed)),
        }
    }

    fn set(&self, frame: &PlainFrame) {
        // No order is needed: only handlers of this processor use the frame, and a nested one puts all of it back.
        self.pc.store(frame.pc, Relaxed);
        self.flags.store(frame.flags, Relaxed);
        self.place.store((frame.processor as u64) << 16 | u64::from(frame.cs), Relaxed);
        self.process.store(frame.process.map_or(0, ProcessId::get), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_within_a_handler_leaves_the_handler_its_frame() {
        let current = CurrentFrame::new();
        let frame = |pc| PlainFrame {
            pc,
            cs: 0x33,
            flags: 0x202,
            processor: 5,
            process: ProcessId::new(pc + 1),
        };
        current.enter(&frame(1), || {
            current.enter(&frame(2), || assert_eq!(current.get(), frame(2)));
            assert_eq!(current.get(), frame(1));
        });
        assert_eq!(current.get(), PlainFrame::default());
    }
}
