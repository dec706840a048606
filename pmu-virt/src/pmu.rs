//! The guest's accesses to its PMU, and the host's.

use crate::mediated::LoadNumber;
use crate::model::{MAX_COUNTERS, Model};
use crate::table::{Family, Located, MAX_PER_KIND, ReadAs, Row, WriteAs};
use crate::{
    AllowAll, Configuration, ConfigurationError, EventKey, EventPolicy, FedEvents, Mode, Read,
    Vendor, Write, Written, vendors,
};

/// The PMU of one virtual processor.
///
/// It answers the guest's RDMSR, WRMSR and RDPMC. The embedder feeds it events ([`advance`](Self::advance)), and
/// delivers its interrupt. No method allocates, panics, or loops more often than the number of counters, whatever the
/// guest does.
///
/// ```
/// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Read, VirtualPmu, Write};
/// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
/// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
/// // The guest programs IA32_PERFEVTSEL0; then something that is not the PMU's.
/// assert_eq!(pmu.write(0x186, 0x53_00C0).answer, Write::Done);
/// assert_eq!(pmu.read(0x186), Read::Value(0x53_00C0));
/// assert_eq!(pmu.read(0x10), Read::Unhandled);
/// # Ok::<(), pmu_virt::ConfigurationError>(())
/// ```
#[derive(Clone, Debug)]
pub struct VirtualPmu<P = AllowAll> {
    pub(crate) configuration: Configuration,
    pub(crate) policy: P,
    pub(crate) model: Model,
    /// The load onto real counters that it is in.
    pub(crate) load: LoadNumber,
}

// One virtual processor is to fit in 1 KiB.
const _: () = assert!(size_of::<VirtualPmu>() < 1024);

/// Target of an RDPMC.
pub(crate) enum Pmc {
    /// #GP.
    Absent,
    /// 0.
    Zero,
    /// The counter with this place.
    Counter(usize),
}

/// A counter that runs: see [`VirtualPmu::running`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct RunningEvent {
    /// The counter's bit in the global registers: general from 0, fixed from 32.
    pub counter: u8,
    /// The event.
    pub key: EventKey,
    /// It counts at CPL 1–3.
    pub user: bool,
    /// It counts at CPL 0.
    pub kernel: bool,
    /// The embedder feeds the event; otherwise the counter stands still.
    pub fed: bool,
}

impl VirtualPmu {
    /// Creates a PMU after reset, which the embedder can feed with `events`.
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
    /// Creates a PMU after reset, under a policy that forbids some events.
    ///
    /// # Errors
    /// There is no such PMU.
    ///
    /// ```
    /// use pmu_virt::{AmdConfiguration, Configuration, EventFilter, FedEvents, FilterAction};
    /// use pmu_virt::{FilterEntry, VirtualPmu};
    /// // AMD's retired instructions, and nothing else.
    /// let entries = [FilterEntry::new(0xC0, 0)];
    /// let filter = EventFilter::<1>::compile(FilterAction::Allow, 0, &entries).unwrap();
    /// let configuration = Configuration::Amd(AmdConfiguration::CORE_EXTENSION);
    /// let mut pmu = VirtualPmu::with_policy(configuration, FedEvents::NONE, filter)?;
    /// // Core cycles can be programmed, and do not count.
    /// let _ = pmu.write(0xC001_0200, 0x53_0076);
    /// assert_eq!(pmu.running().count(), 0);
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn with_policy(
        configuration: Configuration,
        events: FedEvents,
        policy: P,
    ) -> Result<Self, ConfigurationError> {
        configuration.check()?;
        let model = Model::new(vendors::layout(&configuration), events, &policy);
        Ok(Self { configuration, policy, model, load: LoadNumber::default() })
    }

    /// Returns the PMU that the guest sees.
    pub fn configuration(&self) -> Configuration {
        self.configuration
    }

    /// Returns the vendor whose architecture it follows.
    pub fn vendor(&self) -> Vendor {
        self.configuration.vendor()
    }

    /// Performs RESET or power-up: clears every register, except the global control register, which then enables all
    /// general counters (SDM vol. 3A, table "Processor States Following Power-up, Reset, or INIT"; for AMD as KVM
    /// does).
    pub fn reset(&mut self) {
        self.model = Model::new(self.model.layout, self.model.events, &self.policy);
        self.load.reset();
    }

