//! A sampling unit as a counter: it has a value, which overflows with the sample, and is started and stopped.
//!
//! The interrupt may come between any two accesses, and looks at the memory's state first. So the state says that the
//! unit runs before the unit is enabled, and that the unit is being stopped before it is disabled. A sample whose
//! interrupt comes only after the stop is held in the unit's registers: the interrupt reports it, also if its event has
//! left since.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::EventId;
use pmu_core::access::{
    AccessErrorKind, AccessFault, AccessOperation, RegisterAccess, RegisterAddress, RegisterBackend,
};
use pmu_core::registers::Counter;

use crate::ibs::memory::{
    CAME, HELD, LATE, LEFT, LEFT_HELD, RUNNING, STOPPING, TAKEN, TOOK, UNKNOWN, USABLE, UnitMemory,
};
use crate::ibs::record::IbsRecord;
use crate::ibs::registers::IBS_CTL;
use crate::ibs::sampling::{ControlValues, IbsSampling, Programmed, SHORTEST_OP};
use crate::ibs::unit::{IbsErratum, IbsKind, IbsUnit};

/// A unit of the session, as a counter.
#[derive(Debug)]
pub(crate) struct UnitCounter<'a, M> {
    pub(crate) unit: &'a IbsUnit,
    pub(crate) memory: &'a UnitMemory,
    pub(crate) msr: &'a M,
    /// One bit for each bit of the value.
    pub(crate) mask: u32,
}

impl<'a, M: RegisterBackend> UnitCounter<'a, M> {
    pub(crate) fn new(
        unit: &'a IbsUnit,
        memory: &'a UnitMemory,
        msr: &'a M,
        registers: &Counter,
    ) -> Self {
        Self { unit, memory, msr, mask: registers.mask() as u32 }
    }

    /// Reads the value. With a sample that is yet to be reported, it has overflowed.
    pub(crate) fn value(&self) -> Result<u32, AccessFault> {
        let memory = self.memory;
        loop {
            let (samples, value) = (memory.samples.load(Relaxed), memory.value.load(Relaxed));
            match memory.state() & (RUNNING | HELD | TAKEN) {
                RUNNING => {}
                // A held sample is an overflow that is yet to be reported: the counter reads as if it had just wrapped.
                HELD => return Ok(0),
                _ => return Ok(memory.value.load(Relaxed)),
            }
            let counted = self.counted(self.unit.read_control(self.msr)?);
            // The count of samples is the version: a value and a count of two different periods do not belong together.
            if memory.samples.load(Relaxed) == samples {
                return Ok(counted.map_or(0, |counted| value.wrapping_add(counted) & self.mask));
            }
            // The interrupt has taken a sample meanwhile.
        }
    }

    /// Returns the number of events that the unit counted since it was started; `None`: it has a sample. A unit whose
    /// register was lost counted nothing.
    #[inline(never)] // 128 bytes of the Hermit-like glue, at `opt-level` 3.
    fn counted(&self, control: u64) -> Option<u32> {
        let memory = self.memory;
        if !self.unit.holds(control, memory.target.load(Relaxed)) {
            return Some(0);
        }
        let count = self.unit.count(control).saturating_sub(memory.started.load(Relaxed));
        (!self.unit.is_valid(control)).then_some(count)
    }

    pub(crate) fn load(&self, value: u64) {
        self.memory.value.store(value as u32 & self.mask, Relaxed);
    }

    /// Returns the select for which the unit runs; 0 if its registers do not hold it, or if nothing would interrupt.
    pub(crate) fn select(&self) -> Result<u64, AccessFault> {
        let memory = self.memory;
        if !memory.is(RUNNING) || !memory.is(USABLE) {
            return Ok(0);
        }
        let control = self.unit.read_control(self.msr)?;
        let holds = self.unit.holds(control, memory.target.load(Relaxed));
        Ok(if holds { memory.select.load(Relaxed).into() } else { 0 })
    }

    /// Starts the unit for a select, with the value that it was loaded with.
    pub(crate) fn start(&self, select: u64) -> Result<(), AccessFault> {
        // Without an interrupt nothing would take the first sample, and the unit would stay stopped.
        if !self.memory.is(USABLE) {
            let (operation, kind) = (AccessOperation::Read, AccessErrorKind::Other);
            return Err(AccessFault { operation, register: IBS_CTL, kind });
        }
        if self.select() == Ok(select) && !self.memory.is(UNKNOWN) {
            // It was not stopped, and may have a sample whose interrupt is yet to come.
            return Ok(());
        }
        // The next sample overwrites the registers, which hold one that is yet to be reported.
        if self.memory.is(LEFT_HELD) {
            self.save_left()?;
        }
        // Before `RUNNING` is set: the interrupt of a running unit reads its sample by the select.
        self.memory.select.store(select as u32, Relaxed);
        if self.memory.change(0, RUNNING) & HELD != 0 {
            // The interrupt of the event's own sample is under way: it reports the sample, and lets the unit go on.
            self.memory.change(HELD, 0);
            return Ok(());
        }
        // `RUNNING` is set already: the interrupt may come within the write.
        let started = self.enable(0);
        self.memory.change(if started.is_ok() { UNKNOWN } else { RUNNING }, 0);
        started
    }

