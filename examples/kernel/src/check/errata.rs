//! Claims of the errata of AMD's instruction-based sampling, by registers: the driver knows of which family and model
//! each is. No sample interrupts: the claims look for each.

use pmu::amd::ibs::registers::{IBS_FETCH_CTL, IBS_FETCH_LINADDR, IbsFetchCtl};
use pmu::amd::ibs::{IbsErratum, IbsKind};

use crate::check::bench::{Bench, address, read, work_until, write};
use crate::check::claim::Outcome;
use crate::check::handler;
use crate::check::ops::unit;
use crate::demos::loops::COUNTED;

/// Samples that settle a claim, and the time to wait for them.
const SAMPLES: u64 = 200;
const PATIENCE_MS: u64 = 5_000;
/// Period of the samples in units of 16 events.
const PERIOD: u16 = 100;

/// No fetch sample has the address 0, but on the models that the driver knows (erratum 1197).
pub fn fetch_address(_: &Bench) -> Outcome {
    let Some(unit) = unit(IbsKind::Fetch).filter(|unit| !unit.capabilities().control2()) else {
        return Outcome::ABSENT;
    };
    handler::leave_to(|| ());
    let control = address(IBS_FETCH_CTL);
    let stopped = IbsFetchCtl::new().with_max_count(PERIOD);
    let begin = || {
        write(control, stopped.into_bits()) && write(control, stopped.with_enable(true).into_bits())
    };
    let (mut samples, mut zeros) = (0, 0);
    begin();
    work_until(PATIENCE_MS, || {
        (COUNTED[2].run)();
        if read(control).is_some_and(|value| IbsFetchCtl::from_bits(value).valid()) {
            samples += 1;
            zeros += u64::from(read(address(IBS_FETCH_LINADDR)) == Some(0));
            begin();
        }
        samples >= SAMPLES
    });
    write(control, 0);
    let is_known = unit.has(IbsErratum::FetchWithoutAddress);
    Outcome::of(samples >= SAMPLES && (zeros == 0 || is_known))
        .with("samples", samples)
        .with("zeros", zeros)
        .with("known", is_known.into())
}

/// A write that enables fetch sampling again resets the count of fetches, but on the families that the driver knows to
/// keep the count.
pub fn fetch_count(_: &Bench) -> Outcome {
    let Some(unit) = unit(IbsKind::Fetch) else { return Outcome::ABSENT };
    if unit.capabilities().control2() {
        // Another register enables.
        return Outcome::ABSENT;
    }
    let control = address(IBS_FETCH_CTL);
    const LOWEST: u16 = 20_000;
    const HIGHEST: u16 = 60_000;
    // So long a period that none ends here.
    let enabled = IbsFetchCtl::new().with_max_count(u16::MAX).with_enable(true);
    let count = || read(control).map_or(0, |value| IbsFetchCtl::from_bits(value).count());
    write(control, enabled.with_enable(false).into_bits());
    write(control, enabled.into_bits());
    // High enough that what is fetched after the write does not reach it.
    let counts = work_until(PATIENCE_MS, || count() > LOWEST);
    let before = count();
    write(control, enabled.into_bits());
    let after = count();
    write(control, 0);
    if !counts || before > HIGHEST {
        return Outcome::of(false).with("before", before.into()).with("after", after.into());
    }
    let kept = after >= before;
    Outcome::of(kept == unit.has(IbsErratum::FetchCountKept))
        .with("before", before.into())
        .with("after", after.into())
}
