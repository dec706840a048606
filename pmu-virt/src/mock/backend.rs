//! The mock as a driver sees it: the registers and the platform of a processor.

use core::cell::Cell;

use pmu_core::interval::Interval;
use pmu_core::msr::{MsrAddress, MsrBackend, MsrErrorKind, MsrOperation, MsrUpdate, PmcIndex};
use pmu_core::{Platform, PlatformError};

use crate::configuration::vendor::Vendor;
use crate::mock::deviation::Deviation;
use crate::mock::processor::{FROZEN, MASKED, MockMsr};
use crate::registers::family::Family;

impl<const T: usize> MsrBackend for MockMsr<'_, T> {
    type Error = MsrErrorKind;

    fn read(&self, address: MsrAddress) -> Result<u64, MsrErrorKind> {
        self.rdmsr(address.get())
    }

    fn write(&self, address: MsrAddress, value: u64) -> Result<(), MsrErrorKind> {
        self.wrmsr(address.get(), value)
    }

    fn read_pmc(&self, index: PmcIndex) -> Result<u64, MsrErrorKind> {
        let (index, mode) = (index.get(), self.mode.get());
        let dead = index == 1 && self.deviations.contains(Deviation::DeadCounter);
        let deviation = dead.then_some(Ok(0));
        self.finish_read(MsrOperation::ReadPmc, index, deviation, |pmu| {
            pmu.read_pmc_beside(&*self.beside.borrow(), index, mode)
        })
    }

    /// Makes two accesses, RDMSR and WRMSR. The mock counts and records each access. An interrupt may come before each
    /// access.
    fn update(&self, update: MsrUpdate) -> Result<u64, MsrErrorKind> {
        let found = self.rdmsr(update.register())?;
        if let Some(value) = update.apply(found) {
            self.wrmsr(update.register(), value)?;
        }
        Ok(found)
    }
}

impl<const T: usize> Platform for MockMsr<'_, T> {
    /// Unmasks the LVT entry for performance counters, and sets the delivery mode to NMI.
    fn unmask_performance_interrupt(&self) {
        self.announce();
        let masked = self.entry.replace(0x400) & MASKED != 0;
        if masked && self.deviations.contains(Deviation::RaisesOnUnmask) {
            let mut pmu = self.pmu.borrow_mut();
            let status = pmu.model.registers.of(Family::GlobalStatus);
            let raises = pmu.vendor() == Vendor::Intel && status & !FROZEN != 0;
            pmu.model.pmi_pending |= raises;
            drop(pmu);
            if raises {
                self.interrupt();
            }
        }
    }

    fn mask_performance_interrupt(&self) {
        self.announce();
        self.entry.set(MASKED | 0x400);
    }

    /// Unmasks the extended LVT entry with this number, and sets the delivery mode to NMI. The call changes nothing if
    /// the entry is in use, that is, unmasked with another value.
    fn unmask_extended_interrupt(&self, entry: u8) -> Result<(), PlatformError> {
        match self.extended_entries.get(usize::from(entry)).map(Cell::get) {
            None => Err(PlatformError::NoExtendedEntry),
            Some(found) if found & MASKED == 0 && found != 0x400 => {
                Err(PlatformError::ExtendedEntryInUse(found))
            }
            Some(_) => {
                self.set_extended_entry(entry, 0x400);
                Ok(())
            }
        }
    }

    fn start_profile_timer(&self, interval: Interval) -> Result<(), PlatformError> {
        self.timer.set(Some(interval));
        Ok(())
    }

    fn stop_profile_timer(&self) {
        self.timer.set(None);
    }
}
