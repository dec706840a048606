//! Layouts of the memory that the processor reads and writes.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The DS save area, with 32-bit or 64-bit words. `RESETS` is the number of counter reset values at the end of the
/// area.
///
/// The words are atomic, because the processor changes `bts_index` and `pebs_index` while it writes records.
///
/// The number of reset values depends on the processor's counters and its PEBS format:
///
/// - 4 in the documented structure `PEBS_DS_SAVE_AREA` (four general counters);
/// - 12 in the structure of later Windows headers (eight general counters and four fixed counters);
/// - 48 in PEBS formats 5 and 6 (32 general counters and 16 fixed counters).
#[derive(Debug)]
#[repr(C)]
pub struct DsSaveArea<Word, const RESETS: usize> {
    /// Linear address of the BTS buffer's first byte.
    pub bts_buffer_base: Word,
    /// Linear address at which the processor writes the next BTS record. The processor advances the address.
    pub bts_index: Word,
    /// Linear address of the byte after the BTS buffer.
    pub bts_absolute_maximum: Word,
    /// Linear address in the BTS buffer. The processor interrupts when `bts_index` reaches this address.
    pub bts_interrupt_threshold: Word,
    /// Linear address of the PEBS buffer's first byte.
    pub pebs_buffer_base: Word,
    /// Linear address at which the processor writes the next PEBS record. The processor advances the address.
    pub pebs_index: Word,
    /// Linear address of the byte after the PEBS buffer.
    pub pebs_absolute_maximum: Word,
    /// Linear address in the PEBS buffer. The processor interrupts when `pebs_index` reaches this address.
    pub pebs_interrupt_threshold: Word,
    /// Reset values, one per counter. After each PEBS record of a counter, the processor loads the counter's reset
    /// value into the counter.
    pub pebs_counter_reset: [Word; RESETS],
}

/// `PEBS_DS_SAVE_AREA`: the 64-bit DS save area. With four reset values the structure has 0x60 bytes.
pub type PebsDsSaveArea<const RESETS: usize = 4> = DsSaveArea<AtomicU64, RESETS>;

/// The 32-bit DS save area, which a processor without DTES64 uses. With four reset values the area has 0x30 bytes.
pub type PebsDsSaveArea32<const RESETS: usize = 4> = DsSaveArea<AtomicU32, RESETS>;

/// `PROCESSOR_PROFILE_CONTROL_AREA`: Windows' structure for the DS save area of one processor. With four reset values
/// the structure has 0x60 bytes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProcessorProfileControlArea<const RESETS: usize = 4> {
    /// Save area of the Debug Store.
    pub pebs_ds_save_area: PebsDsSaveArea<RESETS>,
}

/// The 32-bit form of [`ProcessorProfileControlArea`].
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProcessorProfileControlArea32<const RESETS: usize = 4> {
    /// Save area of the Debug Store.
    pub pebs_ds_save_area: PebsDsSaveArea32<RESETS>,
}

macro_rules! zeroed {
    ($word:ident) => {
        impl<const RESETS: usize> DsSaveArea<$word, RESETS> {
            /// Creates a save area that describes no buffer. Every word of the area is 0.
            pub const fn new() -> Self {
                Self {
                    bts_buffer_base: $word::new(0),
                    bts_index: $word::new(0),
                    bts_absolute_maximum: $word::new(0),
                    bts_interrupt_threshold: $word::new(0),
                    pebs_buffer_base: $word::new(0),
                    pebs_index: $word::new(0),
                    pebs_absolute_maximum: $word::new(0),
                    pebs_interrupt_threshold: $word::new(0),
                    pebs_counter_reset: [const { $word::new(0) }; RESETS],
                }
            }
        }

        impl<const RESETS: usize> Default for DsSaveArea<$word, RESETS> {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

impl<const RESETS: usize> PebsDsSaveArea<RESETS> {
    /// Stores zero into every word. The maximum of each buffer comes first: without room, a processor that still uses
    /// the area writes nothing to the address 0 that the index then has.
    pub(crate) fn clear(&self) {
        let words = [
            &self.bts_absolute_maximum,
            &self.pebs_absolute_maximum,
            &self.bts_index,
            &self.pebs_index,
            &self.bts_buffer_base,
            &self.bts_interrupt_threshold,
            &self.pebs_buffer_base,
            &self.pebs_interrupt_threshold,
        ];
        for word in words.into_iter().chain(&self.pebs_counter_reset) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

zeroed!(AtomicU64);
zeroed!(AtomicU32);

const _: () = assert!(size_of::<ProcessorProfileControlArea>() == 0x60);

/// Memory for one processor's control area, aligned to a cache line.
///
/// While a processor uses the area, the memory must be mapped and writable in every address space in which the
/// processor runs.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ControlAreaMemory<const RESETS: usize = 4> {
    area: ProcessorProfileControlArea<RESETS>,
    /// A recorder of precise records uses the area.
    is_recording: AtomicBool,
}

impl<const RESETS: usize> ControlAreaMemory<RESETS> {
    /// Creates zeroed memory for one processor's control area.
    pub const fn new() -> Self {
        let pebs_ds_save_area = DsSaveArea::<AtomicU64, RESETS>::new();
        let area = ProcessorProfileControlArea { pebs_ds_save_area };
        Self { area, is_recording: AtomicBool::new(false) }
    }

    /// Returns the control area in this memory.
    pub const fn area(&self) -> &ProcessorProfileControlArea<RESETS> {
        &self.area
    }

    pub(crate) fn set_recording(&self, is_recording: bool) {
        self.is_recording.store(is_recording, Ordering::Release);
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.is_recording.load(Ordering::Acquire)
    }
}