    /// Lets the unit go on after a sample, from the value that it has now, unless it is stopped.
    pub(crate) fn resume(&self) -> Result<(), AccessFault> {
        if self.memory.state() & (RUNNING | STOPPING | TAKEN) != RUNNING | TAKEN {
            // Only the sample of an event that left was reported: the unit counts.
            return Ok(());
        }
        let found = self.memory.sampled_control();
        let counts_ops = IbsSampling::of_select(self.memory.select.load(Relaxed)).counts_ops();
        let is_random = counts_ops && self.unit.capabilities().count_writable();
        let enabled = self.enable(if is_random { self.unit.count(found) & 0x7F } else { 0 });
        // The unit may run or not. The sample was reported: the next interrupt is not to find it again.
        enabled.inspect_err(|_| {
            self.memory.change(0, UNKNOWN);
            // The caller gets the first error.
            let _ = self.unit.clear(self.msr, found);
        })
    }

    /// Enables the unit, such that its next sample comes when the value overflows. A whole period begins with the
    /// `random` number of events.
    fn enable(&self, random: u32) -> Result<(), AccessFault> {
        let memory = self.memory;
        let mut value = memory.value.load(Relaxed);
        if value <= self.mask >> 1 {
            // It has overflowed already: the next event is sampled.
            value = self.mask;
            memory.value.store(value, Relaxed);
        }
        let remaining = value.wrapping_neg() & self.mask;
        let mut programmed = self.unit.programmed(remaining, memory.reload.load(Relaxed));
        memory.started.store(programmed.count, Relaxed);
        memory.target.store(programmed.target, Relaxed);
        // The low bits are the processor's random number. A period that is too short for it begins without.
        if remaining >= SHORTEST_OP {
            programmed.count += random;
        }
        let values = self.unit.control_values(memory.select.load(Relaxed));
        // Before the unit is enabled, whose next sample is another one.
        memory.change(TAKEN, 0);
        self.unit.enable(self.msr, values, programmed)
    }

    /// Stops the unit, and keeps its value.
    pub(crate) fn stop(&self) -> Result<(), AccessFault> {
        let memory = self.memory;
        let before = memory.state();
        if before & (RUNNING | UNKNOWN) == 0 {
            return Ok(());
        }
        // Before the register is read: an interrupt from here on knows that a task looks for the same sample.
        memory.change(TOOK | CAME, STOPPING);
        let found = self.unit.disable(self.msr).inspect_err(|_| {
            // One of the writes may have taken away a sample whose interrupt is yet to come.
            memory.change(STOPPING, UNKNOWN | LATE);
            let values = self.unit.control_values(memory.select.load(Relaxed));
            if before & RUNNING != 0 && self.unit.undo_disable(self.msr, values).is_err() {
                // The next start finds nothing of its own in the registers.
                memory.target.store(0, Relaxed);
            }
        })?;
        // Otherwise the registers were lost, and firmware may have sampled by them.
        let holds = self.unit.holds(found, memory.target.load(Relaxed));
        let is_mine = before & (RUNNING | UNKNOWN) == RUNNING && holds;
        let is_valid = self.unit.is_valid(found);
        // If the interrupt took the sample, the value has begun anew already.
        if before & RUNNING != 0
            && !memory.is(TOOK)
            && let Some(counted) = self.counted(found)
        {
            let value = memory.value.load(Relaxed).wrapping_add(counted);
            memory.value.store(value & self.mask, Relaxed);
        }
        // The sample of an event that left is still there, if the registers were not lost after all.
        let is_kept = before & (RUNNING | LEFT_HELD) == LEFT_HELD
            && self.unit.holds_stopped(found, memory.target.load(Relaxed));
        let has_trace = self.unit.capabilities().control2();
        let is_left = before & UNKNOWN != 0 && self.unit.is_left_over(found);
        let state = memory.update(|state| {
            let took = state & TOOK != 0;
            let held = if is_valid && is_mine && !took { HELD } else { 0 };
            // Without a second control register, a sample may have come before the write, and left no trace.
            let ran = is_mine || is_left;
            let may_come = !took && (is_valid || ran && !has_trace && state & CAME == 0);
            let late = if may_come { LATE } else { 0 };
            let gone = match (is_mine, is_kept) {
                (true, _) => 0,
                (false, true) => HELD,
                (false, false) => HELD | LEFT_HELD,
            };
            state & !(RUNNING | STOPPING | TAKEN | TOOK | CAME | UNKNOWN | gone) | held | late
        });
        let is_held = is_valid && (is_mine && state & TOOK == 0 || is_kept);
        if !is_held && (is_valid || is_left) {
            self.unit.clear(self.msr, found).inspect_err(|_| {
                memory.change(0, UNKNOWN);
            })?;
        }
        Ok(())
    }

