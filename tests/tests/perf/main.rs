//! A perf subsystem that asks for every facility of both vendors. The tests ask each processor the same by the same
//! bytes of `perf_event_attr`.

mod all;
mod arm;
mod brs;
mod every;
mod groups;
mod hybrid;
mod kernel;
mod machine;
mod models;
mod pages;
mod random;
mod records;
mod subsystem;
mod world;

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use pmu::core::error::CounterError;
use pmu::core::precise::NotPrecise;
use pmu::core::profile::InterfaceError;
use pmu::intel::precise::PreciseThreshold;
use pmu::kprofile::ProfileError;
use pmu::perf::PerfEventAttr;
use pmu::{BranchFilter, Event, GenericEvent, PmuError, Precision, SoftwareEvent};

use kernel::MOST;
use machine::{DATA, Machine, STORES, attr, bytes, part};
use models::models;
use records::{Record, raw_records, read_count, read_records, words};
use subsystem::{Errno, PROFILE};
use world::{EINVAL, EOPNOTSUPP, INTERRUPTED, System};

/// Tags of the events.
const CYCLES: u64 = 1;
const BRANCHES: u64 = 2;
const PLAIN: u64 = 3;

/// Sampled ops count a period in steps of 16, and each period begins at a random op of the first 128.
const PERIOD: u64 = 4_096;
const RANDOM: u64 = 128;

fn precise_cycles() -> Vec<u8> {
    bytes("cycles/period=4096/p", false)
}

fn with_branches() -> Vec<u8> {
    bytes("instructions/period=4096/", true)
}

fn plain() -> Vec<u8> {
    bytes("instructions/period=4096/u", false)
}

fn of(records: &[Record], tag: u64) -> Vec<Record> {
    records.iter().filter(|record| record.tag == tag).cloned().collect()
}

/// Of precise cycles: at the instruction's address.
#[track_caller]
fn assert_cycles(machine: &Machine, records: &[Record], periods: u64, name: &str) {
    let cycles = of(records, CYCLES);
    let most = periods + u64::from(machine.has_units);
    assert!((periods..=most).contains(&(cycles.len() as u64)), "{name}: {}", cycles.len());
    for record in cycles {
        assert_eq!((record.address, record.branches), (machine.sampled, vec![]), "{name}");
        assert!(record.period.abs_diff(PERIOD) <= RANDOM, "{name}: {}", record.period);
    }
}

#[test]
fn the_same_bytes_give_the_same_samples_on_every_processor() {
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let opened = [(precise_cycles(), CYCLES), (with_branches(), BRANCHES), (plain(), PLAIN)];
        let [cycles, branches, plain] = opened.map(|(bytes, tag)| {
            perf.open(&bytes, tag, None).map_err(|errno| (name, errno)).unwrap()
        });
        machine.work(4 * PERIOD, 0x9000);
        let records = read_records(perf);
        assert_cycles(&machine, &records, 4, name);
        let stack =
            Record { tag: BRANCHES, period: PERIOD, address: INTERRUPTED, branches: vec![0x9000] };
        assert_eq!(of(&records, BRANCHES), vec![stack.clone(); 4], "{name}");
        let interrupted = Record { tag: PLAIN, branches: vec![], ..stack };
        assert_eq!(of(&records, PLAIN), vec![interrupted.clone(); 4], "{name}");
        assert_eq!(read_count(perf, plain).unwrap().value, 4 * PERIOD, "{name}");

        // At once, as Linux' PERF_EVENT_IOC_PERIOD.
        perf.set_period(plain, 2 * PERIOD).unwrap();
        machine.work(5 * PERIOD, 0x9000);
        let longer = Record { period: 2 * PERIOD, ..interrupted };
        let records = read_records(perf);
        assert_eq!(of(&records, PLAIN), vec![longer.clone(); 2], "{name}");
        assert_cycles(&machine, &records, 5, name);

        // Registers that lose their contents, a guest, and the tick's rotation lose nothing of a period.
        machine.work(PERIOD / 2, 0x9000);
        machine.suspend();
        perf.run_guest(|| machine.work(8 * PERIOD, 0xA000)).unwrap();
        perf.tick().unwrap();
        let half = read_records(perf);
        assert!(
            half.is_empty() || machine.has_units && of(&half, CYCLES).len() == 1,
            "{name}: {half:?}"
        );
        machine.work(PERIOD / 2, 0xB000);
        let records = read_records(perf);
        let stacks = of(&records, BRANCHES);
        assert_eq!((stacks.len(), stacks[0].branches.first()), (1, Some(&0xB000)), "{name}");
        assert!(!stacks[0].branches.contains(&0xA000), "{name}: the guest's");
        assert_eq!(of(&records, PLAIN), [longer], "{name}");
        assert_eq!(of(&records, CYCLES).len() + half.len(), 1, "{name}");
        assert_eq!(read_count(perf, plain).unwrap().value, 10 * PERIOD, "{name}");

        for event in [cycles, branches, plain] {
            perf.close(event).unwrap();
            read_count(perf, event).unwrap_err();
        }
        machine.work(4 * PERIOD, 0x9000);
        assert_eq!(read_records(perf), [], "{name}");
        machine.end();
    }
}

