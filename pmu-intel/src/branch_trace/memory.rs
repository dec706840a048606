//! The memory to which a processor traces branches, and which a task and the interrupt share.

use core::ops::Deref;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

use pmu_core::branches::Branch;

use crate::debug_store::{ControlAreaMemory, PebsDsSaveArea};
use crate::precise::memory::{PAGE, RESETS};
use crate::precise::record::{Shown, Words};

/// Memory for the branch trace of one processor. The first page has the DS save area and the driver's state. The
/// following pages are the buffer of branch records, which have 24 bytes each.
///
/// The embedder provides the memory, commonly one static per processor. The processor itself writes to the memory. The
/// requirements for the memory's pages are in the Safety section of
/// [`BranchTrace::new`](crate::branch_trace::BranchTrace::new).
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct BranchTraceMemory<B: ?Sized = [AtomicU64]> {
    area: ControlAreaMemory<RESETS>,
    lost: AtomicU32,
    hidden: AtomicU32,
    draining: AtomicBool,
    /// Privilege levels whose branches the processor traces, or may trace after a failed access.
    mode: AtomicU8,
    /// Privilege levels that are asked for.
    wanted: AtomicU8,
    /// Set by a request since the facility was last settled.
    requested: AtomicBool,
    /// The session took the memory for the trace.
    taken: AtomicBool,
    /// The registers have the values of the mode.
    known: AtomicBool,
    buffer: Pages<B>,
}

/// Whole pages.
#[derive(Debug)]
#[repr(C, align(4096))]
struct Pages<B: ?Sized>(B);

/// Bits of `mode`: branches of user mode, and of the kernel, are traced.
pub(crate) const USER: u8 = 1 << 0;
pub(crate) const KERNEL: u8 = 1 << 1;
/// The processor writes branches of the interrupt handler, too.
pub(crate) const STOP: u8 = 1 << 2;

impl<const N: usize> BranchTraceMemory<[AtomicU64; N]> {
    /// Creates memory for the branch trace of one processor, with a buffer of `N` 64-bit words. `N` is a multiple of
    /// 512, for whole pages; any other does not compile.
    pub const fn new() -> Self {
        const { assert!(N != 0 && N.is_multiple_of(PAGE / 8), "a buffer of whole pages") };
        Self {
            area: ControlAreaMemory::new(),
            lost: AtomicU32::new(0),
            hidden: AtomicU32::new(0),
            draining: AtomicBool::new(false),
            mode: AtomicU8::new(0),
            wanted: AtomicU8::new(0),
            requested: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            known: AtomicBool::new(false),
            buffer: Pages([const { AtomicU64::new(0) }; N]),
        }
    }
}

impl<const N: usize> Default for BranchTraceMemory<[AtomicU64; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Deref for BranchTraceMemory<[AtomicU64; N]> {
    type Target = BranchTraceMemory;

    fn deref(&self) -> &BranchTraceMemory {
        self
    }
}

impl BranchTraceMemory {
    /// Returns the number of branches for which this memory's buffer has room.
    pub const fn capacity(&self) -> usize {
        self.buffer.0.len() / RECORD
    }

    /// Returns how often the driver dropped the contents of the trace buffer. The driver drops all branches in the
    /// buffer if `bts_index` in the DS save area does not point to the start of a record in the buffer. The count
    /// begins with the first trace of a session. The number wraps around at 2³².
    pub fn lost(&self) -> u32 {
        self.lost.load(Relaxed)
    }

    /// Returns the number of branches that the driver left out because of their privilege levels. A trace reports only
    /// branches at the privilege levels with which the trace was started. The count begins with the first trace of a
    /// session. The number wraps around at 2³².
    pub fn hidden(&self) -> u32 {
        self.hidden.load(Relaxed)
    }

    /// Returns whether the processor traces, or may trace after a failed access.
    ///
    /// # Context
    /// Any context.
    pub fn is_tracing(&self) -> bool {
        self.mode() != 0
    }

    pub(crate) fn save_area(&self) -> &PebsDsSaveArea<RESETS> {
        &self.area.area().pebs_ds_save_area
    }

    /// Returns the linear address of the area.
    pub(crate) fn area_address(&self) -> u64 {
        core::ptr::from_ref(self.area.area()).expose_provenance() as u64
    }

    fn buffer_address(&self) -> u64 {
        self.buffer.0.as_ptr().expose_provenance() as u64
    }

    /// Takes the memory for a session's trace; `false` if it is taken.
    pub(crate) fn take(&self) -> bool {
        let is_first = !self.taken.swap(true, AcqRel);
        if is_first {
            self.lost.store(0, Relaxed);
            self.hidden.store(0, Relaxed);
        }
        is_first
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Acquire)
    }

    pub(crate) fn give_back(&self) {
        self.withdraw();
        self.taken.store(false, Release);
    }

    pub(crate) fn request(&self, mode: u8) {
        self.wanted.store(mode, Relaxed);
        self.requested.store(true, Release);
    }

    pub(crate) fn take_request(&self) -> bool {
        self.requested.swap(false, AcqRel)
    }

    pub(crate) fn wanted(&self) -> u8 {
        self.wanted.load(Relaxed)
    }

    pub(crate) fn withdraw(&self) {
        self.wanted.store(0, Relaxed);
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Relaxed)
    }

    pub(crate) fn set_known(&self, known: bool) {
        self.known.store(known, Relaxed);
    }

    pub(crate) fn mode(&self) -> u8 {
        self.mode.load(Acquire)
    }

    pub(crate) fn set_mode(&self, mode: u8) {
        self.mode.store(mode, Release);
    }

    /// Names the buffer in an area, while nothing is traced. The interrupt comes at three quarters.
    pub(crate) fn name_in(&self, area: &PebsDsSaveArea<RESETS>) {
        let (base, size) = (self.buffer_address(), 8 * RECORD as u64);
        let records = self.capacity() as u64;
        // With a maximum of 0 the processor writes nothing while the other words are changed; the true one comes last.
        area.bts_absolute_maximum.store(0, Relaxed);
        area.bts_buffer_base.store(base, Relaxed);
        area.bts_index.store(base, Relaxed);
        area.bts_interrupt_threshold.store(base + size * (records - records / 4), Relaxed);
        area.bts_absolute_maximum.store(base + size * records, Relaxed);
    }

    /// Has an area name no buffer.
    pub(crate) fn forget_in(area: &PebsDsSaveArea<RESETS>) {
        for word in [
            &area.bts_absolute_maximum,
            &area.bts_index,
            &area.bts_buffer_base,
            &area.bts_interrupt_threshold,
        ] {
            word.store(0, Relaxed);
        }
    }

    /// Empties the buffer, and reports its branches, the oldest first. An interrupted task that does so is left alone.
    pub(crate) fn drain(&self, area: &PebsDsSaveArea<RESETS>, report: impl Fn(Branch)) {
        // An interrupt that comes while a task drains leaves the buffer to the task.
        if self.draining.swap(true, AcqRel) {
            return;
        }
        let base = self.buffer_address();
        // One exchange: between a load and a store, the processor could write a branch that would be lost.
        let index = area.bts_index.swap(base, Relaxed);
        let written = index.checked_sub(base).map(|written| written as usize);
        // An index outside of the buffer, or within a record, means that the area was lost or overwritten.
        let right =
            |bytes: &usize| *bytes <= 8 * RECORD * self.capacity() && bytes.is_multiple_of(24);
        if let Some(bytes) = written.filter(right) {
            let words = self.buffer.0.get(..bytes / 8).unwrap_or_default();
            let mode = self.mode();
            let branches = TracedBranches::from_words(words);
            let mut branches = branches.limited_to(mode & USER != 0, mode & KERNEL != 0);
            branches.by_ref().for_each(report);
            self.hidden.fetch_add(branches.hidden(), Relaxed);
        } else {
            self.lost.fetch_add(1, Relaxed);
        }
        self.draining.store(false, Release);
    }
}

