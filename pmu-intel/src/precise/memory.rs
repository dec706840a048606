//! The memory to which a processor writes its records, and which a task and the interrupt share.

use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

use pmu_core::access::{AccessFault, RegisterAccess, RegisterAddress, RegisterBackend};

use crate::debug_store::{ControlAreaMemory, PebsDsSaveArea};
use crate::precise::layout::PreciseFormat;
use crate::precise::pebs::PreciseThreshold;
use crate::precise::registers::{IA32_PEBS_INDEX, PebsIndex};
use crate::precise::state::{State, TAKEN};
use crate::precise::unit::PreciseUnit;

/// Number of counter resets in the area: that of the formats with the most.
pub(crate) const RESETS: usize = 48;

/// Size of a page in bytes.
pub(crate) const PAGE: usize = 4096;

/// Memory for the precise records of one processor: the first page has the DS save area and the driver's state, and the
/// other pages are the buffer of records.
///
/// The embedder provides the memory, commonly one static per processor. The processor itself writes to the memory. The
/// requirements for the memory's pages are in the Safety section of [`Pebs::new`](crate::precise::Pebs::new).
///
/// ```
/// use core::sync::atomic::AtomicU64;
/// use pmu_intel::precise::PreciseMemory;
/// // For one processor: a buffer of 16 KiB.
/// static RECORDS: PreciseMemory<[AtomicU64; 2048]> = PreciseMemory::new();
/// let lent: &'static PreciseMemory = &RECORDS;
/// assert_eq!((lent.capacity(), size_of_val(lent)), (16 << 10, 20 << 10));
/// ```
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct PreciseMemory<B: ?Sized = [AtomicU64]> {
    area: ControlAreaMemory<RESETS>,
    pub(crate) state: State,
    threshold: AtomicU8,
    lost: AtomicU32,
    malformed: AtomicU32,
    hidden: AtomicU32,
    unattributed: AtomicU32,
    /// A branch trace uses the area.
    traced: AtomicBool,
    buffer: Pages<B>,
}

/// Whole pages.
#[derive(Debug)]
#[repr(C, align(4096))]
struct Pages<B: ?Sized>(B);

/// Numbers of precise records that were not reported. Each number starts at 0 when a session's first
/// [precise](pmu_core::Event::precise) event runs, and wraps around after 2³² − 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DroppedRecords {
    /// Number of losses. A loss can contain any number of records. If the PEBS index is not the address of a record,
    /// the driver drops all records in the buffer, and counts one loss. With architectural PEBS, each full buffer
    /// counts as one loss, because the processor writes no records while the buffer is full.
    pub lost: u32,
    /// Number of records that have contradictory fields or unknown groups.
    pub malformed: u32,
    /// Number of records whose instruction ran at a privilege level that the record's event does not count. The level
    /// is told by the address: the upper half of the address space is the kernel's.
    pub hidden: u32,
    /// Number of records for which the driver cannot tell the event, or whose event was closed. In PEBS formats before
    /// 3, if several counters overflow together, the record does not say which counter caused the record.
    pub unattributed: u32,
}

impl<const N: usize> PreciseMemory<[AtomicU64; N]> {
    /// Creates memory for the precise records of one processor, with a buffer of `N` 64-bit words. `N` must be a
    /// multiple of 512. For architectural PEBS, `N` must also be a power of two.
    pub const fn new() -> Self {
        Self {
            area: ControlAreaMemory::new(),
            state: State::new(),
            threshold: AtomicU8::new(PreciseThreshold::EachRecord as u8),
            lost: AtomicU32::new(0),
            malformed: AtomicU32::new(0),
            hidden: AtomicU32::new(0),
            unattributed: AtomicU32::new(0),
            traced: AtomicBool::new(false),
            buffer: Pages([const { AtomicU64::new(0) }; N]),
        }
    }
}