/// 8,000 instructions per millisecond: at 1,000 samples per second, a period of 8,000.
#[test]
fn a_frequency_is_kept_by_every_kind_of_event() {
    const PER_MS: u64 = 8_000;
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let [precise, branches, plain] = [
            (bytes("cycles/freq=1000/p", false), CYCLES),
            (bytes("instructions/freq=1000/", true), BRANCHES),
            (bytes("instructions/freq=1000/u", false), PLAIN),
        ]
        .map(|(bytes, tag)| perf.open(&bytes, tag, None).unwrap());
        for tick in 0..50 {
            // Ticks of 4 ms.
            for _ in 0..8 {
                machine.pass(500_000);
                machine.work(PER_MS / 2, 0x9000);
            }
            perf.tick().unwrap();
            if tick == 24 {
                read_records(perf);
            }
        }
        let records = read_records(perf);
        for tag in [CYCLES, BRANCHES, PLAIN] {
            let samples = of(&records, tag);
            assert!((95..=105).contains(&samples.len()), "{name}, {tag}: {}", samples.len());
            let period = samples.last().unwrap().period;
            assert!(period.abs_diff(PER_MS) <= PER_MS / 8, "{name}, {tag}: {period}");
        }
        for event in [precise, branches, plain] {
            assert_eq!(read_count(perf, event).unwrap().value / PER_MS, 200, "{name}");
            perf.close(event).unwrap();
        }
        machine.end();
    }
}

/// So many records wait for each interrupt, and are taken within a microsecond.
#[test]
fn a_frequency_is_kept_where_many_records_wait() {
    let mut tried = 0;
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let Ok((_, memory)) = perf.pmu.precise_records(0) else { continue };
        memory.set_threshold(PreciseThreshold::NearlyFull);
        let Ok(event) = perf.open(&bytes("cycles/freq=4000/p", false), CYCLES, None) else {
            continue;
        };
        for _ in 0..3 * 250 {
            for _ in 0..8 {
                machine.pass(500_000);
                machine.work(32_000, 0x9000);
            }
            perf.tick().unwrap();
        }
        // In three seconds. What still waits is some hundred.
        let samples = of(&read_records(perf), CYCLES).len();
        assert!((11_000..=13_000).contains(&samples), "{name}: {samples}");
        perf.close(event).unwrap();
        tried += 1;
        machine.end();
    }
    assert!(tried > 3, "{tried}");
}

/// An event has as many samples until a tick as the kernel permits, and as many again after the tick.
#[test]
fn an_event_that_is_sampled_too_often_waits_for_the_tick() {
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        perf.tick().unwrap(); // The limit begins.
        let opened = [(precise_cycles(), CYCLES), (with_branches(), BRANCHES), (plain(), PLAIN)];
        let events = opened.map(|(bytes, tag)| perf.open(&bytes, tag, None).unwrap());
        for _ in 0..3 {
            machine.work(2 * u64::from(MOST) * PERIOD, 0x9000);
            let records = read_records(perf);
            for tag in [CYCLES, BRANCHES, PLAIN] {
                let samples = of(&records, tag).len() as u32;
                assert_eq!(samples, MOST, "{name}, {tag}");
            }
            perf.tick().unwrap();
            assert_eq!(read_records(perf), [], "{name}");
        }
        for event in events {
            let count = read_count(perf, event).unwrap().value;
            assert_eq!(count, 6 * u64::from(MOST) * PERIOD, "{name}");
            perf.close(event).unwrap();
        }
        machine.end();
    }
}

fn not_precise(error: PmuError) -> NotPrecise {
    match error {
        PmuError::Profile(ProfileError::Hardware {
            error: InterfaceError::Counters(CounterError::NotPrecise(reason)),
            ..
        }) => reason,
        other => panic!("{other:?}"),
    }
}

