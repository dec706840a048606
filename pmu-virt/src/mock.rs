//! The model as a backend for tests of drivers: it counts and records accesses, refuses what a driver
//! must not do, fails on demand, and interrupts.

mod backend;
mod deviation;
mod machine;
mod plan;
mod trace;

use core::cell::{Cell, RefCell};

use pmu_core::raw_cpuid::CpuIdResult;
use pmu_core::{Interval, MsrErrorKind, MsrOperation, Snapshot};

pub use deviation::{Deviation, Deviations};
pub use machine::MockMachine;
use plan::Plan;
pub use plan::{Fault, PmiFault};
pub use trace::{Accesses, Breach, Record, Trace};

use crate::layout::Freeze;
use crate::table::{Family, MAX_PER_KIND};
use crate::{
    Advanced, AllowAll, Configuration, Delivery, Feed, Mode, PerformanceEntry, PmiOutcome, Read,
    Vendor, VirtualPmu, Write,
};

/// `IA32_MISC_ENABLE`, its bit "PEBS unavailable", and `IA32_PEBS_ENABLE`.
const MISC_ENABLE: u32 = 0x1A0;
const PEBS_UNAVAILABLE: u64 = 1 << 12;
const PEBS_ENABLE: u32 = 0x3F1;
/// `IA32_DEBUGCTL`, and its bit that freezes the counters.
const DEBUGCTL: u32 = 0x1D9;
const FREEZE_COUNTERS: u64 = 1 << 12;
/// The status bit of frozen counters, of both vendors, and the registers that clear it.
const FROZEN: u64 = 1 << 59;
const ACKNOWLEDGE: [u32; 2] = [0x390, 0xC000_0302];
/// The mask bit of the local APIC's entry.
const MASKED: u32 = 1 << 16;

