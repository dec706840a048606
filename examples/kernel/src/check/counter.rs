//! Claims of a counter's width, and of the counter layer.

use pmu::core::error::CounterError;
use pmu::core::registers::EventSelect;
use pmu::core::{CounterSet, Event};

use crate::check::bench::{Bench, address, read, work, write};
use crate::check::claim::{Outcome, Reason};
use crate::check::handler;
use crate::demos::failure::Failure;
use crate::embedding::opened_events::with_events;
use crate::machine::clock;

/// `IA32_PERF_CAPABILITIES`, its bit of full-width writes, and `IA32_A_PMC0`.
const CAPABILITIES: u32 = 0x345;
const FULL_WIDTH: u64 = 1 << 13;
const FULL_WIDTH_0: u32 = 0x4C1;

/// A counter takes a value of all its bits: Intel's at its second address, where the processor declares it.
pub fn full_width(bench: &Bench) -> Outcome {
    let Some(counter) = bench.counter(0) else { return Outcome::ABSENT };
    let mut at = counter.value_register();
    if bench.is_intel() {
        /// CPUID leaf 1, ECX, PDCM: there is `IA32_PERF_CAPABILITIES`.
        const PDCM: u32 = 1 << 15;
        let declared = core::arch::x86_64::__cpuid(1).ecx & PDCM != 0;
        let has = declared.then(|| read(address(CAPABILITIES))).flatten();
        if has.is_none_or(|capabilities| capabilities & FULL_WIDTH == 0) {
            return Outcome::ABSENT;
        }
        at = address(FULL_WIDTH_0);
    }
    bench.end();
    let value = 0x5A5A_8000_1234 & counter.mask();
    write(at, value);
    let found = bench.value(0);
    write(at, 0);
    Outcome::of(found == value).with("written", value).with("found", found)
}

/// The counter layer takes, verifies and gives back every declared counter. AMD's sampling units, which have claims of
/// their own, are usable beside them where the local APIC has their entry.
pub fn take(bench: &Bench) -> Outcome {
    handler::leave();
    let declared = bench.unit.counters();
    let counters = if bench.is_intel() { CounterSet::ALL } else { CounterSet::GENERAL };
    let taken = with_events(|session, _| Ok::<_, Failure>(session.counters().usable & counters));
    match taken {
        Ok(usable) => Outcome::of(usable == declared)
            .with("declared", declared.len() as u64)
            .with("usable", usable.len() as u64),
        Err(_) => Outcome::of(false),
    }
}

/// Counters whose registers were cleared count again after the counter layer programmed them again.
pub fn reprogram(bench: &Bench) -> Outcome {
    handler::leave();
    let counted = with_events(|counters, unit| {
        let event = Event::raw(EventSelect::from_bits(0xC0)).on(CounterSet::GENERAL);
        let event = counters.open(unit, &[event])?;
        counters.enable(event, clock::now())?;
        work(1);
        bench.halt();
        (0..bench.general()).for_each(|place| bench.preload(place, 0));
        let anew = counters.reprogram(|_| ())?;
        let value = || Ok::<_, CounterError>(counters.read(event, 0)?.value);
        let before = value()?;
        work(1);
        Ok::<_, Failure>((value()?.wrapping_sub(before), anew))
    });
    match counted {
        Ok((events, anew)) => {
            Outcome::of(events != 0).with("events", events).with("anew", anew.len() as u64)
        }
        Err(_) => Outcome::not_tried(Reason::Driver),
    }
}
