//! The LVT entry for performance counters, written as an MSR in x2APIC mode, and as memory in xAPIC mode.
//!
//! Read first: Intel SDM vol. 3A, "Advanced Programmable Interrupt Controller (APIC)", sections "Local APIC Status and
//! Location" and "x2APIC Register Address Space"; AMD APM vol. 2, "Advanced Programmable Interrupt Controller (APIC)".

use pmu_core::access::{
    AccessFault, RegisterAccess, RegisterAddress, RegisterBackend, RegisterUpdate,
};

use crate::local_apic::{ApicRegisters, LocalApic, LvtEntry};

/// `IA32_APIC_BASE`, and its bits: x2APIC mode, and the local APIC is enabled.
const APIC_BASE: RegisterUpdate = RegisterUpdate::read(0x1B);
const X2APIC_MODE: u64 = 1 << 10;
const ENABLED: u64 = 1 << 11;

/// The executing processor's local APIC, in the mode that `IA32_APIC_BASE` specifies. `NativeApic` implements
/// [`ApicRegisters`], for a kernel without its own code for the local APIC.
///
/// ```
/// use pmu::core::access::RegisterBackend;
/// use pmu::apic::{Delivery, LocalApic, NativeApic, NoApic, NoTimer};
///
/// /// `page`: where the kernel mapped FEE0_0000h; `msr`: `pmu::core::x86::NativeMsr` (feature `native`), for instance.
/// fn platform<M: RegisterBackend>(msr: M, page: usize) -> Result<LocalApic<NativeApic<M>>, NoApic> {
///     // SAFETY: the mapping is uncached and in every address space; every processor is in this one's mode.
///     let apic = unsafe { NativeApic::detect(msr, Some(page)) }?;
///     Ok(LocalApic::new(apic, Delivery::NON_MASKABLE, NoTimer))
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NativeApic<M> {
    msr: M,
    /// Address of the registers; `None`: x2APIC mode.
    page: Option<usize>,
}

/// Reason why [`NativeApic::detect`] finds no local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NoApic {
    /// The local APIC is disabled, according to `IA32_APIC_BASE`.
    #[error("the local APIC is disabled")]
    Disabled,
    /// The local APIC is in xAPIC mode, and the caller gave no address of its registers.
    #[error("the local APIC's page is not mapped")]
    NotMapped,
    /// `IA32_APIC_BASE` could not be read.
    #[error("{0}")]
    Access(AccessFault),
}

impl<M: RegisterBackend> NativeApic<M> {
    /// Detects the mode of the local APIC of the processor that executes the call. In xAPIC mode, `page` is the address
    /// at which the registers are mapped. In x2APIC mode `page` is not used.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// - The local APIC is disabled.
    /// - The local APIC is in xAPIC mode, and `page` is `None`.
    /// - `IA32_APIC_BASE` could not be read.
    ///
    /// # Safety
    /// - If `page` is an address, the local APIC's 4 KiB of registers are mapped there, uncached and writable. The
    ///   mapping exists for as long as the returned value is used, and is present in the address space of each caller
    ///   of the value's methods.
    /// - On each processor on which the returned value is used, the local APIC stays in the detected mode for as long
    ///   as the value is used.
    ///
    /// Wrong: the call detects xAPIC mode. Later the kernel changes to x2APIC mode and unmaps the page, but still uses
    /// the returned value.
    ///
    /// ```
    /// # use pmu::apic::NativeApic;
    /// # use pmu::core::access::RegisterBackend;
    /// # fn boot(msr: impl RegisterBackend, page: usize) {
    /// // SAFETY: not given. The page is another one's by the time of the first interrupt.
    /// let apic = unsafe { NativeApic::detect(msr, Some(page)) };
    /// # let _ = apic;
    /// # }
    /// ```
    pub unsafe fn detect(msr: M, page: Option<usize>) -> Result<Self, NoApic> {
        let base = msr.update_retrying(APIC_BASE).map_err(NoApic::Access)?;
        match (base & ENABLED != 0, base & X2APIC_MODE != 0) {
            (false, _) => Err(NoApic::Disabled),
            (true, true) => Ok(Self { msr, page: None }),
            (true, false) if page.is_none() => Err(NoApic::NotMapped),
            (true, false) => Ok(Self { msr, page }),
        }
    }

