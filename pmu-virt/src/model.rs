//! The virtual processor's PMU: its registers, and which counters run.

use crate::feed::FeedSlot;
use crate::layout::{Counters, Layout, from_global, to_global};
use crate::{
    AllowAll, Configuration, ConfigurationError, EventKey, EventPolicy, FedEvents, Mode, Read,
    Vendor, Written, amd, intel,
};

/// How many counters of a kind there can be.
pub(crate) const MAX_PER_KIND: usize = 8;
/// How many counters there can be: general, then fixed.
pub(crate) const MAX_COUNTERS: usize = 2 * MAX_PER_KIND;

/// The PMU of one virtual processor.
///
/// The embedder asks it for an answer to the guest's RDMSR, WRMSR and RDPMC, tells it what happened
/// ([`advance`](Self::advance)), and delivers its interrupt. Nothing here allocates, panics or loops
/// longer than the number of counters, whatever the guest does.
#[derive(Clone, Debug)]
pub struct VirtualPmu<P = AllowAll> {
    pub(crate) configuration: Configuration,
    pub(crate) policy: P,
    pub(crate) model: Model,
}

// One virtual processor is to fit in 1 KiB.
const _: () = assert!(size_of::<VirtualPmu>() < 1024);

/// The registers, and what is derived from them so that nothing is searched while events pass.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) layout: Layout,
    pub(crate) selects: [u64; MAX_PER_KIND],
    /// The general counters, and the fixed ones.
    pub(crate) values: [[u64; MAX_PER_KIND]; 2],
    pub(crate) fixed_control: u64,
    pub(crate) global_control: u64,
    pub(crate) global_status: u64,
    pub(crate) debug_control: u64,
    /// An interrupt was raised and is not delivered yet.
    pub(crate) pmi_pending: bool,
    events: FedEvents,

    /// The counters whose event the policy allows.
    allowed: Counters,
    /// The counters that their own control lets count.
    pub(crate) enabled: Counters,
    /// The counters that interrupt when they overflow.
    pub(crate) interrupting: Counters,
    /// What each counter draws from a feed, while it runs.
    pub(crate) cells: [[FeedSlot; MAX_PER_KIND]; 2],
    /// A byte a fixed counter: its event's first cell, without and with AnyThread; 0xFF in the mask
    /// if it is fed.
    fixed_cells: [ByteOfEach; 2],
    fixed_fed: [ByteOfEach; 2],
}

/// Eight bytes, one for each fixed counter.
type ByteOfEach = u64;

/// A counter that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RunningEvent {
    /// The counter's bit in the global registers: general from 0, fixed from 32.
    pub counter: u8,
    /// What it counts.
    pub key: EventKey,
    /// It counts at CPL 1–3.
    pub user: bool,
    /// It counts at CPL 0.
    pub kernel: bool,
    /// The embedder feeds the event; if not, the counter stands still.
    pub fed: bool,
}

impl VirtualPmu {
    /// A PMU after reset, which the embedder can feed with `events`.
    ///
    /// # Errors
    /// There is no such PMU.
    pub fn new(
        configuration: Configuration,
        events: FedEvents,
    ) -> Result<Self, ConfigurationError> {
        Self::with_policy(configuration, events, AllowAll)
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// The same, with events that the guest may not count.
    ///
    /// # Errors
    /// There is no such PMU.
    pub fn with_policy(
        configuration: Configuration,
        events: FedEvents,
        policy: P,
    ) -> Result<Self, ConfigurationError> {
        configuration.check()?;
        let model = Model::new(Layout::of(&configuration), events);
        let mut pmu = Self { configuration, policy, model };
        pmu.reset();
        Ok(pmu)
    }

    /// What the guest sees.
    pub fn configuration(&self) -> Configuration {
        self.configuration
    }

    /// Whose rules it follows.
    pub fn vendor(&self) -> Vendor {
        self.configuration.vendor()
    }

    /// RESET and power-up: every register 0, but the global control register, which enables all
    /// general counters (SDM vol. 3A, table "Processor States Following Power-up, Reset, or INIT";
    /// for AMD as KVM does).
    pub fn reset(&mut self) {
        let layout = self.model.layout;
        self.model = Model::new(layout, self.model.events);
        self.model.global_control = layout.global & to_global(0xFF);
        self.model.derive(&self.policy);
    }

    /// INIT leaves the PMU's registers as they are (the SDM's same table). It masks the local APIC's
    /// entry, so an interrupt that was not delivered yet is lost.
    pub fn init(&mut self) {
        self.model.pmi_pending = false;
    }

    /// Another policy, for the counters that run as well.
    pub fn set_policy(&mut self, policy: P) {
        self.policy = policy;
        self.model.derive(&self.policy);
    }

    /// RDMSR at CPL 0.
    #[inline]
    pub fn read(&self, address: u32) -> Read {
        match &self.configuration {
            Configuration::Intel(configuration) => intel::read(&self.model, configuration, address),
            Configuration::Amd(configuration) => amd::read(&self.model, *configuration, address),
            Configuration::Hidden(Vendor::Intel) => intel::read_hidden(address),
            Configuration::Hidden(Vendor::Amd) => amd::read_hidden(address),
        }
    }

    /// WRMSR at CPL 0.
    #[inline]
    pub fn write(&mut self, address: u32, value: u64) -> Written {
        let Self { configuration, policy, model } = self;
        match configuration {
            Configuration::Intel(configuration) => {
                intel::write(model, policy, configuration, address, value)
            }
            Configuration::Amd(configuration) => {
                amd::write(model, policy, *configuration, address, value)
            }
            Configuration::Hidden(Vendor::Intel) => intel::write_hidden(address, value),
            Configuration::Hidden(Vendor::Amd) => amd::write_hidden(address),
        }
    }

    /// RDPMC with `ecx` in this mode: a value or #GP.
    #[inline]
    pub fn read_pmc(&self, ecx: u32, mode: Mode) -> Read {
        if !mode.allows_rdpmc() {
            return Read::GeneralProtection;
        }
        match self.vendor() {
            // Without a PMU there is no counter to be found.
            Vendor::Intel => intel::read_pmc(&self.model, ecx, mode.is_privileged()),
            Vendor::Amd => amd::read_pmc(&self.model, ecx),
        }
    }

    /// The counters that run now, and whether the embedder feeds them.
    pub fn running(&self) -> impl Iterator<Item = RunningEvent> + '_ {
        let running = self.model.running();
        (0..MAX_COUNTERS)
            .filter(move |place| running >> place & 1 != 0)
            .map(|place| self.model.event(place))
    }

