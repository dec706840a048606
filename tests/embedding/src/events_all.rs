//! The events of whichever processor this is, which links every table. It is linked to be measured: the read-only data
//! is what all tables take.
#![no_std]
#![no_main]

mod bare;

use core::hint::black_box;

use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_events::{CoreType, Processor};

fn main() -> i32 {
    // A Skylake, where a stranger's table is a mistake.
    let snapshot = Snapshot::capture(|leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match black_box(leaf) {
            0 => (1, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            1 => (0x0005_06E3, 0, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    });
    let Ok(processor) = Processor::detect(&snapshot) else { return 1 };
    let found = processor.event(black_box("inst_retired.any")).is_ok();
    let lost = processor.event(black_box("no_such_event")).is_err();
    let named = CoreType::named(black_box("zen4")).is_ok_and(|zen| zen.events().len() > 300);
    i32::from(!(found && lost && named))
}
