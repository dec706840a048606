//! The assignment of groups of events to counters and extra registers, compared with exhaustive search.

use pmu_core::access::RegisterBackend;
use pmu_core::error::{CounterError, EventsError};
use pmu_core::registers::CounterControl;
use pmu_core::{CounterSet, Event, EventId};
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::configuration::IntelConfiguration;
use pmu_virt::mock::Deviations;

/// The values of the extra registers: 0 to 4.
const VALUES: u64 = 5;

/// An event as the search sees it.
#[derive(Clone, Debug)]
struct Wanted {
    counters: CounterSet,
    demand: Option<Demand>,
}

/// An event of a group that runs, and its kind.
type Member = (EventId, Wanted, usize);

impl Wanted {
    fn random(random: &mut Random, own: CounterSet) -> Self {
        let counters = some_counters(random, own);
        // A fixed counter does not look at an extra register.
        let general = counters.without(CounterSet::GENERAL).is_empty();
        let demand = (general && random.below(2) == 0).then(|| {
            let first = random.below(4) as usize;
            let step = [1, 3][random.below(2) as usize];
            let count = [1, 1, 1, 2, 2, 2, 3, 4][random.below(8) as usize];
            let registers = (0..count).map(|number| EXTRA[(first + step * number) % 4]);
            Demand { value: random.below(VALUES), registers: registers.collect() }
        });
        Self { counters, demand }
    }

    fn event(&self, kind: usize) -> Event {
        let event = self.demand.as_ref().map_or(raw(kind), |demand| refined(kind, demand));
        event.on(self.counters)
    }
}

/// Returns the reason for which these events cannot be counted at once, if there is one.
fn refusal(events: &[Wanted]) -> Option<&'static str> {
    let counters: Vec<_> = events.iter().map(|event| event.counters).collect();
    let demands: Vec<_> = events.iter().filter_map(|event| event.demand.clone()).collect();
    match () {
        () if !have_counters(&counters) => Some("counters"),
        () if !have_registers(&demands, VALUES) => Some("registers"),
        () => None,
    }
}

/// Checks that an error names the first event for which there is no room, and the reason.
#[track_caller]
fn assert_named(error: EventsError, on: &[Wanted], group: &[Wanted]) {
    let with = |members: usize| [on, &group[..members]].concat();
    assert_eq!(error.events.count_ones(), 1, "it names an event");
    let member = error.events.trailing_zeros() as usize;
    assert_eq!(refusal(&with(member)), None, "{error}: {group:?} beside {on:?}");
    let reason = refusal(&with(member + 1));
    match error.reason {
        CounterError::NoFreeCounter => assert_eq!(reason, Some("counters"), "{error}"),
        CounterError::ExtraRegisterInUse(register) => {
            assert_eq!(reason, Some("registers"), "{error}");
            let demand = group[member].demand.as_ref().unwrap();
            assert_eq!(register, demand.registers[0]);
        }
        other => panic!("{other}"),
    }
}

/// Each event is on a counter of its own that can count it, and its extra register has its value.
#[track_caller]
fn assert_placed(
    counters: &Refined<'_, '_>,
    processor: &Processor,
    extra: &WithExtra<'_, '_>,
    on: &[(EventId, Vec<Member>)],
) {
    let mut used = CounterSet::NONE;
    for (id, wanted, kind) in on.iter().flat_map(|(_, events)| events) {
        let counter = counters.counter_of(*id).expect("it has a counter");
        assert!(wanted.counters.contains(counter) && !used.contains(counter), "{wanted:?}");
        used = used | counter.only();
        let Some(demand) = &wanted.demand else { continue };
        let CounterControl::Select(select) = processor.unit.counter(counter).unwrap().control()
        else {
            panic!("{counter}");
        };
        let event = extra.read(select).unwrap() as u16;
        let encoding = (0..demand.registers.len()).find(|of| event == select_of(kind + of));
        let encoding = encoding.expect("a select of its own");
        assert_eq!(extra.value(demand.registers[encoding]), Some(demand.value), "{demand:?}");
    }
}

#[test]
fn a_group_is_placed_whenever_there_is_room_for_all_of_it() {
    let mut processors = processors(Deviations::NONE);
    processors.push(Processor::intel(IntelConfiguration::new(6, 16, 4)));
    let mut random = Random(0x0123_4567_89AB_CDEF);
    let (mut placed, mut refused, mut impossible) = (0, [0; 2], 0);
    for processor in &processors {
        for _ in 0..40 {
            let (memory, table, mock) = (Memory::new(), LargeTable::new(), processor.mock());
            let extra = WithExtra::new(&mock);
            let mut counters = extra.take(processor, CounterSet::ALL, &memory, &table);
            let own = counters.counters().usable;
            let mut on: Vec<(EventId, Vec<Member>)> = vec![];
            for step in 0..16 {
                let events: usize = on.iter().map(|(_, events)| events.len()).sum();
                if random.below(4) == 0 && !on.is_empty() || events > 14 {
                    let (group, _) = on.swap_remove(random.below(on.len() as u64) as usize);
                    counters.close(group, step).unwrap();
                    continue;
                }
                let running: Vec<Wanted> = on
                    .iter()
                    .flat_map(|(_, all)| all.iter().map(|(_, of, _)| of.clone()))
                    .collect();
                let group: Vec<Wanted> =
                    (0..1 + random.below(4)).map(|_| Wanted::random(&mut random, own)).collect();
                let kinds: Vec<usize> =
                    group.iter().map(|_| 2 + random.below(3) as usize).collect();
                let opened: Vec<Event> =
                    group.iter().zip(&kinds).map(|(wanted, kind)| wanted.event(*kind)).collect();
                extra.take_accesses();
                let id = match counters.open(&processor.unit, &opened) {
                    Ok(id) => id,
                    Err(error) => {
                        assert_named(error, &[], &group);
                        impossible += 1;
                        continue;
                    }
                };
                let all = [running.clone(), group.clone()].concat();
                match counters.enable(id, step) {
                    Ok(()) => {
                        assert_eq!(refusal(&all), None, "{processor:?}: {all:?}");
                        let ids = counters.group_events(id).zip(group).zip(kinds);
                        on.push((id, ids.map(|((id, of), kind)| (id, of, kind)).collect()));
                        placed += 1;
                    }
                    Err(error) => {
                        assert_named(error, &running, &group);
                        assert_eq!(extra.take_accesses(), 0, "no register, and no other event");
                        let by_register =
                            matches!(error.reason, CounterError::ExtraRegisterInUse(_));
                        refused[usize::from(by_register)] += 1;
                        counters.close(id, step).unwrap();
                    }
                }
                assert_placed(&counters, processor, &extra, &on);
                let events: usize = on.iter().map(|(_, events)| events.len()).sum();
                assert_eq!(self::running(&mock).len(), events, "{processor:?}");
            }
            counters.shut_down().unwrap();
            assert_eq!(extra.values(), BEFORE, "{processor:?}");
        }
    }
    assert!(
        placed > 1000 && refused[0] > 300 && refused[1] > 100 && impossible > 100,
        "{placed}, {refused:?}, {impossible}"
    );
}