    /// The events that a running counter waits for in vain: a guest may call it broken, an embedder
    /// knows better.
    pub fn unfed(&self) -> impl Iterator<Item = RunningEvent> + '_ {
        self.running().filter(|event| !event.fed)
    }
}

impl Model {
    fn new(layout: Layout, events: FedEvents) -> Self {
        Self {
            layout,
            selects: [0; MAX_PER_KIND],
            values: [[0; MAX_PER_KIND]; 2],
            fixed_control: 0,
            global_control: 0,
            global_status: 0,
            debug_control: 0,
            pmi_pending: false,
            events,
            allowed: 0,
            enabled: 0,
            interrupting: 0,
            cells: [[FeedSlot::EMPTY; MAX_PER_KIND]; 2],
            fixed_cells: [0; 2],
            fixed_fed: [0; 2],
        }
    }

    /// Everything that follows from the registers and the policy.
    pub(crate) fn derive<P: EventPolicy>(&mut self, policy: &P) {
        self.allowed = 0;
        (self.fixed_cells, self.fixed_fed) = ([0; 2], [0; 2]);
        for counter in 0..MAX_PER_KIND as u8 {
            self.allowed |= Counters::from(policy.allows_fixed(counter)) << MAX_PER_KIND << counter;
            let key = EventKey::fixed(counter);
            for (thread, key) in [key, key.any_thread()].into_iter().enumerate() {
                if let Some(event) = self.events.find(key) {
                    let cell = ByteOfEach::from(FeedSlot::new(event, false, false).0);
                    self.fixed_cells[thread] |= cell << (8 * counter);
                    self.fixed_fed[thread] |= 0xFF << (8 * counter);
                }
            }
            self.derive_general(policy, counter.into());
        }
        self.set_fixed_control(self.fixed_control);
    }

    /// The same for one general counter.
    #[inline]
    fn derive_general<P: EventPolicy>(&mut self, policy: &P, counter: usize) {
        let counter = counter % MAX_PER_KIND;
        let select = self.selects[counter];
        // Both vendors: 16 USR, 17 OS, 20 INT, 22 EN.
        let (user, kernel) = (select >> 16 & 1 != 0, select >> 17 & 1 != 0);
        let (interrupt, enable) = (select >> 20 & 1 != 0, select >> 22 & 1 != 0);
        let bit = 1 << counter;
        self.enabled &= !bit;
        self.interrupting &= !bit;
        if interrupt {
            self.interrupting |= bit;
        }
        if enable && (user || kernel) {
            let key = EventKey::of_select(select);
            self.enabled |= bit;
            self.allowed &= !bit;
            if policy.allows_general(key.event(), key.unit_mask())
                && (key.unit_mask_2() == 0
                    || policy.allows_unit_mask_2(key.event(), key.unit_mask(), key.unit_mask_2()))
            {
                self.allowed |= bit;
            }
            self.cells[0][counter] = match self.events.find(key) {
                Some(event) => FeedSlot::new(event, user, kernel),
                None => FeedSlot::EMPTY,
            };
        }
    }

