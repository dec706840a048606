//! Random programs of starts, stops and interrupts, against naive models.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::BTreeSet;

use pmu_core::frame::{InterruptFrame, ProcessorNumber};
use pmu_core::profile::KProfileSource;
use pmu_kprofile::WindowsVersion::{self, Windows8, Windows10v2004};
use pmu_kprofile::{
    Affinity, BasicProfile, DispatchOutcome, ProfileCallback, ProfileError, ProfileObject,
    Profiles, Rules, Statistics,
};
use pmu_tests::kprofile::{
    Frame, Machine, REFUSAL, active, buffer, counts, leak, process, processor, request, source, x64,
};
use proptest::prelude::*;

/// Lists for few objects, on the processors of two groups.
type Lists = Profiles<5, 70>;

/// A profile of the random programs below.
#[derive(Clone, Debug)]
struct Definition {
    process: Option<u64>,
    base: u64,
    size: u64,
    bucket_log2: u32,
    spare: usize,
    source: u32,
    affinity: BTreeSet<ProcessorNumber>,
    is_callback: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Start { object: usize, refusing: Option<ProcessorNumber> },
    Stop { object: usize },
    StopProcess { process: u64 },
    Interrupt { pc: u64, source: u32, process: Option<u64>, on: ProcessorNumber },
}

/// A naive model of the counts.
struct Model<'d> {
    definitions: &'d [Definition],
    inclusive: bool,
    list: Vec<usize>,
    counts: Vec<Vec<u32>>,
    statistics: Statistics,
}

impl<'d> Model<'d> {
    fn new(definitions: &'d [Definition], inclusive: bool) -> Self {
        let counts = definitions.iter().map(|of| vec![0; of.counters()]).collect();
        let statistics = Statistics::default();
        Self { definitions, inclusive, list: Vec::new(), counts, statistics }
    }

    fn running(&self) -> BTreeSet<(ProcessorNumber, u32)> {
        let started = self.list.iter().map(|object| &self.definitions[*object]);
        started.flat_map(|of| of.affinity.iter().map(|on| (*on, of.source))).collect()
    }

    fn start(
        &mut self,
        object: usize,
        refusing: Option<ProcessorNumber>,
    ) -> Result<(), ProfileError> {
        let Definition { affinity, source, .. } = &self.definitions[object];
        if self.list.contains(&object) {
            return Err(ProfileError::AlreadyStarted);
        }
        if self.list.len() == 5 {
            return Err(ProfileError::AtLimit);
        }
        match refusing {
            Some(on) if affinity.contains(&on) && !self.running().contains(&(on, *source)) => {
                Err(ProfileError::Hardware { processor: on, error: REFUSAL })
            }
            _ => {
                self.list.push(object);
                Ok(())
            }
        }
    }

    fn stop(&mut self, object: usize) -> Result<(), ProfileError> {
        let place = self.list.iter().position(|started| *started == object);
        self.list.remove(place.ok_or(ProfileError::NotStarted)?);
        Ok(())
    }

    fn interrupt(
        &mut self,
        pc: u64,
        from: u32,
        process: Option<u64>,
        on: ProcessorNumber,
    ) -> DispatchOutcome {
        let mut outcome = DispatchOutcome::default();
        for object in &self.list {
            let of = &self.definitions[*object];
            let counts = &mut self.counts[*object];
            let own_process = of.process.is_none() || of.process == process;
            let limit = of.base + of.size;
            let inside = (of.base..limit).contains(&pc) || (self.inclusive && pc == limit);
            if of.source != from {
            } else if of.is_callback {
                counts[0] += 1;
                outcome.hits += 1;
            } else if own_process && of.affinity.contains(&on) && inside {
                let own = (pc - of.base) / 2u64.pow(of.bucket_log2);
                match counts.get_mut(own as usize) {
                    Some(count) => {
                        *count += 1;
                        outcome.hits += 1;
                    }
                    None => outcome.outside += 1,
                }
            }
        }
        self.statistics.seen += 1;
        match outcome.hits {
            0 => self.statistics.missed += 1,
            _ => self.statistics.hit += 1,
        }
        self.statistics.outside += u64::from(outcome.outside);
        outcome
    }
}

