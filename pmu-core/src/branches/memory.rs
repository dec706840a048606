//! The memory into which a processor's branch records are read.

use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::branches::record::RawBranch;
use crate::branches::unit::{BranchFormat, BranchUnit};
use crate::write_once::WriteOnce;

/// Memory for the branch records of one processor, or for the [call stack](crate::branches::BranchFilter::call_stack)
/// of one thread: 24 bytes per record, plus 48 bytes.
///
/// The embedder provides the memory of processors, commonly in a static array with one element per processor. The
/// interrupt handler reads the records into this memory, so the records take no room on the stack. A flag in the memory
/// tells the handler whether the processor records branches. `&BranchMemory<[BranchSlot; N]>` coerces to
/// `&BranchMemory`.
///
/// The memory of a thread keeps the thread's call stack while the thread does not run:
/// [`set_call_stacks`](Self::set_call_stacks).
///
/// ```
/// use pmu_core::branches::{BranchMemory, BranchSlot};
/// const PROCESSORS: usize = 4;
/// static RECORDS: [BranchMemory<[BranchSlot; 32]>; PROCESSORS] = [const { BranchMemory::new() }; PROCESSORS];
/// let of_processor_0: &BranchMemory = &RECORDS[0];
/// assert_eq!(size_of_val(of_processor_0), 816);
/// ```
#[derive(Debug)]
pub struct BranchMemory<S: ?Sized = [BranchSlot]> {
    /// Value of the control register while the processor records, or recorded the call stack that is kept.
    pub(crate) control: AtomicU64,
    /// Tag of an event whose call stack the processor records.
    pub(crate) tag: AtomicU64,
    pub(crate) call_stacks: WriteOnce<CallStackOf>,
    /// [Fingerprint](BranchUnit::fingerprint) of the records whose recorder took the memory last, or of those kept.
    unit: AtomicU32,
    /// Number of the call stacks that were discarded, each of which may have been another thread's.
    discarded: AtomicU32,
    owner: AtomicU8,
    mode: AtomicU8,
    /// Number of records of a call stack that the memory keeps: a processor's while the counters are lent, a thread's
    /// while the thread does not run. 0 for none.
    pub(crate) kept: AtomicU8,
    /// Place of the newest of them in the registers.
    pub(crate) newest: AtomicU8,
    slots: S,
}

/// The function of a kernel that returns the memory of a thread's call stack, by the tag of an event of the thread: see
/// [`BranchMemory::set_call_stacks`].
pub type CallStackOf = fn(tag: u64) -> Option<&'static BranchMemory>;

/// Room for the three 64-bit words of one branch record.
#[derive(Debug, Default)]
pub struct BranchSlot([AtomicU64; 3]);

/// Values of `owner`.
const UNTAKEN: u8 = 0;
/// Bit of a recorder, which has the records. The bits below are beside it.
const RECORDER: u8 = 8;
/// The events of a session have the records.
const OF_EVENTS: u8 = 1;
/// The events had the records last, which were found to answer.
const VERIFIED: u8 = 2;
/// A register did not answer as the records were taken, and the processor may still freeze or record.
const TRIED: u8 = 3;

/// Bit of a recorder: its records are to freeze where the filter allows it.
pub(crate) const FREEZES: u8 = 16;

/// Bit of a recorder: it recorded before the session took its registers away, and is to go on afterwards.
pub(crate) const GOES_ON: u8 = 32;

/// Bit of a recorder: its records are lent, with the counters.
pub(crate) const LENT: u8 = 64;

/// Bit of `mode`: the processor records.
pub(crate) const RECORDING: u8 = 1;

/// Bit of `mode`: the processor freezes the records when it raises the performance interrupt.
pub(crate) const FREEZING: u8 = 2;

/// Bit of `mode`: an interrupt could not start the recording again.
pub(crate) const LOST: u8 = 4;

/// Bit of `mode`: the registers may have another thread's or owner's records. Neither a task nor an interrupt reads
/// them.
pub(crate) const STALE: u8 = 8;

/// Bit of `mode`: the registers have no records, and the processor does not record. Together with `RECORDING`: a task
/// has stopped the sampling, whose records may be filled, until the counters are settled or the processor is no longer
/// idle.
pub(crate) const CLEAR: u8 = 16;

/// Bit of `mode`: the registers of the freeze did not answer as the records were taken.
pub(crate) const UNFREEZABLE: u8 = 32;

/// Bit of `mode`: the registers may have lost their values.
pub(crate) const UNKNOWN: u8 = 64;

