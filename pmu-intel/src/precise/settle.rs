//! The registers and the area by which the processor writes records, settled on the events that run.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::CounterSet;
use pmu_core::access::{AccessFault, RegisterAccess, RegisterAddress, RegisterBackend};
use pmu_core::facility::{Running, Unsettled};
use pmu_core::precise::SampleParts;
use pmu_core::registers::CounterId;

use crate::precise::memory::{PAGE, index_register};
use crate::precise::pebs::{LEAST_PART, Pebs, PreciseThreshold};
use crate::precise::registers::{
    IA32_PEBS_BASE, MSR_PEBS_DATA_CFG, PebsDataCfg, PebsIndex, PmcCfgC,
};
use crate::precise::state::{KNOWN, STOPPED, SlotFlags, TAKEN};
use crate::precise::unit::kinds_of_counters;
use crate::registers::{IA32_DS_AREA, IA32_PEBS_ENABLE, IA32_PMC_FX0_CFG_C, IA32_PMC_GP0_CFG_C};

/// Distance of the registers of adjacent counters.
const STEP: u32 = 4;

/// Bytes of a unit of the index of architectural PEBS.
const INDEX_UNIT: u32 = 16;

/// Greatest index of architectural PEBS: 23 bits.
const MAX_INDEX: u32 = 0x7F_FFFF;

/// The facility with a backend for its registers.
pub(crate) struct Registers<'p, 'a, M> {
    pub(crate) pebs: &'p Pebs<'a>,
    pub(crate) msr: &'p M,
}

/// The requests of the running events together.
#[derive(Clone, Copy)]
struct Wanted {
    counters: CounterSet,
    /// The counters of events with a latency.
    latency: CounterSet,
    parts: SampleParts,
    /// Sizes of the least and of the greatest record.
    sizes: (usize, usize),
    each_record: bool,
}

impl Pebs<'_> {
    fn wanted(&self, running: &Running<'_>) -> Wanted {
        let mut wanted = Wanted {
            counters: CounterSet::NONE,
            latency: CounterSet::NONE,
            parts: SampleParts::NONE,
            sizes: (usize::MAX, 0),
            each_record: self.memory.threshold() == PreciseThreshold::EachRecord,
        };
        for counter in running.counters().iter() {
            let Some(event) = running.on(counter).filter(|event| event.precision().is_some())
            else {
                continue;
            };
            wanted.counters = wanted.counters | counter.only();
            wanted.parts = wanted.parts | event.parts();
            if event.has_latency() {
                wanted.latency = wanted.latency | counter.only();
            }
            let basic_only = self.unit.has_adaptive_control() && event.parts().is_empty();
            let least = if basic_only { SampleParts::NONE } else { event.parts() };
            wanted.sizes.0 = wanted.sizes.0.min(self.size_of(least));
            // A period that the processor cannot load at once is continued by the interrupt, and only then are branches
            // those of one record.
            let registers = running.registers(counter);
            wanted.each_record |=
                event.reloaded(&registers) != event.period() || event.branches().is_some();
        }
        if self.unit.has_adaptive_control() {
            // Parts that are recorded already stay, so that the registers need not change.
            wanted.parts = wanted.parts | self.memory.state.parts();
        }
        wanted.sizes.1 = self.size_of(wanted.parts);
        wanted
    }

    fn size_of(&self, parts: SampleParts) -> usize {
        self.unit.record_size(parts, self.unit.counters.counters().len())
    }

    /// Returns the counters that must not count while the facility is settled: all that write records, if what is
    /// common to them changes.
    pub(crate) fn changes_all(&self, running: &Running<'_>) -> CounterSet {
        let state = &self.memory.state;
        state.clear(STOPPED);
        let wanted =
            if running.are_lent() { return CounterSet::NONE } else { self.wanted(running) };
        let is_same = if self.unit.needs_physical_address() {
            self.threshold_of(&wanted) == state.threshold.load(Relaxed)
        } else {
            !self.unit.has_adaptive_control() || wanted.parts == state.parts()
        };
        if state.is(KNOWN) && is_same {
            return CounterSet::NONE;
        }
        state.set(STOPPED);
        // While registers are programmed again, an event is not known to write records, and does.
        let runs = |counter: &CounterId| running.on(*counter).is_some();
        state.recording() | state.enabled().iter().filter(runs).collect()
    }

    /// Returns whether the event on a counter is the one that the interrupt knows.
    #[inline(never)] // 160 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(crate) fn is_described(&self, counter: CounterId, running: &Running<'_>) -> bool {
        let slot = self.memory.state.slot(counter).zip(running.on(counter));
        slot.is_some_and(|(slot, event)| event.precision().is_some() && slot.is_of(event.id()))
    }

    /// Returns the number of bytes of the buffer that are used.
    #[inline(never)] // 64 bytes of the Hermit-like glue.
    fn usable(&self) -> usize {
        let capacity = self.memory.capacity();
        if self.unit.model.one_page { capacity.min(PAGE) } else { capacity }
    }

    /// Returns the number of bytes of the buffer that are used by whole records of this size.
    fn usable_of(&self, size: usize) -> usize {
        let usable = self.usable();
        usable - usable.checked_rem(size).unwrap_or(0)
    }

    /// Returns the offset in the buffer from which on a record interrupts. While records of events that left wait, it
    /// is each record.
    fn threshold_of(&self, wanted: &Wanted) -> u32 {
        let state = &self.memory.state;
        let has_departed = state.departed.of(state.generation()).next().is_some();
        let has_parts =
            (wanted.counters & state.recording()).iter().any(|of| self.reload_of(of) >= LEAST_PART);
        let each_record = wanted.each_record || has_departed || has_parts;
        let (least, size) = wanted.sizes;
        // Records that wait must leave room for one of an event that comes, with all parts.
        let room = (size * wanted.counters.len()).max(self.size_of(self.unit.groups()));
        let offset = match (each_record, self.unit.needs_physical_address()) {
            (true, false) => least,
            (true, true) => INDEX_UNIT as usize,
            (false, false) => self.usable_of(size).saturating_sub(room).max(size),
            (false, true) => self.usable().saturating_sub(room).max(INDEX_UNIT as usize),
        };
        offset as u32
    }
}