impl Definition {
    fn counters(&self) -> usize {
        (self.size.div_ceil(1 << self.bucket_log2) as usize + self.spare).max(1)
    }

    /// Creates the object and its counters: the counter of a callback object counts its calls.
    fn create(
        &self,
        rules: Rules,
        machine: &Machine,
    ) -> (&'static ProfileObject<'static>, &'static [AtomicU32]) {
        let counters = buffer(self.counters());
        let object = if self.is_callback {
            ProfileObject::callback(rules, source(self.source), leak(Calls(&counters[0])))
        } else {
            let request = BasicProfile {
                process: self.process.and_then(process),
                base: self.base,
                size: self.size,
                bucket_log2: self.bucket_log2,
                buffer: counters,
                source: source(self.source),
                affinity: Some(self.affinity.iter().copied().collect()),
            };
            ProfileObject::basic(rules, request, machine)
        };
        (leak(object.expect("a good request")), counters)
    }
}

/// A callback that counts its calls.
struct Calls(&'static AtomicU32);

impl ProfileCallback for Calls {
    fn profile_interrupt(&self, _: &dyn InterruptFrame, _: KProfileSource) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn a_processor() -> impl Strategy<Value = ProcessorNumber> {
    prop::sample::select(active().iter().collect::<Vec<_>>())
}

fn a_process() -> impl Strategy<Value = Option<u64>> {
    prop::option::of(1u64..4)
}

fn a_source() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0, 0x19, 0x1A])
}

prop_compose! {
    fn a_definition()(
        is_callback in prop::bool::weighted(0.2),
        process in a_process(),
        base in 0x1000u64..0x1010,
        size in 0u64..0x30,
        bucket_log2 in 2u32..5,
        spare in 0usize..2,
        source in a_source(),
        affinity in prop::collection::btree_set(a_processor(), 1..5),
    ) -> Definition {
        let (process, affinity) =
            if is_callback { (None, active().iter().collect()) } else { (process, affinity) };
        Definition { process, base, size, bucket_log2, spare, source, affinity, is_callback }
    }
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..8, prop::option::weighted(0.2, a_processor()))
            .prop_map(|(object, refusing)| Step::Start { object, refusing }),
        2 => (0usize..8).prop_map(|object| Step::Stop { object }),
        1 => (1u64..4).prop_map(|process| Step::StopProcess { process }),
        8 => (0xFF8u64..0x1048, a_source(), a_process(), a_processor())
            .prop_map(|(pc, source, process, on)| Step::Interrupt { pc, source, process, on }),
    ]
}

proptest! {
    #[test]
    fn random_programs_do_what_the_naive_model_does(
        inclusive: bool,
        definitions in prop::collection::vec(a_definition(), 8),
        steps in prop::collection::vec(a_step(), 1..80),
    ) {
        let version: WindowsVersion = if inclusive { Windows8 } else { Windows10v2004 };
        let mut machine = Machine::new(active());
        machine.this = processor(0, 3);
        let lists = leak(Lists::with_rules(x64(version)));
        let (objects, buffers): (Vec<_>, Vec<_>) =
            definitions.iter().map(|of| of.create(x64(version), &machine)).unzip();
        let mut model = Model::new(&definitions, inclusive);
        for step in steps {
            match step {
                Step::Start { object, refusing } => {
                    machine.refuses_start = refusing.map_or(Affinity::EMPTY, Affinity::of);
                    let outcome = lists.start(objects[object], &mut machine);
                    prop_assert_eq!(outcome, model.start(object, refusing));
                }
                Step::Stop { object } => {
                    let outcome = lists.stop(objects[object], &mut machine);
                    prop_assert_eq!(outcome, model.stop(object));
                }
                Step::StopProcess { process: id } => {
                    lists.stop_process(process(id).unwrap(), &mut machine).unwrap();
                    model.list.retain(|object| definitions[*object].process != Some(id));
                }
                Step::Interrupt { pc, source: from, process: id, on } => {
                    let frame =
                        Frame { process: id.and_then(process), processor: on, ..Frame::at(pc) };
                    let outcome = lists.interrupt(&frame, source(from));
                    prop_assert_eq!(outcome, model.interrupt(pc, from, id, on));
                }
            }
            prop_assert_eq!(&machine.running, &model.running());
            prop_assert_eq!(lists.started(), model.list.len());
            for (number, object) in objects.iter().enumerate() {
                prop_assert_eq!(object.is_started(), model.list.contains(&number));
            }
        }
        prop_assert_eq!(buffers.into_iter().map(counts).collect::<Vec<_>>(), model.counts);
        prop_assert_eq!(lists.statistics(), model.statistics);
    }
}