impl<const N: usize> Default for PreciseMemory<[AtomicU64; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Deref for PreciseMemory<[AtomicU64; N]> {
    type Target = PreciseMemory;

    fn deref(&self) -> &PreciseMemory {
        self
    }
}

impl PreciseMemory {
    /// Returns the size of the buffer of precise records, in bytes.
    pub const fn capacity(&self) -> usize {
        self.buffer.0.len() * 8
    }

    /// Returns the address of the buffer's first byte: the beginning of a page. For architectural PEBS, the kernel
    /// translates this address into a physical one.
    pub const fn buffer_start(&self) -> *const u64 {
        self.buffer.0.as_ptr().cast()
    }

    /// Returns the part of this memory that contains the DS save area. For branch tracing, a kernel can create a
    /// [`ProcessorProfileControl`](crate::debug_store::ProcessorProfileControl) that uses this DS save area too.
    /// [`ProcessorProfileControl::pebs_index`](crate::debug_store::ProcessorProfileControl::pebs_index) then returns an
    /// address in this memory's buffer.
    ///
    /// ```
    /// use core::sync::atomic::AtomicU64;
    /// use pmu_intel::debug_store::ProcessorProfileControl;
    /// use pmu_intel::precise::PreciseMemory;
    /// static RECORDS: PreciseMemory<[AtomicU64; 512]> = PreciseMemory::new();
    /// static LENT: &PreciseMemory = &RECORDS;
    /// static CONTROL: ProcessorProfileControl<'static, 48> =
    ///     ProcessorProfileControl::new(Some(LENT.control_area()));
    /// /// The PEBS index, for the trace's records of context switches, and for `InterruptFrame::pebs_index`.
    /// fn index() -> Option<u64> {
    ///     CONTROL.pebs_index()
    /// }
    /// assert_eq!((index(), LENT.pebs_index()), (None, None)); // No precise event runs yet.
    /// ```
    pub const fn control_area(&self) -> &ControlAreaMemory<RESETS> {
        &self.area
    }

    /// Returns the linear address at which the processor writes the next record, or `None` if no session uses this
    /// memory: before its first [precise](pmu_core::Event::precise) event runs. A kernel can store this address in its
    /// own trace records. For architectural PEBS, the result is not the next record's address, but always the address
    /// of the buffer's first byte.
    ///
    /// # Context
    /// Any context, on the processor whose records are in this memory.
    pub fn pebs_index(&self) -> Option<u64> {
        self.is_taken().then(|| self.save_area().pebs_index.load(Relaxed))
    }

    /// Returns the numbers of precise records that were not reported: one number per cause.
    pub fn dropped(&self) -> DroppedRecords {
        DroppedRecords {
            lost: self.lost.load(Relaxed),
            malformed: self.malformed.load(Relaxed),
            hidden: self.hidden.load(Relaxed),
            unattributed: self.unattributed.load(Relaxed),
        }
    }

    /// Sets the fill level of the buffer at which the processor interrupts. The processor interrupts for each record
    /// while an event has a period that a counter cannot take at once, or has
    /// [branches](pmu_core::Event::with_branches). The threshold takes effect when a precise event next starts, stops,
    /// or takes its turn.
    ///
    /// # Context
    /// Any context.
    pub fn set_threshold(&self, threshold: PreciseThreshold) {
        self.threshold.store(threshold as u8, Relaxed);
    }

    pub(crate) fn threshold(&self) -> PreciseThreshold {
        match self.threshold.load(Relaxed) {
            0 => PreciseThreshold::EachRecord,
            _ => PreciseThreshold::NearlyFull,
        }
    }

    pub(crate) fn save_area(&self) -> &PebsDsSaveArea<RESETS> {
        &self.area.area().pebs_ds_save_area
    }

    pub(crate) fn buffer(&self) -> &[AtomicU64] {
        &self.buffer.0
    }

    /// Returns the linear address of the buffer.
    pub(crate) fn buffer_address(&self) -> u64 {
        self.buffer.0.as_ptr().expose_provenance() as u64
    }

    /// Returns the linear address of the area.
    pub(crate) fn area_address(&self) -> u64 {
        core::ptr::from_ref(self.area.area()).expose_provenance() as u64
    }

    /// Begins to count anew what is dropped.
    pub(crate) fn reset_dropped(&self) {
        for count in [&self.lost, &self.malformed, &self.hidden, &self.unattributed] {
            count.store(0, Relaxed);
        }
    }

    /// Notes that a branch trace uses the area, or no more.
    pub(crate) fn set_traced(&self, traced: bool) {
        self.traced.store(traced, Release);
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.traced.load(Acquire)
    }

    /// Returns whether the session has not taken the registers: the processor writes no record.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.is_taken()
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.state.is(TAKEN)
    }

    pub(crate) fn count_lost(&self) {
        self.lost.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_malformed(&self, records: u32) {
        self.malformed.fetch_add(records, Relaxed);
    }

    pub(crate) fn count_hidden(&self) {
        self.hidden.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_unattributed(&self) {
        self.unattributed.fetch_add(1, Relaxed);
    }

    /// Returns whether the buffer has reached its threshold, or has an index that cannot be right.
    pub(crate) fn interrupts<M: RegisterBackend>(
        &self,
        unit: &PreciseUnit,
        msr: &M,
    ) -> Result<bool, AccessFault> {
        if unit.format() == PreciseFormat::Architectural {
            let found = PebsIndex::from_bits(msr.read_retrying(index_register())?);
            return Ok(found.full() || found.write() != 0 && found.write() >= found.threshold());
        }
        let (area, base) = (self.save_area(), self.buffer_address());
        let below = base..area.pebs_interrupt_threshold.load(Relaxed);
        Ok(self.names_buffer() && !below.contains(&area.pebs_index.load(Relaxed)))
    }

    /// Returns whether the area names the buffer: else the processor writes nothing.
    fn names_buffer(&self) -> bool {
        self.save_area().pebs_absolute_maximum.load(Relaxed) != 0
    }

    /// Resets the area's index. Returns the number of bytes that were written: 0 if the index cannot be right.
    pub(crate) fn reset_area(&self, unit: &PreciseUnit) -> usize {
        let (area, base) = (self.save_area(), self.buffer_address());
        if !self.names_buffer() {
            return 0;
        }
        let index = area.pebs_index.swap(base, Relaxed);
        let written = index.checked_sub(base).map(|written| written as usize);
        let step = unit.format().record_size().unwrap_or(8);
        let right = |written: &usize| *written <= self.capacity() && written.is_multiple_of(step);
        let written = written.filter(right);
        if written.is_none() {
            self.count_lost();
        }
        written.unwrap_or(0)
    }

    /// Resets the register's offset, and keeps its threshold. Returns the number of bytes that were written.
    pub(crate) fn reset_register<M: RegisterBackend>(&self, msr: &M) -> Result<usize, AccessFault> {
        let register = index_register();
        let found = PebsIndex::from_bits(msr.read_retrying(register)?);
        if found.write() == 0 && !found.full() {
            return Ok(0);
        }
        msr.write_retrying(register, found.with_write(0).with_full(false).into_bits())?;
        let written = 16 * found.write() as usize;
        if found.full() || written > self.capacity() {
            self.count_lost();
        }
        Ok(if written > self.capacity() { 0 } else { written })
    }
}

/// Returns the register of the next record's place.
pub(crate) fn index_register() -> RegisterAddress {
    // SAFETY: an offset in the buffer at IA32_PEBS_BASE, of which the processor does not go beyond the end. Only
    // `Pebs` gives a base, with the promise of its `new`.
    unsafe { RegisterAddress::new(IA32_PEBS_INDEX) }
}
