//! Whatever the subsystem is asked, and whatever fails: afterwards every event samples exactly.

use pmu::perf::{PERF_TYPE_IBS_FETCH, PERF_TYPE_IBS_OP, PerfAttributes, PerfEventAttr};
use pmu::{PmuError, PmuEvent};
use pmu_tests::deviations::single;
use pmu_tests::opened::Random;
use pmu_virt::mock::{Deviation, Deviations, Fault};

use crate::machine::{Machine, attr as attr_of};
use crate::models::{Model, lesser_models, models};
use crate::records::{read_count, read_records};
use crate::subsystem::{Errno, Result, Task};
use crate::world::System;
use crate::{
    BRANCHES, CYCLES, PERIOD, PLAIN, assert_cycles, bytes, of, plain, precise_cycles, with_branches,
};

/// The tag of the event that each run has beside the others.
const WITNESS: u64 = 9;
/// The tag of events of sampling units, which few processors have.
const OF_UNIT: u64 = 10;
/// Operations of a run.
const OPERATIONS: u64 = 40;
const TASKS: usize = 3;
/// `cnt_ctl` of Linux' PMU `ibs_op`: the period is of ops, not of cycles.
const COUNT_OPS: u64 = 1 << 19;

/// Returns the seeds of the runs on each processor: more where `PMU_TEST_PERF` says how many.
fn seeds() -> impl Iterator<Item = u64> {
    // The last one once let a counter go on that had faulted, with the registers of a plain event and of records.
    (1..=std::env::var("PMU_TEST_PERF").map_or(12, |seeds| seeds.parse().unwrap())).chain([6492])
}

/// A disturbance of the operations.
#[derive(Clone, Copy, PartialEq)]
enum Disturbed {
    Never,
    /// An event overflows at an access.
    ByInterrupts,
    /// An access, or each access from one on, fails beside it.
    ByFaults,
}

/// Returns what events ask for that the machine can sample, with their tags.
fn asked_of(machine: &Machine) -> Vec<(Vec<u8>, u64)> {
    let has = machine.has();
    let precise = has.precise.map(|()| (precise_cycles(), CYCLES));
    let branches = has.branches.map(|()| (with_branches(), BRANCHES));
    precise.into_iter().chain(branches).chain([(plain(), PLAIN)]).collect()
}

struct Attack {
    name: String,
    machine: Machine,
    random: Random,
    /// Task 0 has no events.
    tasks: [Task; TASKS],
    running: usize,
    events: Vec<PmuEvent>,
    slots: Option<PmuEvent>,
    /// An event on a counter of its own, and the instructions that it has to count.
    witness: PmuEvent,
    worked: u64,
    log: Vec<String>,
}

impl Attack {
    fn new(model: &Model, seed: u64) -> Self {
        // No branch is recorded; several periods end by one interrupt.
        let excluded = [Deviation::IgnoresDebugControl, Deviation::ServicesLate]
            .map(|of| Deviations::of(&[of]));
        let deviating: Vec<_> = single().filter(|of| !excluded.contains(of)).collect();
        let deviations = match seed % 2 {
            0 => deviating[(seed / 2) as usize % deviating.len()],
            _ => Deviations::NONE,
        };
        let machine = Machine::of(model, deviations, |_| ());
        let pinned = bytes("instructions/period=4096/uD", false);
        Self {
            name: format!("{} {deviations}", model.name),
            witness: machine.perf.open(&pinned, WITNESS, None).unwrap(),
            worked: 0,
            machine,
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            tasks: Default::default(),
            running: 0,
            events: vec![],
            slots: None,
            log: vec![],
        }
    }

    fn asked(&mut self) -> (Vec<u8>, u64) {
        let asked = asked_of(&self.machine);
        asked[self.random.below(asked.len() as u64) as usize].clone()
    }

    fn switch(&mut self, to: usize) -> Result<()> {
        if to == self.running {
            return Ok(());
        }
        let mut from = core::mem::take(&mut self.tasks[self.running]);
        let switched = self.machine.perf.switch(&mut from, &mut self.tasks[to]);
        self.tasks[self.running] = from;
        self.running = to;
        switched
    }

