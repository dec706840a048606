//! Counts and samples that every machine has: also processors without facilities, the cores of a hybrid, Arm, and
//! machines without a PMU. A naive model adds up what each event has to count and to sample.

use pmu::core::thread::ThreadEvent;
use pmu::{GenericEvent, PmuEvent, SoftwareEvent};

use crate::all::on_every_machine;
use crate::kernel::MOST;
use crate::machine::{bytes, disabled, part};
use crate::records::{Record, read_count, read_records};
use crate::subsystem::{Errno, PROFILE, Result};
use crate::world::{EINVAL, ENOENT, EOPNOTSUPP, INTERRUPTED, System, map};
use crate::{PERIOD, PLAIN, of, plain, precise_cycles, with_branches};

/// Tags of software events.
const FAULTS: u64 = 4;
const CLOCK: u64 = 5;

/// A naive model of an event: the number of its occurrences, and of the samples that were not checked yet.
struct Naive {
    event: PmuEvent,
    tag: u64,
    period: u64,
    /// Occurrences, and those since the last sample.
    total: u64,
    since: u64,
    samples: usize,
}

impl Naive {
    fn new(event: PmuEvent, tag: u64) -> Self {
        Self { event, tag, period: PERIOD, total: 0, since: 0, samples: 0 }
    }

    /// Adds them one by one.
    fn happens(&mut self, times: u64) {
        for _ in 0..times {
            self.total += 1;
            self.since += 1;
            if self.since == self.period {
                (self.since, self.samples) = (0, self.samples + 1);
            }
        }
    }

    #[track_caller]
    fn check(&mut self, machine: &impl System, records: &[Record]) {
        let name = machine.name();
        let (tag, period, address) = (self.tag, self.period, INTERRUPTED);
        let record = Record { tag, period, address, branches: vec![] };
        assert_eq!(of(records, self.tag), vec![record; self.samples], "{name}, {tag}");
        self.samples = 0;
        let count = read_count(machine.perf(), self.event).unwrap();
        assert_eq!(count.value, self.total, "{name}, {tag}");
        assert_eq!(count.enabled, count.running, "{name}, {tag}: always on a counter");
    }
}

/// A number that is refused for want of a PMU, or for another reason.
fn refused(machine: &impl System, otherwise: Errno) -> Errno {
    if machine.has().counters == 0 { ENOENT } else { otherwise }
}

/// An event of a counter, and one of software, beside each other through all that happens to a processor.
#[test]
fn every_machine_counts_and_samples_exactly_whatever_happens_to_the_processor() {
    on_every_machine!(life);
}

fn life(machine: impl System) {
    let perf = machine.perf();
    let faults = bytes("faults/period=4096/", false);
    let mut faults = Naive::new(perf.open(&faults, FAULTS, None).unwrap(), FAULTS);
    let mut counted = match perf.open(&plain(), PLAIN, None) {
        Ok(event) => Some(Naive::new(event, PLAIN)),
        Err(errno) => {
            assert_eq!((errno, machine.has().counters), (ENOENT, 0), "{}", machine.name());
            None
        }
    };
    let mut work = |counted: &mut Option<Naive>, count: u64| {
        machine.work(count, 0x9000);
        for what in [SoftwareEvent::MinorFaults, SoftwareEvent::MajorFaults] {
            (0..count / 8).for_each(|_| machine.happen_in_software(what));
            faults.happens(count / 8);
        }
        if let Some(counted) = counted {
            counted.happens(count);
        }
        let records = read_records(perf);
        faults.check(&machine, &records);
        if let Some(counted) = counted {
            counted.check(&machine, &records);
        }
    };
    work(&mut counted, 5 * PERIOD / 2);
    machine.suspend();
    work(&mut counted, PERIOD / 2);
    perf.run_guest(|| machine.work(3 * PERIOD, 0xA000)).unwrap();
    assert_eq!(read_records(perf), [], "{}: the guest's", machine.name());
    work(&mut counted, PERIOD / 4);
    perf.tick().unwrap();
    work(&mut counted, PERIOD);
    if let Some(counted) = &mut counted {
        perf.set_period(counted.event, 2 * PERIOD).unwrap();
        (counted.period, counted.since) = (2 * PERIOD, 0);
    }
    work(&mut counted, 5 * PERIOD);
    work(&mut counted, 16 * PERIOD);
    if let Some(counted) = &counted {
        perf.close(counted.event).unwrap();
        read_count(perf, counted.event).unwrap_err();
    }
    machine.work(4 * PERIOD, 0x9000);
    assert_eq!(of(&read_records(perf), PLAIN), [], "{}: closed", machine.name());
    machine.end();
}

