//! Instruction-based sampling as a facility beside the PMU: RDMSR, WRMSR, CPUID, lists.

use crate::configuration::cpuid::CpuidLeaf;
use crate::ibs::registers::*;
use crate::ibs::virtual_ibs::VirtualIbs;
use crate::pmu::access::{Read, Write, Written};
use crate::pmu::facility::{GuestFacility, Writer};
use crate::registers::list::{RegisterInfo, RegisterKind};

impl GuestFacility for VirtualIbs {
    /// Returns [`Read::Unhandled`] for a register that the configuration lacks: the PMU then answers #GP.
    fn read(&self, address: u32) -> Read {
        match self.configuration.locate(address) {
            Some(place) => Read::Value(self.registers[place]),
            None => Read::Unhandled,
        }
    }

    fn check_write(&self, writer: Writer, address: u32, value: u64) -> Written {
        let Some(place) = self.configuration.locate(address) else { return Written::UNHANDLED };
        if place == CTL {
            // Firmware's: a host restores the value that is there.
            return match writer {
                Writer::Host if value == self.configuration.entry() => Written::DONE,
                _ => Written::REFUSED,
            };
        }
        let illegal = value & !self.configuration.legal(place);
        if illegal != 0 {
            return Written { answer: Write::GeneralProtection, illegal };
        }
        match writer {
            Writer::Guest => Written { illegal: self.unsafe_stop(place, value), ..Written::DONE },
            Writer::Host => Written::DONE,
        }
    }

    fn write(&mut self, writer: Writer, address: u32, value: u64) -> Written {
        let written = self.check_write(writer, address, value);
        if let (Write::Done, Some(place)) = (written.answer, self.configuration.locate(address)) {
            match writer {
                Writer::Guest => self.set(place, value),
                Writer::Host => self.registers[place] = value,
            }
        }
        written
    }

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.configuration.declared(leaf)
    }

    fn registers(&self) -> impl Iterator<Item = RegisterInfo> {
        (FIRST..).zip(NAMES).filter_map(|(address, name)| {
            let place = self.configuration.locate(address)?;
            Some(RegisterInfo {
                address,
                name,
                manual: "APM vol. 2, Instruction-Based Sampling",
                kind: RegisterKind::InstructionSampling,
                counter: 0,
                exists: true,
                is_writable: place != CTL,
                legal: self.configuration.legal(place),
                owned: u64::MAX,
                is_state: place != CTL,
            })
        })
    }

    fn pmi_raised(&mut self) {}

    fn reset(&mut self) {
        *self = Self::new(self.configuration);
    }
}

impl VirtualIbs {
    /// Writes a register of the guest. A write of a control register restarts the period.
    fn set(&mut self, place: usize, value: u64) {
        let found = self.registers[place];
        let keeps = self.configuration.fetch_count_kept && found & value & FETCH_ENABLE != 0;
        self.registers[place] = match place {
            FETCH_CTL if keeps => value & !FETCH_COUNT | found & FETCH_COUNT,
            OP_CTL if !self.configuration.has(3) => value & !OP_COUNT,
            _ => value,
        };
        if place == FETCH_CTL && !keeps {
            self.begin_fetches();
        }
    }

    /// Returns the enable bit, if the write disables a unit that still has a period, where an erratum forbids this.
    fn unsafe_stop(&self, place: usize, value: u64) -> u64 {
        let (enable, period) = match place {
            FETCH_CTL => (FETCH_ENABLE, FETCH_PERIOD),
            OP_CTL => (OP_ENABLE, OP_PERIOD | OP_PERIOD_HIGH),
            _ => return 0,
        };
        let found = self.registers[place];
        let stops = found & enable != 0 && value & enable == 0 && found & period != 0;
        if stops && self.configuration.period_before_stop { enable } else { 0 }
    }
}