/// The README's profile, on every processor that has both.
#[test]
fn a_profile_has_the_sampled_instructions_and_the_branches_before_them() {
    static BUCKETS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let cycles = Event::generic(GenericEvent::Cycles).every(PERIOD);
        let event = cycles.precise(Precision::ZeroSkidRequested).with_branches(BranchFilter::USER);
        BUCKETS.iter().for_each(|bucket| bucket.store(0, Relaxed));
        let addresses = machine.sampled..machine.sampled + 256;
        let profile = machine.perf.pmu.profile(event, addresses, &BUCKETS, || {
            machine.work(40 * PERIOD, 0x9000);
        });
        let records = read_records(machine.perf);
        if machine.sampled == INTERRUPTED {
            // The records of formats 0 and 1 have the address of the next instruction.
            let error = profile.unwrap_err();
            assert_eq!(Errno::from(error), EOPNOTSUPP, "{name}");
            let NotPrecise::NextAddressOnly = not_precise(error) else { panic!() };
            assert_eq!(records, [], "{name}");
        } else {
            let profile = profile.unwrap();
            let hits: Vec<_> = profile.hits().map(|(bucket, hits)| (bucket.start, hits)).collect();
            assert_eq!(hits, [(machine.sampled, 40)], "{name}");
            assert_eq!(records.len(), 40, "{name}");
            for record in records {
                assert_eq!(record.address, machine.sampled, "{name}");
                assert_eq!(record.branches.first(), Some(&0x9000), "{name}");
            }
        }
        machine.end();
    }
}

#[test]
fn a_tasks_events_go_with_it_on_every_processor() {
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let [mut one, mut other, mut idle] = [vec![], vec![], vec![]];
        for (bytes, tag) in [(precise_cycles(), CYCLES), (with_branches(), BRANCHES)] {
            perf.open_of(&mut one, &bytes, tag).unwrap();
        }
        perf.open_of(&mut other, &plain(), PLAIN).unwrap();
        // Each task runs for slices that are shorter than a period.
        perf.switch(&mut idle, &mut one).unwrap();
        for _ in 0..8 {
            machine.work(PERIOD / 2, 0x9000);
            perf.switch(&mut one, &mut other).unwrap();
            machine.work(PERIOD / 4, 0xB000);
            perf.switch(&mut other, &mut one).unwrap();
        }
        perf.switch(&mut one, &mut idle).unwrap();
        let records = read_records(perf);
        assert_cycles(&machine, &records, 4, name);
        let stacks = of(&records, BRANCHES);
        assert_eq!(stacks.len(), 4, "{name}");
        for stack in stacks {
            // None of the other task's.
            assert_eq!(stack.branches.first(), Some(&0x9000), "{name}");
            assert!(!stack.branches.contains(&0xB000), "{name}: {stack:?}");
        }
        assert_eq!(of(&records, PLAIN).len(), 2, "{name}");
        machine.work(8 * PERIOD, 0x9000);
        assert_eq!(read_records(perf), [], "{name}");
        machine.end();
    }
}

/// A task forks while its events count, its child runs beside it, and ends: nothing is missed, and nothing counted
/// twice.
#[test]
fn a_childs_counts_and_samples_are_its_parents_on_every_processor() {
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let (mut parent, mut idle) = (vec![], vec![]);
        for (bytes, tag) in [(precise_cycles(), CYCLES), (plain(), PLAIN)] {
            perf.open_of(&mut parent, &bytes, tag).unwrap();
        }
        perf.switch(&mut idle, &mut parent).unwrap();
        machine.work(PERIOD / 2, 0x9000);
        let mut child = perf.fork(&mut parent).unwrap();
        for _ in 0..4 {
            machine.work(PERIOD / 2, 0x9000);
            perf.switch(&mut parent, &mut child).unwrap();
            machine.work(PERIOD / 4, 0x9000);
            perf.switch(&mut child, &mut parent).unwrap();
        }
        perf.exit(child, &mut parent).unwrap();
        // A disabled event counts nothing.
        perf.set_enabled(&mut parent, 1, false).unwrap();
        machine.work(PERIOD / 2, 0x9000);
        perf.set_enabled(&mut parent, 1, true).unwrap();
        let worked = |event: usize| perf.pmu.read_thread(&parent[event]).unwrap().value;
        assert_eq!(worked(1), PERIOD / 2 * 5 + PERIOD / 4 * 4, "{name}");
        machine.work(PERIOD / 2, 0x9000);
        assert_eq!(worked(1), PERIOD / 2 * 6 + PERIOD / 4 * 4, "{name}");
        perf.switch(&mut parent, &mut idle).unwrap();
        let records = read_records(perf);
        // Three periods of the parent's, which began before the fork and end with it enabled, and one of the child's.
        assert_eq!(of(&records, PLAIN).len(), 3 + 1, "{name}");
        assert_cycles(&machine, &records, 3 + 1, name);
        machine.end();
    }
}

