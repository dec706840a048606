//! The stack walk: a record with the call chain of an event. The record has the thread and the time stamp of the event.
//!
//! The interrupt handler writes each address of the call chain straight into the ring. Therefore the call chain needs
//! no buffer on the handler's stack.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use pmu_core::frame::{InterruptFrame, ProcessId};
use pmu_core::windows::PointerWidth;

use crate::sync::AtomicU64;
use crate::trace::bytes::{Reader, Writer};
use crate::trace::error::TraceError;
use crate::trace::header::header_word;

/// Maximum number of return addresses that this crate writes in one call chain.
pub const MAX_RETURN_ADDRESSES: usize = 32;

/// Maximum number of addresses: the address of the event, and the return addresses.
const MAX_ADDRESSES: usize = 1 + MAX_RETURN_ADDRESSES;

/// Number of words before the addresses: header, record's time stamp, event's time stamp, process and thread.
const FIXED_WORDS: usize = 4;

/// Number of words of the longest record that this crate writes.
pub(in crate::trace) const STACK_WORDS: usize = FIXED_WORDS + MAX_ADDRESSES;

/// Hook id of a record of a call chain: `PERFINFO_LOG_TYPE_STACKWALK`.
pub const STACK_WALK_HOOK: u16 = 0x1820;

/// The call chain of an event. The event itself is in another record, which has the same thread and time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct StackWalk<'b> {
    /// Time stamp of the event to which the call chain belongs, in the unit of the trace's clock.
    pub event_timestamp: u64,
    /// Low 32 bits of the id of the event's process; 0 if the event has no process.
    pub process: u32,
    /// Id of the event's thread.
    pub thread: u32,
    /// Width of each of the addresses.
    width: PointerWidth,
    addresses: &'b [u8],
}

impl<'b> StackWalk<'b> {
    /// Returns the addresses of the call chain: the address of the event, then the return addresses, innermost first.
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::trace::StackWalk;
    ///
    /// /// Returns the caller of the interrupted function.
    /// fn caller(walk: &StackWalk<'_>) -> Option<u64> {
    ///     walk.addresses().nth(1)
    /// }
    /// ```
    pub fn addresses(&self) -> impl Iterator<Item = u64> + use<'b> {
        let (width, mut reader) = (self.width, Reader::new(self.addresses));
        core::iter::from_fn(move || reader.address(width).ok())
    }

    pub(super) fn hook(&self) -> u16 {
        STACK_WALK_HOOK
    }

    pub(super) fn encode(&self, width: PointerWidth, to: &mut Writer<'_>) {
        to.put(&self.event_timestamp.to_le_bytes());
        to.put(&self.process.to_le_bytes());
        to.put(&self.thread.to_le_bytes());
        self.addresses().for_each(|address| to.address(width, address));
    }

    pub(super) fn decode(
        _: u16,
        width: PointerWidth,
        from: &mut Reader<'b>,
    ) -> Result<Self, TraceError> {
        Ok(Self {
            event_timestamp: from.u64()?,
            process: from.u32()?,
            thread: from.u32()?,
            width,
            addresses: from.bytes(from.len() - from.len() % width.bytes())?,
        })
    }
}

/// Writes the record of a frame into a slot's words, with as many addresses as fit.
pub(in crate::trace) fn fill(words: &[AtomicU64], width: PointerWidth, frame: &dyn InterruptFrame) {
    let [header, stamp, event_stamp, owner, addresses @ ..] = words else { return };
    let mut count = 0;
    let mut visit = |address: u64| {
        let (place, shift) = match width {
            PointerWidth::Bits64 => (count, 0),
            PointerWidth::Bits32 => (count / 2, 32 * (count % 2)),
        };
        let Some(word) = addresses.get(place).filter(|_| count < MAX_ADDRESSES) else {
            return ControlFlow::Break(());
        };
        let before = if shift == 0 { 0 } else { word.load(Ordering::Relaxed) };
        let address = address & width.max_address();
        word.store(before | address << shift, Ordering::Relaxed);
        count += 1;
        ControlFlow::Continue(())
    };
    if visit(frame.pc()).is_continue() {
        frame.call_chain(&mut visit);
    }
    let size = 8 * FIXED_WORDS + count * width.bytes();
    let process = frame.process().map_or(0, ProcessId::get) as u32;
    let store = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
    store(header, header_word(width, size, STACK_WALK_HOOK));
    store(stamp, frame.timestamp());
    store(event_stamp, frame.timestamp());
    store(owner, u64::from(process) | u64::from(frame.thread()) << 32);
}