    /// Reads the register at an offset in the page of xAPIC mode; `None` if the read of its MSR fails.
    fn read(&self, offset: usize) -> Option<u32> {
        let Some(page) = self.page else {
            // SAFETY: the register is only read, and no read of a register of the local APIC writes to memory.
            let register = unsafe { RegisterAddress::new(0x800 + (offset >> 4) as u32) };
            return self.msr.read_retrying(register).ok().map(|value| value as u32);
        };
        // SAFETY: the local APIC's page is mapped there, by the promise of `detect`; its registers are 32 bits wide.
        Some(unsafe { ((page + offset) as *const u32).read_volatile() })
    }

    /// Returns the offset of an extended LVT entry, if the local APIC has the entry.
    ///
    /// In xAPIC mode an absent register has no defined value, so the version must declare the extended registers. In
    /// x2APIC mode an absent register faults, and the version is not asked: KVM leaves its bit 31 clear, also where the
    /// hypervisor above it has the registers.
    fn extended(&self, number: u8) -> Option<usize> {
        let has_extended = self.page.is_none() || self.read(VERSION)? >> 31 != 0;
        let entries = if has_extended { self.read(EXTENDED_FEATURES)? >> 16 & 0xFF } else { 0 };
        let exists = u32::from(number) < entries.min(16);
        exists.then(|| LocalApic::<Self>::XAPIC_EXTENDED_OFFSET + 16 * usize::from(number))
    }
}

/// Offsets of the version, whose bit 31 declares the extended registers, and of the extended features, whose bits 23:16
/// are the number of extended LVT entries (AMD APM vol. 2, "Extended Interrupts").
const VERSION: usize = 0x30;
const EXTENDED_FEATURES: usize = 0x400;

impl<M: RegisterBackend> ApicRegisters for NativeApic<M> {
    /// Writes the LVT entry. In x2APIC mode, the entry is unchanged if the write faults twice.
    fn write_performance_entry(&self, entry: LvtEntry) {
        let Some(page) = self.page else {
            // SAFETY: an LVT entry names an interrupt of this processor; no value of it writes to memory.
            let register = unsafe { RegisterAddress::new(LocalApic::<Self>::X2APIC_MSR) };
            let _ = self.msr.write_retrying(register, entry.into());
            return;
        };
        let register = (page + LocalApic::<Self>::XAPIC_OFFSET) as *mut u32;
        // SAFETY: the local APIC's page is mapped there, by the promise of `detect`; its registers are 32 bits wide.
        unsafe { register.write_volatile(entry.into()) };
    }

    fn read_performance_entry(&self) -> Option<u32> {
        self.read(LocalApic::<Self>::XAPIC_OFFSET)
    }

    fn read_extended_entry(&self, number: u8) -> Option<u32> {
        self.read(self.extended(number)?)
    }

