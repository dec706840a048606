//! A mock processor: its parts, and what a test sets and sees.

use core::cell::{Cell, RefCell};

use pmu_core::Interval;

use crate::events::feed::Feed;
use crate::mock::deviation::Deviations;
use crate::mock::plan::{Fault, Plan, PmiFault};
use crate::mock::trace::{Accesses, Breach, Trace};
use crate::pmu::access::Mode;
use crate::pmu::virtual_pmu::VirtualPmu;

/// The status bit of frozen counters, of both vendors, and the registers that clear it.
pub(crate) const FROZEN: u64 = 1 << 59;

/// The mask bit of the local APIC's entry.
pub(crate) const MASKED: u32 = 1 << 16;

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
    pub(super) pmu: RefCell<VirtualPmu>,
    pub(super) plan: Plan,
    pub(super) trace: RefCell<Trace<T>>,
    pub(super) accesses: Cell<Accesses>,
    pub(super) strict: Cell<bool>,
    pub(super) breach: Cell<Option<Breach>>,
    pub(super) mode: Cell<Mode>,
    /// The local APIC's performance entry, and the timer.
    pub(super) entry: Cell<u32>,
    pub(super) timer: Cell<Option<Interval>>,
    pub(super) handler: Cell<Option<Handler<'h, T>>>,
    pub(super) handled: Cell<u32>,
    /// The handler runs; and an interrupt waits for its end.
    pub(super) handling: Cell<bool>,
    pub(super) latched: Cell<bool>,
    /// Counters that overflowed since an interrupt was last delivered.
    pub(super) overflowed: Cell<u64>,
    pub(super) before_access: Cell<Option<Handler<'h, T>>>,
    pub(super) deviations: Deviations,
    pub(super) while_serviced: Cell<Option<Feed>>,
    /// `IA32_PEBS_ENABLE`, where there is PEBS.
    pub(super) precise: Cell<u64>,
    /// The embedder's bits of `IA32_MISC_ENABLE` and `IA32_DEBUGCTL`.
    pub(super) shared: Cell<[u64; 2]>,
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

    /// Returns the embedder's part of a register that it shares with the PMU.
    pub(super) fn other_bits(&self, register: u32) -> u64 {
        let [misc_enable, other] = self.shared.get();
        if register == 0x1A0 { misc_enable } else { other }
    }

    pub(super) fn set_other_bits(&self, register: u32, value: u64) {
        let [misc_enable, other] = self.shared.get();
        self.shared.set(if register == 0x1A0 { [value, other] } else { [misc_enable, value] });
    }
}
