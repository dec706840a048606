//! Branch records as a facility beside the PMU: RDMSR, WRMSR, CPUID, lists.

use crate::branches::configuration::{BranchConfiguration, MAX_RECORDS};
use crate::branches::format::Record;
use crate::branches::registers::Register;
use crate::branches::virtual_branches::{DEBUG_FREEZE, DEBUG_LBR, VirtualBranches};
use crate::configuration::cpuid::CpuidLeaf;
use crate::pmu::access::{Read, Write, Written};
use crate::pmu::facility::{GuestFacility, Writer};
use crate::registers::list::{RegisterInfo, RegisterKind};

impl GuestFacility for VirtualBranches {
    fn read(&self, address: u32) -> Read {
        let Some(register) = self.locate(address) else { return Read::Unhandled };
        if self.is_beyond(register) {
            return Read::GeneralProtection;
        }
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
            Some(register) => self.judge(writer, register, value),
        }
    }

    fn write(&mut self, writer: Writer, address: u32, value: u64) -> Written {
        let written = self.check_write(writer, address, value);
        if let Write::Done | Write::Shared { .. } = written.answer
            && let Some(register) = self.locate(address)
        {
            // A host restores a record of erratum 1452, too.
            let kept = match (register, writer) {
                (Register::To(_), Writer::Host) => u64::MAX,
                _ => self.legal(register) & self.owned(register),
            };
            self.set(register, value & kept);
        }
        written
    }

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.configuration.declared(leaf)
    }

    fn registers(&self) -> impl Iterator<Item = RegisterInfo> {
        self.own().map(|(register, address, name)| RegisterInfo {
            address,
            name,
            manual: self.manual(),
            kind: RegisterKind::BranchRecords,
            counter: 0,
            exists: true,
            is_writable: true,
            legal: self.legal(register),
            owned: self.owned(register),
            is_state: !self.is_beyond(register),
        })
    }

    fn pmi_raised(&mut self) {
        self.freeze();
    }

    fn reset(&mut self) {
        self.clear();
    }
}

impl VirtualBranches {
    /// Returns whether the register is a word of a record beyond the depth that the guest has chosen.
    pub(crate) fn is_beyond(&self, register: Register) -> bool {
        match register {
            Register::From(number) | Register::To(number) | Register::Info(number) => {
                number >= usize::from(self.depth)
            }
            _ => false,
        }
    }

    pub(crate) fn get(&self, register: Register) -> u64 {
        let record = |number: usize| &self.records[number % MAX_RECORDS];
        match register {
            Register::Control => self.control,
            Register::Depth => self.depth.into(),
            Register::Top => self.top,
            Register::Extension => self.extension,
            Register::Debug => self.debug,
            Register::Status | Register::StatusClear | Register::StatusSet => self.status,
            Register::Capabilities => self.format(),
            Register::EventSelect(counter) => u64::from(self.logged >> counter & 1) << 35,
            Register::From(number) => record(number).from,
            Register::To(number) => record(number).to,
            Register::Info(number) => record(number).info,
        }
    }

    /// Returns the answer to a write of the records' bits of a register.
    pub(crate) fn judge(&self, writer: Writer, register: Register, value: u64) -> Written {
        let mask = self.owned(register);
        let illegal = match register {
            _ if self.is_beyond(register) => return Written::REFUSED,
            Register::Depth if !self.has_depth(value) => u64::MAX,
            Register::Capabilities => (value ^ self.format()) & mask,
            _ => value & mask & !self.legal(register) | self.wrong_sign(writer, register, value),
        };
        let amd = matches!(self.configuration, BranchConfiguration::Amd(_));
        // AMD's reserved bits are dropped, but for those of a freeze that the processor lacks.
        let drops = amd && (register != Register::Debug || self.has_frozen_bit());
        let answer = match mask {
            _ if illegal != 0 && !drops => Write::GeneralProtection,
            u64::MAX => Write::Done,
            mask => Write::Shared { mask },
        };
        Written { answer, illegal: illegal | self.freezing_call_stack(register, value) }
    }

