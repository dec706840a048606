//! Counter reload as a facility beside the PMU: RDMSR, WRMSR, CPUID, lists.

use crate::configuration::cpuid::CpuidLeaf;
use crate::pmu::facility::{GuestFacility, Writer};
use crate::pmu::rows::{FacilityRow, Register, Rows, answers_by_rows};
use crate::registers::counters::{MAX_COUNTERS, to_global};
use crate::registers::list::RegisterKind;
use crate::reload::virtual_reload::VirtualReload;

/// `CFG_B` and `CFG_C` of each counter.
const CAUSES: usize = 0;
const VALUES: usize = 1;

type Row = FacilityRow<VirtualReload>;

const RELOAD: &str = "SDM vol. 3B, Auto Counter Reload";

impl Rows for VirtualReload {
    const KIND: RegisterKind = RegisterKind::CounterReload;

    #[rustfmt::skip]
    const ROWS: &'static [Row] = &[
        Row::new(0x1902, CAUSES, "IA32_PMC_GPx_CFG_B", RELOAD).each_counter("IA32_PMC_FXx_CFG_B", Self::counters)
            .legal(|own| own.configuration.causes()),
        // The facility of the records answers for their counters, and both facilities have the reload value.
        Row::new(0x1903, VALUES, "IA32_PMC_GPx_CFG_C", RELOAD).each_counter("IA32_PMC_FXx_CFG_C", Self::counters)
            .owned(|own, number| if to_global(own.shared) >> number & 1 != 0 { 0 } else { u64::MAX })
            .legal(|_| 0xFFFF_FFFF),
    ];

    fn held(&self, register: &Register<Self>) -> u64 {
        let counter = register.counter() % MAX_COUNTERS;
        match register.row.value {
            CAUSES => self.causes[counter],
            _ => self.values[counter].into(),
        }
    }

    fn hold(&mut self, _: Writer, register: &Register<Self>, value: u64) {
        let counter = register.counter() % MAX_COUNTERS;
        match register.row.value {
            CAUSES => self.causes[counter] = value,
            _ => self.values[counter] = value as u32,
        }
    }
}

impl GuestFacility for VirtualReload {
    answers_by_rows!();

    fn cpuid(&self, leaf: CpuidLeaf) -> CpuidLeaf {
        self.configuration.declared(leaf)
    }

    fn reset(&mut self) {
        (self.causes, self.values) = ([0; MAX_COUNTERS], [0; MAX_COUNTERS]);
    }
}
