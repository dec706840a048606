//! Claims of the other processors.

use pmu::core::EventSource;
use pmu::core::x86::Snapshot;
use pmu::core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative;

use crate::check::bench::{Bench, read, write};
use crate::check::claim::Outcome;
use crate::check::handler;
use crate::machine::smp;

/// The second processor has the counters of the boot processor.
pub fn same_counters(bench: &Bench) -> Outcome {
    if smp::processors() < 2 {
        return Outcome::ABSENT;
    }
    let declared = bench.unit.counters();
    let machine = bench.machine;
    let shared = smp::run_on(1, move || {
        let this = Snapshot::capture(CpuIdReaderNative);
        machine.unit_of(&this).shared_with(machine.unit())
    });
    Outcome::of(shared == declared)
        .with("here", declared.len() as u64)
        .with("there", shared.len() as u64)
}

/// INIT leaves event selects and counters as they are.
pub fn init(bench: &Bench) -> Outcome {
    const SELECT: u64 = 0x3_00C0; // disabled
    const VALUE: u64 = 0x1234;
    let Some(counter) = bench.counter(0).filter(|_| smp::processors() > 1) else {
        return Outcome::ABSENT;
    };
    let (select, value) = (counter.control().register(), counter.value_register());
    handler::leave();
    smp::run_on(1, || {
        write(select, 0);
        write(value, VALUE);
        write(select, SELECT);
    });
    let Some(number) = smp::restart(1) else { return Outcome::ABSENT };
    let found = smp::run_on(number, || {
        let found = (read(select), read(value));
        write(select, 0);
        write(value, 0);
        found
    });
    Outcome::of(found == (Some(SELECT), Some(VALUE)))
        .with("select", found.0.unwrap_or(u64::MAX))
        .with("counter", found.1.unwrap_or(u64::MAX))
}