impl<M: RegisterBackend> Registers<'_, '_, M> {
    pub(crate) fn settle(&self, running: &Running<'_>) -> Result<(), Unsettled> {
        let state = &self.pebs.memory.state;
        let wanted = self.pebs.wanted(running);
        let settled = match wanted.counters.is_empty() {
            _ if running.are_lent() => self.end(running.are_given_up()),
            true if !state.is(TAKEN) => Ok(()),
            true => {
                self.abandon(state.recording());
                state.set_coming(CounterSet::NONE);
                state.set_recording(CounterSet::NONE);
                state.set_parts(SampleParts::NONE);
                self.enable(running, &wanted, CounterSet::NONE)
            }
            false => self.record(running, &wanted),
        };
        settled.or_else(|fault| {
            // Their registers did not answer: they may still write records, which belong to no event.
            state.stuck.fetch_or(state.enabled().without(wanted.counters).bits(), Relaxed);
            // Also a plain event must not run on a counter that may still write records.
            let counters = (wanted.counters | state.enabled()).iter();
            let counters = counters.filter(|counter| running.on(*counter).is_some()).collect();
            match counters {
                // It is tried again with the next change.
                CounterSet::NONE if !running.are_lent() => Ok(()),
                counters => Err(Unsettled { counters, fault }),
            }
        })
    }

    fn record(&self, running: &Running<'_>, wanted: &Wanted) -> Result<(), AccessFault> {
        let (unit, memory) = (self.pebs.unit, self.pebs.memory);
        let state = &memory.state;
        if !state.is(TAKEN) {
            self.take();
        }
        let is_known = state.is(KNOWN);
        let is_there = |counter: &CounterId| self.pebs.is_described(*counter, running);
        let stay: CounterSet =
            (wanted.counters & state.recording()).iter().filter(is_there).collect();
        self.abandon(state.recording().without(stay));
        let is_coming = |counter: &CounterId| running.is_coming(*counter);
        state.set_coming(wanted.counters.iter().filter(is_coming).collect());
        let anew = wanted.counters.without(stay);
        for counter in anew.iter() {
            if let Some((slot, event)) = state.slot(counter).zip(running.on(counter)) {
                let registers = running.registers(counter);
                slot.describe(&event, event.reloaded(&registers));
                self.set_reset(counter, registers.preload(event.reloaded(&registers)));
            }
        }
        if unit.has_adaptive_control() && (!is_known || wanted.parts != state.parts()) {
            state.clear(KNOWN);
            self.write_parts(wanted.parts)?;
            state.set_parts(wanted.parts);
        }
        self.arrange(wanted, is_known)?;
        // Before the counters can write records, and after those that left could.
        state.set_recording(wanted.counters);
        self.enable(running, wanted, anew)
    }

