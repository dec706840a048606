//! A processor with fake facilities, and the facilities' drivers.

use core::cell::{Cell, RefCell};

use pmu_core::access::{
    AccessErrorKind, AccessFault, CounterIndex, RegisterAccess, RegisterAddress, RegisterBackend,
    RegisterUpdate,
};
use pmu_core::facility::{EventFacility, Facility, Interrupted, Running, Unsettled};
use pmu_core::registers::CounterId;
use pmu_core::{CounterSet, CounterUnit, Platform};
use pmu_tests::opened::Mock;
use pmu_virt::mock::Deviation;

/// Registers that no processor of the tests has.
const CONTROL: u32 = 0x7000_0000;
pub(crate) const NEWEST: u32 = 0x7000_0001;
const OP_CONTROL: u32 = 0x7000_0010;
const OP_DATA: u32 = 0x7000_0011;
const BUFFER: u32 = 0x7000_0020;
const TRACE: u32 = 0x7000_0030;

/// Status bits of the records that are frozen, and of the buffer (SDM vol. 4, table 2-2, IA32_PERF_GLOBAL_STATUS).
pub(crate) const FROZEN: u64 = 1 << 58;
pub(crate) const FULL: u64 = 1 << 62;
/// Marks the records of the interrupt's own branches.
pub(crate) const OWN_BRANCH: u64 = 1 << 63;

const fn register(number: u32) -> RegisterAddress {
    // SAFETY: no processor is behind it.
    unsafe { RegisterAddress::new(number) }
}

/// The facilities' state beside the mock's counters.
#[derive(Default)]
pub(crate) struct Hardware {
    /// Numbers of the status register and of its acknowledgement.
    status: Option<(u32, u32)>,
    /// The branch records freeze as the interrupt is raised.
    pub(crate) freezes: bool,
    pub(crate) recording: Cell<bool>,
    pub(crate) frozen: Cell<bool>,
    pub(crate) newest: Cell<u64>,
    /// The newest record as the interrupt was raised.
    pub(crate) at_interrupt: Cell<u64>,
    /// The op that was sampled, until the sampler is armed again.
    op: Cell<Option<u64>>,
    pub(crate) ops: Cell<u64>,
    /// Records in the buffer.
    pub(crate) buffer: Cell<u64>,
    pub(crate) full: Cell<bool>,
    /// The trace is on.
    pub(crate) traces: Cell<bool>,
    /// Accesses since the plan was set, and the first one and the number of those that fault.
    pub(crate) accesses: Cell<u32>,
    pub(crate) faults: Cell<Option<(u32, u32)>>,
    pub(crate) faulted: Cell<bool>,
    /// A register that does not answer.
    pub(crate) broken: Cell<Option<u32>>,
    pub(crate) serving: Cell<bool>,
    /// State that the drivers keep in lent memory: that they record, and their findings.
    pub(crate) wanted: Cell<bool>,
    /// The records, and the trace, are suspended for a borrower of the counters.
    suspended: [Cell<bool>; 2],
    pub(crate) op_samples: RefCell<Vec<u64>>,
    /// Ops whose data could not be read.
    pub(crate) op_lost: Cell<u64>,
    pub(crate) drained: Cell<u64>,
}

impl Hardware {
    pub(crate) fn new(unit: &CounterUnit, freezes: bool) -> Self {
        let status = unit.global().map(|global| (global.status.get(), global.acknowledge.get()));
        Self { status, freezes: freezes && status.is_some(), ..Self::default() }
    }

    /// A branch is taken, by the interrupt's service or by what it interrupts.
    pub(crate) fn branch(&self) {
        if self.recording.get() && !self.frozen.get() {
            let own = if self.serving.get() { OWN_BRANCH } else { 0 };
            self.newest.set(((self.newest.get() & !OWN_BRANCH) + 1) | own);
        }
    }

    /// The performance interrupt is raised.
    pub(crate) fn raised(&self) {
        self.at_interrupt.set(self.newest.get());
        self.frozen.set(self.frozen.get() || self.freezes && self.recording.get());
    }

    /// An op is sampled, unless the one before still is. Its interrupt does not depend on the counters.
    pub(crate) fn sample_op(&self, mock: &Mock<'_>) {
        if self.op.get().is_none() {
            self.sample_op_before_its_interrupt();
            mock.interrupt_from_elsewhere();
        }
    }

    /// An op is sampled, and its interrupt is still to come.
    pub(crate) fn sample_op_before_its_interrupt(&self) {
        self.ops.set(self.ops.get() + 1);
        self.op.set(Some(self.ops.get()));
    }

