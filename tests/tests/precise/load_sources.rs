//! Loads that are sampled by their latency, on each core that has the event: its counters, its auxiliary event, and
//! what its records say of the data's source.

use pmu_core::error::CounterError;
use pmu_core::precise::{
    AccessType, DataAccess, DataSource, LineState, NotPrecise, Precision, SampleParts, Translation,
};
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_core::{CounterSet, Event};
use pmu_events::CoreType;
use pmu_tests::Reason;
use pmu_tests::{Row, data};
use pmu_virt::mock::PmiFault;

use crate::scene::*;
use crate::support::*;

/// Returns the event of an encoding, with or without a latency.
fn loads(select: u64, cycles: u16) -> Event {
    let event = Event::raw(EventSelect::from_bits(select)).user_only().every(PERIOD);
    let event = event.precise(Precision::ZeroSkidRequested).recording(SampleParts::ACCESS);
    if cycles == 0 { event } else { event.latency_at_least(cycles) }
}

/// Makes the processor of a row.
fn scene(
    row: &Row<'_>,
    instructions: impl Fn(u64) -> pmu_virt::precise::FedRecord<'static> + 'static,
) -> &'static Scene {
    let seen_as = |of: Snapshot| snapshot(&of, row);
    let mut processor = processor("format 4");
    // The overflow of the event beside would freeze the counters before the record is written.
    processor.freezes = false;
    Scene::build(processor, instructions, &[], Mock::strict, seen_as)
}

/// Opens and starts an event with the event that the core needs beside it. Returns its counter.
fn start(session: &mut Session, scene: &'static Scene, row: &Row<'_>, event: &Event) -> CounterId {
    let beside = row.number("beside");
    let is_loads = event.select().map(EventSelect::select_bits) == Some(row.number("event"));
    let beside = Event::raw(EventSelect::from_bits(beside));
    let events = [beside, *event];
    let events = if row.number("beside") != 0 && is_loads { &events[..] } else { &events[1..] };
    let (_, event) = scene.start_together(session, events);
    session.counter_of(event).unwrap()
}

/// Returns a processor with the family, model and core type of a row.
fn snapshot(of: &Snapshot, row: &Row<'_>) -> Snapshot {
    let [family, model, core_type] =
        ["family", "model", "core_type"].map(|column| row.number(column) as u32);
    let extended = family.saturating_sub(0xF);
    let signature = extended << 20 | (model >> 4) << 16 | family.min(0xF) << 8 | (model & 0xF) << 4;
    Snapshot::capture(|leaf: u32, subleaf: u32| {
        let given = of.leaf(leaf, subleaf);
        let (mut eax, mut edx) = (given.eax, given.edx);
        match leaf {
            0 => eax = eax.max(0x1A),
            1 => eax = signature,
            7 if subleaf == 0 && core_type != 0 => edx |= 1 << 15,
            0x1A => eax = core_type << 24,
            _ => {}
        }
        CpuIdResult { eax, edx, ..given }
    })
}

fn processor(name: &str) -> Processor {
    processors().into_iter().find(|processor| processor.name == name).expect("a processor")
}

/// Records one access on the core of a row, and returns it.
fn recorded(row: &Row<'_>, event: &Event, word: u64) -> DataAccess {
    let fed = move |number| {
        let mut fed = instruction(number);
        (fed.data_address, fed.data_source) = (0x7000, word);
        (fed.latency, fed.cache_latency) = (55, 0x21);
        fed
    };
    let scene = scene(row, fed);
    let mut session = scene.take();
    start(&mut session, scene, row, event);
    scene.mock.inject_pmi(PmiFault::Lost);
    // The counter overflows before the next access.
    scene.mock.interrupt_at(1);
    scene.drain(&mut session);
    let instructions = scene.instructions.borrow();
    assert_eq!(instructions.len(), 1, "{row:?}");
    instructions[0].access.expect("an access")
}

/// The parts of an access, in the words of the data file.
fn words(access: &DataAccess) -> [String; 6] {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let yes = |is: Option<bool>| or_none(is.map(|is| if is { "yes" } else { "no" }.into()));
    [
        or_none(access.source.map(|source| format!("{source:?}"))),
        yes(access.remote),
        or_none(access.line.map(|line: LineState| format!("{line:?}"))),
        or_none(access.translation.map(|of| {
            assert_eq!(of, Translation::PageWalk);
            "walk".into()
        })),
        yes(access.locked),
        or_none(access.memory_type.map(|of: AccessType| format!("{of:?}"))),
    ]
}

#[test]
fn no_core_s_data_source_is_taken_for_another_core_s() {
    let cores = data!("load_latency.csv");
    let sources = data!("load_sources.csv");
    let mut seen = 0;
    for core in &cores {
        let of_core = sources.iter().filter(|row| row.text("encoding") == core.text("encoding"));
        // Each encoding whole on the first core that has it; elsewhere some values that tell it from the others.
        let encoding = core.text("encoding");
        let is_first = cores.iter().find(|row| row.text("encoding") == encoding).unwrap();
        let is_first = is_first.text("name") == core.text("name");
        for (at, row) in of_core.enumerate().filter(|(at, _)| is_first || at % 5 == 3) {
            let access = recorded(core, &loads(core.number("event"), 50), row.number("word"));
            let expected =
                ["source", "remote", "line", "tlb", "locked", "type"].map(|at| row.text(at));
            assert_eq!(words(&access), expected, "{} {at}: {row:?}", core.text("name"));
            assert_eq!((access.latency, access.address), (Some(0x21), Some(0x7000)));
            assert!(access.load && !access.store);
            seen += 1;
        }
    }
    assert!(seen > 200, "{seen}");
}

