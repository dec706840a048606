//! Top-down metrics as a facility beside the PMU: RDMSR, WRMSR, RDPMC, lists.

use crate::configuration::cpuid::CpuidLeaf;
use crate::pmu::access::{Read, Write, Written};
use crate::pmu::facility::{GuestFacility, Writer};
use crate::registers::list::{RegisterInfo, RegisterKind};
use crate::topdown::virtual_top_down::{PARTS, VirtualTopDown};

const METRICS: u32 = 0x329;
const CAPABILITIES: u32 = 0x345;
const STATUS: u32 = 0x38E;
const CONTROL: u32 = 0x38F;
const STATUS_RESET: u32 = 0x390;
const STATUS_SET: u32 = 0x391;

/// Bit of `IA32_PERF_CAPABILITIES`: there is the register.
const AVAILABLE: u64 = 1 << 15;

/// Bit of the global registers.
const BIT: u64 = 1 << 48;

/// Type of RDPMC's ECX.
const RDPMC: u32 = 1 << 29;

impl GuestFacility for VirtualTopDown {
    fn read(&self, address: u32) -> Read {
        let bit = |set: bool| Read::Shared { value: if set { BIT } else { 0 }, mask: BIT };
        match address {
            METRICS => Read::Value(self.metrics()),
            CAPABILITIES => Read::Shared { value: AVAILABLE, mask: AVAILABLE },
            CONTROL => bit(self.control),
            STATUS => bit(self.status),
            STATUS_RESET | STATUS_SET => bit(false),
            _ => Read::Unhandled,
        }
    }

    fn read_pmc(&self, ecx: u32) -> Read {
        if ecx == RDPMC { Read::Value(self.metrics()) } else { Read::Unhandled }
    }

    fn check_write(&self, _: Writer, address: u32, value: u64) -> Written {
        let shared = |mask| Written { answer: Write::Shared { mask }, illegal: 0 };
        match address {
            METRICS => match value & !self.legal() {
                0 => Written::DONE,
                illegal => Written { answer: Write::GeneralProtection, illegal },
            },
            // A host restores the value that is there; a guest's write is the PMU's to refuse.
            CAPABILITIES if value & AVAILABLE != 0 => shared(AVAILABLE),
            CONTROL | STATUS | STATUS_RESET | STATUS_SET => shared(BIT),
            _ => Written::UNHANDLED,
        }
    }

    fn write(&mut self, writer: Writer, address: u32, value: u64) -> Written {
        let written = self.check_write(writer, address, value);
        if written.answer == Write::GeneralProtection {
            return written;
        }
        let set = value & BIT != 0;
        match address {
            METRICS => {
                (self.slots, self.written) = (0, value);
                self.parts = [0; PARTS];
            }
            CONTROL => self.control = set,
            STATUS => self.status = set,
            STATUS_RESET => self.status &= !set,
            STATUS_SET => self.status |= set,
            _ => {}
        }
        written
    }

    /// Returns `leaf` unchanged, because no CPUID bit declares top-down metrics. A bit of `IA32_PERF_CAPABILITIES`
    /// declares the metrics.
    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        leaf
    }

    fn registers(&self) -> impl Iterator<Item = RegisterInfo> {
        core::iter::once(RegisterInfo {
            address: METRICS,
            name: "MSR_PERF_METRICS",
            manual: "SDM vol. 3B, Performance Metrics",
            kind: RegisterKind::TopDownMetrics,
            counter: 0,
            exists: true,
            is_writable: true,
            legal: self.legal(),
            owned: u64::MAX,
            is_state: true,
        })
    }

    fn pmi_raised(&mut self) {}

    fn reset(&mut self) {
        self.clear();
    }
}
