//! The registers of one virtual processor, and the effects of these registers: the running counters, the counters'
//! events, and the changes that a feed makes to the counters. The code is the same for all vendors.
//!
//! Uses [`registers`](crate::registers), [`events`](crate::events) and [`policy`](crate::policy).

use crate::events::feed::{CELLS, EVENTS, FedEvent, FedEvents, Feed, FeedSlot};
use crate::events::key::{EventKey, Privilege, SelectKey};
use crate::policy::EventPolicy;
use crate::registers::layout::{Freeze, Layout};
use crate::registers::table::{
    Counters, Family, MAX_COUNTERS, MAX_PER_KIND, from_global, places, to_global,
};

/// The registers, and the state derived from them, so that feeding events needs no search.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) layout: Layout,
    pub(crate) registers: RegisterFile,
    /// An interrupt was raised and is not delivered yet.
    pub(crate) pmi_pending: bool,
    pub(crate) events: FedEvents,

    /// Counters that the policy does not forbid as a whole: all general counters, and some fixed ones.
    allowed: Counters,
    /// Counters that their own control enables: the general ones whose event the policy allows, and the fixed ones.
    enabled: [u8; 2],
    /// The counters that interrupt when they overflow: the general ones, and the fixed ones.
    interrupting: [u8; 2],
    /// The counters whose overflows are a facility's to record: they set no bit of the status, and do not interrupt.
    pub(crate) recorded: Counters,
    /// The cell of a feed that each counter draws from while it runs.
    pub(crate) cells: [FeedSlot; MAX_COUNTERS],
    /// One byte per fixed counter: the cell of the counter's event at every privilege, 0 if the event is not fed; and
    /// the bits in which the cell differs with AnyThread.
    fixed_cells: [ByteOfEach; 2],
    /// Cached budget until the next interrupt, valid unless stale.
    pub(crate) budget: OverflowBudget,
    pub(crate) budget_is_stale: bool,
}

/// Eight bytes, one for each fixed counter.
type ByteOfEach = u64;

impl Model {
    /// Creates the model after reset.
    pub(crate) fn new<P: EventPolicy>(layout: Layout, events: FedEvents, policy: &P) -> Self {
        let mut registers = RegisterFile::ZERO;
        // SDM vol. 3A, processor states after power-up: the bits of the general counters are set, those of the fixed
        // ones clear.
        *registers.of_mut(Family::GlobalControl) = layout.global() & to_global(0xFF);
        *registers.of_mut(Family::MiscEnable) = layout.misc_enable;
        *registers.of_mut(Family::Capabilities) = layout.capabilities;
        let mut model = Self {
            layout,
            registers,
            pmi_pending: false,
            events,
            allowed: 0,
            enabled: [0; 2],
            interrupting: [0; 2],
            recorded: 0,
            cells: [FeedSlot::EMPTY; MAX_COUNTERS],
            fixed_cells: [0; 2],
            budget: OverflowBudget::none(&events),
            budget_is_stale: true,
        };
        model.derive(policy);
        model
    }

    /// Derives all state from the registers and the policy.
    pub(crate) fn derive<P: EventPolicy>(&mut self, policy: &P) {
        self.allowed = 0xFF;
        self.fixed_cells = [0; 2];
        for counter in 0..MAX_PER_KIND {
            let allowed = policy.allows_fixed(counter as u8);
            self.allowed |= Counters::from(allowed) << MAX_PER_KIND << counter;
            let key = EventKey::of_fixed(counter);
            for (thread, key) in [key, key.any_thread()].into_iter().enumerate() {
                if let Some(cell) = self.events.cell(key.in_select()) {
                    let cell = cell.with(FeedSlot::PRIVILEGES);
                    self.fixed_cells[thread] |= ByteOfEach::from(cell.0) << (8 * counter);
                }
            }
            self.derive_general(policy, counter, self.registers.select(counter));
        }
        // Kept as the difference, by which `derive_fixed` selects per counter without a branch.
        self.fixed_cells[1] ^= self.fixed_cells[0];
        self.derive_fixed();
    }

