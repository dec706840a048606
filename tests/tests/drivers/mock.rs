//! The mock of a processor, of each architecture: what the tests ask of it.

use core::cell::{Cell, RefCell};

use pmu_arm::registers::Register;
use pmu_arm::{ArmRegisters, SystemRegisters};
use pmu_core::Platform;
use pmu_core::access::{
    AccessErrorKind, AccessOperation, CounterIndex, RegisterAddress, RegisterBackend,
    RegisterUpdate,
};
use pmu_core::error::PlatformError;
use pmu_core::interval::Interval;
use pmu_tests::StateRegisters;
use pmu_virt::mock::{Fault, MockMsr, MockPmuv3, PmiFault, Record};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege};

/// The event of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    X86(EventKey),
    Arm(u64),
}

/// A processor's registers, interrupt controller and events.
pub(crate) enum Mock<'h> {
    X86(Box<MockMsr<'h, 64>>, FedEvents),
    Arm(Box<ArmMock<'h>>),
}

type Handler<'h> = &'h dyn Fn(&Mock<'h>);

/// The model of PMUv3 with faults, interrupts and a trace, as `MockMsr` has them. An access is one of a system
/// register; the trace has what the driver asked of its backend.
pub(crate) struct ArmMock<'h> {
    pub(crate) model: MockPmuv3,
    is_unmasked: Cell<bool>,
    handler: Cell<Option<Handler<'h>>>,
    is_handling: Cell<bool>,
    interrupts: Cell<u32>,
    accesses: Cell<u32>,
    records: RefCell<Vec<Record>>,
    /// The fault, and the accesses since its injection.
    fault: Cell<(Fault, u32)>,
    delivery: Cell<PmiFault>,
    /// Accesses until an interrupt is raised, and the driver's until one is delivered: 1 is the next one, 0 is never.
    interrupt_in: Cell<u32>,
    deliver_in: Cell<u32>,
}

impl ArmMock<'_> {
    pub(crate) fn new(model: MockPmuv3) -> Self {
        Self {
            model,
            is_unmasked: Cell::new(false),
            handler: Cell::new(None),
            is_handling: Cell::new(false),
            interrupts: Cell::new(0),
            accesses: Cell::new(0),
            records: RefCell::default(),
            fault: Cell::new((Fault::None, 0)),
            delivery: Cell::new(PmiFault::None),
            interrupt_in: Cell::new(0),
            deliver_in: Cell::new(0),
        }
    }

    fn levels(&self) -> [u8; 2] {
        [0, self.model.level()]
    }

    fn running(&self) -> u64 {
        use MockPmuv3 as Of;
        let events = [Of::INST_RETIRED, Of::CPU_CYCLES, Of::BR_RETIRED, Of::BR_MIS_PRED_RETIRED];
        let at = |level| events.map(|event| self.model.counting(event, level)).into_iter();
        self.levels().into_iter().flat_map(at).fold(0, |all, bits| all | bits)
    }

    /// Returns whether the next access faults.
    fn faults(&self) -> bool {
        let (fault, made) = self.fault.get();
        let number = made + 1;
        self.fault.set((fault, number));
        match fault {
            Fault::At(access) => number == access,
            Fault::Twice(access) => (access..=access + 1).contains(&number),
            Fault::From(access) => number >= access,
            _ => false,
        }
    }

    /// Returns the answer of a register of the driver's that is missing, or ignores accesses.
    fn missing(&self, register: u32) -> Option<Result<u64, AccessErrorKind>> {
        match self.fault.get().0 {
            Fault::Register(missing) if missing == register => Some(Err(AccessErrorKind::Fault)),
            Fault::Ignored(ignored) if ignored == register => Some(Ok(0)),
            _ => None,
        }
    }
}

/// Counts an access. Returns whether what was to come before it is due.
fn is_due(accesses: &Cell<u32>) -> bool {
    accesses.replace(accesses.get().saturating_sub(1)) == 1
}

/// The system registers of a mock.
struct Registers<'m, 'h>(&'m Mock<'h>, &'m ArmMock<'h>);

