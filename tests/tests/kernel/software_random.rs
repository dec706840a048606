//! Software events at random, alone and in groups with events of counters that take turns, against a model that counts
//! what happens while the counters of a group count.

use pmu::core::{EventStatus, GenericEvent};
use pmu::{Event, PmuEvent, PmuSample, SoftwareEvent};
use pmu_tests::opened::Random;

use crate::software::{frame, on_each};
use crate::world::{Happens, Machine, TestPmu, World, sampling};

/// Of counters.
const COUNTED: [GenericEvent; 2] = [GenericEvent::Instructions, GenericEvent::Cycles];

const KINDS: [SoftwareEvent; 4] = [
    SoftwareEvent::TaskClock,
    SoftwareEvent::PageFaults,
    SoftwareEvent::MinorFaults,
    SoftwareEvent::ContextSwitches,
];

/// A member of a group. `what`: `None` for an event of a counter.
struct Member {
    event: PmuEvent,
    what: Option<SoftwareEvent>,
    enabled: bool,
    value: u64,
    /// The times for which it was started, and counted.
    times: (u64, u64),
    /// The rest of its period, and the period.
    period: Option<(u64, u64)>,
}

struct Group {
    members: Vec<Member>,
    started: bool,
}

impl Group {
    /// Returns whether the group's software events count: its events of counters do, or it has none.
    fn counts(&self, pmu: &'static TestPmu) -> bool {
        let on_counters = self.members.iter().find(|of| of.what.is_none() && of.enabled);
        self.started
            && on_counters.is_none_or(|of| {
                let id = of.event.id();
                let status =
                    pmu.with(|session, _| session.counters_mut().event_status(id)).unwrap();
                matches!(status, Ok(EventStatus::Active(_)))
            })
    }
}

/// Counts in the model, and returns the samples that are due.
fn account(
    pmu: &'static TestPmu,
    groups: &mut [Group],
    what: impl Fn(SoftwareEvent) -> u64,
    time: u64,
) -> Vec<(PmuEvent, u64)> {
    let mut samples = Vec::new();
    for group in groups {
        let counts = group.counts(pmu);
        let started = group.started;
        for member in group.members.iter_mut().filter(|of| of.enabled && started) {
            let Some(kind) = member.what else { continue };
            member.times.0 += time;
            if !counts {
                continue;
            }
            member.times.1 += time;
            let more = if kind.is_clock() { time } else { what(kind) };
            member.value += more;
            if let Some((left, period)) = &mut member.period {
                let mut over = 0;
                for _ in 0..more {
                    *left -= 1;
                    if *left == 0 {
                        (*left, over) = (*period, over + *period);
                    }
                }
                if over != 0 {
                    samples.push((member.event, over));
                }
            }
        }
    }
    samples
}

fn open(random: &mut Random, pmu: &'static TestPmu) -> Option<Group> {
    let members = 1 + random.below(4);
    let mut chosen = Vec::new();
    for _ in 0..members {
        let software = random.below(3) != 0;
        let what = software.then(|| KINDS[random.below(4) as usize]);
        let event = match what {
            Some(what) => Event::software(what),
            None => Event::generic(COUNTED[random.below(2) as usize]),
        };
        let period = (what.is_some_and(|what| !what.is_clock()) && random.below(2) == 0)
            .then(|| 1 + random.below(5));
        let event = period.map_or(event, |period| event.every(period).with_total());
        chosen.push((what, event.rotating(), period.map(|period| (period, period))));
    }
    let first = pmu.open(&chosen[0].1).ok()?;
    let mut events = vec![first];
    for (_, event, _) in &chosen[1..] {
        match pmu.open_member(first, event) {
            Ok(event) => events.push(event),
            Err(_) => break, // no more counters, or no place
        }
    }
    let members = events.into_iter().zip(chosen).map(|(event, (what, _, period))| {
        let (value, times, enabled) = (0, (0, 0), true);
        Member { event, what, enabled, value, times, period }
    });
    Some(Group { members: members.collect(), started: false })
}