#[test]
fn a_core_that_is_not_known_has_no_data_source() {
    // A P-core of a later model of family 6.
    let text = "name,family,model,core_type,event,beside\nlater,6,0xF5,0x40,0x01CD,0\n";
    let later = pmu_tests::rows(text);
    for row in data!("load_sources.csv").iter().filter(|row| row.text("encoding") == "unknown") {
        let access = recorded(&later[0], &loads(0x01CD, 50), row.number("word"));
        let expected = ["source", "remote", "line", "tlb", "locked", "type"].map(|at| row.text(at));
        assert_eq!(words(&access), expected, "{row:?}");
    }
}

/// By the data file, and by the list of `pmu-events` for the core.
#[test]
fn a_load_latency_event_gets_no_counter_that_does_not_count_it() {
    for row in &data!("load_latency.csv") {
        let name = row.text("name");
        let (first, last) = (row.number("first"), row.number("last"));
        let counters = CounterSet::from_bits((1 << (last + 1)) - (1 << first));
        let event = loads(row.number("event"), 8);
        for counter in (0..8).map(|bit| CounterSet::from_bits(1 << bit)) {
            let scene = scene(row, instruction);
            let mut session = scene.take();
            let beside = Event::raw(EventSelect::from_bits(row.number("beside")));
            let events = [beside, event.on(counter)];
            let events = if row.number("beside") != 0 { &events[..] } else { &events[1..] };
            let opened = session.open(&scene.counters, events);
            let expected = if counter.bits() & counters.bits() != 0 {
                None
            } else {
                Some(CounterError::NoCounterForEvent)
            };
            assert_eq!(opened.err().map(|error| error.reason), expected, "{name}, {counter:?}");
        }
        let scene = scene(row, instruction);
        let mut session = scene.take();
        let beside = Event::raw(EventSelect::from_bits(row.number("beside")));
        let exact = event.precise(Precision::ZeroSkidRequired);
        let events = [beside, exact];
        let events = if row.number("beside") != 0 { &events[..] } else { &events[1..] };
        let has_exact = session.open(&scene.counters, events).is_ok();
        assert_eq!(has_exact, first == 0, "{name}: the exact counter is 0");
        let refused = session.open(&scene.counters, &[loads(0x00C4, 8)]);
        let reason = CounterError::NotPrecise(NotPrecise::NotLatencyEvent);
        assert_eq!(refused.reason(), Err(reason), "{name}");
        if row.text("list") != "-" {
            let list = CoreType::named(row.text("list")).unwrap();
            let of_list = list.constraints(EventSelect::from_bits(row.number("event")));
            assert_eq!(of_list.map(|of| of & CounterSet::GENERAL), Some(counters), "{name}");
        }
    }
}

#[test]
fn those_cores_alone_that_need_it_ask_for_the_auxiliary_event() {
    for row in &data!("load_latency.csv") {
        let scene = scene(row, instruction);
        let mut session = scene.take();
        let event = loads(row.number("event"), 50);
        let alone = session.open(&scene.counters, &[event]).reason().err();
        let beside = row.number("beside");
        let reason = CounterError::NotPrecise(NotPrecise::NeedsBeside(beside as u16));
        assert_eq!(alone, (beside != 0).then_some(reason), "{}", row.text("name"));
        let counter = start(&mut session, scene, row, &event);
        let selected = |counter: u32| scene.read(0x186 + counter) & 0xFFFF;
        let mut expected = vec![row.number("event"), beside];
        expected.retain(|select| *select != 0);
        let mut running: Vec<u64> = (0..8).map(selected).collect();
        running.retain(|select| *select != 0);
        running.sort_unstable();
        assert_eq!(running, expected, "{}", row.text("name"));
        assert_eq!(selected(u32::from(counter.number())), row.number("event"));
    }
}

/// MEM_TRANS_RETIRED.STORE_SAMPLE has a load's encoding from Golden Cove on: of the values with bit 0, only 1 is the
/// first-level cache. MEM_UOPS_RETIRED's stores of E-cores have no source.
#[test]
fn a_store_that_missed_the_first_level_cache_is_not_a_hit_of_it() {
    let cores = data!("load_latency.csv");
    for (name, select, word, expected) in [
        ("Sapphire Rapids", 0x02CD, 0x01, Some(DataSource::L1)),
        ("Sapphire Rapids", 0x02CD, 0x03, None),
        ("Alder Lake P", 0x02CD, 0x0B, None),
        ("Lunar Lake P", 0x02CD, 0x01, Some(DataSource::L1)),
        ("Lunar Lake P", 0x02CD, 0x05, None),
        ("Lunar Lake P", 0x02CD, 0x11, None),
        ("Lunar Lake E", 0x12D0, 0x05, None),
        ("Alder Lake E", 0x82D0, 0x03, None),
        ("Nova Lake P", 0x02CD, 0x105, None),
    ] {
        let core = cores.iter().find(|row| row.text("name") == name).unwrap();
        let access = recorded(core, &loads(select, 0), word);
        assert_eq!(access.source, expected, "{name} {select:#X} {word:#X}");
        assert!(access.store && !access.load);
    }
}