    /// Writes a checked value to `IA32_FIXED_CTR_CTRL`. SDM vol. 3B: a nibble a counter; bit 0 OS,
    /// bit 1 USR, bit 2 AnyThread, bit 3 PMI. Bits 63:32 do not say what counts. All counters at once, for there are no instructions to
    /// waste.
    #[inline]
    pub(crate) fn set_fixed_control(&mut self, value: u64) {
        self.fixed_control = value;
        let nibbles = bytes_of(value as u32);
        let enabled = Counters::from(bits_of(nibbles | nibbles >> 1));
        let interrupting = Counters::from(bits_of(nibbles >> 3));
        self.enabled = self.enabled & 0xFF | enabled << MAX_PER_KIND;
        self.interrupting = self.interrupting & 0xFF | interrupting << MAX_PER_KIND;

        let (mut cells, mut fed) = (self.fixed_cells[0], self.fixed_fed[0]);
        if nibbles & (0x04 * EACH) != 0 {
            let any_thread = (nibbles >> 2 & EACH) * 0xFF;
            cells = cells & !any_thread | self.fixed_cells[1] & any_thread;
            fed = fed & !any_thread | self.fixed_fed[1] & any_thread;
        }
        // The cells' order is user, kernel; the register's is kernel, user.
        let privileges = nibbles >> 1 & EACH | (nibbles & EACH) << 1;
        self.cells[1] = ((cells | privileges) & fed).to_le_bytes().map(FeedSlot);
    }

    /// The counters that count: allowed, enabled by their own control and, where there is one, by the
    /// global one (SDM vol. 3B, "IA32_PERF_GLOBAL_CTRL"; APM vol. 2, "PerfCntrGlobalCtl"), and not frozen.
    #[inline]
    pub(crate) fn running(&self) -> Counters {
        let enabled = self.enabled & self.allowed;
        if self.layout.global == 0 {
            enabled
        } else if intel::is_frozen(self) {
            0
        } else {
            enabled & from_global(self.global_control)
        }
    }

    /// The counter's value; `None` if there is none.
    #[inline]
    pub(crate) fn counter(&self, place: u32) -> Option<u64> {
        let place = place as usize;
        (place < MAX_COUNTERS && self.layout.has(place))
            .then(|| self.values[place / MAX_PER_KIND % 2][place % MAX_PER_KIND])
    }

    /// Sets a counter that exists to a value that it can hold.
    #[inline]
    pub(crate) fn set_counter(&mut self, place: u32, value: u64) -> bool {
        let place = place as usize;
        let exists = place < MAX_COUNTERS && self.layout.has(place);
        if exists {
            self.values[place / MAX_PER_KIND % 2][place % MAX_PER_KIND] = value;
        }
        exists
    }

    /// A general counter's event select.
    #[inline]
    pub(crate) fn select(&self, counter: u32) -> Option<u64> {
        let counter = counter as usize;
        (counter < MAX_PER_KIND && self.layout.has(counter))
            .then(|| self.selects[counter % MAX_PER_KIND])
    }

    /// Sets the event select of a counter that exists to a checked value.
    #[inline]
    pub(crate) fn set_select<P: EventPolicy>(
        &mut self,
        policy: &P,
        counter: u32,
        value: u64,
    ) -> bool {
        let counter = counter as usize;
        let exists = counter < MAX_PER_KIND && self.layout.has(counter);
        if exists {
            self.selects[counter % MAX_PER_KIND] = value;
            self.derive_general(policy, counter);
        }
        exists
    }

    fn event(&self, place: usize) -> RunningEvent {
        let (key, user, kernel) = if place < MAX_PER_KIND {
            let select = self.selects[place % MAX_PER_KIND];
            (EventKey::of_select(select), select >> 16 & 1 != 0, select >> 17 & 1 != 0)
        } else {
            let counter = place % MAX_PER_KIND;
            let nibble = self.fixed_control >> (4 * counter);
            let key = EventKey::fixed(counter as u8);
            let key = if nibble & 0b0100 != 0 { key.any_thread() } else { key };
            (key, nibble & 0b0010 != 0, nibble & 0b0001 != 0)
        };
        let counter = to_global(1 << (place % MAX_COUNTERS)).trailing_zeros() as u8;
        RunningEvent { counter, key, user, kernel, fed: self.events.find(key).is_some() }
    }
}

/// 1 in each byte.
pub(crate) const EACH: ByteOfEach = 0x0101_0101_0101_0101;

/// Spreads eight nibbles over eight bytes.
#[inline]
const fn bytes_of(nibbles: u32) -> ByteOfEach {
    let nibbles = nibbles as u64;
    let mut bytes = (nibbles | nibbles << 16) & 0x0000_FFFF_0000_FFFF;
    bytes = (bytes | bytes << 8) & 0x00FF_00FF_00FF_00FF;
    (bytes | bytes << 4) & 0x0F0F_0F0F_0F0F_0F0F
}

/// The lowest bit of each byte. The factor moves the bit of byte *n* from place 8*n* to 56 + *n*; no
/// two others meet.
#[inline]
pub(crate) const fn bits_of(bytes: ByteOfEach) -> u8 {
    ((bytes & EACH).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}
