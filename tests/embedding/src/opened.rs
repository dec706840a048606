//! Every operation of the counter layer, and the crate `pmu`, on each machine: it is linked to show that none of them
//! can panic. What they do, and whether they do it right, others test; here a step may well be refused.
#![no_std]
#![no_main]

mod bare;
mod machine;

use core::hint::black_box;

use machine::{Apic, FIRST_COUNTER, Msr};
use pmu::apic::{ApicRegisters, Delivery, LocalApic, LvtEntry, NoTimer};
use pmu::perf::{PerfAttributes, PerfEventAttr};
use pmu::processors::{PerProcessor, Processors};
use pmu::user::{UserClock, UserPage};
use pmu::{Machine, Watchdog};
use pmu_core::branch_recording::BranchRecorder;
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, SavedBranches};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::reading::user_view;
use pmu_core::registers::{EventSelect, MAX_COUNTERS, stop_all};
use pmu_core::thread::{SavedCounter, SavedCounters, ThreadEvent};
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_core::{
    CounterSession, CounterSet, CounterUnit, Event, EventCount, EventSource, Events, GenericEvent,
    service,
};

type Memory = CounterMemory<[CounterSlot; MAX_COUNTERS]>;
type OneSession = Session<'static, &'static Machine, (Msr, Apic)>;

static MEMORY: Memory = CounterMemory::new();
static OF_SOURCES: Memory = CounterMemory::new();
static EVENTS: EventTable<[EventEntry; 8]> = EventTable::new();
static WITH_SOURCES: EventTable<[EventEntry; 2]> = EventTable::new();
static RECORDS: BranchMemory<[BranchSlot; 32]> = BranchMemory::new();
static WATCHDOG: Watchdog = Watchdog::new();
static PAGE: UserPage = UserPage::new();
static CLOCK: Option<UserClock> = UserClock::new(2_500_000_000, 0, 0);
static PLACES: PerProcessor<OneSession, OneProcessor, 1> = PerProcessor::new();

struct OneProcessor;

// SAFETY: there is one processor, and no interrupt.
unsafe impl Processors for OneProcessor {
    fn this_processor() -> usize {
        black_box(0)
    }
}

struct ApicOfMemory;

impl ApicRegisters for ApicOfMemory {
    fn write_performance_entry(&self, entry: LvtEntry) {
        black_box(entry);
    }
}

/// Lets the optimizer know nothing of an outcome, and goes on.
fn any<T, E>(outcome: Result<T, E>) -> Option<T> {
    black_box(outcome).ok()
}

/// Events alone, in groups, and of threads; sharing, and what a processor loses.
fn count(machine: &Machine, unit: &CounterUnit) -> Result<(), CounterError> {
    let events = Events::new(machine.unit(), &EVENTS);
    let all = CounterSet::from_bits(black_box(u64::MAX));
    let mut counters = CounterSession::take(events, unit, all, (Msr, Apic), &MEMORY)?;
    let raw = Event::raw(EventSelect::from_bits(black_box(0x01C0)));
    EVENTS.set_min_period(black_box(0x1000));
    any(counters.freeze_on_interrupt());
    let counted = counters.open(unit, &[raw.rotating().with_user_reads()])?;
    let sampled =
        Event::generic(GenericEvent::Instructions).every(black_box(0x1_0000)).with_total();
    let sampled = counters.open(unit, &[sampled])?;
    if let Some(event) = Watchdog::event(unit, black_box(1_000_000_000), black_box(10)) {
        let event = counters.open(unit, &[event])?;
        WATCHDOG.watch(event);
        WATCHDOG.touch();
        any(counters.enable(event, 0));
    }
    any(counters.enable(counted, black_box(0)));
    any(counters.enable(sampled, black_box(0)));
    any(EVENTS.set_period(sampled, black_box(0x2_0000)));
    any(counters.rotate(black_box(1)));
    any(counters.set_virtualization(black_box(true)));
    any(PAGE.publish(CLOCK.as_ref(), || counters.user_view(counted, black_box(1))));
    any(PAGE.publish(None, || user_view(&events, &Msr, &MEMORY, counted, black_box(1))));
    black_box(PAGE.read(|index| u64::from(black_box(index))));
    black_box(PAGE.read_with_times(|index| u64::from(black_box(index)), || black_box(2)));
    PAGE.hide();
    let stuck = |overflow: pmu_core::interrupt::EventOverflow| {
        black_box(WATCHDOG.is_stuck(overflow.event));
    };
    any(service(&events, &(Msr, Apic), &MEMORY, |sample| stuck(*sample)));
    if let Some(group) = any(counters.open(unit, black_box(&[raw, raw.user_only()]))) {
        let mut counts = [EventCount::default(); 2];
        any(counters.enable(group, 2));
        any(counters.read_group(group, 3, &mut counts));
        black_box(counters.group_events(group).count());
        any(counters.disable(group, 4));
        any(counters.close(group, 5));
    }
    let mut thread = [ThreadEvent::Opened(counted), ThreadEvent::Unused];
    any(counters.switch_out(&mut thread, 6, |_| ()));
    any(counters.switch_in(unit, &mut thread, 7));
    let mut area = SavedCounters::<[SavedCounter; MAX_COUNTERS]>::new();
    any(counters.save(&mut area, |_| ()));
    any(counters.restore(&area));
    any(counters.reprogram(|_| ()));
    any(counters.set_others_control(black_box(1 << 40), black_box(true)));
    any(counters.set_others_fixed_control(black_box(0xF0), black_box(0x20)));
    any(counters.acknowledge_others(black_box(1 << 62)));
    let last = unit.counters().iter().last().map_or(CounterSet::NONE, |counter| counter.only());
    any(counters.give_back(black_box(last)));
    any(counters.take_more(unit, black_box(last)));
    any(counters.read(sampled, 8));
    black_box((counters.is_enabled(sampled), counters.counter_of(sampled), counters.counters()));
    any(counters.disable(sampled, 9));
    any(counters.close(sampled, 10));
    counters.shut_down()
}