/// Bit of `mode`: the records of events are a call stack.
pub(crate) const STACK: u8 = 128;

/// Answer to events that are to have the records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// A recorder has them.
    Refused,
    /// The registers are still to be tried.
    Unverified,
    Verified,
}

impl BranchSlot {
    /// Creates an empty slot.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 3])
    }

    pub(crate) fn store(&self, record: RawBranch) {
        let [from, to, info] = &self.0;
        from.store(record.from, Relaxed);
        to.store(record.to, Relaxed);
        info.store(record.info, Relaxed);
    }

    pub(crate) fn load(&self) -> RawBranch {
        let [from, to, info] = self.0.each_ref().map(|word| word.load(Relaxed));
        RawBranch { from, to, info }
    }
}

impl<const N: usize> BranchMemory<[BranchSlot; N]> {
    /// Creates memory with room for `N` records. The memory must have room for all
    /// [records](crate::branches::BranchUnit::depth) of a processor. No processor known today has more than 32 records.
    pub const fn new() -> Self {
        Self {
            control: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            call_stacks: WriteOnce::new(),
            unit: AtomicU32::new(0),
            discarded: AtomicU32::new(0),
            owner: AtomicU8::new(UNTAKEN),
            mode: AtomicU8::new(0),
            kept: AtomicU8::new(0),
            newest: AtomicU8::new(0),
            slots: [const { BranchSlot::new() }; N],
        }
    }
}

