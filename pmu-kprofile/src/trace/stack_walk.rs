//! The stack-walk record: the call chain of an event that has the same time stamp and thread.
//!
//! An interrupt writes it straight into the ring, address by address as the frame visits them, so it needs no room
//! on the interrupt's stack.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use heapless::Vec;
use pmu_core::{InterruptFrame, PointerWidth, ProcessId};

use super::record::{MARKER_32, MARKER_64, RecordError, VERSION};
use crate::sync::AtomicU64;

/// How many return addresses a record has at most.
pub const MAX_RETURN_ADDRESSES: usize = 32;

/// How many addresses: where the event came, and the return addresses.
const MAX_ADDRESSES: usize = 1 + MAX_RETURN_ADDRESSES;

/// The words before the addresses: header, event's time stamp, process and thread.
const FIXED_WORDS: usize = 4;

/// Words of the longest record.
pub(super) const STACK_WORDS: usize = FIXED_WORDS + MAX_ADDRESSES;

/// `PERFINFO_LOG_TYPE_STACKWALK`.
pub const STACK_WALK_HOOK: u16 = 0x1820;

/// A stack-walk record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct StackWalk {
    /// The width of the traced kernel's pointers.
    pub width: PointerWidth,
    /// The time stamp of the event whose call chain it is, in the trace's units.
    pub event_timestamp: u64,
    /// The low 32 bits of the process's number; 0: none.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// Where the event came, then the return addresses, innermost first.
    #[cfg_attr(feature = "defmt", defmt(Debug2Format))]
    pub addresses: Vec<u64, MAX_ADDRESSES>,
}

/// Writes the record of a frame into a slot's words.
pub(super) fn fill(
    words: &[AtomicU64; STACK_WORDS],
    width: PointerWidth,
    frame: &dyn InterruptFrame,
) {
    let [header, stamp, event_stamp, owner, addresses @ ..] = words;
    let mut count = 0;
    let mut visit = |address: u64| {
        if count == MAX_ADDRESSES {
            return ControlFlow::Break(());
        }
        let (place, shift) = match width {
            PointerWidth::Bits64 => (count, 0),
            PointerWidth::Bits32 => (count / 2, 32 * (count % 2)),
        };
        if let Some(word) = addresses.get(place) {
            let before = if shift == 0 { 0 } else { word.load(Ordering::Relaxed) };
            let address = address & width.max_address();
            word.store(before | address << shift, Ordering::Relaxed);
        }
        count += 1;
        ControlFlow::Continue(())
    };
    if visit(frame.pc()).is_continue() {
        frame.call_chain(&mut visit);
    }
    let marker = match width {
        PointerWidth::Bits32 => MARKER_32,
        PointerWidth::Bits64 => MARKER_64,
    };
    let size = (8 * FIXED_WORDS + count * width.bytes()) as u64;
    let process = frame.process().map_or(0, ProcessId::get) as u32;
    let store = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
    store(header, u64::from(marker | VERSION) | size << 32 | u64::from(STACK_WALK_HOOK) << 48);
    store(stamp, frame.timestamp());
    store(event_stamp, frame.timestamp());
    store(owner, u64::from(process) | u64::from(frame.thread()) << 32);
}

impl StackWalk {
    /// Reads the record at the beginning of `bytes`, and says how long it is.
    ///
    /// # Errors
    /// See [`RecordError`]. A record of more addresses than [`MAX_RETURN_ADDRESSES`] and one is
    /// [`TooLong`](RecordError::TooLong).
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), RecordError> {
        let number = |from: usize, size: usize| {
            let bytes = bytes.get(from..from + size).ok_or(RecordError::TooShort)?;
            Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        };
        let marker = number(0, 4)? as u32;
        let width = match marker & 0xFFFF_0000 {
            MARKER_32 => PointerWidth::Bits32,
            MARKER_64 => PointerWidth::Bits64,
            _ => return Err(RecordError::Marker(marker)),
        };
        let hook = number(6, 2)? as u16;
        if hook != STACK_WALK_HOOK {
            return Err(RecordError::Hook(hook));
        }
        let size = number(4, 2)? as usize;
        let count = size.checked_sub(8 * FIXED_WORDS).ok_or(RecordError::TooShort)? / width.bytes();
        if bytes.len() < size {
            return Err(RecordError::TooShort);
        }
        let mut addresses = Vec::new();
        for place in 0..count {
            let address = number(8 * FIXED_WORDS + place * width.bytes(), width.bytes())?;
            addresses.push(address).map_err(|_| RecordError::TooLong)?;
        }
        let walk = Self {
            width,
            event_timestamp: number(16, 8)?,
            process: number(24, 4)? as u32,
            thread: number(28, 4)? as u32,
            addresses,
        };
        Ok((walk, size))
    }
}
