//! The registers, and each counter's event. Each write updates the assignment of events to counters, so that feeding
//! events needs no search.

use crate::events::fed::FedEvents;
use crate::events::key::{EventKey, SelectKey};
use crate::events::slot::FeedSlot;
use crate::model::budget::OverflowBudget;
use crate::model::register_file::RegisterFile;
use crate::policy::event_policy::EventPolicy;
use crate::registers::counters::{Counters, MAX_COUNTERS, MAX_PER_KIND, from_global, to_global};
use crate::registers::family::Family;
use crate::registers::layout::Layout;

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
        // Both vendors: 16 USR, 17 OS, 20 INT, 22 EN.
        let privileges = (select >> 16 & 3) as u8;
        let (interrupt, enable) = ((select >> 20 & 1) as u8, select >> 22 & 1 != 0);
        let bit = 1 << counter;
        self.budget_is_stale = true;
        let [interrupting, _] = &mut self.interrupting;
        *interrupting ^= (*interrupting ^ interrupt.wrapping_neg()) & bit;
        let others = self.enabled[0] & !bit;
        self.enabled[0] = others;
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
        // The highest bit of each byte that is not 0.
        let low = !(EACH << 7);
        let general = u64::from(bits_of((((events & low) + low) | events) >> 7));
        general | u64::from(self.enabled[1]) << 32 | u64::from(self.interrupting() != 0) << 63
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
    ((bytes & EACH).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}