    /// Updates the state that follows from one event select.
    #[inline]
    pub(crate) fn derive_general<P: EventPolicy>(
        &mut self,
        policy: &P,
        counter: usize,
        select: u64,
    ) {
        let counter = counter % MAX_PER_KIND;
        // The vendors agree on these bits, so the model need not know the vendor: 16 USR, 17 OS, 20 INT, 22 EN.
        let privileges = (select >> 16 & 3) as u8;
        let (interrupt, enable) = ((select >> 20 & 1) as u8, select >> 22 & 1 != 0);
        let bit = 1 << counter;
        self.budget_is_stale = true;
        // Also of a counter that is disabled: PMI_InUse of `IA32_PERF_GLOBAL_INUSE` tells of it, too.
        let [interrupting, _] = &mut self.interrupting;
        *interrupting ^= (*interrupting ^ interrupt.wrapping_neg()) & bit;
        let others = self.enabled[0] & !bit;
        self.enabled[0] = others;
        // The cell of a disabled counter stays as it is: only running counters draw from theirs.
        if enable && privileges != 0 {
            if self.allows(policy, select) {
                self.enabled[0] = others | bit;
            }
            self.cells[counter] = match self.events.cell(SelectKey::of(select)) {
                Some(cell) => cell.with(privileges),
                None => FeedSlot::EMPTY,
            };
        }
    }

    /// Returns whether the policy allows the event of a select, with its qualifiers.
    #[inline]
    fn allows<P: EventPolicy>(&self, policy: &P, select: u64) -> bool {
        // A policy that denies an event denies it with each qualifier: KVM's entries have no field for them.
        let key = SelectKey::of(select & !self.layout.qualifiers).unqualified();
        let (event, unit_mask, high) = (key.event(), key.unit_mask(), key.unit_mask_2());
        policy.allows_general(event, unit_mask)
            && (high == 0 || policy.allows_unit_mask_2(event, unit_mask, high))
    }

    /// Updates the state that follows from `IA32_FIXED_CTR_CTRL`. SDM vol. 3B: four bits per counter; bit 0 OS, bit 1
    /// USR, bit 2 AnyThread, bit 3 PMI. Bits 63:32 do not affect counting. All counters are computed at once, for
    /// speed.
    #[inline]
    pub(crate) fn derive_fixed(&mut self) {
        let nibbles = bytes_of(self.registers.of(Family::FixedControl) as u32);
        self.enabled[1] = bits_of(nibbles | nibbles >> 1);
        self.interrupting[1] = bits_of(nibbles >> 3);
        self.budget_is_stale = true;

        let any_thread = (nibbles >> 2 & EACH) * 0xFF;
        let cells = self.fixed_cells[0] ^ self.fixed_cells[1] & any_thread;
        // The cells' order is user, kernel; the register's is kernel, user.
        let privileges = nibbles >> 1 & EACH | (nibbles & EACH) << 1;
        let event = !(EACH * FeedSlot::PRIVILEGES as ByteOfEach);
        let cells = (cells & (privileges | event)).to_le_bytes().map(FeedSlot);
        if let Some(fixed) = self.cells.last_chunk_mut() {
            *fixed = cells;
        }
    }

    /// Returns the counters that count. The policy allows them, their own control and the global one enable them, and
    /// they are not frozen. Some processors have no global control. SDM vol. 3B, "IA32_PERF_GLOBAL_CTRL"; APM vol. 2,
    /// "PerfCntrGlobalCtl".
    #[inline]
    pub(crate) fn running(&self) -> Counters {
        let enabled = self.enabled();
        if self.layout.global() == 0 {
            enabled
        } else if self.registers.of(Family::GlobalStatus) & Layout::FROZEN != 0 {
            0
        } else {
            enabled & from_global(self.registers.of(Family::GlobalControl))
        }
    }

    /// Returns the counters that their own control enables, and that the policy allows.
    #[inline]
    pub(crate) fn enabled(&self) -> Counters {
        Counters::from_le_bytes(self.enabled) & self.allowed
    }

    /// Returns the counters that interrupt when they overflow.
    #[inline]
    pub(crate) fn interrupting(&self) -> Counters {
        Counters::from_le_bytes(self.interrupting)
    }

    /// Returns the running counters that a facility records, and that interrupt, too: the mistake of a driver.
    #[cfg(feature = "mock")]
    pub(crate) fn both(&self) -> Counters {
        self.running() & self.interrupting() & self.recorded
    }

    /// Returns the counters at whose overflow a feed stops.
    #[inline]
    pub(crate) fn stopping(&self) -> Counters {
        self.interrupting() | self.recorded
    }

