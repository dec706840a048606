//! A hybrid of a P-core and an E-core, each of which may have booted the machine. Tasks move from one to the other.

use pmu::core::thread::ThreadEvent;

use crate::machine::{CODE, Machine, bytes};
use crate::models::hybrid;
use crate::records::{Record, read_count, read_records};
use crate::subsystem::Task;
use crate::world::{EINVAL, INTERRUPTED, System, go_to, map};
use crate::{BRANCHES, CYCLES, PERIOD, PLAIN, of, plain, precise_cycles, with_branches};

/// The tags of the raw events that were opened on processor 0, and on processor 1. The numbers of a raw event mean
/// another event on each type of core.
const OF_FIRST: u64 = 20;
const OF_OTHER: u64 = 21;

/// Makes two machines of a P-core and an E-core: one that the P-core boots, and one that the E-core boots.
fn machines() -> impl Iterator<Item = Machine> {
    let [large, small] = hybrid();
    [[large, small], [small, large]].into_iter().map(|cores| Machine::of_cores(&cores))
}

/// An event's select: retired instructions.
fn raw() -> Vec<u8> {
    bytes("cpu/event=0xc0,period=4096/u", false)
}

/// Opens one for each type of core.
fn open_raw_of(machine: &Machine, task: &mut Task) {
    for (processor, tag) in [(0, OF_FIRST), (1, OF_OTHER)] {
        go_to(processor);
        machine.perf.open_of(task, &raw(), tag).unwrap();
    }
}

/// A naive model of one of a task's events, which counts on both cores, or on one.
struct Naive {
    tag: u64,
    on: [bool; 2],
    total: u64,
    /// Nanoseconds at least, in slices that last so long.
    running: u64,
    samples: u64,
}

#[test]
fn the_events_of_a_task_that_moves_between_types_of_core_are_exact() {
    machines().for_each(moving);
}

fn moving(machine: Machine) {
    let perf = machine.perf;
    let mut task = vec![];
    go_to(0);
    for (bytes, tag) in [(plain(), PLAIN), (precise_cycles(), CYCLES), (with_branches(), BRANCHES)]
    {
        perf.open_of(&mut task, &bytes, tag).unwrap();
    }
    open_raw_of(&machine, &mut task);
    let naive = |tag, on| Naive { tag, on, total: 0, running: 0, samples: 0 };
    let mut expected = vec![naive(OF_FIRST, [true, false]), naive(OF_OTHER, [false, true])];
    expected.splice(0..0, [PLAIN, CYCLES, BRANCHES].map(|tag| naive(tag, [true, true])));
    let page = map(PLAIN);
    let (mut enabled, mut stacks) = (0, vec![]);
    for turn in 0..24_u64 {
        // It stays on a core for one turn or for two.
        let core = [0, 1, 1][turn as usize % 3];
        let (count, branch) = (PERIOD * (1 + turn % 5) / 3, 0x9000 + turn);
        go_to(core);
        perf.switch(&mut vec![], &mut task).unwrap();
        machine.pass(10_000_000);
        machine.work(count, branch);
        enabled += 10_000_000;
        for of in expected.iter_mut().filter(|of| of.on[core]) {
            of.running += 10_000_000;
            for _ in 0..count {
                of.total += 1;
                if of.total % PERIOD == 0 {
                    of.samples += 1;
                    if of.tag == BRANCHES {
                        stacks.push(branch);
                    }
                }
            }
        }
        assert_eq!(machine.read_page(page), Some(expected[0].total), "turn {turn}");
        perf.switch(&mut task, &mut vec![]).unwrap();
        // Without its task: another one's work.
        machine.work(PERIOD / 2, 0xB000);
        for (event, of) in task.iter().zip(&expected) {
            let count = perf.pmu.read_thread(event).unwrap();
            assert_eq!(count.value, of.total, "turn {turn}, {}", of.tag);
            // Each use of the clock takes 50 ns.
            assert!((enabled..enabled + 50_000).contains(&count.enabled), "{turn}: {count:?}");
            let running = of.running..of.running + 50_000;
            assert!(running.contains(&count.running), "{turn}, {}: {count:?}", of.tag);
        }
    }
    let records = read_records(perf);
    for naive in &expected {
        let records = of(&records, naive.tag);
        assert_eq!(records.len() as u64, naive.samples, "{}", naive.tag);
        for record in records {
            let address = if naive.tag == CYCLES { CODE } else { INTERRUPTED };
            assert_eq!((record.address, record.period), (address, PERIOD), "{}", naive.tag);
        }
    }
    let found = of(&records, BRANCHES).into_iter().map(|of| of.branches[0]).collect::<Vec<_>>();
    assert_eq!(found, stacks, "of the turn in which the period ended");
    machine.end();
}