    /// A counter's overflow writes a record to the buffer, and the processor loads the counter again.
    pub(crate) fn record_precise(&self, mock: &Mock<'_>, value_register: u32, preload: u64) {
        self.buffer.set(self.buffer.get() + 1);
        self.full.set(true);
        mock.with_pmu(|pmu| {
            let written = pmu.host_write(value_register, preload);
            assert_eq!(written.illegal, 0, "{written:?}");
        });
    }

    fn status_bits(&self) -> u64 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        bit(self.frozen.get(), FROZEN) | bit(self.full.get(), FULL)
    }

    /// Counts an access, which may fault.
    fn access(&self, register: Option<u32>) -> Result<(), AccessErrorKind> {
        let access = self.accesses.get() + 1;
        self.accesses.set(access);
        let faults = |(first, count): (u32, u32)| access >= first && access - first < count;
        let is_broken = register.is_some() && register == self.broken.get();
        if is_broken || self.faults.get().is_some_and(faults) {
            self.faulted.set(true);
            return Err(AccessErrorKind::Fault);
        }
        Ok(())
    }
}

/// The processor's registers and LVT entry. Before each access, `before` is called.
pub(crate) struct Registers<'a, 'h, B>(
    pub(crate) &'a Mock<'h>,
    pub(crate) &'a Hardware,
    pub(crate) B,
);

impl<B: Fn(&Mock<'_>)> Registers<'_, '_, B> {
    fn step(&self, register: Option<u32>) -> Result<(), AccessErrorKind> {
        let Self(mock, hardware, before) = self;
        hardware.branch();
        before(mock);
        hardware.access(register)
    }
}

impl<B: Fn(&Mock<'_>)> RegisterBackend for Registers<'_, '_, B> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.step(Some(address.get()))?;
        let Self(mock, hardware, _) = self;
        match address.get() {
            CONTROL => Ok(hardware.recording.get().into()),
            NEWEST => Ok(hardware.newest.get()),
            OP_CONTROL => Ok(hardware.op.get().is_some().into()),
            OP_DATA => Ok(hardware.op.get().unwrap_or(0)),
            BUFFER => Ok(hardware.buffer.get()),
            TRACE => Ok(hardware.traces.get().into()),
            number => {
                let value = mock.read(address)?;
                let is_status = hardware.status.is_some_and(|(status, _)| status == number);
                Ok(value | if is_status { hardware.status_bits() } else { 0 })
            }
        }
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.step(Some(address.get()))?;
        let Self(mock, hardware, _) = self;
        match address.get() {
            CONTROL => hardware.recording.set(value != 0),
            OP_CONTROL => hardware.op.set(None),
            TRACE => hardware.traces.set(value != 0),
            BUFFER => hardware.buffer.set(hardware.buffer.get() - value),
            number if hardware.status.is_some_and(|(_, acknowledge)| acknowledge == number) => {
                hardware.frozen.set(hardware.frozen.get() && value & FROZEN == 0);
                hardware.full.set(hardware.full.get() && value & FULL == 0);
                mock.write(address, value & !(FROZEN | FULL))?;
            }
            _ => mock.write(address, value)?,
        }
        Ok(())
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.step(None)?;
        self.0.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        self.step(Some(update.register()))?;
        self.0.update(update)
    }
}

impl<B: Fn(&Mock<'_>)> Platform for Registers<'_, '_, B> {
    fn unmask_performance_interrupt(&self) {
        let Self(mock, hardware, before) = self;
        before(mock);
        mock.unmask_performance_interrupt();
        if mock.deviations().contains(Deviation::RaisesOnUnmask) && hardware.full.get() {
            mock.interrupt_from_elsewhere();
        }
    }

    fn mask_performance_interrupt(&self) {
        self.2(self.0);
        self.0.mask_performance_interrupt();
    }
}

/// Settles a facility that records, but for no borrower of the counters: what it needs of the hardware to be suspended,
/// and to be resumed.
fn settle_recording(
    running: &Running<'_>,
    suspended: &Cell<bool>,
    suspend: impl FnOnce() -> Result<(), AccessFault>,
    resume: impl FnOnce() -> Result<(), AccessFault>,
) -> Result<(), Unsettled> {
    let settled = match (running.are_lent(), suspended.get()) {
        (true, false) => suspend(),
        (false, true) if running.are_returned() => resume(),
        _ => return Ok(()),
    };
    settled.map_err(|fault| Unsettled { counters: CounterSet::NONE, fault })?;
    suspended.set(running.are_lent() && !running.are_given_up());
    Ok(())
}