#[test]
fn what_a_machine_lacks_is_refused_with_linux_numbers() {
    on_every_machine!(lacks);
}

fn lacks(machine: impl System) {
    let (perf, name, has) = (machine.perf(), machine.name(), machine.has());
    let open = |bytes: &[u8]| -> Result<()> {
        let event = perf.open(bytes, 0, None)?;
        perf.close(event)
    };
    let counts = if has.counters > 0 { Ok(()) } else { Err(ENOENT) };
    for text in ["cycles", "instructions:u", "r00c0", "instructions/freq=1000/"] {
        assert_eq!(open(&bytes(text, false)), counts, "{name}, {text}");
    }
    assert_eq!(open(&precise_cycles()), has.precise, "{name}");
    assert_eq!(open(&with_branches()), has.branches, "{name}");
    // A part of the slots without the slots; elsewhere, an event of the processor.
    let alone = open(&part(0));
    assert_eq!(alone, has.part, "{name}");
    for text in ["task-clock", "faults", "dummy", "cpu-clock/period=1000000/"] {
        assert_eq!(open(&bytes(text, false)), Ok(()), "{name}, {text}");
    }
    // A clock has no branches.
    assert_eq!(open(&bytes("cpu-clock", true)), Err(EOPNOTSUPP), "{name}");
    // All that count at a time, of one pinned group.
    let mut group = vec![];
    if has.counters > 0 {
        let bytes = bytes("instructions:u", false);
        let leader = perf.open(&disabled("instructions:u"), 1, None).unwrap();
        group.push(leader);
        let refused = loop {
            match perf.open(&bytes, 2, Some(leader)) {
                Ok(event) => group.push(event),
                Err(errno) => break errno,
            }
        };
        assert_eq!(refused, EINVAL, "{name}");
        perf.enable(leader).unwrap();
        machine.work(777, 0x9000);
        for event in &group {
            assert_eq!(read_count(perf, *event).unwrap().value, 777, "{name}");
        }
        assert_eq!(group.len(), has.counters, "{name}");
    }
    machine.end();
}

/// So many per millisecond: at 1,000 samples per second, that is the period.
#[test]
fn a_frequency_is_kept_on_every_machine() {
    on_every_machine!(|machine| frequency(machine, false));
    on_every_machine!(|machine| frequency(machine, true));
}

fn frequency(machine: impl System, software: bool) {
    let per_ms = if software { 800 } else { 4_000 };
    let (perf, name) = (machine.perf(), machine.name());
    let text = if software { "faults/freq=1000/" } else { "instructions/freq=1000/u" };
    let opened = perf.open(&bytes(text, false), PLAIN, None);
    let Ok(event) = opened else {
        return assert_eq!((opened, machine.has().counters), (Err(ENOENT), 0), "{name}");
    };
    for tick in 0..50 {
        // Ticks of 4 ms.
        for _ in 0..80 {
            machine.pass(50_000);
            if software {
                let fault = || machine.happen_in_software(SoftwareEvent::MinorFaults);
                (0..per_ms / 20).for_each(|_| fault());
            } else {
                machine.work(per_ms / 20, 0x9000);
            }
        }
        perf.tick().unwrap();
        if tick == 24 {
            read_records(perf);
        }
    }
    // Of the last 100 ms.
    let samples = of(&read_records(perf), PLAIN);
    assert!((95..=105).contains(&samples.len()), "{name}: {}", samples.len());
    let period = samples.last().unwrap().period;
    assert!(period.abs_diff(per_ms) <= per_ms / 8, "{name}: {period}");
    assert_eq!(read_count(perf, event).unwrap().value, 200 * per_ms, "{name}");
    machine.end();
}

