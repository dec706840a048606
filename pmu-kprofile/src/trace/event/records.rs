//! Records that are no samples: context switches, stack walks, intervals, names of counters.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use pmu_core::frame::{InterruptFrame, ProcessId};
use pmu_core::windows::PointerWidth;

use crate::sync::AtomicU64;
use crate::trace::TraceError;
use crate::trace::record::{Reader, Utf16, Writer, header_word};

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

// The stack walk: a record with the call chain of an event. The record has the thread and the time stamp of the event.
//
// The interrupt handler writes each address of the call chain straight into the ring. Therefore the call chain needs
// no buffer on the handler's stack.

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
            // A part of an address at the end is no address, and stays in the record's `rest`.
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
        // Of two addresses in a word, the first overwrites what an earlier record left in the slot.
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

/// Hook id of the record that Windows writes when a source's interval is set:
/// `PERFINFO_LOG_TYPE_SAMPLED_PROFILE_SET_INTERVAL`.
pub const SET_INTERVAL_HOOK: u16 = 0x0F48;

/// Hook id of the records that Windows writes when a trace begins, one for each source and its interval:
/// `PERFINFO_LOG_TYPE_SAMPLED_PROFILE_DC_START`.
pub const COLLECTION_START_HOOK: u16 = 0x0F49;

/// Hook id of the records that Windows writes when a trace ends, one for each source and its interval:
/// `PERFINFO_LOG_TYPE_SAMPLED_PROFILE_DC_END`.
pub const COLLECTION_END_HOOK: u16 = 0x0F4A;

/// The occasion on which a trace records the sampling interval of a profile source. Each occasion has its own hook id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum IntervalHook {
    /// The interval was set: [`SET_INTERVAL_HOOK`].
    Set,
    /// The trace begins: [`COLLECTION_START_HOOK`].
    CollectionStart,
    /// The trace ends: [`COLLECTION_END_HOOK`].
    CollectionEnd,
}

/// A record of a profile source's sampling interval. A reader of the trace needs the interval to weigh the source's
/// samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SourceInterval<'b> {
    /// Occasion on which the interval is recorded.
    pub hook: IntervalHook,
    /// Number of the source: see [`KProfileSource`](pmu_core::profile::KProfileSource).
    pub source: u32,
    /// Interval that is in force after this occasion, in the unit of the source.
    pub new: u32,
    /// Interval that was in force before this occasion. The value is 0 if that interval was set while tracing was off.
    pub old: u32,
    /// Name of the source. Only records of version 3 have the name.
    pub name: Option<Utf16<'b>>,
}

impl<'b> SourceInterval<'b> {
    pub(super) fn hook(&self) -> u16 {
        match self.hook {
            IntervalHook::Set => SET_INTERVAL_HOOK,
            IntervalHook::CollectionStart => COLLECTION_START_HOOK,
            IntervalHook::CollectionEnd => COLLECTION_END_HOOK,
        }
    }

    pub(super) fn encode(&self, _: PointerWidth, to: &mut Writer<'_>) {
        for word in [self.source, self.new, self.old] {
            to.put(&word.to_le_bytes());
        }
        if let Some(name) = &self.name {
            to.utf16(name.units());
        }
    }

    pub(super) fn decode(
        hook: u16,
        _: PointerWidth,
        from: &mut Reader<'b>,
    ) -> Result<Self, TraceError> {
        Ok(Self {
            hook: match hook {
                COLLECTION_START_HOOK => IntervalHook::CollectionStart,
                COLLECTION_END_HOOK => IntervalHook::CollectionEnd,
                _ => IntervalHook::Set,
            },
            source: from.u32()?,
            new: from.u32()?,
            old: from.u32()?,
            name: from.utf16(),
        })
    }
}

/// Hook id of a record with counter names: `PERFINFO_LOG_TYPE_PMC_CONFIG`.
pub const PMC_CONFIG_HOOK: u16 = 0x0F30;

/// The names of the counters whose [values](crate::trace::Extended::pmc_values) are in the records of a trace. The
/// names are in the same order as the values.
///
/// ```
/// use pmu_kprofile::PointerWidth;
/// use pmu_kprofile::trace::{CounterNames, Record, TraceError};
/// let mut buffer = [0; 64];
/// let names = CounterNames::new(&["TotalCycles", "CacheMisses"], &mut buffer)?;
/// let record = Record::new(PointerWidth::Bits64, 0, names);
/// let mut file = [0; 80];
/// assert_eq!(record.encode(&mut file)?, 16 + 4 + 2 * 24);
/// # Ok::<(), TraceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterNames<'b> {
    count: u32,
    /// The strings, each with its terminating zero.
    names: &'b [u8],
}

impl<'b> CounterNames<'b> {
    /// Converts the names of counters to UTF-16 in `buffer`.
    ///
    /// The buffer needs two bytes for each UTF-16 unit of the names, and two bytes for the terminating zero of each
    /// name. A zero in a name ends the name.
    ///
    /// # Errors
    /// [`NoRoom`](TraceError::NoRoom): the buffer is too small.
    pub fn new(names: &[&str], buffer: &'b mut [u8]) -> Result<Self, TraceError> {
        let mut writer = Writer::new(&mut *buffer);
        for name in names {
            writer.utf16(name.encode_utf16().take_while(|unit| *unit != 0));
        }
        let length = writer.length();
        let names_in_utf16 = buffer.get(..length).ok_or(TraceError::NoRoom { needed: length })?;
        Ok(Self { count: names.len() as u32, names: names_in_utf16 })
    }

    /// Returns the names of the counters.
    pub fn names(&self) -> impl Iterator<Item = Utf16<'b>> + use<'b> {
        let mut reader = Reader::new(self.names);
        core::iter::from_fn(move || reader.utf16())
    }

    pub(super) fn hook(&self) -> u16 {
        PMC_CONFIG_HOOK
    }

    pub(super) fn encode(&self, _: PointerWidth, to: &mut Writer<'_>) {
        to.put(&self.count.to_le_bytes());
        to.put(self.names);
    }

    pub(super) fn decode(
        _: u16,
        _: PointerWidth,
        from: &mut Reader<'b>,
    ) -> Result<Self, TraceError> {
        let count = from.u32()?;
        let mut behind = from.clone();
        for _ in 0..count {
            behind.utf16().ok_or(TraceError::TooShort)?;
        }
        Ok(Self { count, names: from.bytes(from.len() - behind.len())? })
    }
}