/// Branch records: share the status, and add to the counters' overflows.
#[derive(Clone, Copy)]
pub(crate) struct LastBranch<'a> {
    pub(crate) hardware: &'a Hardware,
    pub(crate) newest: Option<u64>,
    stopped: bool,
}

impl<'a> LastBranch<'a> {
    pub(crate) fn new(hardware: &'a Hardware) -> Self {
        Self { hardware, newest: None, stopped: false }
    }
}

impl Facility for LastBranch<'_> {
    fn status_bits(&self) -> u64 {
        FROZEN
    }

    fn begin<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        self.newest = None;
        if !self.hardware.freezes && self.hardware.wanted.get() {
            self.stopped = true;
            msr.write_retrying(register(CONTROL), 0)?;
        }
        Ok(())
    }

    fn collect<M: RegisterBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        if self.hardware.wanted.get() && !interrupted.overflowed.is_empty() {
            self.newest = Some(msr.read_retrying(register(NEWEST))?);
        }
        Ok(0)
    }

    fn end<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        if !core::mem::take(&mut self.stopped) {
            return Ok(());
        }
        msr.write_retrying(register(CONTROL), 1)
    }
}

impl EventFacility for LastBranch<'_> {
    const OFFERS: bool = true;

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let Hardware { wanted, suspended: [suspended, _], .. } = self.hardware;
        let suspend = || {
            wanted.set(false);
            let stopped = msr.write_retrying(register(CONTROL), 0);
            stopped.inspect_err(|_| wanted.set(true))
        };
        let resume = || {
            msr.write_retrying(register(CONTROL), 1)?;
            wanted.set(true);
            Ok(())
        };
        settle_recording(running, suspended, suspend, resume)
    }

    fn lose(&self) {}
}

/// An op sampler, which goes on for a borrower: has a status of its own, and interrupts without a counter.
#[derive(Clone, Copy)]
pub(crate) struct Ops<'a>(pub(crate) &'a Hardware);

impl Facility for Ops<'_> {
    const ALONE: bool = true;

    fn collect<M: RegisterBackend>(
        &mut self,
        msr: &M,
        _: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        if msr.read_retrying(register(OP_CONTROL))? == 0 {
            return Ok(0);
        }
        let data = msr.read_retrying(register(OP_DATA));
        msr.write_retrying(register(OP_CONTROL), 0)?;
        match data {
            Ok(op) => self.0.op_samples.borrow_mut().push(op),
            Err(_) => self.0.op_lost.set(self.0.op_lost.get() + 1),
        }
        data.map(|_| 1)
    }
}

/// A buffer of records that the overflows of one counter fill, and whose interrupt is that of the counters.
#[derive(Clone, Copy)]
pub(crate) struct Buffer<'a> {
    pub(crate) hardware: &'a Hardware,
    pub(crate) counter: Option<CounterId>,
}

impl Facility for Buffer<'_> {
    fn status_bits(&self) -> u64 {
        FULL
    }

    fn own_counters(&self) -> CounterSet {
        self.counter.into_iter().collect()
    }

    fn collect<M: RegisterBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        let Some(counter) = self.counter.filter(|_| interrupted.status & FULL != 0) else {
            return Ok(0);
        };
        let is_known = interrupted.event(counter).is_some() || self.hardware.faulted.get();
        assert!(is_known, "the records are of this event");
        let records = msr.read_retrying(register(BUFFER))?;
        msr.write_retrying(register(BUFFER), records)?;
        self.hardware.drained.set(self.hardware.drained.get() + records);
        Ok(1)
    }
}

/// A trace that is on or off, beside the counters' interrupt.
#[derive(Clone, Copy)]
pub(crate) struct Trace<'a>(pub(crate) &'a Hardware);

impl Facility for Trace<'_> {}

impl EventFacility for Trace<'_> {
    const OFFERS: bool = true;

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let Hardware { traces, suspended: [_, suspended], .. } = self.0;
        if !traces.get() && !suspended.get() {
            return Ok(());
        }
        let write = |on| msr.write_retrying(register(TRACE), on);
        settle_recording(running, suspended, || write(0), || write(1))
    }

    fn lose(&self) {}
}

/// Has facilities whose hardware no event and no borrower concerns.
macro_rules! unconcerned {
    ($($facility:ty),*) => {$(
        impl EventFacility for $facility {
            const OFFERS: bool = true;

            fn settle<M: RegisterBackend>(&self, _: &M, _: &Running<'_>) -> Result<(), Unsettled> {
                Ok(())
            }

            fn lose(&self) {}
        }
    )*};
}
pub(crate) use unconcerned;
unconcerned!(Ops<'_>, Buffer<'_>);
