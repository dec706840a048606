//! The context switch.

use pmu_core::windows::PointerWidth;

use crate::trace::bytes::{Reader, Writer};
use crate::trace::error::TraceError;

/// Hook id of a record of a context switch: `PERFINFO_LOG_TYPE_CONTEXTSWAP`.
pub const CONTEXT_SWITCH_HOOK: u16 = 0x0524;

/// A switch of a processor from one thread to another: Windows' event `CSwitch`, with a payload of 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ContextSwitch {
    /// Id of the thread that the processor switches to.
    pub new_thread: u32,
    /// Id of the thread that the processor switches from.
    pub old_thread: u32,
    /// Priority of the new thread.
    pub new_priority: i8,
    /// Priority of the old thread.
    pub old_priority: i8,
    /// C-state that the processor used last.
    pub previous_c_state: u8,
    /// Unused byte: `SpareByte` of `CSwitch`.
    pub spare: i8,
    /// Wait reason of the old thread.
    pub old_wait_reason: i8,
    /// Wait mode of the old thread: kernel or user.
    pub old_wait_mode: i8,
    /// State of the old thread.
    pub old_state: i8,
    /// Ideal processor of the old thread: `OldThreadWaitIdealProcessor` of `CSwitch`.
    pub ideal_processor: i8,
    /// Time that the new thread waited.
    pub new_wait_time: u32,
    /// Reserved member of `CSwitch`.
    pub reserved: u32,
}

impl ContextSwitch {
    pub(super) fn hook(&self) -> u16 {
        CONTEXT_SWITCH_HOOK
    }

    pub(super) fn encode(&self, _: PointerWidth, to: &mut Writer<'_>) {
        to.put(&self.new_thread.to_le_bytes());
        to.put(&self.old_thread.to_le_bytes());
        to.put(&self.new_priority.to_le_bytes());
        to.put(&self.old_priority.to_le_bytes());
        to.put(&self.previous_c_state.to_le_bytes());
        to.put(&self.spare.to_le_bytes());
        to.put(&self.old_wait_reason.to_le_bytes());
        to.put(&self.old_wait_mode.to_le_bytes());
        to.put(&self.old_state.to_le_bytes());
        to.put(&self.ideal_processor.to_le_bytes());
        to.put(&self.new_wait_time.to_le_bytes());
        to.put(&self.reserved.to_le_bytes());
    }

    pub(super) fn decode(
        _: u16,
        _: PointerWidth,
        from: &mut Reader<'_>,
    ) -> Result<Self, TraceError> {
        Ok(Self {
            new_thread: from.u32()?,
            old_thread: from.u32()?,
            new_priority: from.i8()?,
            old_priority: from.i8()?,
            previous_c_state: from.u8()?,
            spare: from.i8()?,
            old_wait_reason: from.i8()?,
            old_wait_mode: from.i8()?,
            old_state: from.i8()?,
            ideal_processor: from.i8()?,
            new_wait_time: from.u32()?,
            reserved: from.u32()?,
        })
    }
}
