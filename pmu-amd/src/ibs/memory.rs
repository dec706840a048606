//! The memory that the task side and the interrupt path of one unit share.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::ibs::sampling::{ControlValues, IbsSampling};

/// Memory for one sampling unit of one processor: 56 bytes.
///
/// The embedder provides the memory. An [`IbsSampler`](crate::ibs::IbsSampler) takes the memory, and owns it until the
/// sampler is shut down. In the interrupt handler, [`Ibs`](crate::ibs::Ibs) uses the same memory. The interrupt may
/// come at any time, even while no sampler owns the memory.
///
/// ```
/// use pmu_amd::ibs::IbsMemory;
/// const PROCESSORS: usize = 4;
/// static OPS: [IbsMemory; PROCESSORS] = [const { IbsMemory::new() }; PROCESSORS];
/// assert_eq!(OPS[0].dropped(), 0);
/// ```
#[derive(Debug)]
pub struct IbsMemory {
    /// Registers of the newest sample, by which a sample whose valid bit was overwritten is told from none.
    newest: [AtomicU64; 3],
    /// Values of the control registers while the unit samples.
    control: AtomicU64,
    control2: AtomicU32,
    latency: AtomicU32,
    dropped: AtomicU32,
    lost: AtomicU32,
    state: AtomicU8,
    wanted: AtomicU8,
}

/// Bits of `state`. `SAMPLING` and `STOPPING` exclude each other.
const TAKEN: u8 = 1 << 0;
const SAMPLING: u8 = 1 << 1;

/// A task stops the unit. An interrupt of the last sample clears the bit.
const STOPPING: u8 = 1 << 2;

/// The unit is stopped, and the interrupt of its last sample may still come.
const LATE: u8 = 1 << 3;

/// The last sample was reported, but its valid bit could not be cleared: the unit waits.
const WAITING: u8 = 1 << 4;

/// An interrupt could not read the unit's control register, or a task could not enable the unit again. If the unit has
/// a sample, the sample's interrupt may be over.
const UNREAD: u8 = 1 << 5;

/// Bits of `wanted`.
const USER: u8 = 1 << 0;
const KERNEL: u8 = 1 << 1;
const PHYSICAL: u8 = 1 << 2;

impl IbsMemory {
    /// Creates memory that no [`IbsSampler`](crate::ibs::IbsSampler) owns.
    pub const fn new() -> Self {
        Self {
            newest: [const { AtomicU64::new(0) }; 3],
            control: AtomicU64::new(0),
            control2: AtomicU32::new(0),
            latency: AtomicU32::new(0),
            dropped: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            state: AtomicU8::new(0),
            wanted: AtomicU8::new(0),
        }
    }

