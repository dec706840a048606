//! The core counters, as CPUID declares them.

use pmu_core::{CounterBank, CounterUnit, GlobalRegisters, MsrAddress, Snapshot};

use crate::cpuid::Family;
use crate::registers::{
    COUNTER_WIDTH, PERF_CNTR_GLOBAL_CTL, PERF_CNTR_GLOBAL_STATUS, PERF_CNTR_GLOBAL_STATUS_CLR,
    PERF_CTL0, PERF_CTR0, PERF_LEGACY_CTL0, PERF_LEGACY_CTR0, RDPMC_CORE_COUNTERS,
    STATUS_PMC_FREEZE,
};

/// Event, of 12 bits, unit mask, USR, OS, edge, INV and CntMask (APM vol. 2, figure "Core Performance Event-Select
/// Register"). Not HostOnly and GuestOnly, which need SVM to be on.
const EVENT_BITS: u64 = 0xF_FF87_FFFF;

/// The best counters that a processor declares.
pub(crate) fn unit(processor: &Snapshot) -> CounterUnit {
    if processor.vendor() != *b"AuthenticAMD" {
        return CounterUnit::NONE;
    }
    // AMD's local APIC leaves the entry as it is (APM vol. 2, §16.4.4, has no such side effect); in a virtual
    // machine the hypervisor's may not.
    of_family(Family::of(processor)).masked_on_delivery(processor.has_hypervisor())
}

/// The counters of a family.
pub(crate) const fn of_family(family: Family) -> CounterUnit {
    let (select, value, step) = match family {
        Family::Legacy => (PERF_LEGACY_CTL0, PERF_LEGACY_CTR0, 1),
        Family::CoreExtension | Family::PerfMonV2 { .. } => (PERF_CTL0, PERF_CTR0, 2),
    };
    let bank =
        CounterBank { select, value, step, rdpmc: RDPMC_CORE_COUNTERS, width: COUNTER_WIDTH };
    // SAFETY: event selects and counters; no value of them makes the processor write to memory.
    let unit = unsafe { CounterUnit::new((1 << family.counters()) - 1, bank, EVENT_BITS) };
    match family {
        Family::PerfMonV2 { .. } => unit.with_global(GLOBAL),
        Family::Legacy | Family::CoreExtension => unit,
    }
}

/// With PerfMonV2.
const GLOBAL: GlobalRegisters = {
    // SAFETY: these say which counters run and which overflowed; none holds an address.
    unsafe {
        GlobalRegisters {
            control: MsrAddress::new(PERF_CNTR_GLOBAL_CTL),
            status: MsrAddress::new(PERF_CNTR_GLOBAL_STATUS),
            acknowledge: MsrAddress::new(PERF_CNTR_GLOBAL_STATUS_CLR),
            stop_while_serviced: false,
            frozen: STATUS_PMC_FREEZE,
            freeze: None,
        }
    }
};