impl Registers<'_, '_> {
    fn access(&self) -> Result<(), AccessErrorKind> {
        let Self(mock, arm) = self;
        if is_due(&arm.interrupt_in) {
            // Without any overflow, the interrupt is spurious.
            for level in arm.levels() {
                arm.model.overflow_all(level);
            }
            mock.deliver(arm);
        }
        arm.accesses.set(arm.accesses.get() + 1);
        if arm.faults() { Err(AccessErrorKind::Fault) } else { Ok(()) }
    }
}

impl SystemRegisters for Registers<'_, '_> {
    type Error = AccessErrorKind;

    fn read(&self, register: Register) -> Result<u64, AccessErrorKind> {
        self.access()?;
        Ok(self.1.model.read(register.encoding()))
    }

    fn write(&self, register: Register, value: u64) -> Result<(), AccessErrorKind> {
        self.access()?;
        self.1.model.write(register.encoding(), value);
        Ok(())
    }

    fn synchronize(&self) {
        self.1.model.synchronize();
    }
}

impl<'h> Mock<'h> {
    /// Executes the handler of Arm's interrupt, unless it is masked or runs.
    fn deliver(&self, arm: &ArmMock<'h>) {
        if !arm.is_unmasked.get() || arm.is_handling.replace(true) {
            return;
        }
        arm.interrupts.set(arm.interrupts.get() + 1);
        arm.model.synchronize();
        if let Some(handler) = arm.handler.get() {
            handler(self);
        }
        arm.model.synchronize();
        arm.is_handling.set(false);
    }

    pub(crate) fn on_interrupt(&'h self, handler: Handler<'h>) {
        match self {
            Self::X86(mock, _) => {
                mock.on_interrupt(Box::leak(Box::new(move |_: &_| handler(self))))
            }
            Self::Arm(arm) => arm.handler.set(Some(handler)),
        }
    }

    /// Lets an event happen in user mode; overflows interrupt.
    pub(crate) fn advance(&self, key: Key, count: u64) {
        match (self, key) {
            (Self::X86(mock, events), Key::X86(key)) => {
                let mut feed = Feed::new(events);
                feed.add(events.find(key).unwrap(), Privilege::User, count).unwrap();
                mock.advance(&mut feed);
            }
            (Self::Arm(arm), Key::Arm(event)) => {
                let mut left = count;
                while left > 0 {
                    let was_active = arm.model.is_active();
                    left -= arm.model.happen(event, 0, left);
                    if arm.model.is_active() && !was_active {
                        match arm.delivery.get() {
                            PmiFault::None => self.deliver(arm),
                            PmiFault::Lost => {}
                            PmiFault::Late(accesses) => arm.deliver_in.set(accesses + 1),
                        }
                    }
                }
            }
            _ => panic!("another architecture's event"),
        }
    }

    /// Returns the number of counters that really run.
    pub(crate) fn running(&self) -> usize {
        match self {
            Self::X86(mock, _) => mock.with_pmu(|pmu| pmu.running().count()),
            Self::Arm(arm) => arm.running().count_ones() as usize,
        }
    }

    /// Returns whether the hardware has a counter running for the event.
    pub(crate) fn counts(&self, key: Key) -> bool {
        match (self, key) {
            (Self::X86(mock, _), Key::X86(key)) => {
                mock.with_pmu(|pmu| pmu.running().any(|event| event.key == key))
            }
            (Self::Arm(arm), Key::Arm(event)) => {
                arm.levels().iter().any(|level| arm.model.counting(event, *level) != 0)
            }
            _ => panic!("another architecture's event"),
        }
    }

    /// Returns the counters that are enabled together, and those that have overflowed.
    pub(crate) fn control_and_status(&self) -> [u64; 2] {
        match self {
            Self::X86(mock, _) => {
                let state = mock.with_pmu(|pmu| pmu.state());
                [state.global_control(), state.global_status()]
            }
            Self::Arm(arm) => {
                let read = |register: Register| arm.model.read(register.encoding());
                let is_any = read(Register::Pmcr) & 1 != 0;
                let enabled = if is_any { read(Register::Pmcntenset) } else { 0 };
                [enabled, read(Register::Pmovsclr)]
            }
        }
    }

    pub(crate) fn interrupts(&self) -> u32 {
        match self {
            Self::X86(mock, _) => mock.interrupts(),
            Self::Arm(arm) => arm.interrupts.get(),
        }
    }

