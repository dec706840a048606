//! The registers by which a recorder makes the processor write records.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::{CounterId, CounterSet, MsrAccess, MsrAddress, MsrBackend, MsrFault, SampleParts};

use crate::precise::decode::format::PreciseFormat;
use crate::precise::drain::index_register;
use crate::precise::memory::{PAGE, PreciseMemory};
use crate::precise::registers::{
    IA32_PEBS_BASE, MSR_PEBS_DATA_CFG, PebsDataCfg, PebsIndex, PmcCfgC,
};
use crate::precise::slot::PreciseSlot;
use crate::precise::threshold::PreciseThreshold;
use crate::precise::unit::{PreciseUnit, kinds_of_counters};
use crate::registers::{IA32_DS_AREA, IA32_PEBS_ENABLE, IA32_PMC_FX0_CFG_C, IA32_PMC_GP0_CFG_C};

/// Distance of the registers of adjacent counters.
const STEP: u32 = 4;

/// A unit, its memory, and the backend with the promise of [`PreciseRecorder::take`](super::PreciseRecorder::take).
#[derive(Debug)]
pub(crate) struct Hardware<'a, M> {
    pub(crate) unit: &'a PreciseUnit,
    pub(crate) msr: M,
    pub(crate) memory: &'static PreciseMemory,
    /// The buffer's physical address, for architectural PEBS.
    pub(crate) physical: u64,
}