    /// Notes that events left these counters without notice, because an access failed. Records of theirs may wait, but
    /// not of an event that could not be started.
    fn abandon(&self, counters: CounterSet) {
        for counter in counters.without(self.pebs.memory.state.coming()).iter() {
            self.pebs.abandon(self.msr, counter, false);
        }
    }

    /// Notes that counters do not write records any more that may have written some after their events had left.
    fn free_stuck(&self) {
        let stuck = self.pebs.memory.state.stuck.swap(0, Relaxed);
        for counter in CounterSet::from_bits(stuck).iter() {
            self.pebs.abandon(self.msr, counter, true);
        }
    }

    /// Takes the memory: the buffer is empty, and whatever a predecessor left writes no records.
    fn take(&self) {
        let memory = self.pebs.memory;
        let state = &memory.state;
        memory.reset_dropped();
        state.clear(KNOWN);
        state.set_recording(CounterSet::NONE);
        state.set_enabled(CounterSet::NONE);
        state.set_parts(SampleParts::NONE);
        state.set_batch((0, 0));
        state.pending.store(0, Relaxed);
        state.stuck.store(0, Relaxed);
        state.departed.clear();
        let (area, base) = (memory.save_area(), memory.buffer_address());
        // Without room the processor writes nothing, wherever the index is meanwhile.
        area.pebs_absolute_maximum.store(0, Relaxed);
        area.pebs_buffer_base.store(base, Relaxed);
        area.pebs_index.store(base, Relaxed);
        area.pebs_interrupt_threshold.store(base, Relaxed);
        if !self.pebs.unit.needs_physical_address() {
            memory.control_area().set_recording(true);
        }
        state.set(TAKEN);
    }

    /// Sets the end of the buffer and its threshold.
    fn arrange(&self, wanted: &Wanted, is_known: bool) -> Result<(), AccessFault> {
        let (pebs, memory) = (self.pebs, self.pebs.memory);
        let (state, threshold) = (&memory.state, pebs.threshold_of(wanted));
        if pebs.unit.needs_physical_address() {
            // The index is not written while records are: an interrupt may have asked for another threshold meanwhile.
            let is_same = state.threshold.load(Relaxed) == threshold;
            if is_known && (is_same || !state.is(STOPPED)) {
                return Ok(());
            }
            state.clear(KNOWN);
            state.threshold.store(threshold, Relaxed);
            return self.write_index(threshold);
        }
        let (area, base, size) = (memory.save_area(), memory.buffer_address(), wanted.sizes.1);
        let is_empty = area.pebs_index.load(Relaxed) == base;
        // Behind records of another size, the last one may begin anywhere below the end, and they may reach up to it.
        let usable = match is_empty || !pebs.unit.has_adaptive_control() {
            true => pebs.usable_of(size),
            false => pebs.usable().saturating_sub(size),
        };
        area.pebs_absolute_maximum.store(base + usable as u64, Relaxed);
        let mut wanted_threshold = threshold;
        loop {
            state.threshold.store(wanted_threshold, Relaxed);
            area.pebs_interrupt_threshold.store(base + u64::from(wanted_threshold), Relaxed);
            // An interrupt may have begun a period in parts meanwhile.
            let now = pebs.threshold_of(wanted);
            if now >= wanted_threshold {
                return Ok(());
            }
            wanted_threshold = now;
        }
    }

    /// Lets each record interrupt until the facility is next settled. The counters are stopped.
    pub(crate) fn interrupt_for_each(&self) -> Result<(), AccessFault> {
        let (pebs, memory) = (self.pebs, self.pebs.memory);
        let is_architectural = pebs.unit.needs_physical_address();
        let least = match is_architectural {
            true => INDEX_UNIT,
            false => pebs.size_of(SampleParts::NONE) as u32,
        };
        if memory.state.threshold.load(Relaxed) == least {
            return Ok(());
        }
        if is_architectural {
            let index = PebsIndex::from_bits(self.msr.read_retrying(index_register())?);
            let index = index.with_threshold(least / INDEX_UNIT);
            self.msr.write_retrying(index_register(), index.into_bits())?;
        } else {
            let threshold = memory.buffer_address() + u64::from(least);
            memory.save_area().pebs_interrupt_threshold.store(threshold, Relaxed);
        }
        memory.state.threshold.store(least, Relaxed);
        Ok(())
    }

