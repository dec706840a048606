//! The model as a backend for tests of drivers: it counts and records accesses, refuses what a driver
//! must not do, fails on demand, and interrupts.

mod machine;
mod plan;
mod trace;

use core::cell::{Cell, RefCell};

use pmu_core::{
    Interval, MsrAddress, MsrBackend, MsrErrorKind, MsrOperation, Platform, PmcIndex,
    TimerUnavailable,
};

pub use machine::MockMachine;
use plan::Plan;
pub use plan::{Fault, PmiFault};
pub use trace::{Accesses, Breach, Record, Trace};

use crate::{Delivery, Feed, Mode, PerformanceEntry, PmiOutcome, Read, VirtualPmu, Write};

/// A handler of the performance interrupt.
type Handler<'h, const T: usize> = &'h dyn Fn(&MockMsr<'h, T>);

/// One processor with a software PMU, for a driver to run on; it keeps the last `T` accesses.
///
/// It is the [`MsrBackend`] and the [`Platform`] of that processor. Behind a shared reference, as a
/// driver's backend is; not for several threads.
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
    /// What of `IA32_MISC_ENABLE` and `IA32_DEBUGCTL` is not the PMU's.
    shared: Cell<[u64; 2]>,
}

impl<'h, const T: usize> MockMsr<'h, T> {
    /// A processor with this PMU: lax, without faults, its performance entry masked as after reset.
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
            shared: Cell::new([0; 2]),
        }
    }

    /// The same, and every access that the manual does not allow panics.
    pub const fn strict(pmu: VirtualPmu) -> Self {
        let mut mock = Self::new(pmu);
        mock.strict = Cell::new(true);
        mock
    }

    /// Looks at the PMU, or changes it behind the driver's back.
    ///
    /// # Panics
    /// If `act` accesses a register of this processor through the mock.
    pub fn with_pmu<R>(&self, act: impl FnOnce(&mut VirtualPmu) -> R) -> R {
        act(&mut self.pmu.borrow_mut())
    }

    /// How many accesses there were since the last call of [`clear`](Self::clear).
    pub fn accesses(&self) -> Accesses {
        self.accesses.get()
    }

    /// The last accesses.
    pub fn trace(&self) -> Trace<T> {
        *self.trace.borrow()
    }

    /// The first access that the manual does not allow.
    pub fn breach(&self) -> Option<Breach> {
        self.breach.get()
    }

    /// Forgets the accesses counted, the trace and the breach.
    pub fn clear(&self) {
        self.accesses.set(Accesses::NONE);
        *self.trace.borrow_mut() = Trace::new();
        self.breach.set(None);
    }

    /// Injects a fault, instead of the one before.
    pub fn inject(&self, fault: Fault) {
        self.plan.inject(fault);
    }

    /// Spoils the delivery of interrupts.
    pub fn inject_pmi(&self, fault: PmiFault) {
        self.plan.pmi.set(fault);
    }

    /// Raises an interrupt just before the `access`-th access from now, from 1: every running counter
    /// that interrupts overflows. If there is none, the interrupt is spurious.
    pub fn interrupt_at(&self, access: u32) {
        self.plan.interrupt_in.set(access);
    }

    /// Calls `handler` for each interrupt that is delivered. It is what the processor executes: it may
    /// access registers.
    pub fn on_interrupt(&self, handler: Handler<'h, T>) {
        self.handler.set(Some(handler));
    }

    /// How many interrupts were delivered.
    pub fn interrupts(&self) -> u32 {
        self.handled.get()
    }

    /// The local APIC's performance entry (LVTPC).
    pub fn performance_entry(&self) -> u32 {
        self.entry.get()
    }

    /// Writes the local APIC's performance entry.
    pub fn set_performance_entry(&self, entry: u32) {
        self.entry.set(entry);
    }

    /// The profile timer's interval, while it runs.
    pub fn timer(&self) -> Option<Interval> {
        self.timer.get()
    }

    /// Executes RDPMC in this mode from now on.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.set(mode);
    }

    /// Lets all of `feed` happen, and interrupts where counters overflow.
    pub fn advance(&self, feed: &mut Feed) {
        while !feed.is_empty() {
            let advanced = self.pmu.borrow_mut().advance(feed);
            if advanced.pmi {
                self.interrupt();
            }
        }
    }

    /// An interrupt is pending: delivers it, or what the plan has in store for it.
    fn interrupt(&self) {
        match self.plan.pmi.get() {
            PmiFault::None => self.deliver(),
            PmiFault::Lost => self.pmu.borrow_mut().init(),
            PmiFault::Late(accesses) => self.plan.deliver_in.set(accesses.saturating_add(1)),
        }
    }

    fn deliver(&self) {
        let outcome = self.pmu.borrow_mut().deliver_pmi(&mut Entry(&self.entry));
        if let PmiOutcome::Raised(_) = outcome {
            self.handled.set(self.handled.get().saturating_add(1));
            if let Some(handler) = self.handler.get() {
                handler(self);
            }
        }
    }

    /// What comes before an access: the interrupts that are due, and the fault that is.
    fn before(&self, operation: MsrOperation, register: u32) -> Option<Fault> {
        let due = |cell: &Cell<u32>| {
            let left = cell.get();
            cell.set(left.saturating_sub(1));
            left == 1
        };
        if due(&self.plan.interrupt_in) {
            let mut pmu = self.pmu.borrow_mut();
            pmu.model.overflow_all();
            pmu.model.pmi_pending = true;
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

    /// The embedder's part of a register that it shares with the PMU.
    fn other_bits(&self, register: u32) -> u64 {
        let [misc_enable, other] = self.shared.get();
        if register == 0x1A0 { misc_enable } else { other }
    }

    fn set_other_bits(&self, register: u32, value: u64) {
        let [misc_enable, other] = self.shared.get();
        self.shared.set(if register == 0x1A0 { [value, other] } else { [misc_enable, value] });
    }

    fn finish_read(
        &self,
        operation: MsrOperation,
        register: u32,
        fault: Option<Fault>,
        answer: impl FnOnce(&VirtualPmu) -> Read,
    ) -> Result<u64, MsrErrorKind> {
        let outcome = match fault {
            Some(Fault::Ignored(_)) => Ok(0),
            Some(_) => Err(MsrErrorKind::GeneralProtection),
            None => match answer(&self.pmu.borrow()) {
                Read::Value(value) => Ok(value),
                Read::Shared { value, mask } => Ok(self.other_bits(register) & !mask | value),
                Read::GeneralProtection | Read::NotMine => {
                    self.answer_breach(Breach { operation, register, value: 0, illegal: 0 });
                    Err(MsrErrorKind::GeneralProtection)
                }
            },
        };
        self.record(operation, register, outcome);
        outcome
    }
}

impl<const T: usize> MsrBackend for MockMsr<'_, T> {
    type Error = MsrErrorKind;

    fn read(&self, address: MsrAddress) -> Result<u64, MsrErrorKind> {
        let (operation, register) = (MsrOperation::Read, address.get());
        let fault = self.before(operation, register);
        self.finish_read(operation, register, fault, |pmu| pmu.read(register))
    }

    fn write(&self, address: MsrAddress, value: u64) -> Result<(), MsrErrorKind> {
        let (operation, register) = (MsrOperation::Write, address.get());
        let done = match self.before(operation, register) {
            Some(Fault::Ignored(_)) => true,
            Some(_) => false,
            None => {
                let written = self.pmu.borrow_mut().write(register, value);
                let done = matches!(written.answer, Write::Done | Write::Shared { .. });
                if written.illegal != 0 || !done {
                    let illegal = written.illegal;
                    self.answer_breach(Breach { operation, register, value, illegal });
                }
                if let Write::Shared { mask } = written.answer {
                    self.set_other_bits(register, value & !mask);
                }
                done
            }
        };
        let outcome = if done { Ok(value) } else { Err(MsrErrorKind::GeneralProtection) };
        self.record(operation, register, outcome);
        outcome.map(|_| ())
    }

    fn read_pmc(&self, index: PmcIndex) -> Result<u64, MsrErrorKind> {
        let (operation, register) = (MsrOperation::ReadPmc, index.get());
        let fault = self.before(operation, register);
        let mode = self.mode.get();
        self.finish_read(operation, register, fault, |pmu| pmu.read_pmc(register, mode))
    }
}

impl<const T: usize> Platform for MockMsr<'_, T> {
    /// As a non-maskable interrupt.
    fn unmask_performance_interrupt(&self) {
        self.entry.set(0x400);
    }

    fn start_profile_timer(&self, interval: Interval) -> Result<(), TimerUnavailable> {
        self.timer.set(Some(interval));
        Ok(())
    }

    fn stop_profile_timer(&self) {
        self.timer.set(None);
    }
}

/// The entry alone: whoever raises the interrupt executes the handler afterwards.
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
