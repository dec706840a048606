//! Precise records as a facility beside the PMU: RDMSR, WRMSR, CPUID, lists.

use crate::configuration::cpuid::CpuidLeaf;
use crate::pmu::access::{Read, Write, Written};
use crate::pmu::facility::{GuestFacility, Writer};
use crate::precise::registers::Register;
use crate::precise::virtual_precise::VirtualPrecise;
use crate::registers::list::{RegisterInfo, RegisterKind};

impl GuestFacility for VirtualPrecise {
    fn read(&self, address: u32) -> Read {
        let Some(register) = self.locate(address) else { return Read::Unhandled };
        match (register, self.owned(register)) {
            // The PMU answers these as 0.
            (Register::StatusClear | Register::StatusSet, _) => Read::Unhandled,
            (register, u64::MAX) => Read::Value(self.get(register)),
            (register, mask) => Read::Shared { value: self.get(register), mask },
        }
    }

    fn check_write(&self, writer: Writer, address: u32, value: u64) -> Written {
        match self.locate(address) {
            // The PMU refuses a guest's write of these.
            None => Written::UNHANDLED,
            Some(Register::Status | Register::Capabilities) if writer == Writer::Guest => {
                Written::UNHANDLED
            }
            Some(register) => self.judge(register, value),
        }
    }

    fn write(&mut self, writer: Writer, address: u32, value: u64) -> Written {
        let written = self.check_write(writer, address, value);
        if let Write::Done | Write::Shared { .. } = written.answer
            && let Some(register) = self.locate(address)
        {
            self.set(register, value & self.owned(register));
            // A counter that writes no records any more is disarmed.
            self.due &= self.enabled();
        }
        written
    }

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.declared(leaf)
    }

    fn registers(&self) -> impl Iterator<Item = RegisterInfo> {
        self.own().map(|(register, address, name)| RegisterInfo {
            address,
            name,
            manual: match register {
                Register::Base | Register::Index | Register::Control(_) => {
                    "SDM vol. 3B, Architectural PEBS"
                }
                _ => "SDM vol. 3B, Processor Event Based Sampling (PEBS)",
            },
            kind: RegisterKind::PreciseRecords,
            counter: match register {
                Register::Control(place) => place as u8 % 8,
                _ => 0,
            },
            exists: true,
            is_writable: true,
            legal: self.legal(register),
            owned: self.owned(register),
            is_state: true,
        })
    }

    fn pmi_raised(&mut self) {}

    fn own_counters(&self) -> u64 {
        self.enabled()
    }

    fn overflowed(&mut self, counters: u64) {
        self.due |= counters & self.enabled();
    }

    fn reset(&mut self) {
        self.clear();
    }
}

impl VirtualPrecise {
    /// Returns whether a guest could have reached this state.
    pub(crate) fn is_possible(&self) -> bool {
        let mut reached = *self;
        reached.clear();
        let own = self.own().map(|(_, address, _)| address);
        let shared = [0x38E, 0x1D9, 0x38D].into_iter().chain(0x186..0x18E);
        for address in own.chain(shared) {
            if let Some(register) = self.locate(address) {
                let _ = reached.write(Writer::Host, address, self.get(register));
            }
        }
        reached.due = self.due & reached.enabled();
        reached == *self
    }

    fn get(&self, register: Register) -> u64 {
        match register {
            Register::Area => self.area,
            Register::Enable => self.enable,
            Register::Data => self.data,
            Register::Latency => self.latency,
            Register::Frontend => self.frontend,
            Register::Base => self.base,
            Register::Index => self.index,
            Register::Control(place) => self.controls[place % 16],
            Register::Status | Register::StatusClear | Register::StatusSet => self.status,
            Register::Debug => self.debug,
            Register::Misc => 0,
            Register::Capabilities => self.capabilities(),
            Register::Select(counter) => (self.adaptive >> counter & 1) << 34,
            Register::FixedControl => {
                let adaptive = (0..8).filter(|counter| self.adaptive >> (32 + counter) & 1 != 0);
                adaptive.fold(0, |bits, counter| bits | 1 << (32 + 4 * counter))
            }
        }
    }

    /// Returns the answer to a write of the records' bits of a register.
    fn judge(&self, register: Register, value: u64) -> Written {
        let mask = self.owned(register);
        let illegal = match register {
            // The bits that do not repeat the sign of a linear address of 57 bits.
            Register::Area => value ^ ((value << 7) as i64 >> 7) as u64,
            // Neither the guest nor a host changes what the processor has.
            Register::Misc | Register::Capabilities => (value ^ self.get(register)) & mask,
            _ => value & mask & !self.legal(register),
        };
        let answer = match mask {
            _ if illegal != 0 => Write::GeneralProtection,
            u64::MAX => Write::Done,
            mask => Write::Shared { mask },
        };
        Written { answer, illegal }
    }

    fn set(&mut self, register: Register, value: u64) {
        match register {
            Register::Area => self.area = value,
            Register::Enable => self.enable = value,
            Register::Data => self.data = value,
            Register::Latency => self.latency = value,
            Register::Frontend => self.frontend = value,
            Register::Base => self.base = value,
            Register::Index => self.index = value,
            Register::Control(place) => self.controls[place % 16] = value,
            Register::Status => self.status = value,
            Register::StatusClear => self.status &= !value,
            Register::StatusSet => self.status |= value,
            Register::Debug => self.debug = value,
            Register::Misc | Register::Capabilities => {}
            Register::Select(counter) => {
                self.adaptive &= !(1 << counter);
                self.adaptive |= (value >> 34 & 1) << counter;
            }
            Register::FixedControl => {
                self.adaptive &= u64::from(u32::MAX);
                for counter in 0..8 {
                    self.adaptive |= (value >> (32 + 4 * counter) & 1) << (32 + counter);
                }
            }
        }
    }
}