impl<const N: usize> Default for BranchMemory<[BranchSlot; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Deref for BranchMemory<[BranchSlot; N]> {
    type Target = BranchMemory;

    fn deref(&self) -> &BranchMemory {
        self
    }
}

impl BranchMemory {
    /// Returns the number of records for which the memory has room.
    pub const fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn slots(&self) -> &[BranchSlot] {
        &self.slots
    }

    /// Lets the [call stack](crate::branches::BranchFilter::call_stack) that a thread's events ask for follow the
    /// thread, on the processor of this memory. As [`switch_out`](crate::CounterSession::switch_out) takes the events
    /// from their counters, the records are read into the memory that `memory_of` returns for the tag of such an event.
    /// As [`switch_in`](crate::CounterSession::switch_in) puts the event on a counter, they are written back, also on
    /// another processor, if its records have the same format and number. Without this call, or if `memory_of` returns
    /// `None`, a call stack begins anew at each switch of threads. Only the first call has an effect.
    ///
    /// Each thread has a memory of its own, with room for all records. All events of a thread may share it, and no
    /// other event with a call stack has the tag of one of them. `memory_of` is called in task context, as threads are
    /// switched and as events start and stop.
    ///
    /// A call stack begins anew, too, if a register access failed, or if the event was on no counter as its thread left
    /// or came. A memory may pass to a new thread as it is: an event that was on no processor yet begins anew. A thread
    /// that is switched out keeps its memory.
    ///
    /// ```
    /// use pmu_core::branches::{BranchMemory, BranchSlot};
    /// type Memory = BranchMemory<[BranchSlot; 32]>;
    /// /// One memory per processor.
    /// static RECORDS: [Memory; 4] = [const { Memory::new() }; 4];
    /// /// One memory per thread. An event's tag is the number of its thread.
    /// static STACKS: [Memory; 64] = [const { Memory::new() }; 64];
    ///
    /// fn stack(thread: u64) -> Option<&'static BranchMemory> {
    ///     Some(STACKS.get(thread as usize)?)
    /// }
    ///
    /// fn boot() {
    ///     RECORDS.iter().for_each(|memory| memory.set_call_stacks(stack));
    /// }
    /// # boot();
    /// ```
    pub fn set_call_stacks(&self, memory_of: CallStackOf) {
        let _ = self.call_stacks.set(memory_of);
    }

    /// Takes the memory for a recorder of these records. Returns `false` if it is taken already.
    pub(crate) fn take(&self, unit: &BranchUnit) -> bool {
        let from = |owner| self.owner.compare_exchange(owner, RECORDER, Acquire, Relaxed).is_ok();
        let taken = [UNTAKEN, VERIFIED, TRIED].into_iter().any(from);
        if taken {
            // The events could not clear these.
            self.mode.fetch_and(FREEZING | STALE, Relaxed);
            self.kept.store(0, Relaxed);
            // Until the mode is set, an interrupt accesses no register.
            self.unit.store(unit.fingerprint(), Relaxed);
        }
        taken
    }

    /// Returns whether neither events nor a recorder have the records: an interrupt reads, stops and starts nothing.
    #[inline]
    pub fn is_idle(&self) -> bool {
        let has_owner = !matches!(self.owner.load(Relaxed), UNTAKEN | VERIFIED | TRIED);
        // A processor that did not answer may still record.
        !has_owner && self.mode() & (RECORDING | FREEZING) == 0
    }

    /// Returns the mode, if the memory's recorder has the records of this unit: 0 otherwise.
    #[inline(never)] // 288 bytes of the Hermit-like glue.
    pub(crate) fn mode_of(&self, unit: &BranchUnit) -> u8 {
        let mode = self.mode();
        if self.unit.load(Relaxed) == unit.fingerprint() { mode } else { 0 }
    }

    /// Takes the memory for the events of a session, unless a recorder has it.
    pub(crate) fn take_for_events(&self, unit: &BranchUnit) -> Taken {
        let before = self.owner.load(Relaxed);
        if before & RECORDER != 0
            || self.owner.compare_exchange(before, OF_EVENTS, Acquire, Relaxed).is_err()
        {
            return Taken::Refused;
        }
        let is_same = self.unit.load(Relaxed) == unit.fingerprint();
        if is_same && matches!(before, OF_EVENTS | VERIFIED) {
            return Taken::Verified;
        }
        // An earlier attempt could not clear these.
        self.mode.fetch_and(FREEZING | STALE, Relaxed);
        // A recorder may have overwritten a call stack that is kept, or the call stack is another unit's.
        self.kept.store(0, Relaxed);
        self.unit.store(unit.fingerprint(), Relaxed);
        Taken::Unverified
    }

    /// Keeps a call stack of these records, which was read into the slots.
    pub(crate) fn keep(&self, unit: &BranchUnit, control: u64, (kept, newest): (u8, u8)) {
        self.unit.store(unit.fingerprint(), Relaxed);
        self.control.store(control, Relaxed);
        self.newest.store(newest, Relaxed);
        self.kept.store(kept, Relaxed);
    }

    /// Discards the call stack that is kept, unless it has this number. Returns the number of what is kept next.
    pub(crate) fn claim(&self, number: u32) -> u32 {
        // An event without a number has 0.
        let own = || self.discarded.load(Relaxed).wrapping_add(1);
        if (number == 0 || number != own()) && self.kept.swap(0, Relaxed) != 0 {
            self.discarded.store(own(), Relaxed);
        }
        own()
    }

    /// Takes the call stack that is kept, and returns the number of its records: 0 if it is of other records, or was
    /// recorded by another value of the filter.
    pub(crate) fn take_kept(&self, unit: &BranchUnit, control: u64) -> u8 {
        let kept = self.kept.swap(0, Relaxed);
        let is_same =
            self.control.load(Relaxed) == control && self.unit.load(Relaxed) == unit.fingerprint();
        if is_same { kept } else { 0 }
    }

    /// Notes that the records are about to be another owner's. Returns whether there may be any.
    pub(crate) fn leave(&self) -> bool {
        if self.is_of_recorder() && self.mode() & RECORDING != 0 {
            self.note(GOES_ON, true);
        }
        self.owner.load(Relaxed) != UNTAKEN
    }

    /// Notes that the records are another owner's.
    pub(crate) fn left(&self, is_to_return: bool) {
        if self.is_of_recorder() {
            self.note(if is_to_return { LENT } else { LENT | GOES_ON }, is_to_return);
        } else {
            self.leave_to_others();
        }
    }

    /// Notes that no event needs the records.
    pub(crate) fn leave_to_others(&self) {
        let before = self.owner.load(Relaxed);
        // Verified once, the records need no probe when the events come back.
        let after = if before == OF_EVENTS { VERIFIED } else { UNTAKEN };
        if matches!(before, OF_EVENTS | TRIED) {
            // It fails only if a recorder has taken the memory in between, which then keeps it.
            let _ = self.owner.compare_exchange(before, after, Release, Relaxed);
        }
    }

    /// Notes that the registers may have other values than they were given.
    pub(crate) fn lose(&self) {
        self.set_mode(UNKNOWN);
        self.clear_mode(CLEAR);
    }

    /// Gives the memory back after registers did not answer as the records were taken. If the processor may still
    /// freeze or record, the next change of events clears the registers.
    pub(crate) fn give_back_untaken(&self) {
        match self.mode() & (FREEZING | STALE) {
            0 => self.give_back(),
            left => {
                self.mode.store(left | STALE | UNKNOWN, Relaxed);
                // Not free: the next owner still has to stop or to clear what this attempt could not.
                self.owner.store(TRIED, Release);
            }
        }
    }

    /// Returns whether a recorder has the records.
    pub(crate) fn is_of_recorder(&self) -> bool {
        self.owner.load(Relaxed) & RECORDER != 0
    }

    /// Returns whether a bit of the recorder is set.
    pub(crate) fn has(&self, bit: u8) -> bool {
        self.owner.load(Relaxed) & bit != 0
    }

    /// Sets or clears bits of the recorder that has the records.
    pub(crate) fn note(&self, bits: u8, set: bool) {
        if set {
            self.owner.fetch_or(bits, Relaxed);
        } else {
            self.owner.fetch_and(!bits, Relaxed);
        }
    }

    /// Returns whether the events of a session have the records, or had them last.
    pub(crate) fn was_of_events(&self) -> bool {
        matches!(self.owner.load(Relaxed), OF_EVENTS | VERIFIED | TRIED)
    }

    /// Gives the memory back: the interrupt path touches no register from here on.
    pub(crate) fn give_back(&self) {
        self.mode.store(0, Relaxed);
        self.owner.store(UNTAKEN, Release);
    }

    #[inline]
    pub(crate) fn mode(&self) -> u8 {
        self.mode.load(Acquire)
    }

    /// Sets and clears bits of the mode, one at a time: the interrupt changes `LOST` in between.
    pub(crate) fn set_mode(&self, set: u8) {
        self.mode.fetch_or(set, Release);
    }

    pub(crate) fn clear_mode(&self, clear: u8) {
        self.mode.fetch_and(!clear, Release);
    }

    /// Lets a new recorder use this memory after the old recorder was dropped without
    /// [`shut_down`](crate::branch_recording::BranchRecorder::shut_down), for example in a panic. The processor keeps
    /// recording until [`BranchRecorder::take`](crate::branch_recording::BranchRecorder::take) is called with this
    /// memory.
    ///
    /// # Context
    /// Task, on the processor whose records this memory holds. No performance interrupt of this processor is being
    /// serviced.
    ///
    /// # Safety
    /// - The old recorder is not used again. Otherwise the old and a new recorder could read each other's branches.
    ///
    /// ```
    /// # use pmu_core::branches::{BranchMemory, BranchSlot};
    /// # static MEMORY: BranchMemory<[BranchSlot; 32]> = BranchMemory::new();
    /// // SAFETY: the task that owned the recorder has ended, and the recorder with it.
    /// unsafe { MEMORY.reclaim() };
    /// ```
    ///
    /// Wrong: `let recorder = …; memory.reclaim(); recorder.start(filter)`.
    pub unsafe fn reclaim(&self) {
        // A session's events keep the records.
        if self.is_of_recorder() {
            self.give_back();
        }
    }
}

/// A thread's call stack, saved while the thread does not run. When the thread runs again, the processor continues to
/// record this call stack.
///
/// [`BranchRecorder::switch_out`](crate::branch_recording::BranchRecorder::switch_out) saves the records.
/// [`switch_in`](crate::branch_recording::BranchRecorder::switch_in) restores the records on any processor with the
/// same record format and the same number of records. The kernel commonly stores the value with the thread's registers.
///
/// ```
/// use pmu_core::branches::SavedBranches;
/// struct Thread {
///     call_stack: SavedBranches<32>,
/// }
/// let thread = Thread { call_stack: SavedBranches::new() };
/// # let _ = thread.call_stack;
/// ```
#[derive(Clone, Debug)]
pub struct SavedBranches<const N: usize> {
    pub(crate) records: [RawBranch; N],
    pub(crate) len: u8,
    pub(crate) newest: u8,
    pub(crate) format: Option<&'static BranchFormat>,
}

impl<const N: usize> SavedBranches<N> {
    /// Creates an empty saved call stack.
    pub const fn new() -> Self {
        let empty = RawBranch { from: 0, to: 0, info: 0 };
        Self { records: [empty; N], len: 0, newest: 0, format: None }
    }

    /// Discards the saved records, for example when the thread begins a new program.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Returns the records, the newest first.
    pub(crate) fn records(&self) -> &[RawBranch] {
        self.records.get(..self.len.into()).unwrap_or_default()
    }
}

impl<const N: usize> Default for SavedBranches<N> {
    fn default() -> Self {
        Self::new()
    }
}