    /// Returns `IA32_PERF_GLOBAL_INUSE`, which has a bit for each select with an event other than 0, for each fixed
    /// counter that is enabled, and for any enabled interrupt. SDM vol. 3B, "IA32_PERF_GLOBAL_INUSE MSR".
    pub(crate) fn in_use(&self) -> u64 {
        let events = self.registers.0.first_chunk::<MAX_PER_KIND>();
        let events = events
            .map_or(0, |selects| ByteOfEach::from_le_bytes(selects.map(|select| select as u8)));
        // A byte that is not 0 has its highest bit, or gets it by a carry from the lower seven. No carry leaves a byte,
        // so all selects are examined at once.
        let low = !(EACH << 7);
        let general = u64::from(bits_of((((events & low) + low) | events) >> 7));
        general | u64::from(self.enabled[1]) << 32 | u64::from(self.interrupting() != 0) << 63
    }

    /// Adds the whole feed to one counter, unless the counter would overflow. Returns whether it would.
    #[inline]
    pub(crate) fn overflows_in(&mut self, feed: &Feed, counter: usize, greatest: u64) -> bool {
        let value = self.registers.counter_mut(counter);
        // A counter of 64 bits leaves no room for a sum above its greatest value: only the carry tells.
        let (sum, carry) = value.overflowing_add(feed.at(self.cells[counter % MAX_COUNTERS]));
        let overflows = carry || sum > greatest;
        if !overflows {
            *value = sum;
        }
        overflows
    }

    /// Counts a feed in which a counter overflows. `counted` are the counters to which the whole feed was added
    /// already.
    #[cold]
    pub(crate) fn overflow(
        &mut self,
        feed: &mut Feed,
        running: Counters,
        counted: Counters,
    ) -> Advanced {
        // The earliest overflow that interrupts or is recorded: missing/count is its time within the span.
        let mut first: Option<(u64, u64, FeedSlot)> = None;
        for counter in places(running) {
            let cell = self.cells[counter];
            let count = feed.at(cell);
            let value = self.registers.counter_mut(counter);
            if counted >> counter & 1 != 0 {
                *value = value.wrapping_sub(count);
            }
            let room = self.layout.mask(counter) - *value;
            if self.stopping() >> counter & 1 == 0 || count <= room {
                continue;
            }
            let missing = room.saturating_add(1);
            // Fractions are compared by cross-multiplication, which is exact.
            let sooner = first.is_none_or(|(part, whole, _)| {
                u128::from(missing) * u128::from(whole) < u128::from(part) * u128::from(count)
            });
            if sooner {
                first = Some((missing, count, cell));
            }
        }
        let passed = match first {
            Some((part, whole, cell)) => feed.take(part, whole, cell),
            None => feed.take_all(),
        };
        self.count(&passed, running)
    }

    /// Adds the whole feed to every running counter, raises the interrupt if one is due, and returns the wraps of each
    /// counter.
    pub(crate) fn count(&mut self, feed: &Feed, running: Counters) -> Advanced {
        let mut advanced = Advanced::NOTHING;
        let mut overflowed = 0;
        for counter in places(running) {
            let mask = self.layout.mask(counter);
            let value = self.registers.counter_mut(counter);
            let sum = u128::from(*value) + u128::from(feed.at(self.cells[counter]));
            *value = sum as u64 & mask;
            // A feed is below 2⁶³ and a counter has 32 bits or more.
            let wraps = (sum >> mask.count_ones()) as u32;
            if wraps != 0 {
                advanced.wraps[counter] = wraps;
                overflowed |= 1 << counter;
            }
        }
        advanced.overflowed = to_global(overflowed);
        advanced.records = to_global(overflowed & self.recorded);
        advanced.pmi = self.raise(overflowed & !self.recorded);
        advanced
    }

    /// Sets the status bits of counters that overflowed, and raises an interrupt if one of these counters asks for it.
    /// Returns whether it raised one.
    pub(crate) fn raise(&mut self, overflowed: Counters) -> bool {
        // Version 1 and AMD's older counters have no status.
        if self.layout.global() != 0 {
            *self.registers.of_mut(Family::GlobalStatus) |= to_global(overflowed);
        }
        let pmi = overflowed & self.interrupting() != 0;
        if pmi {
            self.interrupt();
        }
        pmi
    }

    /// Raises the interrupt, which freezes the counters if the guest has asked for it.
    pub(crate) fn interrupt(&mut self) {
        self.pmi_pending = true;
        self.freeze();
    }

