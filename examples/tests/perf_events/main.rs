//! Profiling by perf events against a fake of the kernel, which has a PMU, or forbids, or loses.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod refusals;

use core::cell::RefCell;
use core::ops::Range;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::rc::Rc;

use pmu_examples::machine::{Machine, Source};
use pmu_examples::profiler::call_graph::CallGraph;
use pmu_examples::profiler::call_stacks::Place;
use pmu_examples::profiler::error::Error;
use pmu_examples::profiler::kallsyms::KERNEL;
use pmu_examples::profiler::maps::Mapping;
use pmu_examples::profiler::perf::setting::Setting;
use pmu_examples::profiler::perf::{
    Callers, Event, OpenError, PerfEvents, Record, Request, Sample, Scope, What,
};
use pmu_examples::profiler::report::consumed::{Consumed, Unit};
use pmu_examples::profiler::sampling::Sampling;
use pmu_examples::profiler::sampling::outcome::Outcome;

/// The addresses of the fake's functions.
const KERNEL_TEXT: Range<u64> = 0xFFFF_FFFF_8100_0000..0xFFFF_FFFF_8200_0000;

/// A part of the kernel with functions.
fn text(path: &str, Range { start, end }: Range<u64>) -> Mapping {
    Mapping { start, size: end - start, file_offset: start, path: path.into() }
}

/// The requests to the fake.
#[derive(Default)]
struct Asked {
    opened: Vec<(u16, Request)>,
    closed: Vec<u16>,
}

/// A kernel with two processors.
struct Fake {
    asked: Rc<RefCell<Asked>>,
    /// The error with which it answers an open, if any.
    refusal: fn(u16, &Request) -> Option<i32>,
    /// Set if there is memory for ring buffers.
    has_memory: bool,
    /// The command's consumption.
    consumed: Option<u64>,
    setting: Setting,
    kernel_texts: Vec<Mapping>,
    /// The findings of each call of `read`.
    batches: VecDeque<Vec<Record>>,
}

impl Fake {
    fn new(batches: impl IntoIterator<Item = Vec<Record>>) -> Self {
        Self {
            asked: Rc::default(),
            refusal: |_, _| None,
            has_memory: true,
            consumed: None,
            setting: Setting { paranoid: Some(4), ..Setting::default() },
            kernel_texts: vec![text(KERNEL, KERNEL_TEXT)],
            batches: batches.into_iter().collect(),
        }
    }

    fn refusing(refusal: fn(u16, &Request) -> Option<i32>) -> Self {
        Self { refusal, ..Self::new([]) }
    }
}

impl PerfEvents for Fake {
    fn processors(&self) -> io::Result<Vec<u16>> {
        Ok(vec![0, 65])
    }

    fn open(&mut self, processor: u16, request: &Request) -> Result<(), OpenError> {
        match (self.refusal)(processor, request) {
            Some(error) => Err(OpenError::Event(io::Error::from_raw_os_error(error))),
            None if !self.has_memory => {
                Err(OpenError::Ring(io::Error::from_raw_os_error(libc::EPERM)))
            }
            None => {
                self.asked.borrow_mut().opened.push((processor, *request));
                Ok(())
            }
        }
    }

    fn close(&mut self, processor: u16) {
        self.asked.borrow_mut().closed.push(processor);
    }

    fn read(&mut self, records: &mut Vec<Record>) {
        records.extend(self.batches.pop_front().into_iter().flatten());
    }

    fn consumed(&mut self) -> Option<u64> {
        self.consumed
    }

    fn setting(&self) -> Setting {
        self.setting
    }

    fn kernel_texts(&self) -> Vec<Mapping> {
        self.kernel_texts.clone()
    }
}

fn request(event: Event, period: u64, scope: Scope) -> Request {
    Request { event, period, scope, kernel: true, callers: Callers::None }
}

/// The refusal of a kernel that lets this user sample own threads only.
fn by_thread(_: u16, request: &Request) -> Option<i32> {
    (request.scope == Scope::SystemWide).then_some(libc::EACCES)
}

fn intel() -> Machine {
    Machine::with_interface(pmu_intel::Emon::declared())
}

fn time() -> Source {
    intel().find("Timer").unwrap()
}

/// A source of which every sample is an interrupt.
fn counter() -> Source {
    intel().find("LLCMisses").unwrap()
}