    /// Performs INIT, which leaves the PMU's registers as they are (the SDM's same table). INIT masks the local
    /// APIC's entry, so a pending interrupt is lost.
    ///
    /// ```
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Read, VirtualPmu};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let _ = pmu.write(0x186, 0x53_00C0);
    /// pmu.set_pmi_pending(true);
    /// pmu.init();
    /// assert_eq!((pmu.read(0x186), pmu.pmi_pending()), (Read::Value(0x53_00C0), false));
    /// pmu.reset();
    /// assert_eq!(pmu.read(0x186), Read::Value(0));
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn init(&mut self) {
        self.model.pmi_pending = false;
    }

    /// Replaces the policy, also for running counters. The registers stay as they are.
    ///
    /// ```
    /// use pmu_virt::{Configuration, EventFilter, FedEvents, FilterAction, FilterEntry};
    /// use pmu_virt::{IntelConfiguration, VirtualPmu};
    /// let deny = |entries: &[FilterEntry]| {
    ///     EventFilter::<4>::compile(FilterAction::Deny, 0, entries).unwrap()
    /// };
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::with_policy(configuration, FedEvents::NONE, deny(&[]))?;
    /// let _ = pmu.write(0x186, 0x53_00C0);
    /// assert_eq!(pmu.running().count(), 1);
    /// pmu.set_policy(deny(&[FilterEntry::new(0xC0, 0)]));
    /// assert_eq!(pmu.running().count(), 0);
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn set_policy(&mut self, policy: P) {
        self.policy = policy;
        self.model.derive(&self.policy);
    }

    /// Executes RDMSR at CPL 0.
    #[inline]
    pub fn read(&self, address: u32) -> Read {
        let model = &self.model;
        let Some(located) = model.layout.table.find(address) else { return Read::Unhandled };
        let Located { row, index, .. } = located;
        if !model.layout.exists(&located) {
            return self.read_absent(row, address);
        }
        let value = match row.read {
            ReadAs::Held => model.registers.get(index),
            ReadAs::Zero => 0,
            ReadAs::InUse => model.in_use(),
        };
        match row.owned {
            u64::MAX => Read::Value(value),
            mask => Read::Shared { value, mask },
        }
    }

    /// Executes WRMSR at CPL 0.
    #[inline]
    pub fn write(&mut self, address: u32, value: u64) -> Written {
        let Some(located) = self.model.layout.table.find(address) else {
            return Written::UNHANDLED;
        };
        self.write_as(&located, located.row.write, address, value)
    }

    /// Returns the answer that [`write`](Self::write) would give, without writing. For a register that the embedder
    /// shares, this checks the PMU's part before either part is changed.
    ///
    /// ```
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, VirtualPmu, Write};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// // IA32_DEBUGCTL: BTS, which this PMU lacks, is #GP; single-stepping on branches is the embedder's.
    /// assert_eq!(pmu.check_write(0x1D9, 1 << 7).answer, Write::GeneralProtection);
    /// assert!(matches!(pmu.check_write(0x1D9, 1 << 1).answer, Write::Shared { .. }));
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn check_write(&self, address: u32, value: u64) -> Written {
        match self.model.layout.table.find(address) {
            None => Written::UNHANDLED,
            Some(located) if !self.model.layout.exists(&located) => {
                self.write_absent(located.row, address)
            }
            Some(Located { row, index, .. }) => self.judge(row, index, row.write, value).0,
        }
    }

    /// Writes a register as the host, to restore a virtual processor from a list of its registers. It differs from
    /// the guest's [`write`](Self::write) where that one cannot restore the value that [`read`](Self::read) returned:
    /// the status is stored as it is, counters take their full width at each address, and `IA32_PERF_CAPABILITIES`
    /// takes only the value that it has, which detects a different PMU.
    ///
    /// The registers to save, in an order in which they can be restored, are those of [`Configuration::registers`]
    /// that are [state](crate::RegisterInfo::is_state). An interrupt that is not delivered yet is in no register: see
    /// [`pmi_pending`](Self::pmi_pending) and [`set_pmi_pending`](Self::set_pmi_pending).
    ///
    /// ```
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Read, VirtualPmu, Write};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut old = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let _ = old.write(0x1D9, 1 << 12);
    /// let mut new = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// for register in configuration.registers().filter(|register| register.is_state) {
    ///     if let Read::Value(value) | Read::Shared { value, .. } = old.read(register.address) {
    ///         let written = new.host_write(register.address, value).answer;
    ///         assert!(matches!(written, Write::Done | Write::Shared { .. }));
    ///     }
    /// }
    /// assert_eq!(new.state(), old.state());
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn host_write(&mut self, address: u32, value: u64) -> Written {
        match self.model.layout.table.find(address) {
            Some(located) => self.write_as(&located, located.row.host_write, address, value),
            None => Written::UNHANDLED,
        }
    }

    #[inline(always)]
    fn write_as(&mut self, located: &Located, write: WriteAs, address: u32, value: u64) -> Written {
        let Located { row, index, .. } = *located;
        if !self.model.layout.exists(located) {
            return self.write_absent(row, address);
        }
        match row.family {
            // The registers that a guest writes most are always stored, and never shared.
            Family::EventSelect => {
                let written = self.store(row, index, value);
                if written.answer != Write::Done {
                    return self.write_select_of_its_own(row, index, value);
                }
                self.model.derive_general(&self.policy, index, value & !written.illegal);
                written
            }
            Family::FixedControl => {
                let written = self.store(row, index, value);
                if written.answer == Write::Done {
                    self.model.derive_fixed();
                }
                written
            }
            _ => self.write_other(row, index, write, value),
        }
    }

    /// Writes a register that does not affect which counters run.
    #[inline(never)]
    fn write_other(&mut self, row: &Row, index: usize, write: WriteAs, value: u64) -> Written {
        let (written, stored) = self.judge(row, index, write, value);
        if written.answer != Write::GeneralProtection {
            self.model.registers.set(index, stored);
            self.model.budget_is_stale = true;
        }
        written
    }

    /// Stores into a register that is not shared: the short form of [`judge`](Self::judge).
    #[inline(always)]
    fn store(&mut self, row: &Row, index: usize, value: u64) -> Written {
        let legal = self.model.layout.legal(row.family);
        let illegal = value & !legal;
        if illegal & row.faults != 0 {
            return Written { answer: Write::GeneralProtection, illegal };
        }
        self.model.registers.set(index, value & legal);
        Written { answer: Write::Done, illegal }
    }

    /// Writes an event select with bits that only some selects have.
    #[cold]
    #[inline(never)]
    fn write_select_of_its_own(&mut self, row: &Row, index: usize, value: u64) -> Written {
        let (written, stored) = self.judge(row, index, WriteAs::Stored, value);
        if written.answer == Write::Done {
            self.model.registers.set(index, stored);
            self.model.derive_general(&self.policy, index, stored);
        }
        written
    }

    /// Returns the answer to a write of an existing register, and its new value.
    #[inline(always)]
    fn judge(&self, row: &Row, index: usize, write: WriteAs, value: u64) -> (Written, u64) {
        let held = self.model.registers.get(index);
        let legal = self.model.layout.legal_of(row.family, index) | row.also_legal;
        let (illegal, stored) = match write {
            WriteAs::Stored => (value & !legal, value & legal),
            WriteAs::SignExtended => {
                let extended = i64::from(value as u32 as i32) as u64;
                let high = value >> 32;
                let plausible =
                    high == 0 || high == extended >> 32 || high == (extended & legal) >> 32;
                let illegal = if plausible { 0 } else { (value ^ extended) & !0xFFFF_FFFF };
                (illegal, extended & legal)
            }
            WriteAs::Cleared => (value & !legal, held & !value),
            WriteAs::Set => (value & !legal, held | value & legal),
            WriteAs::Kept => (value ^ held, held),
            WriteAs::Ignored => return (Written::IGNORED, held),
            WriteAs::Refused => return (Written::REFUSED, held),
        };
        let illegal = illegal & row.owned;
        let answer = match row.owned {
            _ if illegal & row.faults != 0 => Write::GeneralProtection,
            u64::MAX => Write::Done,
            mask => Write::Shared { mask },
        };
        (Written { answer, illegal }, stored)
    }

    #[cold]
    fn read_absent(&self, row: &Row, address: u32) -> Read {
        if self.model.layout.hidden_as_zero && row.is_hidden_as_zero(address) {
            Read::Value(0)
        } else {
            Read::GeneralProtection
        }
    }

    #[cold]
    fn write_absent(&self, row: &Row, address: u32) -> Written {
        if self.model.layout.hidden_as_zero && row.is_hidden_as_zero(address) {
            Written::IGNORED
        } else {
            Written::REFUSED
        }
    }

    /// Executes RDPMC with `ecx` in this mode: a value or #GP.
    ///
    /// SDM vol. 2B: ECX 31:16 is the type, ECX 15:0 the index. As in KVM, there are types for general (0) and
    /// fixed (0x4000) counters; the fast mode of bit 31 and `PERF_METRICS` fault. APM vol. 3: ECX is the
    /// counter's number, without types.
    ///
    /// A counter that is hidden from user code reads 0 there: Intel Architecture Instruction Set Extensions
    /// Programming Reference, chapter "RDPMC User Disable"; the same in Linux's commit 59af95e028d4.
    ///
    /// ```
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Mode, Read, VirtualPmu};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// assert_eq!(pmu.read_pmc(3, Mode::KERNEL), Read::Value(0));
    /// assert_eq!(pmu.read_pmc(4, Mode::KERNEL), Read::GeneralProtection);
    /// let user = Mode { cpl: 3, pce: false, protected: true };
    /// assert_eq!(pmu.read_pmc(3, user), Read::GeneralProtection);
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    #[inline]
    pub fn read_pmc(&self, ecx: u32, mode: Mode) -> Read {
        match self.locate_pmc(ecx, mode) {
            Pmc::Absent => Read::GeneralProtection,
            Pmc::Zero => Read::Value(0),
            Pmc::Counter(counter) => Read::Value(self.model.registers.counter(counter)),
        }
    }

    /// Returns the counter that RDPMC reads.
    #[inline(always)]
    pub(crate) fn locate_pmc(&self, ecx: u32, mode: Mode) -> Pmc {
        if !mode.allows_rdpmc() {
            return Pmc::Absent;
        }
        let Model { layout, registers, .. } = &self.model;
        let index = (ecx & 0xFFFF) as usize;
        let (counter, disabled) = match ecx >> 16 {
            0 if index < MAX_PER_KIND => (index, registers.select(index) >> 37 & 1),
            0x4000 if index < MAX_PER_KIND => {
                let control = registers.of(Family::FixedControl);
                (MAX_PER_KIND + index, control >> (33 + 4 * index) & 1)
            }
            _ => return Pmc::Absent,
        };
        if !layout.has(counter) {
            let zero = layout.absent_counters_read_zero && ecx < 4;
            return if zero { Pmc::Zero } else { Pmc::Absent };
        }
        let hidden = disabled != 0 && !mode.is_privileged();
        if hidden { Pmc::Zero } else { Pmc::Counter(counter) }
    }

    /// Returns the running counters, and whether the embedder feeds them.
    pub fn running(&self) -> impl Iterator<Item = RunningEvent> + '_ {
        let running = self.model.running();
        (0..MAX_COUNTERS)
            .filter(move |counter| running >> counter & 1 != 0)
            .map(|counter| self.running_event(counter))
    }

    /// Returns the running counters whose events the embedder does not feed: they stand still.
    ///
    /// ```
    /// use pmu_virt::{Configuration, EventKey, FedEvents, IntelConfiguration, VirtualPmu};
    /// let events = FedEvents::new(&[EventKey::general(0x3C, 0)])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, events)?;
    /// let _ = pmu.write(0x186, 0x53_003C);
    /// let _ = pmu.write(0x187, 0x53_00C4);
    /// let mut unfed = pmu.unfed().map(|event| (event.counter, event.key));
    /// assert_eq!(unfed.next(), Some((1, EventKey::general(0xC4, 0))));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn unfed(&self) -> impl Iterator<Item = RunningEvent> + '_ {
        self.running().filter(|event| !event.fed)
    }

    fn running_event(&self, place: usize) -> RunningEvent {
        let registers = &self.model.registers;
        let (counter, key, user, kernel) = if place < MAX_PER_KIND {
            let select = registers.select(place);
            (
                place,
                EventKey::of_select(self.vendor(), select),
                select >> 16 & 1 != 0,
                select >> 17 & 1 != 0,
            )
        } else {
            let fixed = place % MAX_PER_KIND;
            let nibble = registers.of(Family::FixedControl) >> (4 * fixed);
            let key = EventKey::of_fixed(fixed);
            let key = if nibble & 0b0100 != 0 { key.any_thread() } else { key };
            (32 + fixed, key, nibble & 0b0010 != 0, nibble & 0b0001 != 0)
        };
        let fed = self.model.events.find(key).is_some();
        RunningEvent { counter: counter as u8, key, user, kernel, fed }
    }
}