/// Sources of any machine, with events beside them.
fn profile(machine: &Machine, processor: &Snapshot) {
    let source = black_box(KProfileSource::TOTAL_CYCLES);
    let with_events = Events::new(machine, &WITH_SOURCES);
    let apic = || LocalApic::new(ApicOfMemory, black_box(Delivery::NON_MASKABLE), NoTimer);
    let Some(mut session) =
        any(Session::take(with_events, processor, CounterSet::ALL, (Msr, apic()), &OF_SOURCES))
    else {
        return;
    };
    any(session.start(source));
    any(service(&with_events, &(Msr, apic()), &OF_SOURCES, |sample| {
        black_box((*sample, with_events.overflow(&sample)));
    }));
    any(session.apply_interval(source));
    any(session.read(source));
    any(session.reprogram(|sample| {
        black_box(*sample);
    }));
    any(session.stop(source));
    any(session.shut_down());
    if let Some(mut session) =
        any(Session::take(machine, processor, CounterSet::GENERAL, (Msr, apic()), &OF_SOURCES))
    {
        any(session.start(source));
        any(service(machine, &(Msr, apic()), &OF_SOURCES, |sample| {
            black_box(machine.overflow(&sample));
        }));
        any(session.shut_down());
    }
}

/// Branch records without a session: in a task, and with threads.
fn record(machine: &Machine, processor: &Snapshot) {
    let Some(branches) = any(machine.branches_of(processor, &Msr)) else { return };
    let Some(mut recorder) = any(BranchRecorder::take(&branches, Msr, &RECORDS)) else { return };
    any(recorder.freeze_on_interrupt());
    any(recorder.start(black_box(BranchFilter::USER)));
    any(recorder.read().map(|branches| branches.iter().for_each(|branch| _ = black_box(branch))));
    any(recorder.restart());
    any(recorder.clear());
    let mut saved = SavedBranches::<32>::new();
    any(recorder.switch_out(black_box(Some(&mut saved))));
    any(recorder.switch_in(black_box(Some(&saved))));
    any(recorder.stop());
    any(recorder.shut_down());
}

/// The cell of each processor, and perf's attributes. (Its texts are searched by `core`, which has bounds that the
/// optimizer does not prove.)
fn others() {
    any(PLACES.with(|place| place.as_mut().map(|session| any(session.shut_down()))));
    any(Event::try_from(black_box(PerfAttributes::default())));
    any(PerfAttributes::try_from(black_box(Event::generic(GenericEvent::Cycles))));
    if let Some(attr) = any(PerfEventAttr::from_bytes(black_box(&[0; 160]))) {
        any(attr.event(black_box(&())));
        black_box(attr.to_bytes());
    }
    any(Delivery::vector(black_box(0xE1)));
}

/// A processor of each kind: Intel's version 4 and 2, AMD's legacy and PerfMonV2.
fn snapshot(machine: u32) -> Snapshot {
    Snapshot::capture(move |leaf: u32, _: u32| {
        let is_intel = machine < 2;
        let (eax, ebx, ecx, edx) = match leaf {
            0 if is_intel => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            0 => (1, 0x6874_7541, 0x444D_4163, 0x6974_6E65),
            0x0A if is_intel => (0x0730_0304 - 2 * machine, 0, 0, 0x603),
            0x8000_0000 => (0x8000_0022, 0, 0, 0),
            0x8000_0001 => (0, 0, (machine & 1) << 23, 1 << 29),
            0x8000_0022 => (machine & 1, 6, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    })
}

extern "C" fn main() -> i32 {
    for number in 0..4 {
        let processor = black_box(snapshot(black_box(number)));
        FIRST_COUNTER.store(
            [0xC1, 0xC1, 0xC001_0004, 0xC001_0201][number as usize & 3],
            core::sync::atomic::Ordering::Relaxed,
        );
        let machine = black_box(Machine::detect(&processor));
        if machine.why_time_only().is_some() {
            return 10 + number as i32;
        }
        let unit = black_box(*machine.unit());
        if unit.why_absent().is_some() {
            return 20 + number as i32;
        }
        if any(count(&machine, &unit)).is_none() {
            return 30 + number as i32;
        }
        record(&machine, &processor);
        any(stop_all(&unit, &Msr));
        black_box(pmu_intel::clear_stale(&processor, CounterSet::ALL, &Msr));
        // SAFETY: `count` shut its session down, and no interrupt uses them.
        unsafe {
            MEMORY.reclaim();
            EVENTS.reclaim();
        }
        profile(&machine, &processor);
        // SAFETY: as above, of `profile`.
        unsafe {
            OF_SOURCES.reclaim();
            WITH_SOURCES.reclaim();
        }
    }
    others();
    0
}