/// Words of a record: FROM, TO, flags. (Bit 4 of the flags tells a right prediction on Pentium 4 only.)
pub(crate) const RECORD: usize = 3;

/// Iterator over the branches in a trace buffer, the oldest first.
///
/// The iterator does not check the branches' addresses: an address may have any value. The iterator does not return an
/// incomplete record at the end of the buffer.
///
/// ```
/// use pmu_intel::branch_trace::TracedBranches;
/// let words: [u64; 3] = [0x40_1000, 0x40_2000, 0];
/// let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
/// let branch = TracedBranches::from_bytes(&bytes).next().unwrap();
/// assert_eq!((branch.from, branch.to), (0x40_1000, 0x40_2000));
/// ```
#[derive(Clone, Debug)]
pub struct TracedBranches<'a> {
    rest: Words<'a>,
    shown: Shown,
    hidden: u32,
}

impl<'a> TracedBranches<'a> {
    /// Returns the branches in a copy of a trace buffer. `bytes` starts at the first byte of the buffer.
    pub const fn from_bytes(bytes: &'a [u8]) -> Self {
        Self::new(Words::Bytes(bytes))
    }

    /// Returns the branches in a trace buffer to which a processor writes.
    pub const fn from_words(words: &'a [AtomicU64]) -> Self {
        Self::new(Words::Shared(words))
    }

    const fn new(rest: Words<'a>) -> Self {
        Self { rest, shown: Shown::ALL, hidden: 0 }
    }

    /// Restricts the iterator to some privilege levels. If `user` is `false`, the iterator leaves out each branch from
    /// or to user mode. If `kernel` is `false`, the iterator leaves out each branch from or to the kernel. A branch
    /// between the kernel and user mode is returned only if both arguments are `true`, because the branch reveals an
    /// address of the kernel.
    ///
    /// ```
    /// use pmu_intel::branch_trace::TracedBranches;
    /// // A branch within user mode, and a system call.
    /// let words = [0x40_1000, 0x40_2000, 0, 0x40_2010, 0xFFFF_FFFF_8100_0000_u64, 0];
    /// let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    /// let mut branches = TracedBranches::from_bytes(&bytes).limited_to(true, false);
    /// assert_eq!(branches.by_ref().count(), 1);
    /// assert_eq!(branches.hidden(), 1);
    /// ```
    #[must_use]
    pub const fn limited_to(self, user: bool, kernel: bool) -> Self {
        let shown = Shown { user: user && self.shown.user, kernel: kernel && self.shown.kernel };
        Self { shown, ..self }
    }

    /// Returns the number of branches that this iterator has left out so far because of their privilege levels.
    pub const fn hidden(&self) -> u32 {
        self.hidden
    }
}

impl Iterator for TracedBranches<'_> {
    type Item = Branch;

    fn next(&mut self) -> Option<Branch> {
        loop {
            let record = self.rest.range(0, RECORD)?;
            self.rest = self.rest.after(RECORD);
            let (from, to) = (record.get(0)?, record.get(1)?);
            if self.shown.shows(from) && self.shown.shows(to) {
                return Some(Branch { from, to, ..Branch::default() });
            }
            self.hidden = self.hidden.saturating_add(1);
        }
    }
}