/// Starts, with as many lists' places as the profiler has.
fn start(fake: Fake, source: &Source, interval: u32) -> Result<Sampling<Fake>, Error> {
    Sampling::start(fake, source, interval, CallGraph::None)
}

/// Takes all batches in, and finishes.
fn replay(batches: impl IntoIterator<Item = Vec<Record>>) -> Outcome {
    let fake = Fake::new(batches);
    let reads = fake.batches.len();
    let mut sampling = start(fake, &counter(), 4_096).unwrap();
    for _ in 0..reads {
        sampling.read().unwrap();
    }
    sampling.finish().unwrap()
}

fn map(time: u64, process: u32, start: u64, size: u64, path: &str) -> Record {
    let mapping = Mapping { start, size, file_offset: 0x1000, path: path.into() };
    Record::new(time, What::Map { process, mapping })
}

fn sample(time: u64, process: u32, pc: u64) -> Record {
    let (thread, kernel) = (process, pc >> 63 != 0);
    let callers = Vec::new();
    let sample = Sample { process, thread, processor: 65, pc, kernel, callers, user: None };
    Record::new(time, What::Sample(sample))
}

fn exec(time: u64, process: u32) -> Record {
    at(time, What::Exec { process, name: "a".into() })
}

fn at(time: u64, what: What) -> Record {
    Record::new(time, what)
}

/// The hits of a file, by offset in the file.
fn hits(outcome: &Outcome, path: &str) -> Vec<(u64, u64)> {
    let of_file = outcome.histograms.iter().filter(|histogram| histogram.path == Path::new(path));
    of_file.flat_map(|histogram| histogram.hits().collect::<Vec<_>>()).collect()
}

#[test]
fn every_source_becomes_the_raw_event_of_its_select_on_every_processor() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    for (machine, table) in [
        (intel(), "emon_sources.csv"),
        (Machine::with_interface(pmu_amd::Amd64::declared()), "amd64_sources.csv"),
    ] {
        let text = std::fs::read_to_string(data.join(table)).unwrap();
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
        let select = columns.iter().position(|column| *column == "select").unwrap();
        let mut tried = 0;
        for fields in lines.map(|line| line.split(',').collect::<Vec<_>>()) {
            let source = machine.find(fields[0]).unwrap();
            let fake = Fake::new([]);
            let asked = fake.asked.clone();
            let sampling = start(fake, &source, source.information.interval).unwrap();
            let (event, period) = if fields[1] == "ProfileTime" {
                // The golden section of 1 ms.
                (Event::Clock, 618_034)
            } else {
                let select = fields[select].strip_prefix("0x").unwrap();
                let select = u64::from_str_radix(select, 16).unwrap();
                (Event::Raw(select & 0xFFFF), 65_536)
            };
            let expected = request(event, period, Scope::SystemWide);
            assert_eq!(asked.borrow().opened, [(0, expected), (65, expected)], "{}", fields[1]);
            assert!(asked.borrow().closed.is_empty());
            sampling.finish().unwrap();
            assert_eq!(asked.borrow().closed, [0, 65], "{}", fields[1]);
            tried += 1;
        }
        assert_eq!(tried, machine.sources().len());
    }
}

#[test]
fn samples_of_a_counter_fall_into_buckets_of_the_process_that_mapped_the_file() {
    let records = vec![
        exec(0, 8),
        exec(1, 7),
        map(2, 7, 0x40_0000, 0x1000, "/bin/a"),
        sample(3, 7, 0x40_0000),
        sample(4, 7, 0x40_0003),
        sample(5, 7, 0x40_0FFF),
        sample(6, 7, 0x40_1000),
        sample(7, 7, 0x3F_FFFF),
        sample(8, 8, 0x40_0000),
        sample(9, 7, KERNEL_TEXT.start + 6),
        sample(10, 7, KERNEL_TEXT.start - 1),
        sample(11, 7, KERNEL_TEXT.end),
    ];
    let fake = Fake::new([records]);
    let outcome = start(fake, &counter(), 4_096).unwrap().finish().unwrap();
    assert_eq!(hits(&outcome, "/bin/a"), [(0x1000, 2), (0x1FFC, 1)]);
    // Fine buckets of the kernel's functions, coarse ones below and above.
    let of_kernel = hits(&outcome, KERNEL);
    assert_eq!(of_kernel.iter().map(|(_, hits)| hits).sum::<u64>(), 3);
    assert!(of_kernel.contains(&(KERNEL_TEXT.start + 4, 1)), "{of_kernel:x?}");
    assert!(of_kernel.contains(&(KERNEL_TEXT.end, 1)), "{of_kernel:x?}");
    assert_eq!((outcome.statistics.seen, outcome.statistics.hit), (9, 6));
    assert_eq!(outcome.statistics.missed, 3);
    assert!(outcome.notes().is_empty(), "{:?}", outcome.notes());
}