    /// Returns the bit by which a write would let a call stack run that freezes: an interrupt near a call or a return
    /// then moves the top of the stack once too often. Processors take the write.
    fn freezing_call_stack(&self, register: Register, value: u64) -> u64 {
        let mut after = *self;
        match register {
            Register::Control => after.control = value,
            Register::Debug => after.debug = value,
            _ => return 0,
        }
        let enabled = match self.configuration {
            BranchConfiguration::Legacy { .. } => after.debug & DEBUG_LBR != 0,
            _ => after.control & 1 != 0,
        };
        let freezes = after.debug & DEBUG_FREEZE != 0;
        if !(enabled && freezes && after.is_call_stack()) {
            return 0;
        }
        match (register, self.configuration) {
            (Register::Debug, _) => DEBUG_FREEZE,
            (_, BranchConfiguration::Legacy { .. }) => 1 << 9,
            _ => 1 << 3,
        }
    }

    /// Returns whether the guest could have chosen this number of records.
    pub(crate) fn could_have_depth(&self, depth: u8) -> bool {
        match self.configuration {
            BranchConfiguration::Architectural(_) => self.has_depth(depth.into()),
            _ => depth == self.configuration.max_depth(),
        }
    }

    /// Returns whether a guest could have reached this state, apart from its depth.
    pub(crate) fn is_possible(&self) -> bool {
        let controls = [
            (Register::Debug, self.debug),
            (Register::Status, self.status),
            (Register::Control, self.control),
            (Register::Extension, self.extension),
            (Register::Top, self.top),
        ];
        let has = |register| match (register, self.configuration) {
            (Register::Status, _) => self.has_frozen_bit(),
            (Register::Extension, BranchConfiguration::Amd(_)) => true,
            (Register::Top, BranchConfiguration::Legacy { .. }) => true,
            (Register::Extension | Register::Top, _) => false,
            _ => true,
        };
        let logged = match self.configuration {
            BranchConfiguration::Architectural(branches) => branches.counters,
            _ => 0,
        };
        let amd = matches!(self.configuration, BranchConfiguration::Amd(_));
        self.logged & !logged == 0
            && controls.into_iter().all(|(register, value)| {
                let legal = self.legal(register) & self.owned(register);
                value & !(if has(register) { legal } else { 0 }) == 0
            })
            && self.records.iter().enumerate().all(|(number, record)| {
                let words = [
                    (Register::From(number), record.from),
                    (Register::To(number), record.to),
                    (Register::Info(number), record.info),
                ];
                words.into_iter().all(|(register, value)| {
                    let absent = self.is_beyond(register)
                        || matches!(register, Register::Info(_)) && !self.has_info();
                    value == 0
                        || !absent
                            && (amd || value & !self.legal(register) == 0)
                            && self.wrong_sign(Writer::Host, register, value) == 0
                })
            })
    }

    fn has_depth(&self, depth: u64) -> bool {
        let BranchConfiguration::Architectural(branches) = self.configuration else { return false };
        depth.is_multiple_of(8)
            && (8..=32).contains(&depth)
            && branches.depths >> (depth / 8 - 1) & 1 != 0
    }

    /// Returns `IA32_PERF_CAPABILITIES[5:0]`. All bits are 1 of architectural records.
    fn format(&self) -> u64 {
        match self.configuration {
            BranchConfiguration::Legacy { format } => format.into(),
            BranchConfiguration::Architectural(_) => 0x3F,
            BranchConfiguration::Amd(_) => 0,
        }
    }

    fn set(&mut self, register: Register, value: u64) {
        let record = |number: usize| number % MAX_RECORDS;
        match register {
            Register::Control => self.control = value,
            Register::Depth => {
                self.depth = value as u8;
                self.records = [Record::EMPTY; MAX_RECORDS];
            }
            Register::Top => self.top = value,
            Register::Extension => self.extension = value,
            Register::Debug => self.debug = value,
            Register::Status => self.status = value,
            Register::StatusClear => self.status &= !value,
            Register::StatusSet => self.status |= value,
            Register::Capabilities => {}
            Register::EventSelect(counter) => {
                self.logged &= !(1 << counter);
                self.logged |= ((value >> 35 & 1) as u8) << counter;
            }
            Register::From(number) => self.records[record(number)].from = value,
            Register::To(number) => self.records[record(number)].to = value,
            Register::Info(number) => self.records[record(number)].info = value,
        }
    }
}