    /// Loads a counter as the processor does after a record.
    pub(crate) fn load(&mut self, counter: usize, value: u64) {
        *self.registers.counter_mut(counter) = value & self.layout.mask(counter);
        self.budget_is_stale = true;
    }

    fn freeze(&mut self) {
        if self.registers.of(Family::DebugControl) & Layout::FREEZE_ON_INTERRUPT == 0 {
            return;
        }
        match self.layout.freeze {
            Freeze::Never => {}
            // Legacy freezing (SDM vol. 3B, "Freezing LBR and Performance Counters on PMI"): software restores the
            // register.
            Freeze::ClearsControl => *self.registers.of_mut(Family::GlobalControl) = 0,
            Freeze::SetsStatus => {
                *self.registers.of_mut(Family::GlobalStatus) |= Layout::FROZEN;
            }
        }
    }

    /// Makes every running counter that interrupts or is recorded overflow, for the mock.
    #[cfg(feature = "mock")]
    pub(crate) fn overflow_all(&mut self) -> Advanced {
        let overflowing = self.running() & self.stopping();
        for counter in places(overflowing) {
            *self.registers.counter_mut(counter) = 0;
        }
        self.budget_is_stale = true;
        Advanced {
            overflowed: to_global(overflowing),
            records: to_global(overflowing & self.recorded),
            pmi: self.raise(overflowing & !self.recorded),
            ..Advanced::NOTHING
        }
    }

    // Not inlined: most calls of `next_overflow` find the budget fresh.
    #[inline(never)] // 2 of the 19 instructions of such a call.
    pub(crate) fn refresh_budget(&mut self) {
        let mut budget = OverflowBudget::none(&self.events);
        let mut left = self.running() & self.stopping();
        while left != 0 {
            let counter = left.trailing_zeros() as usize % MAX_COUNTERS;
            left &= left - 1;
            let room = self.layout.mask(counter) - self.registers.counter(counter);
            budget.limit(self.cells[counter], room);
        }
        self.budget = budget;
        self.budget_is_stale = false;
    }
}

/// 1 in each byte.
const EACH: ByteOfEach = 0x0101_0101_0101_0101;

/// Spreads eight nibbles over eight bytes.
#[inline]
const fn bytes_of(nibbles: u32) -> ByteOfEach {
    let nibbles = nibbles as u64;
    let mut bytes = (nibbles | nibbles << 16) & 0x0000_FFFF_0000_FFFF;
    bytes = (bytes | bytes << 8) & 0x00FF_00FF_00FF_00FF;
    (bytes | bytes << 4) & 0x0F0F_0F0F_0F0F_0F0F
}