    /// Notes that the event whose sample is held leaves the unit. Returns the number of events after the sample until
    /// the next one, or `None` if the interrupt has taken the sample, or takes none.
    pub(crate) fn leave(&self, event: EventId, period: u64) -> Result<Option<u64>, AccessFault> {
        let memory = self.memory;
        let state = memory.state();
        if state & HELD == 0 {
            return Ok(None);
        }
        if state & LEFT != 0 {
            // The sample of another event waits in memory. This one is taken back: the event's next occurrence on a
            // unit is sampled in its place.
            if memory.change(HELD, 0) & HELD != 0 {
                memory.value.store(0, Relaxed);
                self.unit.clear(self.msr, 0)?;
            }
            return Ok(None);
        }
        // Before `LEFT_HELD` is set: the interrupt that finds it reports the sample by these words.
        memory.left.describe(event, period, memory.select.load(Relaxed));
        let left = |state: u16| if state & HELD != 0 { state & !HELD | LEFT_HELD } else { state };
        if memory.update(left) & HELD == 0 {
            return Ok(None);
        }
        self.sampled();
        Ok(Some(memory.reload.load(Relaxed).into()))
    }

    /// Moves the sample of an event that left the unit from the unit's registers to memory. The unit is stopped.
    ///
    /// The registers count as holding the sample until they are cleared: an interrupt in between would take a valid bit
    /// that nothing explains for a sample of the event that comes.
    fn save_left(&self) -> Result<(), AccessFault> {
        let memory = self.memory;
        let control = self.unit.read_control(self.msr)?;
        if !memory.is(LEFT) {
            if !self.unit.is_valid(control) {
                // The registers were lost, or the interrupt has been.
                memory.change(LEFT_HELD, 0);
                return Ok(());
            }
            let physical = IbsSampling::of_select(memory.left.select()).physical_addresses();
            let record = IbsRecord::read(self.unit, self.msr, control, physical)?;
            // The interrupt has reported the sample meanwhile.
            if !memory.is(LEFT_HELD) {
                return Ok(());
            }
            // Before `LEFT` is set: an interrupt that finds it reports this record.
            memory.left.keep(&record, control);
            memory.update(|state| if state & LEFT_HELD != 0 { state | LEFT } else { state });
        }
        self.unit.clear(self.msr, control)?;
        memory.change(LEFT_HELD, 0);
        Ok(())
    }

