//! Precise samples, by an event of the kernel's and by a text of perf.

use core::error::Error;

use pmu::events::CoreType;
use pmu::perf::PerfEvent;
use pmu::{Event, GenericEvent, PmuError, PmuEvent, PmuSample, Precision};
use pmu_virt::configuration::{AmdConfiguration, Configuration};
use pmu_virt::ibs::FedOp;

use super::{MyKernel, PMU, log_in_nmi, printed, up};
use crate::world::sampling;

// ANCHOR: event
/// Samples this processor every 400,000 cycles.
fn start() -> Result<PmuEvent, PmuError> {
    let cycles = Event::generic(GenericEvent::Cycles).every(400_000);
    PMU.start(&cycles.precise(Precision::ZeroSkidRequested))
}

/// Is called by the kernel's `sampled`.
fn sampled(sample: &PmuSample<'_, MyKernel>) {
    let Some(instruction) = sample.instruction() else { return };
    log_in_nmi!("{:x?} accesses {:x?}", instruction.address, instruction.access);
}
// ANCHOR_END: event

// ANCHOR: text
/// Opens, for instance, `cycles/period=400000/pp`.
fn open(text: &str, core_type: &CoreType) -> Result<PmuEvent, Box<dyn Error>> {
    let attr = PerfEvent::parse(text, core_type)?.attr;
    Ok(PMU.open(&PMU.perf_event(&attr, core_type)?)?)
}
// ANCHOR_END: text

#[test]
fn each_sample_has_the_address_of_its_instruction() {
    let zen_4 = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let machine = up(zen_4, |frame| PMU.interrupt(frame));
    machine.pc[0].set(0x50_0000); // behind every op
    let sample = |event: PmuEvent| {
        let ops = (0..500_000).map(|op| 0x40_0000 + 4 * op);
        let execute = |address: &u64| machine.mocks[0].execute(&FedOp::new(*address));
        let expected: Vec<_> = sampling(sampled, || {
            ops.filter(execute).map(|at| format!("Some({at:x}) accesses None")).collect()
        });
        assert_eq!(expected.len(), 1);
        assert_eq!(printed(), expected);
        PMU.close(event).unwrap();
    };
    sample(start().unwrap());
    let by_text = open("cycles/period=400000/pp", &pmu::events::ZEN4).unwrap();
    PMU.enable(by_text).unwrap();
    sample(by_text);
    machine.down();
}