#[test]
fn samples_in_a_module_of_the_kernel_are_the_module_s() {
    let module = KERNEL_TEXT.end + 0x1000..KERNEL_TEXT.end + 0x3000;
    let mut inner = sample(2, 7, module.start + 0x1FFF);
    let What::Sample(Sample { callers, .. }) = &mut inner.what else { unreachable!() };
    *callers = vec![module.end - 1, KERNEL_TEXT.start + 8];
    let records = vec![exec(0, 7), sample(1, 7, module.start), inner, sample(3, 7, module.end)];
    let mut fake = Fake::new([records]);
    fake.kernel_texts.push(text("[kernel]/driver", module.clone()));
    let outcome = start(fake, &counter(), 4_096).unwrap().finish().unwrap();
    assert_eq!(hits(&outcome, "[kernel]/driver"), [(module.start, 1), (module.end - 4, 1)]);
    assert_eq!(hits(&outcome, KERNEL), [(module.end, 1)]);
    assert_eq!((outcome.statistics.hit, outcome.statistics.missed), (3, 0));
    let path = |place: &Place| outcome.stacks.modules[place.module].to_str().unwrap();
    let stacks: Vec<Vec<_>> =
        outcome.stacks.stacks.iter().map(|stack| stack.iter().map(path).collect()).collect();
    let driver = "[kernel]/driver";
    assert_eq!(stacks, [vec![driver], vec![driver, driver, KERNEL], vec![KERNEL]]);
}

#[test]
fn processes_share_a_files_buckets_wherever_they_map_it() {
    let outcome = replay([vec![
        map(1, 7, 0x40_0000, 0x1000, "/lib/x"),
        map(2, 8, 0x7F00_0000, 0x1000, "/lib/x"),
        sample(3, 7, 0x40_0010),
        sample(4, 8, 0x7F00_0010),
    ]]);
    assert_eq!(hits(&outcome, "/lib/x"), [(0x1010, 2)]);
}

#[test]
fn a_program_that_is_executed_replaces_what_was_mapped() {
    let outcome = replay([vec![
        map(1, 7, 0x40_0000, 0x1000, "/bin/old"),
        sample(2, 7, 0x40_0000),
        exec(3, 7),
        sample(4, 7, 0x40_0000),
        map(5, 7, 0x40_0000, 0x1000, "/bin/new"),
        sample(6, 7, 0x40_0000),
    ]]);
    assert_eq!(hits(&outcome, "/bin/old"), [(0x1000, 1)]);
    assert_eq!(hits(&outcome, "/bin/new"), [(0x1000, 1)]);
    assert_eq!(outcome.statistics.missed, 1);
}

#[test]
fn a_forked_process_has_its_parents_mappings_until_its_last_thread_ends() {
    let outcome = replay([vec![
        map(1, 7, 0x40_0000, 0x1000, "/bin/a"),
        at(2, What::Fork { process: 8, parent: 7 }),
        sample(3, 8, 0x40_0000),
        at(4, What::Fork { process: 8, parent: 8 }),
        at(5, What::Exit { process: 8 }),
        sample(6, 8, 0x40_0000),
        at(7, What::Exit { process: 8 }),
        sample(8, 8, 0x40_0000),
        sample(9, 7, 0x40_0000),
    ]]);
    assert_eq!(hits(&outcome, "/bin/a"), [(0x1000, 3)]);
    // The ID of a process that ended may have been given to an unrelated one.
    assert_eq!((outcome.statistics.seen, outcome.statistics.missed), (3, 0));
}