/// Generates bases and sizes of ranges that touch, overlap, contain each other, are empty, or lie at either end of the
/// address space.
fn a_range() -> impl Strategy<Value = (u64, u64)> {
    let base = prop_oneof![0x1000u64..0x1018, 0u64..4, u64::MAX - 0x30..u64::MAX - 0x20];
    (base, prop_oneof![4 => 0u64..0x20, 1 => Just(0x4_0000_0000)])
        .prop_map(|(base, size)| (base, size.min(u64::MAX - base)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whichever way the lists find objects: each interrupt finds exactly those whose range has its address.
    #[test]
    fn each_address_is_counted_by_every_started_range_that_has_it_and_by_no_other(
        inclusive: bool,
        ranges in prop::collection::vec((a_range(), prop::bool::weighted(0.8)), 20),
        toggles in prop::collection::vec(0usize..20, 1..50),
    ) {
        let rules = x64(if inclusive { Windows8 } else { Windows10v2004 });
        let machine = &mut Machine::new(Affinity::first(1));
        let lists = leak(Profiles::<20, 1>::with_rules(rules));
        let mut place = |((base, size), is_global): &((u64, u64), bool)| {
            let owner = if *is_global { None } else { process(7) };
            let asked = BasicProfile {
                process: owner,
                base: *base,
                size: *size,
                bucket_log2: 31,
                ..request(buffer(10))
            };
            let object = leak(ProfileObject::basic(rules, asked, machine).unwrap());
            (object, asked.buffer)
        };
        let (objects, buffers): (Vec<_>, Vec<_>) = ranges.iter().map(&mut place).unzip();
        let mut expected = vec![0; ranges.len()];
        let edges = |((base, size), _): &((u64, u64), bool)| {
            let end = base + size;
            [base.wrapping_sub(1), *base, end.wrapping_sub(1), end, end.wrapping_add(1)]
        };
        let addresses: BTreeSet<u64> = ranges.iter().flat_map(edges).collect();
        for toggled in toggles {
            match lists.stop(objects[toggled], machine) {
                Err(ProfileError::NotStarted) => lists.start(objects[toggled], machine).unwrap(),
                stopped => stopped.unwrap(),
            }
            for (number, pc) in addresses.iter().enumerate() {
                let of_process = number % 3 == 0;
                let owner = if of_process { process(7) } else { None };
                let outcome = lists.timer_interrupt(&Frame { process: owner, ..Frame::at(*pc) });
                let mut hits = 0;
                for (index, ((base, size), is_global)) in ranges.iter().enumerate() {
                    let distance = pc.checked_sub(*base);
                    let inside = distance.is_some_and(|at| at < *size || inclusive && at == *size);
                    if inside && (*is_global || of_process) && objects[index].is_started() {
                        expected[index] += 1;
                        hits += 1;
                    }
                }
                prop_assert_eq!(outcome, DispatchOutcome { hits, outside: 0 }, "{:#X}", pc);
            }
        }
        let sums: Vec<u32> = buffers.into_iter().map(|b| counts(b).iter().sum()).collect();
        prop_assert_eq!(sums, expected);
    }
}
