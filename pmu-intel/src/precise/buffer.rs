//! The buffer: how far it is filled, and emptying it.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::msr::{MsrAccess, MsrAddress, MsrBackend, MsrFault};

use crate::precise::decode::format::PreciseFormat;
use crate::precise::memory::PreciseMemory;
use crate::precise::registers::{IA32_PEBS_INDEX, PebsIndex};
use crate::precise::unit::PreciseUnit;

impl PreciseMemory {
    /// Returns whether the buffer has reached its threshold, or has an index that cannot be right.
    pub(crate) fn interrupts<M: MsrBackend>(
        &self,
        unit: &PreciseUnit,
        msr: &M,
    ) -> Result<bool, MsrFault> {
        if unit.format() == PreciseFormat::Architectural {
            let found = PebsIndex::from_bits(msr.rdmsr_retrying(index_register())?);
            return Ok(found.full() || found.write() != 0 && found.write() >= found.threshold());
        }
        let (area, base) = (self.save_area(), self.buffer_address());
        let below = base..area.pebs_interrupt_threshold.load(Relaxed);
        Ok(self.names_buffer() && !below.contains(&area.pebs_index.load(Relaxed)))
    }

    /// Returns whether the area names the buffer: else the processor writes nothing.
    fn names_buffer(&self) -> bool {
        self.save_area().pebs_absolute_maximum.load(Relaxed) != 0
    }

    /// Resets the area's index. Returns the number of bytes that were written: 0 if the index cannot be right.
    pub(crate) fn reset_area(&self, unit: &PreciseUnit) -> usize {
        let (area, base) = (self.save_area(), self.buffer_address());
        if !self.names_buffer() {
            return 0;
        }
        let index = area.pebs_index.swap(base, Relaxed);
        let written = index.checked_sub(base).map(|written| written as usize);
        let step = unit.format().record_size().unwrap_or(8);
        let right = |written: &usize| *written <= self.capacity() && written.is_multiple_of(step);
        let written = written.filter(right);
        if written.is_none() {
            self.count_lost();
        }
        written.unwrap_or(0)
    }

    /// Resets the register's offset, and keeps its threshold. Returns the number of bytes that were written.
    pub(crate) fn reset_register<M: MsrBackend>(&self, msr: &M) -> Result<usize, MsrFault> {
        let register = index_register();
        let found = PebsIndex::from_bits(msr.rdmsr_retrying(register)?);
        if found.write() == 0 && !found.full() {
            return Ok(0);
        }
        msr.wrmsr_retrying(register, found.with_write(0).with_full(false).into_bits())?;
        let written = 16 * found.write() as usize;
        if found.full() || written > self.capacity() {
            self.count_lost();
        }
        Ok(if written > self.capacity() { 0 } else { written })
    }
}

/// Returns the register of the next record's place.
pub(crate) fn index_register() -> MsrAddress {
    // SAFETY: an offset in the buffer at IA32_PEBS_BASE, of which the processor does not go beyond the end. Only
    // `Pebs` gives a base, with the promise of its `new`.
    unsafe { MsrAddress::new(IA32_PEBS_INDEX) }
}
