//! Counter reload as a facility beside the PMU: RDMSR, WRMSR, CPUID, lists.

use crate::configuration::cpuid::CpuidLeaf;
use crate::pmu::access::{Read, Write, Written};
use crate::pmu::facility::{GuestFacility, Writer};
use crate::registers::counters::{MAX_COUNTERS, MAX_PER_KIND};
use crate::registers::list::{RegisterInfo, RegisterKind};
use crate::reload::virtual_reload::VirtualReload;

/// The reload value: CFG_C 31:0.
const VALUE: u64 = 0xFFFF_FFFF;

impl VirtualReload {
    /// Returns whether architectural PEBS answers CFG_C of a counter.
    fn shares(&self, counter: usize) -> bool {
        self.shared >> counter & 1 != 0
    }

    fn legal(&self, is_value: bool) -> u64 {
        if is_value { VALUE } else { self.configuration.causes() }
    }
}

impl GuestFacility for VirtualReload {
    fn read(&self, address: u32) -> Read {
        match self.locate(address) {
            Some((counter, false)) => Read::Value(self.causes[counter % MAX_COUNTERS]),
            Some((counter, true)) if !self.shares(counter) => {
                Read::Value(self.values[counter % MAX_COUNTERS].into())
            }
            _ => Read::Unhandled,
        }
    }

    fn check_write(&self, _: Writer, address: u32, value: u64) -> Written {
        match self.locate(address) {
            None => Written::UNHANDLED,
            Some((counter, true)) if self.shares(counter) => Written::UNHANDLED,
            Some((_, is_value)) => match value & !self.legal(is_value) {
                0 => Written::DONE,
                illegal => Written { answer: Write::GeneralProtection, illegal },
            },
        }
    }

    fn write(&mut self, writer: Writer, address: u32, value: u64) -> Written {
        let written = self.check_write(writer, address, value);
        if written.answer != Write::GeneralProtection {
            match self.locate(address) {
                Some((counter, false)) => self.causes[counter % MAX_COUNTERS] = value,
                // Also where the records answer: both have the reload value.
                Some((counter, true)) => self.values[counter % MAX_COUNTERS] = value as u32,
                None => {}
            }
        }
        written
    }

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.configuration.declared(leaf)
    }

    fn registers(&self) -> impl Iterator<Item = RegisterInfo> {
        let blocks = [
            (0x1902, ["IA32_PMC_GPx_CFG_B", "IA32_PMC_GPx_CFG_C"]),
            (0x1982, ["IA32_PMC_FXx_CFG_B", "IA32_PMC_FXx_CFG_C"]),
        ];
        blocks.into_iter().flat_map(move |(first, names)| {
            (0..MAX_PER_KIND as u32).flat_map(move |number| {
                names.into_iter().zip([false, true]).filter_map(move |(name, is_value)| {
                    let address = first + 4 * number + u32::from(is_value);
                    let (counter, _) = self.locate(address)?;
                    if is_value && self.shares(counter) {
                        return None;
                    }
                    Some(RegisterInfo {
                        address,
                        name,
                        manual: "SDM vol. 3B, Auto Counter Reload",
                        kind: RegisterKind::CounterReload,
                        counter: number as u8,
                        exists: true,
                        is_writable: true,
                        legal: self.legal(is_value),
                        owned: u64::MAX,
                        is_state: true,
                    })
                })
            })
        })
    }

    fn pmi_raised(&mut self) {}

    fn reset(&mut self) {
        (self.causes, self.values) = ([0; MAX_COUNTERS], [0; MAX_COUNTERS]);
    }
}