fn step(
    random: &mut Random,
    machine: &'static Machine,
    pmu: &'static TestPmu,
    groups: &mut Vec<Group>,
) {
    let chosen = random.below(groups.len().max(1) as u64) as usize;
    match random.below(12) {
        0 if groups.len() < 6 => groups.extend(open(random, pmu)),
        1 if !groups.is_empty() && random.below(3) == 0 => {
            let group = groups.swap_remove(chosen);
            pmu.close(group.members[0].event).unwrap();
        }
        2 | 3 => {
            if let Some(group) = groups.get_mut(chosen) {
                let first = group.members[0].event;
                if group.started { pmu.disable(first) } else { pmu.enable(first) }.unwrap();
                group.started = !group.started;
            }
        }
        4 => {
            // One event of the group alone.
            if let Some(group) = groups.get_mut(chosen)
                && group.members.len() > 1
            {
                let member = 1 + random.below(group.members.len() as u64 - 1) as usize;
                let member = &mut group.members[member];
                let event = member.event;
                if member.enabled { pmu.disable(event) } else { pmu.enable(event) }.unwrap();
                member.enabled = !member.enabled;
            }
        }
        5 => {
            // The last event of a group, so that it stays a group.
            if let Some(group) = groups.get_mut(chosen)
                && group.members.len() > 2
            {
                let closed = group.members.pop().unwrap();
                pmu.close_member(closed.event).unwrap();
            }
        }
        6 => pmu.tick().unwrap(),
        7 => machine.happen(0, Happens::Instructions, random.below(1_000)),
        8 | 9 => {
            let time = random.below(500);
            assert_eq!(account(pmu, groups, |_| 0, time), []);
            machine.now.set(machine.now.get() + time);
        }
        _ => {
            let told = [SoftwareEvent::MinorFaults, SoftwareEvent::ContextSwitches];
            let what = told[random.below(2) as usize];
            let counts = |kind| {
                u64::from(
                    kind == what
                        || kind == SoftwareEvent::PageFaults && what == SoftwareEvent::MinorFaults,
                )
            };
            let mut expected = account(pmu, groups, counts, 0);
            let mut samples = Vec::new();
            let note = |sample: &PmuSample<'_, World>| samples.push((sample.event, sample.period));
            sampling(note, || pmu.happened(what, &frame(true)));
            expected.sort_by_key(|(event, _)| event.id());
            let expected: Vec<_> = expected.iter().map(|(of, period)| (of.id(), *period)).collect();
            assert_eq!(samples, expected);
        }
    }
}

#[test]
fn at_random_software_events_count_what_a_model_counts() {
    on_each(|machine, pmu| {
        for seed in 0..40 {
            let mut random = Random(seed + 1);
            let mut groups = Vec::new();
            // Two counters are left.
            let event = |number: usize| Event::generic(COUNTED[number % 2]);
            let others = (0..64).filter_map(|number| pmu.start(&event(number)).ok());
            let mut others: Vec<_> = others.collect();
            for event in others.drain(others.len().saturating_sub(2)..) {
                pmu.close(event).unwrap();
            }
            for number in 0..150 {
                step(&mut random, machine, pmu, &mut groups);
                if random.below(4) != 0 {
                    continue;
                }
                for group in &groups {
                    for of in group.members.iter().filter(|of| of.what.is_some()) {
                        let count = pmu.read(of.event).unwrap();
                        let found = (count.value, (count.enabled, count.running));
                        let what = of.what;
                        assert_eq!(found, (of.value, of.times), "{seed}, {number}: {what:?}");
                    }
                }
            }
            let firsts = groups.iter().map(|group| group.members[0].event);
            firsts.chain(others).for_each(|event| pmu.close(event).unwrap());
        }
    });
}