/// Events of processors stay on theirs, and all cores sample by one ring.
#[test]
fn each_core_has_its_own_events() {
    machines().for_each(own_events);
}

fn own_events(machine: Machine) {
    let perf = machine.perf;
    let opened = [0, 1].map(|core| {
        go_to(core);
        let [plain, cycles, raw] =
            [(plain(), PLAIN), (precise_cycles(), CYCLES), (raw(), OF_FIRST)]
                .map(|(bytes, tag)| perf.open(&bytes, tag + 100 * core as u64, None).unwrap());
        [plain, cycles, raw]
    });
    for (core, periods) in [(0, 3), (1, 5), (0, 4)] {
        go_to(core);
        machine.work(periods * PERIOD, 0x9000);
        let records = read_records(perf);
        for (tag, address) in [(PLAIN, INTERRUPTED), (CYCLES, CODE), (OF_FIRST, INTERRUPTED)] {
            let tag = tag + 100 * core as u64;
            let record = Record { tag, period: PERIOD, address, branches: vec![] };
            assert_eq!(of(&records, tag), vec![record; periods as usize], "core {core}, {tag}");
        }
        assert_eq!(records.len() as u64, 3 * periods, "core {core}");
    }
    for (core, periods) in [(0, 7), (1, 5)] {
        go_to(core);
        for event in opened[core] {
            assert_eq!(read_count(perf, event).unwrap().value, periods * PERIOD, "core {core}");
            go_to(1 - core);
            assert_eq!(perf.close(event), Err(EINVAL), "the other core's");
            go_to(core);
            perf.close(event).unwrap();
        }
    }
    machine.end();
}

/// A parent on one type of core, and its child on the other.
#[test]
fn a_child_that_runs_on_the_other_type_of_core_is_counted_for_its_parent() {
    machines().for_each(forking);
}

fn forking(machine: Machine) {
    let perf = machine.perf;
    let mut parent = vec![];
    go_to(0);
    perf.open_of(&mut parent, &plain(), PLAIN).unwrap();
    open_raw_of(&machine, &mut parent);
    go_to(0);
    perf.switch(&mut vec![], &mut parent).unwrap();
    machine.work(1_000, 0x9000);
    let mut child = perf.fork(&mut parent).unwrap();
    go_to(1);
    perf.switch(&mut vec![], &mut child).unwrap();
    // Both run at a time.
    for _ in 0..10 {
        go_to(0);
        machine.work(PERIOD / 2, 0x9000);
        go_to(1);
        machine.work(PERIOD / 4, 0x9000);
    }
    perf.switch(&mut child, &mut vec![]).unwrap();
    go_to(0);
    perf.exit(child, &mut parent).unwrap();
    let (on_first, on_other) = (1_000 + 10 * (PERIOD / 2), 10 * (PERIOD / 4));
    let counts = parent.iter().map(|event| perf.pmu.read_thread(event).unwrap().value);
    assert_eq!(counts.collect::<Vec<_>>(), [on_first + on_other, on_first, on_other]);
    perf.switch(&mut parent, &mut vec![]).unwrap();
    let records = read_records(perf);
    let samples = [PLAIN, OF_FIRST, OF_OTHER].map(|tag| of(&records, tag).len() as u64);
    assert_eq!(
        samples,
        [on_first / PERIOD + on_other / PERIOD, on_first / PERIOD, on_other / PERIOD]
    );
    machine.end();
}

/// A P-core counts instructions on nine counters, and an E-core on seven. A machine that an E-core booted uses those
/// that all its cores have.
#[test]
fn events_that_the_other_core_has_no_counters_for_wait_there() {
    machines().for_each(waiting);
}

fn waiting(machine: Machine) {
    let perf = machine.perf;
    let mut task = vec![];
    go_to(0);
    let pinned = bytes("instructions:u", false);
    (0..9).for_each(|tag| perf.open_of(&mut task, &pinned, tag).unwrap());
    let counts = |task: &[ThreadEvent]| {
        task.iter().map(|of| perf.pmu.read_thread(of).unwrap()).collect::<Vec<_>>()
    };
    perf.switch(&mut vec![], &mut task).unwrap();
    machine.work(1_000, 0x9000);
    perf.switch(&mut task, &mut vec![]).unwrap();
    go_to(1);
    for _ in 0..9 {
        perf.switch(&mut vec![], &mut task).unwrap();
        machine.work(100, 0x9000);
        let _ = perf.tick();
        machine.work(100, 0x9000);
        perf.switch(&mut task, &mut vec![]).unwrap();
    }
    let of_first = if machine.has().counters == 9 { 9 } else { 7 };
    let sum: u64 = counts(&task).iter().map(|count| count.value).sum();
    assert_eq!(sum, of_first * 1_000 + 7 * 1_800);
    machine.end();
}