/// Returns the lowest bit of each byte. The factor moves the bit of byte *n* from place 8*n* to 56 + *n*; no other two
/// bits meet.
#[inline]
const fn bits_of(bytes: ByteOfEach) -> u8 {
    // One multiplication gathers the lowest bits of all bytes in the highest byte.
    ((bytes & EACH).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// Values of the registers. The place of a register is [`Family::first`] and the number within the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegisterFile([u64; Self::SIZE]);

impl RegisterFile {
    pub(crate) const SIZE: usize = 32;
    pub(crate) const ZERO: Self = Self([0; Self::SIZE]);

    #[inline]
    pub(crate) const fn get(&self, index: usize) -> u64 {
        self.0[index % Self::SIZE]
    }

    #[inline]
    pub(crate) const fn set(&mut self, index: usize, value: u64) {
        self.0[index % Self::SIZE] = value;
    }

    /// Returns the only register of a family.
    #[inline]
    pub(crate) const fn of(&self, family: Family) -> u64 {
        self.get(family.first())
    }

    /// Returns the only register of a family, for a change.
    #[inline]
    pub(crate) const fn of_mut(&mut self, family: Family) -> &mut u64 {
        &mut self.0[family.first() % Self::SIZE]
    }

    /// Returns the event select of a general counter.
    #[inline]
    pub(crate) const fn select(&self, counter: usize) -> u64 {
        self.get(Family::EventSelect.first() + counter % MAX_PER_KIND)
    }

    /// Returns the counter with this place, 0–15.
    #[inline]
    pub(crate) const fn counter(&self, counter: usize) -> u64 {
        self.get(Family::GeneralCounter.first() + counter % MAX_COUNTERS)
    }

    #[inline]
    pub(crate) const fn counter_mut(&mut self, counter: usize) -> &mut u64 {
        &mut self.0[Family::GeneralCounter.first() + counter % MAX_COUNTERS]
    }
}

/// Result of [`VirtualPmu::advance`](crate::VirtualPmu::advance): the counters that overflowed, and whether an overflow
/// raised an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Advanced {
    /// Bitmap of the counters that wrapped. The bits are those of the global status: general counters from bit 0, fixed
    /// counters from bit 32.
    pub overflowed: u64,
    /// An overflow raised an interrupt. The interrupt is pending until [`deliver_pmi`](crate::VirtualPmu::deliver_pmi)
    /// is called.
    pub pmi: bool,
    /// Bitmap of the overflowed counters that [write records](crate::precise::VirtualPrecise::record). The overflow of
    /// such a counter does not set a bit of the status, and does not interrupt.
    pub records: u64,
    wraps: [u32; MAX_COUNTERS],
}

impl Advanced {
    pub(crate) const NOTHING: Self =
        Self { overflowed: 0, pmi: false, records: 0, wraps: [0; MAX_COUNTERS] };

    /// Returns how many times one counter wrapped. `bit` is the position of the counter's bit in
    /// [`overflowed`](Self::overflowed).
    pub fn wraps(&self, bit: u8) -> u32 {
        let place = match bit {
            0..8 => bit,
            32..40 => bit - 24,
            _ => return 0,
        };
        self.wraps.get(usize::from(place)).copied().unwrap_or(0)
    }

    /// Returns the same, less the overflows of these counters, for the mock.
    #[cfg(feature = "mock")]
    pub(crate) fn without_overflows(mut self, counters: Counters) -> Self {
        self.overflowed &= !to_global(counters);
        places(counters).for_each(|counter| self.wraps[counter % MAX_COUNTERS] = 0);
        self
    }

    pub(crate) fn and(mut self, later: Self) -> Self {
        self.overflowed |= later.overflowed;
        self.pmi |= later.pmi;
        self.records |= later.records;
        for (wraps, later) in self.wraps.iter_mut().zip(later.wraps) {
            *wraps = wraps.saturating_add(later);
        }
        self
    }
}

/// Result of [`VirtualPmu::next_overflow`](crate::VirtualPmu::next_overflow): for each event, how many times the event
/// must happen to cause an interrupt. The embedder can use these numbers to set a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OverflowBudget {
    /// By event and privileges, as in a feed: count up to which no interrupt is due; `u64::MAX` for any count.
    cells: [[u64; CELLS - 1]; EVENTS],
    /// Identity of the events of the PMU.
    of: u32,
}

impl OverflowBudget {
    /// Creates a budget without limits.
    pub(crate) const fn none(events: &FedEvents) -> Self {
        Self { cells: [[u64::MAX; CELLS - 1]; EVENTS], of: events.identity() }
    }

    /// Returns how many times the event must happen at this privilege to cause an interrupt. The event must not happen
    /// at the other privilege in the meantime. Two results are special:
    ///
    /// - `None`: the event causes no interrupt, because no running counter with an enabled interrupt counts the event.
    ///   A 64-bit counter that holds 0 overflows after 2⁶⁴ events. This number does not fit a `u64`, so the result is
    ///   also `None`.
    /// - 0: the event is not in the [`FedEvents`] of the PMU, so [`Feed::add`](crate::Feed::add) refuses the event. For
    ///   an event of the PMU, the result is never 0.
    ///
    /// If the event happens at both privileges, call this method for each privilege, and use the smaller result. An
    /// interrupt then comes only after the event has happened at least this many times in total.
    #[inline]
    pub fn of(&self, event: FedEvent, privilege: Privilege) -> Option<u64> {
        if event.of() != self.of {
            return Some(0);
        }
        let user = privilege == Privilege::User;
        let alone = self.at(FeedSlot::of(event, user, !user));
        alone.min(self.at(FeedSlot::of(event, true, true))).checked_add(1)
    }

    #[inline]
    fn at(&self, cell: FeedSlot) -> u64 {
        let of_event = &self.cells[cell.event()];
        cell.counted().and_then(|counted| of_event.get(counted)).copied().unwrap_or(u64::MAX)
    }

    /// Lowers the limit of this cell to `room`, if the limit is higher.
    #[inline]
    pub(crate) fn limit(&mut self, cell: FeedSlot, room: u64) {
        let of_event = &mut self.cells[cell.event()];
        if let Some(least) = cell.counted().and_then(|counted| of_event.get_mut(counted)) {
            *least = room.min(*least);
        }
    }
}