    pub(crate) fn interrupt_at(&self, access: u32) {
        match self {
            Self::X86(mock, _) => mock.interrupt_at(access),
            Self::Arm(arm) => arm.interrupt_in.set(access),
        }
    }

    pub(crate) fn inject(&self, fault: Fault) {
        match self {
            Self::X86(mock, _) => mock.inject(fault),
            Self::Arm(arm) => arm.fault.set((fault, 0)),
        }
    }

    pub(crate) fn inject_pmi(&self, fault: PmiFault) {
        match self {
            Self::X86(mock, _) => mock.inject_pmi(fault),
            Self::Arm(arm) => arm.delivery.set(fault),
        }
    }

    /// Returns the number of accesses since the last [`clear`](Self::clear).
    pub(crate) fn accesses(&self) -> u32 {
        match self {
            Self::X86(mock, _) => mock.accesses().total(),
            Self::Arm(arm) => arm.accesses.get(),
        }
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        match self {
            Self::X86(mock, _) => mock.trace().records().collect(),
            Self::Arm(arm) => arm.records.borrow().clone(),
        }
    }

    pub(crate) fn clear(&self) {
        match self {
            Self::X86(mock, _) => mock.clear(),
            Self::Arm(arm) => {
                arm.accesses.set(0);
                arm.records.borrow_mut().clear();
            }
        }
    }

    /// Asserts that no access was illegal: the model of PMUv3 panics at once.
    pub(crate) fn assert_legal(&self) {
        if let Self::X86(mock, _) = self {
            assert_eq!(mock.breach(), None);
        }
    }

    fn arm(
        &self,
        arm: &ArmMock<'h>,
        operation: AccessOperation,
        register: u32,
        access: impl FnOnce(ArmRegisters<Registers<'_, 'h>>) -> Result<u64, AccessErrorKind>,
    ) -> Result<u64, AccessErrorKind> {
        if is_due(&arm.deliver_in) {
            self.deliver(arm);
        }
        let missing = arm.missing(register).filter(|_| operation != AccessOperation::ReadCounter);
        let outcome = missing.unwrap_or_else(|| access(ArmRegisters::new(Registers(self, arm))));
        arm.records.borrow_mut().push(Record { operation, register, outcome });
        outcome
    }
}

impl RegisterBackend for Mock<'_> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        match self {
            Self::X86(mock, _) => mock.read(address),
            Self::Arm(arm) => {
                self.arm(arm, AccessOperation::Read, address.get(), |msr| msr.read(address))
            }
        }
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        match self {
            Self::X86(mock, _) => mock.write(address, value),
            Self::Arm(arm) => {
                let written = self.arm(arm, AccessOperation::Write, address.get(), |msr| {
                    msr.write(address, value).map(|()| value)
                });
                written.map(|_| ())
            }
        }
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        match self {
            Self::X86(mock, _) => mock.read_counter(index),
            Self::Arm(arm) => self
                .arm(arm, AccessOperation::ReadCounter, index.get(), |msr| msr.read_counter(index)),
        }
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        match self {
            Self::X86(mock, _) => mock.update(update),
            Self::Arm(arm) => {
                self.arm(arm, AccessOperation::Update, update.register(), |msr| msr.update(update))
            }
        }
    }
}

impl Platform for Mock<'_> {
    /// An interrupt that came while the line was masked is delivered now.
    fn unmask_performance_interrupt(&self) {
        match self {
            Self::X86(mock, _) => mock.unmask_performance_interrupt(),
            Self::Arm(arm) => {
                let was_masked = !arm.is_unmasked.replace(true);
                if was_masked && arm.model.is_active() {
                    self.deliver(arm);
                }
            }
        }
    }

    fn mask_performance_interrupt(&self) {
        match self {
            Self::X86(mock, _) => mock.mask_performance_interrupt(),
            Self::Arm(arm) => arm.is_unmasked.set(false),
        }
    }

    fn start_profile_timer(&self, interval: Interval) -> Result<(), PlatformError> {
        match self {
            Self::X86(mock, _) => mock.start_profile_timer(interval),
            Self::Arm(_) => Ok(()),
        }
    }
}