#[test]
fn a_new_mapping_lies_over_an_old_one_but_a_part_told_again_changes_nothing() {
    let again =
        Mapping { start: 0x40_1000, size: 0x1000, file_offset: 0x2000, path: "/lib/a".into() };
    let outcome = replay([vec![
        map(1, 7, 0x40_0000, 0x4000, "/lib/a"),
        at(2, What::Map { process: 7, mapping: again }),
        sample(3, 7, 0x40_0000),
        sample(4, 7, 0x40_1000),
        map(5, 7, 0x40_3000, 0x4000, "/lib/b"),
        sample(6, 7, 0x40_3000),
    ]]);
    assert_eq!(hits(&outcome, "/lib/a"), [(0x1000, 1), (0x2000, 1)]);
    assert_eq!(hits(&outcome, "/lib/b"), [(0x1000, 1)]);
}

#[test]
fn a_sample_read_before_the_mapping_that_precedes_it_is_not_missed() {
    // Another processor's ring buffer holds the mapping, and is read in the next round.
    let outcome = replay([
        vec![sample(20, 7, 0x40_0000), sample(21, 7, 0x40_0004)],
        vec![map(10, 7, 0x40_0000, 0x1000, "/bin/a")],
        vec![],
    ]);
    assert_eq!(hits(&outcome, "/bin/a"), [(0x1000, 1), (0x1004, 1)]);
    assert_eq!(outcome.statistics.missed, 0);
}

#[test]
fn what_the_kernel_loses_or_pauses_is_told() {
    let outcome =
        replay([vec![at(1, What::Lost(40)), at(2, What::Lost(2)), at(3, What::Throttled)]]);
    assert_eq!((outcome.lost, outcome.throttled), (42, 1));
    let notes = outcome.notes();
    assert!(notes.iter().any(|note| note.contains("42 records lost")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("1 pauses")), "{notes:?}");
}

#[test]
fn mappings_beyond_the_lists_room_are_told_and_the_rest_still_counts() {
    let map_of = |n: u64| map(n, 7, 0x40_0000 + n * 0x1000, 0x1000, "/lib/many");
    let mut records: Vec<Record> = (0..10).map(map_of).collect();
    // Twice in each mapping.
    records.extend((0..20).map(|n| sample(20 + n, 7, 0x40_0000 + n / 2 * 0x1000)));
    let sampling: Sampling<Fake, 8> =
        Sampling::start(Fake::new([records]), &counter(), 4_096, CallGraph::None).unwrap();
    let outcome = sampling.finish().unwrap();
    // Three of the eight places on the lists are the kernel's.
    assert_eq!(outcome.unprofiled, 5);
    assert!(outcome.notes().iter().any(|note| note.contains("5 mappings not profiled")));
    assert_eq!(hits(&outcome, "/lib/many"), [(0x1000, 10)]);
    assert_eq!(outcome.statistics.missed, 10);
}

/// As many processes as no list has room for: 4 of their 5 mappings are never hit.
#[test]
fn mappings_that_are_not_hit_take_no_room() {
    let mut records = Vec::new();
    for process in 1..=100 {
        records.extend((0..5).map(|n| map(process, process as u32, n << 20, 0x1000, "/bin/a")));
        records.push(sample(200 + process, process as u32, 0));
    }
    let sampling: Sampling<Fake, 128> =
        Sampling::start(Fake::new([records]), &counter(), 4_096, CallGraph::None).unwrap();
    let outcome = sampling.finish().unwrap();
    assert_eq!((outcome.unprofiled, outcome.statistics.hit), (0, 100));
}

#[test]
fn a_process_that_is_not_the_commands_is_not_in_the_profile_where_everybody_is_sampled() {
    let records = || {
        vec![
            exec(1, 7),
            map(2, 7, 0x40_0000, 0x1000, "/bin/a"),
            at(3, What::Fork { process: 8, parent: 7 }),
            sample(4, 7, 0x40_0000),
            sample(5, 8, 0x40_0004),
            sample(6, 9, 0x40_0000),
            sample(7, 9, KERNEL_TEXT.start),
            sample(8, 0, KERNEL_TEXT.start),
            sample(9, 8, KERNEL_TEXT.start),
        ]
    };
    let outcome = replay([records()]);
    assert_eq!(hits(&outcome, "/bin/a"), [(0x1000, 1), (0x1004, 1)]);
    assert_eq!(hits(&outcome, KERNEL), [(KERNEL_TEXT.start, 1)]);
    assert_eq!(outcome.statistics.seen, 3);
    // A kernel that samples the command's threads alone is believed.
    let mut fake = Fake::refusing(by_thread);
    fake.batches.push_back(records());
    let outcome = start(fake, &counter(), 4_096).unwrap().finish().unwrap();
    assert_eq!(outcome.statistics.seen, 6);
}