    /// Returns the number of samples that the driver has read but not reported. The number starts at 0 when a sampler
    /// [takes](crate::ibs::IbsSampler::take) this memory. The number wraps around after 2³² − 1. The driver drops:
    /// - samples of a privilege level that was not requested;
    /// - samples without a valid address, if only one privilege level was requested;
    /// - ops and fetches that passed the processor's latency filter, but whose latency is below the requested latency;
    /// - ops that passed the latency filter, but are not loads;
    /// - samples whose data is wrong because of an erratum.
    pub fn dropped(&self) -> u32 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns the number of samples that were lost because the driver could not read a register. The number starts at
    /// 0 when a sampler [takes](crate::ibs::IbsSampler::take) this memory. The number wraps around after 2³² − 1.
    pub fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Takes the memory for a sampler; `false` if a sampler has it.
    pub(crate) fn take(&self) -> bool {
        let free = self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
            (state & TAKEN == 0).then_some(state | TAKEN)
        });
        if free.is_ok() {
            self.dropped.store(0, Ordering::Relaxed);
            self.lost.store(0, Ordering::Relaxed);
        }
        free.is_ok()
    }

    /// Gives the memory back. A late interrupt stays expected.
    pub(crate) fn give_back(&self) {
        self.state.fetch_and(LATE, Ordering::Release);
    }

    /// Lets interrupts find the unit sampling with these values. Returns the state before.
    pub(crate) fn publish(&self, sampling: &IbsSampling, values: ControlValues) -> IbsState {
        let of = |bit: u8, set: bool| if set { bit } else { 0 };
        let wanted = of(USER, sampling.user())
            | of(KERNEL, sampling.kernel())
            | of(PHYSICAL, sampling.physical_addresses());
        self.wanted.store(wanted, Ordering::Relaxed);
        self.latency.store(u32::from(sampling.latency()), Ordering::Relaxed);
        self.control.store(values.control, Ordering::Relaxed);
        self.control2.store(values.control2, Ordering::Relaxed);
        self.publish_again()
    }

    /// Lets interrupts find the unit sampling with the values of before. Returns the state before.
    pub(crate) fn publish_again(&self) -> IbsState {
        self.change(|state| Some(state & !(STOPPING | WAITING | UNREAD) | SAMPLING))
    }

    /// Forgets the state of a unit whose registers lost their contents. Returns the state before.
    pub(crate) fn forget(&self) -> IbsState {
        self.change(|state| Some(state & TAKEN))
    }

    /// Ends sampling before the unit was enabled. `before` is the state before the sampling was published.
    pub(crate) fn withdraw(&self, before: IbsState) {
        let waiting = before.0 & WAITING;
        self.change(|state| Some(state & !(SAMPLING | WAITING | UNREAD) | waiting));
    }

    /// Begins to stop the unit. An interrupt from here on leaves the unit stopped.
    pub(crate) fn begin_stop(&self) {
        self.change(|state| (state & SAMPLING != 0).then_some(state & !SAMPLING | STOPPING));
    }

    /// Ends the stop. Returns whether an interrupt has served the unit since the stop began; otherwise, expects a late
    /// interrupt.
    pub(crate) fn end_stop(&self) -> bool {
        let change = |state: u8| {
            let late = if state & (STOPPING | WAITING) == STOPPING { LATE } else { 0 };
            Some(state & !(STOPPING | WAITING) | late)
        };
        let state = self.change(change);
        state.0 & WAITING != 0 || state.0 & STOPPING == 0
    }

    /// Notes that a sample was served: no late interrupt is expected any more. `cleared`: its valid bit was cleared.
    pub(crate) fn served(&self, cleared: bool) {
        let waiting = if cleared { 0 } else { WAITING };
        self.change(|state| Some(state & !(LATE | STOPPING | WAITING | UNREAD) | waiting));
    }

    /// Notes that a stop failed. If an interrupt has served the unit meanwhile, the failed stop may have written the
    /// valid bit back.
    pub(crate) fn fail_stop(&self) {
        self.change(|state| (state & STOPPING == 0).then_some(state | WAITING));
    }

    /// Notes that the valid bit of a reported sample could not be cleared.
    pub(crate) fn note_waiting(&self) {
        self.state.fetch_or(WAITING, Ordering::Relaxed);
    }

    /// Lets a task report the sample whose interrupt is late; `false` if its interrupt has come.
    pub(crate) fn begin_report(&self) -> bool {
        self.change(|state| (state & LATE != 0).then_some(state | WAITING)).is_late()
    }

    /// Ends the report of a task, whose sample was cleared. The interrupt may still come.
    pub(crate) fn end_report(&self) {
        self.state.fetch_and(!WAITING, Ordering::Relaxed);
    }

    /// Expects a late interrupt.
    pub(crate) fn expect_late(&self) {
        self.state.fetch_or(LATE, Ordering::Relaxed);
    }

    /// Returns whether a late interrupt was expected, and expects none any more. An interrupt while the unit is being
    /// stopped is a late one.
    pub(crate) fn take_late(&self) -> bool {
        self.change(|state| Some(state & !(LATE | STOPPING | UNREAD))).0 & (LATE | STOPPING) != 0
    }

    /// Returns whether a late interrupt was expected, and expects none any more, although the unit was not served. So a
    /// task that stops the unit still finds the sample unserved.
    pub(crate) fn take_late_unserved(&self) -> bool {
        self.state.fetch_and(!LATE, Ordering::AcqRel) & (LATE | STOPPING) != 0
    }

    /// Lets interrupts serve a unit that could neither be stopped nor enabled again. `before` is the state before the
    /// sampling was published.
    pub(crate) fn presume_running(&self, before: IbsState) {
        self.state.fetch_or(SAMPLING | UNREAD | before.0 & WAITING, Ordering::Relaxed);
    }

    /// Notes that an interrupt could not read the unit's control register.
    pub(crate) fn note_unread(&self) {
        self.state.fetch_or(UNREAD, Ordering::Relaxed);
    }

    /// Returns the state of the unit.
    pub(crate) fn state(&self) -> IbsState {
        IbsState(self.state.load(Ordering::Acquire))
    }

    /// Changes the state, unless `change` returns `None`. Returns the state before.
    fn change(&self, change: impl FnMut(u8) -> Option<u8>) -> IbsState {
        // The other side interrupts this one, so the loop ends after as many turns as there are interrupts.
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        IbsState(before.unwrap_or_else(|state| state))
    }

    pub(crate) fn values(&self) -> ControlValues {
        ControlValues {
            control: self.control.load(Ordering::Relaxed),
            control2: self.control2.load(Ordering::Relaxed),
        }
    }

    /// Returns whether samples have physical addresses.
    pub(crate) fn wants_physical(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) & PHYSICAL != 0
    }

    /// Returns whether a sample at this address is asked for. Without an address, nothing tells the privilege level.
    pub(crate) fn wants(&self, address: Option<u64>) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let needed = match address {
            None => USER | KERNEL,
            Some(address) if address >> 63 != 0 => KERNEL,
            Some(_) => USER,
        };
        wanted & needed == needed
    }

    /// Returns the latency that a sampled load or fetch exceeds, or 0.
    pub(crate) fn latency(&self) -> u32 {
        self.latency.load(Ordering::Relaxed)
    }

    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Remembers the registers of the newest sample, and returns whether they differ from those of the sample before.
    pub(crate) fn remember(&self, registers: [u64; 3]) -> bool {
        let mut differs = false;
        for (kept, value) in self.newest.iter().zip(registers) {
            differs |= kept.swap(value, Ordering::Relaxed) != value;
        }
        differs
    }
}

/// State of a unit, as its task and its interrupt know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IbsState(u8);

impl IbsState {
    /// The unit samples, or waits to be enabled again.
    pub(crate) const fn is_sampling(self) -> bool {
        self.0 & SAMPLING != 0
    }

    /// A task stops the unit, and no interrupt has served it since.
    pub(crate) const fn is_stopping(self) -> bool {
        self.0 & STOPPING != 0
    }

    /// A late interrupt is expected.
    pub(crate) const fn is_late(self) -> bool {
        self.0 & LATE != 0
    }

    /// The sample in the unit's registers was reported already.
    pub(crate) const fn is_waiting(self) -> bool {
        self.0 & WAITING != 0
    }

    /// The unit may not run, and the interrupt of its sample may be over: registers did not answer.
    pub(crate) const fn is_unread(self) -> bool {
        self.0 & UNREAD != 0
    }

    /// An interrupt has to look at the unit.
    pub(crate) const fn is_watched(self) -> bool {
        self.0 & (SAMPLING | STOPPING | LATE) != 0
    }
}

impl Default for IbsMemory {
    fn default() -> Self {
        Self::new()
    }
}

const _: () = assert!(size_of::<IbsMemory>() == 56);