impl<M: MsrBackend> Hardware<'_, M> {
    pub(crate) fn is_architectural(&self) -> bool {
        self.unit.format() == PreciseFormat::Architectural
    }

    fn write(&self, register: u32, value: u64) -> Result<(), MsrFault> {
        // SAFETY: by the promise of `PreciseRecorder::take`, the processor may write its records to the area and the
        // buffer, whose addresses are the only ones that are written here.
        self.msr.wrmsr_retrying(unsafe { MsrAddress::new(register) }, value)
    }

    /// Has no counter write records, whatever a predecessor left.
    pub(crate) fn disable_all(&self) -> Result<(), MsrFault> {
        if self.is_architectural() {
            return self.msr.wrmsr_retrying(index_register(), 0);
        }
        self.write(IA32_PEBS_ENABLE, 0)
    }

    /// Prepares the area for the processor: the buffer is empty, and without room for records until it is arranged.
    pub(crate) fn prepare(&self) {
        let (area, base) = (self.memory.save_area(), self.memory.buffer_address());
        // Without room the processor writes nothing, wherever the index is meanwhile.
        area.pebs_absolute_maximum.store(0, Relaxed);
        area.pebs_buffer_base.store(base, Relaxed);
        area.pebs_index.store(base, Relaxed);
        area.pebs_interrupt_threshold.store(base, Relaxed);
        if !self.is_architectural() {
            self.memory.control_area().set_recording(true);
        }
    }

    /// Gives the processor the address of the area, or of the buffer of architectural PEBS. This precedes each enable:
    /// a suspend may have cleared the address, and the processor would write its records to address 0.
    pub(crate) fn locate(&self) -> Result<(), MsrFault> {
        match self.is_architectural() {
            true => self.write(IA32_PEBS_BASE, self.base()),
            false => self.write(IA32_DS_AREA, self.memory.area_address()),
        }
    }

    /// Returns whether the registers of architectural PEBS have lost the buffer, and with it the index. The area in
    /// memory keeps its own.
    pub(crate) fn has_lost_buffer(&self) -> Result<bool, MsrFault> {
        if !self.is_architectural() {
            return Ok(false);
        }
        // SAFETY: the register is read.
        let register = unsafe { MsrAddress::new(IA32_PEBS_BASE) };
        Ok(self.msr.rdmsr_retrying(register)? != self.base())
    }

    /// Returns the value of `IA32_PEBS_BASE`.
    fn base(&self) -> u64 {
        let pages = (self.memory.capacity() / PAGE) as u64;
        self.physical | u64::from(pages.trailing_zeros())
    }

    /// Takes the area, or the buffer, away from the processor.
    pub(crate) fn detach(&self) -> Result<(), MsrFault> {
        self.disable_all()?;
        self.write(if self.is_architectural() { IA32_PEBS_BASE } else { IA32_DS_AREA }, 0)
    }

    /// Sets the end of the buffer and the threshold, for records of `least` to `size` bytes from this number of
    /// counters, while no counter writes records and the buffer is empty. Does not enable the index of architectural
    /// PEBS.
    pub(crate) fn arrange(
        &self,
        (least, size): (usize, usize),
        counters: usize,
        threshold: PreciseThreshold,
    ) {
        let capacity = match self.unit.model.one_page {
            true => self.memory.capacity().min(PAGE),
            false => self.memory.capacity(),
        };
        let usable = if self.is_architectural() { capacity } else { capacity / size * size };
        self.memory.set_usable(usable);
        if self.is_architectural() {
            return;
        }
        let (area, base) = (self.memory.save_area(), self.memory.buffer_address());
        let first = match threshold {
            PreciseThreshold::EachRecord => least,
            PreciseThreshold::NearlyFull => usable.saturating_sub(size * counters).max(size),
        };
        area.pebs_interrupt_threshold.store(base + first as u64, Relaxed);
        area.pebs_absolute_maximum.store(base + usable as u64, Relaxed);
    }

    /// Returns the value of the index by which architectural PEBS begins.
    fn begin_index(&self, size: usize, counters: usize, threshold: PreciseThreshold) -> PebsIndex {
        let first = match threshold {
            PreciseThreshold::EachRecord => 16,
            PreciseThreshold::NearlyFull => {
                self.memory.capacity().saturating_sub(size * counters).max(16)
            }
        };
        PebsIndex::new().with_enable(true).with_threshold((first / 16) as u32)
    }

    /// Writes the groups of adaptive records.
    pub(crate) fn write_groups(&self, groups: SampleParts) -> Result<(), MsrFault> {
        if !self.unit.has_adaptive_control() {
            return Ok(());
        }
        let all = self.unit.counters.counters();
        let count = groups.branch_count();
        let counters = groups.contains(SampleParts::COUNTERS);
        let value = PebsDataCfg::new()
            .with_memory(groups.contains(SampleParts::ACCESS))
            .with_registers(groups.contains(SampleParts::REGISTERS))
            .with_vectors(groups.contains(SampleParts::VECTORS))
            .with_branches(count != 0)
            .with_branch_count(count.saturating_sub(1))
            .with_counters(counters)
            .with_metrics(groups.contains(SampleParts::METRICS))
            .with_general_counters(if counters { all.bits() as u16 } else { 0 })
            .with_fixed_counters(if counters { (all.bits() >> 32) as u8 } else { 0 });
        self.write(MSR_PEBS_DATA_CFG, value.into_bits())
    }

    /// Has exactly these counters write records.
    pub(crate) fn enable(&self, counters: CounterSet, latency: CounterSet) -> Result<(), MsrFault> {
        if self.is_architectural() {
            return Ok(());
        }
        let latency = if self.unit.is_baseline() { 0 } else { latency.bits() << 32 };
        self.write(IA32_PEBS_ENABLE, counters.bits() | latency)
    }

    /// Lets architectural PEBS write records from the beginning of the buffer on.
    pub(crate) fn enable_index(
        &self,
        size: usize,
        counters: usize,
        threshold: PreciseThreshold,
    ) -> Result<(), MsrFault> {
        let value = self.begin_index(size, counters, threshold);
        self.msr.wrmsr_retrying(index_register(), value.into_bits())
    }

    /// Programs one counter's records of architectural PEBS; `None`: it writes none.
    pub(crate) fn program_records(
        &self,
        counter: CounterId,
        slot: Option<&PreciseSlot>,
    ) -> Result<(), MsrFault> {
        let value = slot.map_or(PmcCfgC::new(), |slot| {
            let (event, groups) = (slot.event(), slot.event().groups());
            let period = slot.period.load(Relaxed) as u32;
            let counters = groups.contains(SampleParts::COUNTERS);
            PmcCfgC::new()
                .with_reload(if event.is_loaded_by_handler() { 0 } else { period.wrapping_neg() })
                .with_counters(kinds_of_counters(groups))
                .with_general_counters(counters)
                .with_fixed_counters(counters)
                .with_metrics(groups.contains(SampleParts::METRICS))
                .with_branches(match groups.branch_count() {
                    0 => 0,
                    1..=8 => 1,
                    9..=16 => 2,
                    17.. => 3,
                })
                .with_xmm(groups.contains(SampleParts::VECTORS))
                .with_registers(groups.contains(SampleParts::REGISTERS))
                .with_memory(groups.contains(SampleParts::ACCESS))
                .with_enable(true)
        });
        let first = if counter.is_fixed() { IA32_PMC_FX0_CFG_C } else { IA32_PMC_GP0_CFG_C };
        self.write(first + STEP * u32::from(counter.number()), value.into_bits())
    }
}