#[test]
fn where_the_slots_go_is_counted_beside_or_refused() {
    let mut divided = 0;
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        perf.open(&plain(), PLAIN, None).unwrap();
        if !machine.has_units {
            assert_eq!(perf.open(&part(0), 0, None), Err(EINVAL), "{name}: without slots");
        }
        match machine.open_slots() {
            Err(errno) => assert_eq!(errno, EINVAL, "{name}"),
            Ok(slots) => {
                divided += 1;
                let fifth = perf.open(&part(4), 0, Some(slots));
                assert_eq!(fifth, Err(EINVAL), "{name}: the group is enabled");
                machine.work(PERIOD, 0x9000);
                machine.pass_slots(1_000);
                machine.suspend();
                machine.pass_slots(1_000);
                let mut bytes = [0; 48];
                assert_eq!(perf.read(slots, &mut bytes), Ok(48));
                let counts = &words(&bytes)[1..];
                let parts = [100, 20, 60, 75].map(|share| 2_000 * share);
                assert_eq!(counts[0], 2_000 * 255, "{name}");
                assert_eq!(counts[1..], parts, "{name}");
                perf.close(slots).unwrap();
                // Its parts went with it: the table has places for three groups.
                for _ in 0..4 {
                    perf.close(machine.open_slots().unwrap()).unwrap();
                }
            }
        }
        machine.end();
    }
    assert_eq!(divided, 3, "versions 5 and 6");
}

/// The events of `perf stat`, and what `perf record` samples where there are no counters.
#[test]
fn software_events_are_counted_and_sampled_beside_all_others() {
    const FAULTS: u64 = 4;
    const CLOCK: u64 = 5;
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let plain =
            |text| perf.open(&bytes(text, false), 0, None).map_err(|errno| (name, text, errno));
        let texts = ["task-clock", "context-switches", "cpu-migrations", "faults", "instructions"];
        let counted = texts.map(|text| plain(text).unwrap());
        let sampled = [(precise_cycles(), CYCLES), (with_branches(), BRANCHES)];
        let _ = sampled.map(|(bytes, tag)| perf.open(&bytes, tag, None).unwrap());
        perf.open(&bytes("major-faults/period=2/pppu", false), FAULTS, None).unwrap();
        perf.open(&bytes("cpu-clock/period=1000000/P", false), CLOCK, None).unwrap();
        assert_eq!(
            perf.open(&bytes("cpu-clock", true), 0, None),
            Err(EOPNOTSUPP),
            "{name}: branches"
        );
        machine.work(2 * PERIOD, 0x9000);
        for what in [SoftwareEvent::MinorFaults, SoftwareEvent::MajorFaults].repeat(3) {
            machine.happen_in_software(what);
        }
        machine.happen_in_software(SoftwareEvent::ContextSwitches);
        let before = read_count(perf, counted[0]).unwrap();
        machine.pass_with_clocks(5_500_000);
        perf.run_guest(|| machine.work(3 * PERIOD, 0xA000)).unwrap();
        let after = read_count(perf, counted[0]).unwrap();
        assert_eq!(after.value - before.value, after.running - before.running, "{name}");
        assert!(after.value.abs_diff(5_500_000) < 100_000, "{name}: {}", after.value);
        let counts = counted.map(|event| read_count(perf, event).unwrap().value);
        assert_eq!(counts[1..], [1, 0, 6, 2 * PERIOD], "{name}");
        let records = read_records(perf);
        let faults = of(&records, FAULTS);
        let expected = Record { tag: FAULTS, period: 2, address: INTERRUPTED, branches: vec![] };
        assert_eq!(faults, [expected], "{name}");
        assert_eq!(of(&records, CLOCK).len(), 5, "{name}");
        assert_cycles(&machine, &records, 2, name);
        assert_eq!(of(&records, BRANCHES).len(), 2, "{name}");
        machine.end();
    }
}