    /// Notes that a sample was taken: the unit has stopped, and its value begins anew.
    pub(crate) fn sampled(&self) {
        let memory = self.memory;
        let remaining = memory.value.load(Relaxed).wrapping_neg() & self.mask;
        let reload = match memory.reload.load(Relaxed) {
            0 => remaining,
            reload => reload,
        };
        // The sample came later where the unit counts in sixteens: the next period is shorter by that.
        let programmed =
            Programmed { target: memory.target.load(Relaxed), count: memory.started.load(Relaxed) };
        let late = (programmed.target - programmed.count).saturating_sub(remaining);
        // However late the sample is, one event remains: a value of 0 has overflowed already.
        let value = reload.wrapping_neg().wrapping_add(late.min(reload.saturating_sub(1)));
        memory.reload.store(reload, Relaxed);
        memory.value.store(value & self.mask, Relaxed);
        // No atomic addition: the unit has stopped, so nothing else takes a sample in between.
        memory.samples.store(memory.samples.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// The kinds of units, in the order of their counters.
pub(crate) const KINDS: [IbsKind; 2] = [IbsKind::Fetch, IbsKind::Op];

impl IbsUnit {
    /// Reads the unit's control register.
    pub(crate) fn read_control<M: RegisterBackend>(&self, msr: &M) -> Result<u64, AccessFault> {
        msr.read_retrying(self.control())
    }

    /// Returns whether the unit was left enabled, or with a sample.
    pub(crate) fn is_left_over(&self, control: u64) -> bool {
        control & (self.registers().enable | self.registers().valid) != 0
    }

    /// Returns whether the other registers hold a sample.
    #[inline(never)] // 64 bytes of the Hermit-like glue.
    pub(crate) fn is_valid(&self, control: u64) -> bool {
        control & self.registers().valid != 0
    }

    /// Returns whether the control register is as the unit was started for a period of `target`.
    #[inline(never)] // 128 bytes of the Hermit-like glue.
    pub(crate) fn holds(&self, control: u64, target: u32) -> bool {
        let period = self.period_bits(Programmed { target, count: 0 });
        let registers = self.registers();
        control & registers.enable != 0 && control & registers.period == period
    }

    /// Returns whether the control register is as a stop with a sample left it, after a period of `target`.
    pub(crate) fn holds_stopped(&self, control: u64, target: u32) -> bool {
        let registers = self.registers();
        let is_as_left = match self.capabilities().control2() {
            true => self.holds(control, target),
            false => control & (registers.enable | registers.period) == 0,
        };
        is_as_left && self.is_valid(control)
    }

    /// Enables the unit for its next sample.
    ///
    /// On a fault the unit is left as it was, or stopped.
    pub(crate) fn enable<M: RegisterBackend>(
        &self,
        msr: &M,
        values: ControlValues,
        programmed: Programmed,
    ) -> Result<(), AccessFault> {
        let registers = self.registers();
        let control = values.control | self.period_bits(programmed);
        if self.capabilities().control2() {
            // The last write starts the unit, once both registers have the event's values.
            msr.write_retrying(self.control2(), u64::from(values.control2) | registers.disable)?;
        } else if self.has(IbsErratum::FetchCountKept) && self.kind() == IbsKind::Fetch {
            // The write that enables the unit does not reset its count. One without the enable bit does.
            msr.write_retrying(self.control(), control & !registers.enable)?;
        }
        msr.write_retrying(self.control(), control)?;
        if self.capabilities().control2() {
            msr.write_retrying(self.control2(), u64::from(values.control2))?;
        }
        Ok(())
    }

    /// Stops the unit. Returns the control register's value before. A sample that is already in the unit's registers
    /// stays there, with its valid bit.
    ///
    /// Without a second control register, the enable bit shares its register with the valid bit: a sample that comes
    /// between the read and the write keeps its registers, but loses its valid bit.
    pub(crate) fn disable<M: RegisterBackend>(&self, msr: &M) -> Result<u64, AccessFault> {
        if self.capabilities().control2() {
            msr.write_retrying(self.control2(), self.registers().disable)?;
            return self.read_control(msr);
        }
        let found = self.read_control(msr)?;
        self.write_stopped(msr, found, found & !self.registers().enable)?;
        Ok(found)
    }

    /// Lets the unit go on after a [`disable`](Self::disable) whose read failed: the write before it may have stopped
    /// the unit, which the first control register does not tell.
    pub(crate) fn undo_disable<M: RegisterBackend>(
        &self,
        msr: &M,
        values: ControlValues,
    ) -> Result<(), AccessFault> {
        match self.capabilities().control2() {
            true => msr.write_retrying(self.control2(), u64::from(values.control2)),
            false => Ok(()),
        }
    }

    /// Leaves the unit stopped and without a sample. `found` is the control register's value before.
    #[inline(never)] // 112 bytes of the Hermit-like glue.
    pub(crate) fn clear<M: RegisterBackend>(&self, msr: &M, found: u64) -> Result<(), AccessFault> {
        self.write_stopped(msr, found & !self.registers().valid, 0)
    }

    /// Writes a value of the control register that disables the unit, in place of `found`.
    #[inline(never)] // 272 bytes of the Hermit-like glue, at `opt-level` 3.
    fn write_stopped<M: RegisterBackend>(
        &self,
        msr: &M,
        found: u64,
        value: u64,
    ) -> Result<(), AccessFault> {
        let enabled = found & self.registers().enable != 0;
        // Erratum 420: otherwise the unit may raise an interrupt that cannot be cleared.
        if self.has(IbsErratum::PeriodBeforeStop) && enabled {
            msr.write_retrying(self.control(), found & !self.registers().period)?;
        }
        msr.write_retrying(self.control(), value & !self.registers().period)
    }

    /// Returns whether the unit may still run, by the control register's value. A second control register stops the
    /// unit without a trace in the first, and without a change of the valid bit.
    pub(crate) fn may_run(&self, control: u64) -> bool {
        let registers = self.registers();
        control & registers.enable != 0 && control & registers.period != 0
    }

    pub(crate) fn control(&self) -> RegisterAddress {
        // SAFETY: the register says what is sampled, and how often; no value of it makes the processor write to memory.
        unsafe { RegisterAddress::new(self.registers().control) }
    }

    fn control2(&self) -> RegisterAddress {
        // SAFETY: the register says which samples are left out; no value of it makes the processor write to memory.
        unsafe { RegisterAddress::new(self.registers().control2) }
    }
}
