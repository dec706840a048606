//! The extended entries of AMD's local vector table, which KVM's local APIC lacks.
//!
//! In x2APIC mode they are model-specific registers, and KVM passes accesses to those that it does not know on to the
//! monitor. In xAPIC mode they are in the local APIC's page, which KVM answers without the monitor.

use pmu_virt::{Delivery, PerformanceEntry};

use crate::processor::apic::LocalApic;

/// APM vol. 2, "x2APIC Register Address Space" and "Extended Interrupts": the features, whose bits 23:16 are the number
/// of entries, and the first entry.
const FEATURES: u32 = 0x840;
const FIRST: u32 = 0x850;
const ENTRIES: usize = 4;

/// An entry's vector, delivery mode and mask; and its delivery status, which is read-only.
const SETTABLE: u64 = 0x1_07FF;
const STATUS: u64 = 1 << 12;
const MASKED: u32 = 1 << 16;

/// The entries of one processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtendedEntries([u32; ENTRIES]);

impl ExtendedEntries {
    /// Creates the entries after RESET or INIT: masked.
    pub(crate) const fn new() -> Self {
        Self([MASKED; ENTRIES])
    }

    /// Executes RDMSR in x2APIC mode. `None`: none of these registers.
    pub(crate) fn read(&self, address: u32) -> Option<u64> {
        if address == FEATURES {
            return Some((ENTRIES as u64) << 16);
        }
        self.0.get(place(address)?).copied().map(u64::from)
    }

    /// Executes WRMSR in x2APIC mode. `None`: none of these registers, or a value that an entry cannot have.
    pub(crate) fn write(&mut self, address: u32, value: u64) -> Option<()> {
        let entry = self.0.get_mut(place(address)?)?;
        if value & !(SETTABLE | STATUS) != 0 {
            return None;
        }
        *entry = (value & SETTABLE) as u32;
        Some(())
    }

    /// Returns the entry with this number, through which `apic` raises interrupts.
    pub(crate) fn entry<'a, 'm>(
        &self,
        number: u8,
        apic: &'a mut LocalApic<'m>,
    ) -> ExtendedEntry<'a, 'm> {
        let value = self.0.get(usize::from(number)).copied().unwrap_or(MASKED);
        ExtendedEntry { value, apic }
    }
}

fn place(address: u32) -> Option<usize> {
    usize::try_from(address.checked_sub(FIRST)?).ok()
}

/// An entry, as a delivery finds it.
pub(crate) struct ExtendedEntry<'a, 'm> {
    value: u32,
    apic: &'a mut LocalApic<'m>,
}

impl PerformanceEntry for ExtendedEntry<'_, '_> {
    fn entry(&self) -> u32 {
        self.value
    }

    /// Does nothing: AMD does not mask an entry on delivery.
    fn set_entry(&mut self, _: u32) {}

    fn raise(&mut self, delivery: Delivery) {
        self.apic.raise(delivery);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APM vol. 2, "Extended Interrupts": four entries of eight vector bits, three bits of the message type and a mask.
    #[test]
    fn entries_are_masked_after_reset_and_hold_what_is_written() {
        let mut entries = ExtendedEntries::new();
        assert_eq!(
            [0x840, 0x850, 0x853].map(|address| entries.read(address)),
            [Some(4 << 16), Some(1 << 16), Some(1 << 16)]
        );
        assert_eq!(entries.write(0x851, 0x1_17FF), Some(()));
        assert_eq!(entries.read(0x851), Some(0x1_07FF));
        for (address, value) in [(0x851, 1 << 11), (0x851, 1 << 17), (0x854, 0), (0x840, 0)] {
            assert_eq!(entries.write(address, value), None, "{address:#x}");
        }
        assert_eq!([0x84F, 0x854, 0, 0x832].map(|address| entries.read(address)), [None; 4]);
        assert_eq!(entries.read(0x851), Some(0x1_07FF));
    }
}
