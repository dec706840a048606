//! Instructions of a whole performance interrupt up to the count in a profile's bucket: by `Pmu`, and by the
//! same parts as a kernel composes them by hand. Each access is a load or a store of an array.
//!
//! The difference of the two is what `Pmu` costs.

use std::hint::black_box;

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pmu::apic::{LocalApic, NoTimer};
use pmu::{Machine, Pmu};
use pmu_benches::one_processor::{
    OneProcessor, Registers, number, overflow, profile, request, snapshot,
};
use pmu_core::frame::PlainFrame;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::profile::{AddedSlot, AddedSources, Session};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{Claim, EventSource, Events, service};
use pmu_kprofile::hardware::ThisProcessor;
use pmu_kprofile::{ProfileObject, Profiles, Rules};

static PMU: Pmu<OneProcessor<pmu::X86>, 4> = Pmu::new();

/// The same by hand: a machine's sources, added ones, and opened events.
static COUNTERS: [CounterMemory<[CounterSlot; MAX_COUNTERS]>; 4] =
    [const { CounterMemory::new() }; 4];
static EVENTS: [EventTable<[EventEntry; 8]>; 4] = [const { EventTable::new() }; 4];
static ADDED: AddedSources<[AddedSlot; 16]> = AddedSources::new();
static PROFILES: Profiles<16, 4> = Profiles::new();
static MACHINE: pmu_core::WriteOnce<Machine> = pmu_core::WriteOnce::new();

fn apic() -> LocalApic<Registers> {
    LocalApic::new(Registers, pmu::apic::Delivery::NON_MASKABLE, NoTimer)
}

fn hand() -> PlainFrame {
    let this = snapshot();
    let machine = MACHINE.set(Machine::detect(&this)).unwrap();
    let both = Events::new(machine, &EVENTS[0]).adding(&ADDED);
    let all = pmu_core::CounterSet::ALL;
    let session = Session::take(both, &this, all, (Registers, apic()), &COUNTERS[0]).unwrap();
    let session = Box::leak(Box::new(session));
    let mut hardware = ThisProcessor::new(session, pmu_core::frame::ProcessorNumber::from_index(0));
    let object = ProfileObject::basic(Rules::LATEST, request(), &hardware).unwrap();
    PROFILES.try_start(Box::leak(Box::new(object)), &mut hardware).unwrap();
    assert!(both.unit().counters().len() > 1);
    overflow()
}

#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 303)])))]
#[bench::version_4(hand())]
fn by_hand(frame: PlainFrame) -> Claim {
    let frame = black_box(&frame);
    let (Some(machine), Some(counters), Some(events)) =
        (MACHINE.get(), COUNTERS.get(number()), EVENTS.get(number()))
    else {
        return Claim::NotOurs;
    };
    let both = Events::new(machine, events).adding(&ADDED);
    let serviced =
        service(&both, &(&Registers, &apic()), counters, |sample| match both.overflow(&sample) {
            Some(overflow) => _ = PROFILES.interrupt(frame, overflow.source),
            None => _ = black_box(*sample),
        });
    serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim)
}

#[library_benchmark(config = LibraryBenchmarkConfig::default()
    .tool(Callgrind::default().hard_limits([(EventKind::Ir, 315)])))]
#[bench::version_4(profile(&PMU))]
fn by_pmu(frame: PlainFrame) -> Claim {
    PMU.interrupt(black_box(&frame)).claim
}

library_benchmark_group!(name = interrupts, benchmarks = [by_hand, by_pmu]);

main!(library_benchmark_groups = interrupts);