    fn write_extended_entry(&self, number: u8, entry: u32) {
        let Some(offset) = self.extended(number) else { return };
        let Some(page) = self.page else {
            // SAFETY: an LVT entry names an interrupt of this processor; no value of it writes to memory.
            let register = unsafe {
                RegisterAddress::new(LocalApic::<Self>::X2APIC_EXTENDED_MSR + u32::from(number))
            };
            let _ = self.msr.write_retrying(register, entry.into());
            return;
        };
        // SAFETY: the local APIC's page is mapped there, by the promise of `detect`; its registers are 32 bits wide.
        unsafe { ((page + offset) as *mut u32).write_volatile(entry) };
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use pmu_core::access::{AccessErrorKind, AccessOperation};
    use pmu_core::testing::{Access, ScriptedRegisters};

    use super::*;
    use crate::local_apic::Delivery;

    /// SDM vol. 3A, table "x2APIC Operating Mode Configurations": EN is bit 11, EXTD bit 10.
    const XAPIC: u64 = 0xFEE0_0800;
    const X2APIC: u64 = 0xFEE0_0C00;
    const APIC_BASE: u32 = 0x1B;

    #[test]
    fn in_x2apic_mode_the_entry_is_an_msr() {
        let script = [Access::read(APIC_BASE, X2APIC), Access::write(0x834, 0x400)];
        let msr = ScriptedRegisters::new(&script);
        // SAFETY: there is no processor, and no page.
        let apic = unsafe { NativeApic::detect(&msr, None) }.unwrap();
        apic.write_performance_entry(LvtEntry::new(Delivery::NON_MASKABLE, false));
        msr.finish();
    }

    /// AMD APM vol. 2, "Extended Interrupts" and "x2APIC Register Address Space": the extended features are MSR 0x840,
    /// and the entries begin with MSR 0x850.
    #[test]
    fn in_x2apic_mode_extended_entries_are_msrs_and_only_those_that_exist() {
        let features = || Access::read(0x840, 0x4_0007);
        let script = [
            Access::read(APIC_BASE, X2APIC),
            features(),
            Access::read(0x851, 0x1_0000),
            features(),
            Access::write(0x851, 0x400),
            features(),
            // No extended registers: the access is retried once.
            features().faulting(),
            features().faulting(),
        ];
        let msr = ScriptedRegisters::new(&script);
        // SAFETY: there is no processor, and no page.
        let apic = unsafe { NativeApic::detect(&msr, None) }.unwrap();
        assert_eq!(apic.read_extended_entry(1), Some(0x1_0000));
        apic.write_extended_entry(1, 0x400);
        assert_eq!(apic.read_extended_entry(4), None);
        assert_eq!(apic.read_extended_entry(0), None);
        msr.finish();
    }

    /// There the registers beyond those that the version declares read anything.
    #[test]
    fn in_xapic_mode_a_version_without_extended_registers_has_no_extended_entry() {
        let script = [Access::read(APIC_BASE, XAPIC)];
        let msr = ScriptedRegisters::new(&script);
        let mut page = Box::new([0_u32; 1024]);
        (page[0x30 / 4], page[0x400 / 4], page[0x500 / 4]) = (0x0105_0010, 4 << 16, 0x1_0000);
        // SAFETY: the memory is the test's.
        let apic = unsafe { NativeApic::detect(&msr, Some(page.as_mut_ptr().expose_provenance())) };
        let apic = apic.unwrap();
        assert_eq!(apic.read_extended_entry(0), None);
        apic.write_extended_entry(0, 0x400);
        msr.finish();
        assert_eq!(page[0x500 / 4], 0x1_0000);
    }

    #[test]
    fn in_xapic_mode_extended_entries_are_in_the_page() {
        let script = [Access::read(APIC_BASE, XAPIC)];
        let msr = ScriptedRegisters::new(&script);
        let mut page = Box::new([0_u32; 1024]);
        (page[0x30 / 4], page[0x400 / 4], page[0x520 / 4]) = (1 << 31, 4 << 16, 0x1_0000);
        // SAFETY: the memory is the test's.
        let apic = unsafe { NativeApic::detect(&msr, Some(page.as_mut_ptr().expose_provenance())) };
        let apic = apic.unwrap();
        assert_eq!(apic.read_extended_entry(2), Some(0x1_0000));
        apic.write_extended_entry(2, 0x400);
        apic.write_extended_entry(4, 0x400);
        msr.finish();
        assert_eq!((page[0x520 / 4], page[0x540 / 4]), (0x400, 0));
    }

    #[test]
    fn in_xapic_mode_the_entry_is_in_the_page_and_no_msr_is_written() {
        let script = [Access::read(APIC_BASE, XAPIC)];
        let msr = ScriptedRegisters::new(&script);
        let mut page = Box::new([0_u32; 1024]);
        // SAFETY: the memory is the test's.
        let apic = unsafe { NativeApic::detect(&msr, Some(page.as_mut_ptr().expose_provenance())) };
        apic.unwrap().write_performance_entry(LvtEntry::new(Delivery::NON_MASKABLE, true));
        msr.finish();
        let written = page.iter().enumerate().filter(|(_, value)| **value != 0);
        assert_eq!(written.collect::<std::vec::Vec<_>>(), [(0x340 / 4, &0x1_0400)]);
    }

    #[test]
    fn without_a_local_apic_or_its_page_the_reason_is_told() {
        let (operation, kind) = (AccessOperation::Read, AccessErrorKind::Fault);
        let fault = AccessFault { operation, register: APIC_BASE, kind };
        let absent = [
            (Access::read(APIC_BASE, 0xFEE0_0000), 1, NoApic::Disabled),
            (Access::read(APIC_BASE, XAPIC), 1, NoApic::NotMapped),
            (Access::read(APIC_BASE, 0).faulting(), 2, NoApic::Access(fault)),
        ];
        for (access, times, reason) in absent {
            let script = std::vec![access; times];
            let msr = ScriptedRegisters::new(&script);
            // SAFETY: there is no processor, and no page.
            let found = unsafe { NativeApic::detect(&msr, None) };
            assert_eq!(found.err(), Some(reason));
            msr.finish();
        }
    }
}