/// An event has as many samples until a tick as the kernel permits, and as many again after the tick.
#[test]
fn an_event_waits_for_the_tick_on_every_machine() {
    on_every_machine!(throttled);
}

fn throttled(machine: impl System) {
    let (perf, name) = (machine.perf(), machine.name());
    if machine.has().counters == 0 {
        return;
    }
    perf.tick().unwrap(); // The limit begins.
    let event = perf.open(&plain(), PLAIN, None).unwrap();
    for turn in 1..4 {
        machine.work(2 * u64::from(MOST) * PERIOD, 0x9000);
        assert_eq!(read_records(perf).len() as u32, MOST, "{name}, {turn}");
        let counted = read_count(perf, event).unwrap().value;
        assert_eq!(counted, 2 * turn * u64::from(MOST) * PERIOD, "{name}");
        perf.tick().unwrap();
        assert_eq!(read_records(perf), [], "{name}, {turn}");
    }
    machine.end();
}

/// A task with an event of a counter and a software event forks. Each event counts and samples what happens to its
/// own task. The page says what a read says.
#[test]
fn the_events_of_tasks_are_exact_on_every_machine() {
    on_every_machine!(tasks);
}

fn tasks(machine: impl System) {
    let (perf, name) = (machine.perf(), machine.name());
    let (mut parent, mut other, mut idle) = (vec![], vec![], vec![]);
    let has_counters = machine.has().counters > 0;
    let opened = perf.open_of(&mut parent, &plain(), PLAIN);
    assert_eq!(opened, if has_counters { Ok(()) } else { Err(ENOENT) }, "{name}");
    perf.open_of(&mut parent, &bytes("minor-faults/period=2/u", false), FAULTS).unwrap();
    perf.open_of(&mut other, &bytes("minor-faults/period=2/u", false), FAULTS + 10).unwrap();
    let page = map(PLAIN);
    let run = |count: u64| {
        machine.work(count, 0x9000);
        (0..count / 512).for_each(|_| machine.happen_in_software(SoftwareEvent::MinorFaults));
    };
    // Instructions and faults of the parent and its child, and faults of the other task.
    let (mut worked, mut faulted, mut others) = (0, 0, 0);
    let check = |task: &[ThreadEvent], worked: u64, faulted: u64, what: &str| {
        let value = |event: &ThreadEvent| perf.pmu.read_thread(event).unwrap().value;
        if has_counters {
            assert_eq!(machine.read_page(page), Some(worked), "{name}: {what}");
            assert_eq!(value(&task[0]), worked, "{name}: {what}");
        }
        assert_eq!(value(task.last().unwrap()), faulted, "{name}: {what}");
    };
    perf.switch(&mut idle, &mut parent).unwrap();
    for turn in 0..6 {
        run(3 * PERIOD / 4);
        (worked, faulted) = (worked + 3 * PERIOD / 4, faulted + 6);
        check(&parent, worked, faulted, &format!("turn {turn}"));
        perf.switch(&mut parent, &mut other).unwrap();
        run(PERIOD / 2);
        others += 4;
        perf.switch(&mut other, &mut parent).unwrap();
    }
    let records = read_records(perf);
    let of_parent = if has_counters { (worked / PERIOD) as usize } else { 0 };
    assert_eq!(of(&records, PLAIN).len(), of_parent, "{name}");
    assert_eq!(of(&records, FAULTS).len() as u64, faulted / 2, "{name}");
    assert_eq!(of(&records, FAULTS + 10).len() as u64, others / 2, "{name}");

    let mut child = perf.fork(&mut parent).unwrap();
    perf.switch(&mut parent, &mut child).unwrap();
    run(PERIOD);
    perf.switch(&mut child, &mut parent).unwrap();
    check(&parent, worked, faulted, "the child has not ended");
    perf.exit(child, &mut parent).unwrap();
    (worked, faulted) = (worked + PERIOD, faulted + 8);
    let sum = |event: &ThreadEvent| perf.pmu.read_thread(event).unwrap().value;
    assert_eq!(sum(parent.last().unwrap()), faulted, "{name}");
    if has_counters {
        assert_eq!(sum(&parent[0]), worked, "{name}");
        perf.set_enabled(&mut parent, 0, false).unwrap();
        run(PERIOD / 2);
        perf.set_enabled(&mut parent, 0, true).unwrap();
        run(PERIOD / 2);
        assert_eq!(sum(&parent[0]), worked + PERIOD / 2, "{name}");
    }
    perf.switch(&mut parent, &mut idle).unwrap();
    machine.end();
}

