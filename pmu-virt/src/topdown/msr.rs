//! Top-down metrics as a facility beside the PMU: RDMSR, WRMSR, RDPMC, lists.

use crate::configuration::cpuid::CpuidLeaf;
use crate::pmu::access::Read;
use crate::pmu::facility::{GuestFacility, Writer};
use crate::pmu::rows::{FacilityRow, Register, Rows, answers_by_rows};
use crate::registers::list::RegisterKind;
use crate::registers::row::WriteAs::{Cleared, Refused, Set, Stored};
use crate::registers::row::when;
use crate::topdown::virtual_top_down::{PARTS, VirtualTopDown};

const METRICS: usize = 0;
const CAPABILITIES: usize = 1;
const CONTROL: usize = 2;
const STATUS: usize = 3;

/// Bit of `IA32_PERF_CAPABILITIES`: there is the register.
const AVAILABLE: u64 = 1 << 15;

/// Bit of the global registers.
const BIT: u64 = 1 << 48;

/// Type of RDPMC's ECX.
const RDPMC: u32 = 1 << 29;

type Row = FacilityRow<VirtualTopDown>;

impl Rows for VirtualTopDown {
    const KIND: RegisterKind = RegisterKind::TopDownMetrics;

    #[rustfmt::skip]
    const ROWS: &'static [Row] = &[
        Row::new(0x329, METRICS, "MSR_PERF_METRICS", "SDM vol. 3B, Performance Metrics").legal(Self::legal),
        Row::shared(0x345, CAPABILITIES, |_, _| AVAILABLE).write(Refused, Stored),
        Row::shared(0x38E, STATUS, |_, _| BIT),
        Row::shared(0x38F, CONTROL, |_, _| BIT),
        Row::shared(0x390, STATUS, |_, _| BIT).write(Cleared, Cleared),
        Row::shared(0x391, STATUS, |_, _| BIT).write(Set, Set),
    ];

    fn held(&self, register: &Register<Self>) -> u64 {
        match register.row.value {
            METRICS => self.metrics(),
            CAPABILITIES => AVAILABLE,
            CONTROL => when(self.control, BIT),
            _ => when(self.status, BIT),
        }
    }

    fn hold(&mut self, _: Writer, register: &Register<Self>, value: u64) {
        match register.row.value {
            METRICS => (self.slots, self.written, self.parts) = (0, value, [0; PARTS]),
            CAPABILITIES => {}
            CONTROL => self.control = value != 0,
            _ => self.status = value != 0,
        }
    }
}

impl GuestFacility for VirtualTopDown {
    answers_by_rows!();

    fn read_pmc(&self, ecx: u32) -> Read {
        if ecx == RDPMC { Read::Value(self.metrics()) } else { Read::Unhandled }
    }

    /// Returns `leaf` unchanged, because no CPUID bit declares top-down metrics. A bit of `IA32_PERF_CAPABILITIES`
    /// declares the metrics.
    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        leaf
    }

    fn reset(&mut self) {
        self.clear();
    }
}