#[test]
fn what_a_processor_cannot_is_refused_as_the_event_is_opened() {
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        // Linux' drivers differ in the number of what they do not sample precisely.
        let misses = match (machine.has_units, name) {
            (true, _) => Err(EINVAL),
            (_, "version 6") => Ok(()), // any event of a counter
            _ => Err(EOPNOTSUPP),
        };
        let misses = ("cpu/event=0x2e,umask=0x41,period=4096/ppp", misses);
        for (text, expected) in [("cycles:p", Err(EINVAL)), misses] {
            let opened = machine.perf.open(&bytes(text, false), CYCLES, None).map(|_| ());
            assert_eq!(opened, expected, "{name}, {text}");
        }
        machine.perf.open(&plain(), PLAIN, None).unwrap();
        machine.work(PERIOD, 0x9000);
        assert_eq!(read_records(machine.perf).len(), 1, "{name}");
        machine.end();
    }
}

/// Linux' `mem-stores`, as `perf mem` records it. The records of format 0 have no accesses.
#[test]
fn the_records_of_an_event_have_the_accesses_that_its_samples_select() {
    let mut refused = 0;
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        // PERF_SAMPLE_ADDR, _WEIGHT, _DATA_SRC, _PHYS_ADDR and _WEIGHT_STRUCT.
        for field in [3, 14, 15, 19, 24].map(|bit| 1_u64 << bit) {
            let text = if machine.has_units { "cycles/period=4096/p" } else { STORES };
            let bytes = PerfEventAttr { sample_type: field, ..attr(text) }.to_bytes();
            let event = match perf.open(&bytes, CYCLES, None) {
                Ok(event) => event,
                Err(errno) => {
                    assert_eq!((errno, name), (EOPNOTSUPP, "version 2, format 0"));
                    refused += 1;
                    continue;
                }
            };
            machine.store(PERIOD);
            if field == 1 << 3 && !machine.has_units {
                let [ref record] = raw_records(perf)[..] else { panic!("{name}") };
                assert_eq!(record[1..], [DATA], "{name}");
            }
            perf.close(event).unwrap();
        }
        machine.end();
    }
    assert_eq!(refused, 5);
}

/// The tag of a profile's samples is 0, which an event of user mode may have, too.
#[test]
fn a_profile_is_not_taken_for_an_event_without_a_tag() {
    static BUCKETS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let event = perf.open(&bytes("instructions/period=8192/u", false), 0, None).unwrap();
        let cycles = Event::generic(GenericEvent::Cycles).every(PERIOD);
        let addresses = INTERRUPTED..INTERRUPTED + 256;
        let profiled = perf.pmu.profile(cycles, addresses, &BUCKETS, || {
            machine.work(4 * PERIOD, 0x9000);
        });
        profiled.unwrap();
        let records = read_records(perf);
        assert_eq!((records.len(), of(&records, 0).len()), (4 + 2, 2), "{name}");
        assert_eq!(of(&records, PROFILE).len(), 4, "{name}");
        perf.close(event).unwrap();
        machine.end();
    }
}

/// The subsystem's source is its own witness: a new name is a new word that each adopter learns.
#[test]
fn the_subsystem_names_few_types_and_no_vendor() {
    let source = include_str!("subsystem.rs");
    let imports = source.split("use ").filter(|import| import.starts_with("pmu::"));
    let names = imports.flat_map(|import| {
        let listed = import.split_once(';').unwrap().0.rsplit("::").next().unwrap();
        listed.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
    });
    let count = names.filter(|name| name.starts_with(char::is_uppercase)).count();
    assert!((10..=25).contains(&count), "{count}");
    for vendor in ["intel", "amd", "Intel", "Amd", "AMD", "Pebs", "Ibs", "X86", "Arm"] {
        assert!(!source.contains(vendor), "{vendor}");
    }
    // All that a kernel has of it, with the ports to both architectures, and without the use of models.
    let block = |source: &str, begin: &str| {
        let (_, block) = source.split_once(begin).unwrap();
        block.split_once("\n}\n").unwrap().0.lines().count() + 1
    };
    let ports = [
        block(include_str!("machine.rs"), "impl Port for X86Port"),
        block(include_str!("machine.rs"), "impl X86Kernel for X86Port"),
        block(include_str!("arm.rs"), "impl Port for ArmPort"),
    ];
    let files = [source, include_str!("kernel.rs")]
        .map(|file| file.lines().filter(|line| !line.starts_with("use crate::world")).count());
    let lines: usize = files.iter().chain(&ports).sum();
    assert!(lines <= 300, "{lines}: {files:?}, {ports:?}");
}