    /// Does one thing, some of whose accesses may fail, and at one of which an event overflows.
    fn act(&mut self, by: Disturbed) {
        let perf = self.machine.perf;
        let access = 1 + self.random.below(24) as u32;
        let fault = match self.random.below(6) {
            0 if by == Disturbed::ByFaults => Fault::At(access),
            1 if by == Disturbed::ByFaults => Fault::From(access),
            _ => Fault::None,
        };
        let interrupt = if by == Disturbed::Never { 0 } else { self.random.below(32) as u32 };
        let operation = self.random.below(13);
        let (attr, tag) = self.asked();
        let chosen = self.random.below(self.events.len().max(1) as u64) as usize;
        let chosen = self.events.get(chosen).copied();
        let number = self.random.below(3);
        let amount = self.random.below(2 * PERIOD);
        self.machine.disturb(interrupt, fault);
        let outcome: Result<()> = match (operation, chosen) {
            (0 | 1, _) => self.switch(number as usize),
            (2, _) => perf.open(&attr, tag, None).map(|event| self.events.push(event)),
            (3, Some(event)) => {
                self.events.retain(|of| *of != event);
                perf.close(event)
            }
            (4, Some(event)) => perf.set_period(event, (1 + number) * PERIOD),
            (5, _) => perf.run_guest(|| {
                if number == 0 {
                    self.machine.lose_counters();
                }
                self.machine.work(amount, 0xA000);
            }),
            (6, _) => {
                let suspended = perf.pmu.processor_suspended();
                if number > 0 {
                    self.machine.lose_registers();
                }
                suspended.and(perf.pmu.processor_resumed().map(drop)).map_err(Errno::from)
            }
            (7, _) => perf.tick(),
            (8, _) => match self.slots {
                None => self.machine.open_slots().map(|slots| self.slots = Some(slots)),
                Some(slots) => {
                    self.slots = None;
                    perf.close(slots)
                }
            },
            (9, _) if self.tasks[1 + number as usize % 2].len() < 3 && self.running == 0 => {
                perf.open_of(&mut self.tasks[1 + number as usize % 2], &attr, tag)
            }
            (10, _) => {
                let _ = self.machine.foreign_interrupt();
                Ok(())
            }
            // The registers lose their contents without a word, as under a debugger or a firmware.
            (11, _) if by != Disturbed::Never => {
                self.machine.lose_registers();
                perf.pmu.processor_resumed().map(drop).map_err(Errno::from)
            }
            (12, _) => {
                let (type_, config) = [
                    (PERF_TYPE_IBS_OP, COUNT_OPS),
                    (PERF_TYPE_IBS_OP, 0),
                    (PERF_TYPE_IBS_FETCH, 0),
                ][number as usize];
                let select =
                    PerfAttributes { type_, config, sample_period: PERIOD, ..Default::default() };
                let attr = PerfEventAttr { select, ..attr_of("cycles") };
                let opened = perf.open(&attr.to_bytes(), OF_UNIT, None);
                opened.map(|event| self.events.push(event))
            }
            (_, Some(event)) => read_count(perf, event).map(drop),
            _ => Ok(()),
        };
        self.machine.disturb(0, Fault::None);
        self.log.push(format!("{operation}, {number}, {interrupt}, {fault:?}: {outcome:?}"));
        self.machine.work(amount, 0x9000);
        self.worked += amount;
    }

    /// The event that is always on a counter has counted, and sampled, each instruction that was not the guest's.
    fn check(&self) {
        let context = || format!("{}\n{}", self.name, self.log.join("\n"));
        let perf = self.machine.perf;
        let counted = read_count(perf, self.witness).unwrap().value;
        assert_eq!(counted, self.worked, "{}", context());
        let records = of(&read_records(perf), WITNESS);
        assert_eq!(records.len() as u64, counted / PERIOD, "{}", context());
    }

    /// Repairs the processor as the documents say. Then all is as on a new one.
    fn end(self) {
        let context = format!("{}\n{}", self.name, self.log.join("\n"));
        let perf = self.machine.perf;
        match perf.pmu.processor_resumed() {
            Err(PmuError::NotUp) => panic!("{context}"),
            Err(_) => drop(perf.pmu.processor_resumed().unwrap()),
            Ok(_) => {}
        }
        // An event whose counter did not answer says so once.
        let failed = |errno: Errno| -> () { panic!("{errno:?}: {context}") };
        for mut task in self.tasks {
            let mut leave = || perf.switch(&mut task, &mut vec![]);
            leave().or_else(|_| leave()).unwrap_or_else(failed);
        }
        for event in self.events.into_iter().chain([self.witness]) {
            let _ = perf.close(event);
            read_count(perf, event).expect_err("it is closed");
        }
        if let Some(slots) = self.slots {
            let _ = perf.close(slots);
            read_count(perf, slots).expect_err("it is closed");
        }
        read_records(perf);
        for again in [false, true] {
            if again {
                perf.pmu.processor_down().unwrap();
                perf.pmu.processor_up(&self.machine.snapshot()).unwrap();
            }
            let asked = asked_of(&self.machine);
            let opened: Vec<_> = asked
                .iter()
                .map(|(attr, tag)| {
                    let opened = perf.open(attr, *tag, None);
                    opened.unwrap_or_else(|errno| panic!("{errno:?}: {context}"))
                })
                .collect();
            self.machine.work(3 * PERIOD, 0xB000);
            let records = read_records(perf);
            for (_, tag) in &asked {
                let of_tag = of(&records, *tag);
                match *tag {
                    CYCLES => assert_cycles(&self.machine, &records, 3, &context),
                    BRANCHES => {
                        let newest = of_tag.iter().map(|of| of.branches.first());
                        assert!(newest.eq([Some(&0xB000); 3]), "{context}: {of_tag:?}");
                    }
                    _ => assert_eq!(of_tag.len(), 3, "{context}"),
                }
            }
            for event in opened {
                perf.close(event).unwrap();
            }
        }
        self.machine.end();
    }
}

fn attack(by: Disturbed) {
    let lesser = lesser_models().into_iter().filter(|model| model.has.counters > 0);
    for model in models().into_iter().chain(lesser) {
        for seed in seeds() {
            let mut attack = Attack::new(&model, seed);
            (0..OPERATIONS).for_each(|_| attack.act(by));
            if by == Disturbed::Never {
                attack.check();
            }
            attack.end();
        }
    }
}

#[test]
fn whatever_it_is_asked_an_event_beside_counts_and_samples_exactly() {
    attack(Disturbed::Never);
}

#[test]
fn wherever_it_is_interrupted_every_event_samples_exactly_afterwards() {
    attack(Disturbed::ByInterrupts);
}

#[test]
fn whatever_fails_every_event_samples_exactly_after_the_repair() {
    attack(Disturbed::ByFaults);
}
