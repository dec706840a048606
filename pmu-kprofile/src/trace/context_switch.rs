//! The context-switch record, and whether it has the processor's PEBS index.

use core::sync::atomic::{AtomicBool, Ordering};

use pmu_core::{NtStatus, PointerWidth};

use super::record::{FLAG_PEBS_INDEX, MARKER_32, MARKER_64, RecordError, VERSION};

/// `PERFINFO_LOG_TYPE_CONTEXTSWAP`.
pub const CONTEXT_SWITCH_HOOK: u16 = 0x0524;

/// A processor switched from one thread to another: `CSwitch`, with a payload of 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ContextSwitch {
    /// When, in the trace's units.
    pub timestamp: u64,
    /// The processor's PEBS index, as extended data: see [`PebsTracing::stamp`].
    pub pebs_index: Option<u64>,
    /// The thread that is switched to.
    pub new_thread: u32,
    /// The thread that is switched from.
    pub old_thread: u32,
    /// The new thread's priority.
    pub new_priority: i8,
    /// The old thread's priority.
    pub old_priority: i8,
    /// The C-state that the processor was last in.
    pub previous_c_state: u8,
    /// Spare.
    pub spare: i8,
    /// Why the old thread waits.
    pub old_wait_reason: i8,
    /// Whether it waits in kernel or in user mode.
    pub old_wait_mode: i8,
    /// Its state.
    pub old_state: i8,
    /// The ideal processor of its wait.
    pub ideal_processor: i8,
    /// How long the new thread waited.
    pub new_wait_time: u32,
    /// Reserved.
    pub reserved: u32,
}

impl ContextSwitch {
    /// The size of the longest record: header, PEBS index and payload.
    pub const MAX_SIZE: usize = 0x10 + 8 + 24;

    /// Writes the record to the beginning of `bytes`, and says how long it is. Any context.
    pub fn encode(&self, width: PointerWidth, bytes: &mut [u8; Self::MAX_SIZE]) -> usize {
        let marker = match width {
            PointerWidth::Bits32 => MARKER_32,
            PointerWidth::Bits64 => MARKER_64,
        };
        let (flag, size) = match self.pebs_index {
            Some(_) => (FLAG_PEBS_INDEX, Self::MAX_SIZE),
            None => (0, Self::MAX_SIZE - 8),
        };
        let header = u64::from(marker | VERSION | flag)
            | (size as u64) << 32
            | u64::from(CONTEXT_SWITCH_HOOK) << 48;
        let signed = |byte: i8| byte as u8;
        let state = u64::from_le_bytes([
            signed(self.new_priority),
            signed(self.old_priority),
            self.previous_c_state,
            signed(self.spare),
            signed(self.old_wait_reason),
            signed(self.old_wait_mode),
            signed(self.old_state),
            signed(self.ideal_processor),
        ]);
        let payload = [
            u64::from(self.new_thread) | u64::from(self.old_thread) << 32,
            state,
            u64::from(self.new_wait_time) | u64::from(self.reserved) << 32,
        ];
        let words = [header, self.timestamp].into_iter().chain(self.pebs_index).chain(payload);
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        size
    }

    /// Reads the record at the beginning of `bytes`: the width of the traced kernel's pointers, the record, and how
    /// long it is. PMC values, which other writers may attach, are skipped.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn decode(bytes: &[u8]) -> Result<(PointerWidth, Self, usize), RecordError> {
        let word = |at: usize| {
            let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
            bytes.copied().map(u64::from_le_bytes).ok_or(RecordError::TooShort)
        };
        let header = word(0)?;
        let (marker, size, hook) = (header as u32, (header >> 32) as u16, (header >> 48) as u16);
        let width = match marker & 0xFFFF_0000 {
            MARKER_32 => PointerWidth::Bits32,
            MARKER_64 => PointerWidth::Bits64,
            _ => return Err(RecordError::Marker(marker)),
        };
        if hook != CONTEXT_SWITCH_HOOK {
            return Err(RecordError::Hook(hook));
        }
        let has_index = marker & FLAG_PEBS_INDEX != 0;
        let pebs_index = if has_index { Some(word(16)?) } else { None };
        let values = 8 * (marker >> 8 & 7) as usize;
        let at = 16 + if has_index { 8 } else { 0 } + values;
        if usize::from(size) < at + 24 || bytes.len() < size.into() {
            return Err(RecordError::TooShort);
        }
        let (threads, state, rest) = (word(at)?, word(at + 8)?.to_le_bytes(), word(at + 16)?);
        let [new_priority, old_priority, previous_c_state, spare, reason, mode, old_state, ideal] =
            state;
        let switch = Self {
            timestamp: word(8)?,
            pebs_index,
            new_thread: threads as u32,
            old_thread: (threads >> 32) as u32,
            new_priority: new_priority as i8,
            old_priority: old_priority as i8,
            previous_c_state,
            spare: spare as i8,
            old_wait_reason: reason as i8,
            old_wait_mode: mode as i8,
            old_state: old_state as i8,
            ideal_processor: ideal as i8,
            new_wait_time: rest as u32,
            reserved: (rest >> 32) as u32,
        };
        Ok((width, switch, size.into()))
    }
}

/// Whether context switches have the PEBS index: `EventTracePebsTracingInformation` (0x0B). Off at first.
#[derive(Debug, Default)]
pub struct PebsTracing(AtomicBool);

/// A hook that cannot have the PEBS index, or more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PebsHookError;

impl PebsHookError {
    /// Returns the status with which Windows reports it.
    pub const fn status(&self) -> NtStatus {
        NtStatus::INVALID_PARAMETER
    }
}

impl core::fmt::Display for PebsHookError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "only the context switch, hook {CONTEXT_SWITCH_HOOK:#06X}, can have the PEBS index"
        )
    }
}

impl core::error::Error for PebsHookError {}

impl PebsTracing {
    /// Switched off.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Sets the hooks whose records have the index: none, or the context switch's.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// Any other hooks; nothing is changed.
    pub fn set(&self, hooks: &[u16]) -> Result<(), PebsHookError> {
        let on = match hooks {
            [] => false,
            [CONTEXT_SWITCH_HOOK] => true,
            _ => return Err(PebsHookError),
        };
        self.0.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the index for a context switch's record, if it is to have one. Any context.
    pub fn stamp(&self, index: Option<u64>) -> Option<u64> {
        index.filter(|_| self.0.load(Ordering::Relaxed))
    }
}