    /// Gives the processor the buffer of architectural PEBS, and its threshold. Records that are in the buffer stay.
    fn write_index(&self, threshold: u32) -> Result<(), AccessFault> {
        let (base, state) = (self.base(), &self.pebs.memory.state);
        let generation = state.generation();
        let found = self.read(IA32_PEBS_BASE)?;
        let index = PebsIndex::from_bits(self.msr.read_retrying(index_register())?);
        let index = if found == base { index } else { PebsIndex::new() };
        if found != base {
            // Records that another owner may have left in the index are none of this buffer.
            self.msr.write_retrying(index_register(), 0)?;
            self.write(IA32_PEBS_BASE, base)?;
        }
        let index = index.with_enable(true).with_threshold((threshold / INDEX_UNIT) & MAX_INDEX);
        self.msr.write_retrying(index_register(), index.into_bits())?;
        if state.generation() == generation {
            return Ok(());
        }
        // A late interrupt has read the records out meanwhile, which are in the buffer again.
        let index = index.with_write(0).with_full(false);
        self.msr.write_retrying(index_register(), index.into_bits())
    }

    /// Returns the value of `IA32_PEBS_BASE`.
    fn base(&self) -> u64 {
        let pages = (self.pebs.memory.capacity() / PAGE) as u64;
        self.pebs.physical | u64::from(pages.trailing_zeros())
    }

    /// Has exactly these counters write records. Events came to the counters `anew`.
    fn enable(
        &self,
        running: &Running<'_>,
        wanted: &Wanted,
        anew: CounterSet,
    ) -> Result<(), AccessFault> {
        let state = &self.pebs.memory.state;
        if self.pebs.unit.needs_physical_address() {
            return self.enable_each(running, wanted, anew);
        }
        let latency = if self.pebs.unit.is_baseline() { 0 } else { wanted.latency.bits() << 32 };
        let value = wanted.counters.bits() | latency;
        let before = state.enable.load(Relaxed);
        if state.is(KNOWN) && before == value {
            return Ok(());
        }
        let is_known = state.is(KNOWN);
        state.clear(KNOWN);
        if value & !before != 0 || !is_known && value != 0 {
            // The registers may have been lost without notice: records would be written to address 0.
            self.write(IA32_DS_AREA, self.pebs.memory.area_address())?;
        }
        // Until the write is known to be done, both the old and the new counters may write records.
        state.set_enabled(state.enabled() | wanted.counters);
        self.write(IA32_PEBS_ENABLE, value)?;
        state.enable.store(value, Relaxed);
        // After the write: from here on a stuck counter writes no record that could be taken for another event's.
        self.free_stuck();
        state.set_enabled(wanted.counters);
        state.set(KNOWN);
        Ok(())
    }

    /// Programs the records of each counter of architectural PEBS.
    fn enable_each(
        &self,
        running: &Running<'_>,
        wanted: &Wanted,
        anew: CounterSet,
    ) -> Result<(), AccessFault> {
        let state = &self.pebs.memory.state;
        let (is_known, enabled) = (state.is(KNOWN), state.enabled());
        state.clear(KNOWN);
        for counter in (enabled | wanted.counters).iter() {
            let is_wanted = wanted.counters.contains(counter);
            let is_programmed = enabled.without(anew).contains(counter);
            if is_known && is_wanted && is_programmed {
                continue;
            }
            // A register that counter reload has now is not cleared.
            if is_wanted || running.reloaded_by(counter).is_empty() {
                state.set_enabled(state.enabled() | counter.only());
                self.write_control(counter, is_wanted)?;
            }
            let others = state.enabled().without(counter.only());
            state.set_enabled(if is_wanted { others | counter.only() } else { others });
        }
        self.free_stuck();
        // The index is written with the first counter.
        if is_known || !wanted.counters.is_empty() {
            state.set(KNOWN);
        }
        Ok(())
    }