#[test]
fn what_was_consumed_and_not_sampled_is_told_in_the_sources_unit() {
    let records = vec![exec(1, 7), sample(2, 7, 0), sample(3, 7, 0)];
    let mut fake = Fake::new([records]);
    fake.consumed = Some(10_000);
    let outcome = start(fake, &counter(), 4_096).unwrap().finish().unwrap();
    let events = Consumed { unit: Unit::Events, total: 10_000, sampled: 8_192 };
    assert_eq!(outcome.consumed, Some(events));
    assert_eq!(events.not_sampled(), 1_808);

    let mut fake = Fake::new([]);
    fake.consumed = Some(600_000);
    let outcome = start(fake, &time(), 10_000).unwrap().finish().unwrap();
    let nothing = Consumed { unit: Unit::Nanoseconds, total: 600_000, sampled: 0 };
    assert_eq!(outcome.consumed, Some(nothing));

    assert_eq!(replay([]).consumed, None);
}

/// 1,000 threads of 0.6 ms, and 0.6 s in another process: as the kernel samples them where each thread has a
/// clock of its own, each time its period has passed.
#[test]
fn threads_shorter_than_the_interval_are_sampled_by_clocks_of_their_own() {
    const PERIOD: u64 = 62_500;
    let mut records =
        vec![map(1, 7, 0x40_0000, 0x1000, "/bin/short"), map(2, 8, 0x40_0000, 0x1000, "/bin/long")];
    for thread in 0..1000 {
        let (start, samples) = (10 + thread * 600_000, 600_000 / PERIOD);
        records.extend((1..=samples).map(|nth| sample(start + nth * PERIOD, 7, 0x40_0000)));
    }
    let samples = 600_000_000 / PERIOD;
    records.extend((1..=samples).map(|nth| sample(700_000_000 + nth * PERIOD, 8, 0x40_0000)));
    let mut fake = Fake::refusing(by_thread);
    fake.batches.push_back(records);
    fake.setting = Setting { paranoid: Some(2), ..Setting::default() };
    let asked = fake.asked.clone();
    let outcome = start(fake, &time(), 10_000).unwrap().finish().unwrap();
    assert_eq!(asked.borrow().opened[0].1.period, PERIOD);
    let of = |path| hits(&outcome, path).iter().map(|(_, hits)| *hits).sum::<u64>() as f64;
    let share = of("/bin/short") / (of("/bin/short") + of("/bin/long"));
    assert!((share - 0.5).abs() <= 0.05, "{share}");
    // One interrupt for each millisecond all the same.
    assert!((of("/bin/long") - 600.0).abs() <= 1.0, "{}", of("/bin/long"));
    let notes = outcome.notes();
    let told = notes.iter().any(|note| note.contains("62.5 µs") && note.contains("paranoid 0"));
    assert!(told, "{notes:?}");
}

#[test]
fn a_clock_of_a_thread_is_not_faster_than_the_kernel_allows() {
    // Intervals in 100 ns, the highest rate, and the period in nanoseconds.
    for (interval, max_rate, period) in [
        (10_000, None, 62_500),
        (10_000, Some(100_000), 62_500),
        (10_000, Some(4_000), 500_000),
        (10_000, Some(1), 1_000_000),
        (10_000, Some(0), 1_000_000),
        (1_221, Some(100_000), 50_000),
        (1_000_000, Some(100_000), 6_250_000),
    ] {
        let mut fake = Fake::refusing(by_thread);
        fake.setting.max_rate = max_rate;
        let asked = fake.asked.clone();
        start(fake, &time(), interval).unwrap().finish().unwrap();
        let request = request(Event::Clock, period, Scope::PerThread);
        assert_eq!(
            asked.borrow().opened,
            [(0, request), (65, request)],
            "{interval}, {max_rate:?}"
        );
    }
}