/// The events of `perf stat`, and the clock that `perf record` samples where there are no counters.
#[test]
fn software_events_are_exact_on_every_machine() {
    on_every_machine!(software);
}

fn software(machine: impl System) {
    let (perf, name) = (machine.perf(), machine.name());
    let texts = ["context-switches", "cpu-migrations", "faults", "minor-faults", "major-faults:k"];
    let counted = texts.map(|text| perf.open(&bytes(text, false), 0, None).unwrap());
    let time = perf.open(&bytes("task-clock", false), 0, None).unwrap();
    perf.open(&bytes("cpu-clock/period=1000000/", false), CLOCK, None).unwrap();
    let sum = [SoftwareEvent::MinorFaults, SoftwareEvent::MajorFaults];
    sum.repeat(3).into_iter().for_each(|what| machine.happen_in_software(what));
    machine.happen_in_software(SoftwareEvent::ContextSwitches);
    let before = read_count(perf, time).unwrap();
    machine.pass_with_clocks(5_500_000);
    let after = read_count(perf, time).unwrap();
    assert_eq!(after.value - before.value, after.running - before.running, "{name}");
    // A call of the clock takes 50 ns.
    let passed = after.value - before.value;
    assert!((5_500_000..5_502_000).contains(&passed), "{name}: {passed}");
    let counts = counted.map(|event| read_count(perf, event).unwrap().value);
    assert_eq!(counts, [1, 0, 6, 3, 0], "{name}");
    let clock = Record { tag: CLOCK, period: 1_000_000, address: INTERRUPTED, branches: vec![] };
    let records = read_records(perf);
    assert_eq!(of(&records, CLOCK), vec![clock; 5], "{name}");
    assert_eq!(records.len(), 5, "{name}");
    machine.end();
}

/// The kernel's own profile beside an event of user mode.
#[test]
fn a_profile_is_exact_on_every_machine() {
    on_every_machine!(profile);
}

fn profile(machine: impl System) {
    use core::sync::atomic::AtomicU32;
    let (perf, name) = (machine.perf(), machine.name());
    let buckets: &'static [AtomicU32; 256] =
        Box::leak(Box::new([const { AtomicU32::new(0) }; 256]));
    let cycles = pmu::Event::generic(GenericEvent::Cycles).every(PERIOD);
    let addresses = INTERRUPTED - 64..INTERRUPTED + 192;
    let profiled =
        perf.pmu.profile(cycles, addresses, buckets, || machine.work(4 * PERIOD, 0x9000));
    match profiled {
        Ok(profiled) => {
            let hits: Vec<_> = profiled.hits().map(|(of, hits)| (of.start, hits)).collect();
            assert_eq!(hits, [(INTERRUPTED, 4)], "{name}");
        }
        Err(error) => {
            assert_eq!(machine.has().counters, 0, "{name}: {error:?}");
            // The machine declares counters there, of which no source runs.
            let declares = name == "no PMU of AMD's";
            let expected = if declares { EINVAL } else { refused(&machine, EINVAL) };
            assert_eq!(Errno::from(error), expected, "{name}");
        }
    }
    let records = read_records(perf);
    let expected = if machine.has().counters > 0 { 4 } else { 0 };
    assert_eq!((of(&records, PROFILE).len(), records.len()), (expected, expected), "{name}");
    machine.end();
}