    /// Programs one counter's records of architectural PEBS.
    #[inline(never)] // 208 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(crate) fn write_control(
        &self,
        counter: CounterId,
        enable: bool,
    ) -> Result<(), AccessFault> {
        let slot = self.pebs.memory.state.slot(counter).filter(|_| enable);
        let value = slot
            .map_or(PmcCfgC::new(), |slot| control(slot.flags(), slot.reload.load(Relaxed) as u32));
        let first = if counter.is_fixed() { IA32_PMC_FX0_CFG_C } else { IA32_PMC_GP0_CFG_C };
        self.write(first + STEP * u32::from(counter.number()), value.into_bits())
    }

    /// Sets the value with which the processor loads a counter after each record, in the area.
    pub(crate) fn set_reset(&self, counter: CounterId, preload: u64) {
        let resets = &self.pebs.memory.save_area().pebs_counter_reset;
        if let Some(place) = resets.get(self.pebs.unit.reset_place(counter)) {
            place.store(preload, Relaxed);
        }
    }

    /// Writes the parts of adaptive records.
    fn write_parts(&self, parts: SampleParts) -> Result<(), AccessFault> {
        let all = self.pebs.unit.counters.counters();
        let count = parts.branch_count();
        let counters = parts.contains(SampleParts::COUNTERS);
        let value = PebsDataCfg::new()
            .with_memory(parts.contains(SampleParts::ACCESS))
            .with_registers(parts.contains(SampleParts::REGISTERS))
            .with_vectors(parts.contains(SampleParts::VECTORS))
            .with_branches(count != 0)
            .with_branch_count(count.saturating_sub(1))
            .with_counters(counters)
            .with_metrics(parts.contains(SampleParts::METRICS))
            .with_general_counters(if counters { all.bits() as u16 } else { 0 })
            .with_fixed_counters(if counters { (all.bits() >> 32) as u8 } else { 0 });
        self.write(MSR_PEBS_DATA_CFG, value.into_bits())
    }

    /// Ends all records, for another owner of the counters: `for_good` if the session ends.
    fn end(&self, for_good: bool) -> Result<(), AccessFault> {
        let (memory, is_architectural) =
            (self.pebs.memory, self.pebs.unit.needs_physical_address());
        let state = &memory.state;
        if !state.is(TAKEN) {
            return Ok(());
        }
        let is_known = state.is(KNOWN);
        if is_architectural {
            state.clear(KNOWN);
            self.msr.write_retrying(index_register(), 0)?;
        } else if !is_known || state.enable.load(Relaxed) != 0 {
            state.clear(KNOWN);
            self.write(IA32_PEBS_ENABLE, 0)?;
            state.enable.store(0, Relaxed);
            state.set_enabled(CounterSet::NONE);
            if is_known {
                state.set(KNOWN);
            }
        }
        if !for_good {
            return Ok(());
        }
        state.clear(KNOWN);
        for counter in state.enabled().iter() {
            self.write_control(counter, false)?;
        }
        match is_architectural {
            true => self.write(IA32_PEBS_BASE, 0)?,
            // A branch trace clears the address at its own end.
            false if memory.is_traced() => {}
            false => self.write(IA32_DS_AREA, 0)?,
        }
        state.set_enabled(CounterSet::NONE);
        state.set_recording(CounterSet::NONE);
        memory.control_area().set_recording(false);
        state.clear(TAKEN);
        Ok(())
    }

    fn read(&self, register: u32) -> Result<u64, AccessFault> {
        // SAFETY: the register is read.
        self.msr.read_retrying(unsafe { RegisterAddress::new(register) })
    }

    fn write(&self, register: u32, value: u64) -> Result<(), AccessFault> {
        // SAFETY: by the promise of `Pebs::new`, the processor may write its records to the area and the buffer, whose
        // addresses are the only ones that are written here.
        self.msr.write_retrying(unsafe { RegisterAddress::new(register) }, value)
    }
}

/// Returns the value of a counter's register of architectural PEBS.
fn control(flags: SlotFlags, reload: u32) -> PmcCfgC {
    let parts = flags.parts();
    let counters = parts.contains(SampleParts::COUNTERS);
    PmcCfgC::new()
        .with_reload(reload.wrapping_neg())
        .with_counters(kinds_of_counters(parts))
        .with_general_counters(counters)
        .with_fixed_counters(counters)
        .with_metrics(parts.contains(SampleParts::METRICS))
        .with_branches(match parts.branch_count() {
            0 => 0,
            1..=8 => 1,
            9..=16 => 2,
            17.. => 3,
        })
        .with_xmm(parts.contains(SampleParts::VECTORS))
        .with_registers(parts.contains(SampleParts::REGISTERS))
        .with_memory(parts.contains(SampleParts::ACCESS))
        .with_enable(true)
}