/// A handler of the performance interrupt, or a function to call before an access.
type Handler<'h, const T: usize> = &'h dyn Fn(&MockMsr<'h, T>);

/// One processor with a software PMU, for tests of a driver; it keeps the last `T` accesses.
///
/// It is the [`MsrBackend`](pmu_core::MsrBackend) and the [`Platform`](pmu_core::Platform) of that processor. It
/// works behind a shared reference, as a driver's backend does, and is not for several threads.
///
/// It has no guest mode, and one type of core. A test of [`HostCounters`](crate::HostCounters) plays an entry and an
/// exit on Intel by writing 0x38F, and on AMD by feeding events whose [key](crate::EventKey::of_select) has
/// GuestOnly. A test of a hybrid machine has a mock for each type of core, and sets the types in the
/// [units](pmu_core::CounterUnit::set_core_type).
///
/// ```
/// use pmu_core::{MsrAddress, MsrBackend, MsrErrorKind};
/// use pmu_virt::mock::{Fault, MockMsr};
/// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, VirtualPmu};
/// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
/// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE).unwrap());
/// // SAFETY: an event select.
/// let select = unsafe { MsrAddress::new(0x186) };
/// mock.write(select, 0x53_003C).unwrap();
/// mock.inject(Fault::At(1));
/// assert_eq!(mock.read(select), Err(MsrErrorKind::GeneralProtection));
/// assert_eq!(mock.read(select), Ok(0x53_003C));
/// assert_eq!(mock.accesses().reads, 2);
/// ```
pub struct MockMsr<'h, const T: usize = 64> {
    pmu: RefCell<VirtualPmu>,
    plan: Plan,
    trace: RefCell<Trace<T>>,
    accesses: Cell<Accesses>,
    strict: Cell<bool>,
    breach: Cell<Option<Breach>>,
    mode: Cell<Mode>,
    /// The local APIC's performance entry, and the timer.
    entry: Cell<u32>,
    timer: Cell<Option<Interval>>,
    handler: Cell<Option<Handler<'h, T>>>,
    handled: Cell<u32>,
    /// The handler runs; and an interrupt waits for its end.
    handling: Cell<bool>,
    latched: Cell<bool>,
    /// Counters that overflowed since an interrupt was last delivered.
    overflowed: Cell<u64>,
    before_access: Cell<Option<Handler<'h, T>>>,
    deviations: Deviations,
    while_serviced: Cell<Option<Feed>>,
    /// `IA32_PEBS_ENABLE`, where there is PEBS.
    precise: Cell<u64>,
    /// The embedder's bits of `IA32_MISC_ENABLE` and `IA32_DEBUGCTL`.
    shared: Cell<[u64; 2]>,
}

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Creates a processor with this PMU: lax, without faults, its performance entry masked as after reset.
    pub const fn new(pmu: VirtualPmu) -> Self {
        Self {
            pmu: RefCell::new(pmu),
            plan: Plan::new(),
            trace: RefCell::new(Trace::new()),
            accesses: Cell::new(Accesses::NONE),
            strict: Cell::new(false),
            breach: Cell::new(None),
            mode: Cell::new(Mode::KERNEL),
            entry: Cell::new(1 << 16),
            timer: Cell::new(None),
            handler: Cell::new(None),
            handled: Cell::new(0),
            handling: Cell::new(false),
            latched: Cell::new(false),
            overflowed: Cell::new(0),
            before_access: Cell::new(None),
            deviations: Deviations::NONE,
            while_serviced: Cell::new(None),
            precise: Cell::new(0),
            shared: Cell::new([0; 2]),
        }
    }

    /// Creates a processor with this PMU that panics at every access that the manual does not allow.
    pub const fn strict(pmu: VirtualPmu) -> Self {
        let mut mock = Self::new(pmu);
        mock.strict = Cell::new(true);
        mock
    }

    /// Puts the processor on a platform with these deviations. Create its PMU from [`Deviations::configuration`]; its
    /// CPUID is [`Deviations::cpuid`].
    pub fn deviating(mut self, deviations: Deviations) -> Self {
        self.deviations = deviations;
        let left = |deviation| deviations.contains(deviation);
        let pmu = self.pmu.get_mut();
        let amd = pmu.vendor() == Vendor::Amd;
        let layout = pmu.model.layout;
        let own = layout.global() & 0xFF;
        if left(Deviation::LeftRunning) {
            // Cycles, at every privilege, interrupting; a few short of the overflow.
            let event = if amd { 0x76 } else { 0x3C };
            for counter in (0..MAX_PER_KIND).filter(|counter| layout.has(*counter)) {
                let select = Family::EventSelect.first() + counter;
                pmu.model.registers.set(select, 0x53_0000 | event);
                *pmu.model.registers.counter_mut(counter) = layout.mask(counter) - 10;
            }
            *pmu.model.registers.of_mut(Family::GlobalControl) |= own;
        }
        let registers = &mut pmu.model.registers;
        if left(Deviation::LeftOverflowed) {
            *registers.of_mut(Family::GlobalStatus) |= own;
        }
        if left(Deviation::LeftFrozen) && layout.global() != 0 {
            if !amd && !left(Deviation::NarrowAcknowledge) {
                *registers.of_mut(Family::DebugControl) |= FREEZE_COUNTERS;
            }
            if amd || layout.freeze == Freeze::SetsStatus {
                *registers.of_mut(Family::GlobalStatus) |= FROZEN;
            } else {
                *registers.of_mut(Family::GlobalControl) = 0;
            }
        }
        pmu.model.derive(&AllowAll);
        if left(Deviation::LeftPrecise) && !amd {
            self.precise.set(0xFF);
        }
        self
    }

    /// Returns CPUID of this processor, as a driver captures it: a processor of the vendor with 64-bit mode and its
    /// PMU as its only features, and with those that the platform's deviations add. The model is Sapphire Rapids or
    /// Zen 4, whatever the PMU is.
    pub fn snapshot(&self) -> Snapshot {
        let configuration = self.pmu.borrow().configuration();
        let (name, signature) = match configuration.vendor() {
            // Sapphire Rapids and Zen 4.
            Vendor::Intel => (b"GenuineIntel", 0x0008_06F8),
            Vendor::Amd => (b"AuthenticAMD", 0x00A6_0F12),
        };
        let word = |at: usize| {
            let characters = name.get(at..at + 4).and_then(|word| word.try_into().ok());
            characters.map_or(0, u32::from_le_bytes)
        };
        Snapshot::capture(|leaf: u32, subleaf: u32| {
            let given = match leaf {
                0 => [1, word(0), word(8), word(4)],
                1 => [signature, 0, 0, 0],
                0x8000_0000 => [0x8000_0001, 0, 0, 0],
                0x8000_0001 => [0, 0, 1 << 2, 1 << 29],
                _ => [0; 4],
            };
            let [eax, ebx, ecx, edx] = self.deviations.cpuid(&configuration, leaf, subleaf, given);
            CpuIdResult { eax, ebx, ecx, edx }
        })
    }

    /// Returns the platform's deviations.
    pub fn deviations(&self) -> Deviations {
        self.deviations
    }

    /// Clears the processor's registers, and its local APIC's, as a suspend does.
    pub fn lose_registers(&self) {
        self.pmu.borrow_mut().reset();
        self.entry.set(MASKED);
        self.shared.set([0; 2]);
        self.precise.set(0);
    }

    /// Sets the feed that passes while the driver next [reports](Self::reported) an overflow, on a platform where
    /// counters [overflow while serviced](Deviation::OverflowsWhileServiced).
    pub fn pass_while_serviced(&self, feed: Feed) {
        self.while_serviced.set(Some(feed));
    }

    /// Plays the platform's part in the report of an overflow. Call it where the driver reports one.
    pub fn reported(&self) {
        if self.deviations.contains(Deviation::OverflowsWhileServiced)
            && let Some(mut feed) = self.while_serviced.take()
        {
            self.advance(&mut feed);
        }
    }

    /// Calls `before` before each access, and before the local APIC's entry is unmasked.
    pub fn on_access(&self, before: Handler<'h, T>) {
        self.before_access.set(Some(before));
    }

    /// Reads the PMU, or changes it behind the driver's back.
    ///
    /// # Panics
    /// `act` accesses a register of this processor through the mock.
    pub fn with_pmu<R>(&self, act: impl FnOnce(&mut VirtualPmu) -> R) -> R {
        act(&mut self.pmu.borrow_mut())
    }

    /// Returns the number of accesses since the last call of [`clear`](Self::clear).
    pub fn accesses(&self) -> Accesses {
        self.accesses.get()
    }

    /// Returns the last accesses.
    pub fn trace(&self) -> Trace<T> {
        *self.trace.borrow()
    }

    /// Returns the first access that the manual does not allow.
    pub fn breach(&self) -> Option<Breach> {
        self.breach.get()
    }

    /// Clears the counts of accesses, the trace and the breach.
    pub fn clear(&self) {
        self.accesses.set(Accesses::NONE);
        *self.trace.borrow_mut() = Trace::new();
        self.breach.set(None);
    }

    /// Injects a fault, in place of the previous one.
    pub fn inject(&self, fault: Fault) {
        self.plan.inject(fault);
    }

    /// Injects a fault into the delivery of interrupts.
    pub fn inject_pmi(&self, fault: PmiFault) {
        self.plan.pmi.set(fault);
    }

    /// Raises an interrupt just before the `access`-th access from now, from 1: every running counter
    /// that interrupts overflows. If there is none, the interrupt is spurious.
    pub fn interrupt_at(&self, access: u32) {
        self.plan.interrupt_in.set(access);
    }

    /// Calls `handler` for each interrupt that is delivered. The handler may access registers.
    pub fn on_interrupt(&self, handler: Handler<'h, T>) {
        self.handler.set(Some(handler));
    }

    /// Returns the number of interrupts that were delivered.
    pub fn interrupts(&self) -> u32 {
        self.handled.get()
    }

    /// Returns the local APIC's performance entry (LVTPC).
    pub fn performance_entry(&self) -> u32 {
        self.entry.get()
    }

    /// Writes the local APIC's performance entry.
    pub fn set_performance_entry(&self, entry: u32) {
        self.entry.set(entry);
    }

    /// Returns the profile timer's interval, while it runs.
    pub fn timer(&self) -> Option<Interval> {
        self.timer.get()
    }

    /// Executes RDPMC in this mode from now on.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.set(mode);
    }

    /// Lets all of `feed` happen, and delivers the overflows' interrupts.
    ///
    /// # Panics
    /// The feed is of other events than those of this processor's PMU.
    pub fn advance(&self, feed: &mut Feed) {
        let late = self.deviations.contains(Deviation::ServicesLate);
        let mut pmi = false;
        while !feed.is_empty() {
            pmi |= self.pass(feed).pmi;
            if pmi && !late {
                self.interrupt();
                pmi = false;
            }
        }
        if pmi {
            self.interrupt();
        }
    }

    /// Lets `feed` happen up to the first overflow that interrupts, and does not [deliver](Self::deliver) the
    /// interrupt yet.
    ///
    /// # Panics
    /// The feed is of other events than those of this processor's PMU.
    pub fn pass(&self, feed: &mut Feed) -> Advanced {
        match self.pmu.borrow_mut().advance(feed) {
            Ok(advanced) => {
                self.overflowed.set(self.overflowed.get() | advanced.overflowed);
                advanced
            }
            Err(error) => panic!("the feed is {error}"),
        }
    }

    /// Delivers a pending interrupt, or applies the fault that the plan has for it.
    fn interrupt(&self) {
        match self.plan.pmi.get() {
            PmiFault::None => self.deliver(),
            PmiFault::Lost => self.pmu.borrow_mut().init(),
            PmiFault::Late(accesses) => self.plan.deliver_in.set(accesses.saturating_add(1)),
        }
    }

    /// Delivers the interrupt that the PMU raised, if it did and the entry is not masked.
    pub fn deliver(&self) {
        let overflowed = self.overflowed.take();
        if self.precise.get() & overflowed != 0 {
            // A record was written instead.
            self.pmu.borrow_mut().init();
        }
        let outcome = self.pmu.borrow_mut().deliver_pmi(&mut Entry(&self.entry));
        if let PmiOutcome::Raised(_) = outcome {
            if self.deviations.contains(Deviation::MasksOnDelivery) {
                self.entry.set(self.entry.get() | MASKED);
            }
            let second = self.deviations.contains(Deviation::LatchesSecondInterrupt)
                && overflowed.count_ones() > 1;
            self.execute_handler(second);
        }
    }

    /// Interrupts the processor without the PMU: an NMI of another source. `false`: it waits for the end of the one
    /// being handled.
    pub fn interrupt_from_elsewhere(&self) -> bool {
        self.execute_handler(false)
    }

    /// Executes the handler; while it is being executed, latches one interrupt instead.
    fn execute_handler(&self, second: bool) -> bool {
        let outer = self.handling.get();
        if second {
            self.latched.set(true);
        }
        if outer && !self.deviations.contains(Deviation::NestsInterrupts) {
            self.latched.set(true);
            return false;
        }
        self.handling.set(true);
        loop {
            self.handled.set(self.handled.get().saturating_add(1));
            if let Some(handler) = self.handler.get() {
                handler(self);
            }
            if outer || !self.latched.take() {
                break;
            }
        }
        self.handling.set(outer);
        true
    }

    /// Raises the interrupts that are due before an access, and returns its fault, if one is due.
    fn before(&self, operation: MsrOperation, register: u32) -> Option<Fault> {
        if let Some(before) = self.before_access.get() {
            before(self);
        }
        let due = |cell: &Cell<u32>| {
            let left = cell.get();
            cell.set(left.saturating_sub(1));
            left == 1
        };
        if due(&self.plan.interrupt_in) {
            let mut pmu = self.pmu.borrow_mut();
            let before = pmu.model.registers.of(Family::GlobalStatus);
            pmu.model.overflow_all();
            pmu.model.pmi_pending = true;
            let new = pmu.model.registers.of(Family::GlobalStatus) & !before & !FROZEN;
            self.overflowed.set(self.overflowed.get() | new);
            drop(pmu);
            self.interrupt();
        }
        if due(&self.plan.deliver_in) {
            self.deliver();
        }
        self.accesses.set(self.accesses.get().and(operation));
        self.plan.fault(operation, register)
    }

    fn record(&self, operation: MsrOperation, register: u32, outcome: Result<u64, MsrErrorKind>) {
        self.trace.borrow_mut().push(Record { operation, register, outcome });
    }

    fn answer_breach(&self, breach: Breach) {
        assert!(!self.strict.get(), "{breach}");
        if self.breach.get().is_none() {
            self.breach.set(Some(breach));
        }
    }

    /// Returns the embedder's part of a register that it shares with the PMU.
    fn other_bits(&self, register: u32) -> u64 {
        let [misc_enable, other] = self.shared.get();
        if register == 0x1A0 { misc_enable } else { other }
    }

    fn set_other_bits(&self, register: u32, value: u64) {
        let [misc_enable, other] = self.shared.get();
        self.shared.set(if register == 0x1A0 { [value, other] } else { [misc_enable, value] });
    }

    /// Returns the platform's answer where it differs from the manual's. RDMSR has no value to write.
    fn deviate(&self, register: u32, value: Option<u64>) -> Option<Result<u64, MsrErrorKind>> {
        let deviates = |deviation| self.deviations.contains(deviation);
        let refused = Some(Err(MsrErrorKind::GeneralProtection));
        match (register, value) {
            // The second counter, by each of its addresses.
            (0xC2 | 0x4C2 | 0x1904 | 0xC001_0005 | 0xC001_0203, _)
                if deviates(Deviation::DeadCounter) =>
            {
                Some(Ok(value.unwrap_or(0)))
            }
            (DEBUGCTL, Some(value)) if deviates(Deviation::IgnoresDebugControl) => Some(Ok(value)),
            (DEBUGCTL, _) if deviates(Deviation::NarrowAcknowledge) => {
                let [_, kept] = self.shared.get();
                if let Some(value) = value {
                    self.set_other_bits(register, value);
                }
                Some(Ok(value.unwrap_or(kept)))
            }
            (MISC_ENABLE, None) if deviates(Deviation::LeftPrecise) => {
                match self.pmu.borrow().read(register) {
                    Read::Shared { value, .. } => Some(Ok(value & !PEBS_UNAVAILABLE)),
                    _ => None,
                }
            }
            (PEBS_ENABLE, _) if deviates(Deviation::LeftPrecise) => {
                if let Some(value) = value {
                    self.precise.set(value);
                }
                Some(Ok(value.unwrap_or(self.precise.get())))
            }
            (register, Some(value)) if ACKNOWLEDGE.contains(&register) => {
                let control = self.pmu.borrow().model.registers.of(Family::GlobalControl);
                if control == 0 && deviates(Deviation::AcknowledgesWhileEnabled) {
                    return Some(Ok(value));
                }
                if value & FROZEN != 0 && deviates(Deviation::NarrowAcknowledge) {
                    return refused;
                }
                let mut pmu = self.pmu.borrow_mut();
                if matches!(pmu.configuration(), Configuration::Amd(_)) && value & FROZEN != 0 {
                    // The model does not freeze AMD's counters: they were left frozen.
                    *pmu.model.registers.of_mut(Family::GlobalStatus) &= !value;
                    return Some(Ok(value));
                }
                None
            }
            _ => None,
        }
    }

    /// Finishes RDMSR or RDPMC, with `answer` as its result unless it faults.
    fn finish_read(
        &self,
        operation: MsrOperation,
        register: u32,
        deviation: Option<Result<u64, MsrErrorKind>>,
        answer: impl FnOnce(&VirtualPmu) -> Read,
    ) -> Result<u64, MsrErrorKind> {
        let fault = self.before(operation, register);
        let outcome = match (fault, deviation) {
            (Some(Fault::Ignored(_)), _) => Ok(0),
            (Some(_), _) => Err(MsrErrorKind::GeneralProtection),
            (None, Some(answer)) => answer,
            (None, None) => match answer(&self.pmu.borrow()) {
                Read::Value(value) => Ok(value),
                Read::Shared { value, mask } => Ok(self.other_bits(register) & !mask | value),
                Read::GeneralProtection | Read::Unhandled => {
                    self.answer_breach(Breach { operation, register, value: 0, illegal: 0 });
                    Err(MsrErrorKind::GeneralProtection)
                }
            },
        };
        self.record(operation, register, outcome);
        outcome
    }

    fn rdmsr(&self, register: u32) -> Result<u64, MsrErrorKind> {
        let deviation = self.deviate(register, None);
        self.finish_read(MsrOperation::Read, register, deviation, |pmu| pmu.read(register))
    }

    fn wrmsr(&self, register: u32, value: u64) -> Result<(), MsrErrorKind> {
        let operation = MsrOperation::Write;
        let outcome = match self.before(operation, register) {
            Some(Fault::Ignored(_)) => Ok(value),
            Some(_) => Err(MsrErrorKind::GeneralProtection),
            None => self.deviate(register, Some(value)).unwrap_or_else(|| {
                let written = self.pmu.borrow_mut().write(register, value);
                let done = matches!(written.answer, Write::Done | Write::Shared { .. });
                if written.illegal != 0 || !done {
                    let illegal = written.illegal;
                    self.answer_breach(Breach { operation, register, value, illegal });
                }
                if let Write::Shared { mask } = written.answer {
                    self.set_other_bits(register, value & !mask);
                }
                if done { Ok(value) } else { Err(MsrErrorKind::GeneralProtection) }
            }),
        };
        self.record(operation, register, outcome);
        outcome.map(|_| ())
    }
}

/// The entry alone: the caller executes the handler afterwards.
struct Entry<'e>(&'e Cell<u32>);

impl PerformanceEntry for Entry<'_> {
    fn entry(&self) -> u32 {
        self.0.get()
    }
    fn set_entry(&mut self, entry: u32) {
        self.0.set(entry);
    }
    fn raise(&mut self, _: Delivery) {}
}
