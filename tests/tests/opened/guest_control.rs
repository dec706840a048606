//! Intel's guests and host: values of the global control register for VM entry and VM exit.

use core::cell::RefCell;

use pmu_core::error::CounterError;
use pmu_core::interrupt::EventOverflow;
use pmu_core::lending::{GuestControl, guest_control};
use pmu_core::memory::{CounterMemory, EventTable};
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, Event, EventId, Events, service};
use pmu_tests::Reason;
use pmu_tests::StateRegisters;
use pmu_tests::opened::operations::general;
use pmu_tests::opened::*;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviations, Fault};

const PERIOD: u64 = 0x1000;
/// `IA32_PERF_GLOBAL_CTRL` (SDM vol. 4, table 2-2).
const GLOBAL_CTRL: u32 = 0x38F;

/// Intel's processors with a global control register.
fn hosts() -> impl Iterator<Item = Processor> {
    let has_control = |processor: &Processor| matches!(processor.configuration, Configuration::Intel(intel) if intel.version >= 2);
    processors(Deviations::NONE).into_iter().filter(has_control)
}

/// A processor with its hypervisor.
struct Host<'a> {
    mock: &'a Mock<'a>,
    source: Events<'a>,
    memory: &'a CounterMemory,
}

impl<'a> Host<'a> {
    fn new(
        processor: &'a Processor,
        table: &'a EventTable,
        memory: &'a CounterMemory,
        mock: &'a Mock<'a>,
    ) -> Self {
        Self { mock, source: Events::new(&processor.unit, table), memory }
    }

    fn control(&self) -> GuestControl {
        guest_control(&self.source, self.memory).unwrap()
    }

    fn load(&self, value: u64) {
        let _ = self.mock.with_pmu(|pmu| pmu.write(GLOBAL_CTRL, value));
    }

    /// Runs a guest, in which `count` of each kind happens; then as many as 1,000 more in the host.
    fn run(&self, count: u64) {
        let GuestControl { guest, host } = self.control();
        let found = self.mock.with_pmu(|pmu| pmu.state()).global_control();
        assert_eq!(found, host, "the host runs with its value");
        self.load(guest);
        (0..8).for_each(|kind| happen(self.mock, kind, count));
        self.load(host);
        (0..8).for_each(|kind| happen(self.mock, kind, 1000 + count));
    }
}

fn opened(counters: &mut Opened<'_, '_>, processor: &Processor, event: Event) -> EventId {
    let id = counters.open(&processor.unit, &[event]).unwrap();
    counters.enable(id, 0).unwrap();
    id
}

/// On fixed and general counters. Each guest has 7 of each kind, and its host 1,007.
#[test]
fn events_of_guests_and_of_the_host_count_there_and_nowhere_else() {
    for processor in hosts() {
        for kinds in [[2, 3, 4], [0, 1, 2], [2, 0, 1], [1, 2, 0]] {
            let context = format!("{processor:?}, {kinds:?}");
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let host = Host::new(&processor, &table, &memory, &mock);
            assert_eq!(guest_control(&host.source, &memory), None, "{context}: no session");
            let mut counters = processor.take(&mock, &memory, &table);
            counters.set_virtualization(true).unwrap();
            let all = GuestControl {
                guest: processor.unit.counters().bits(),
                host: processor.unit.counters().bits(),
            };
            assert_eq!(host.control(), all, "{context}");
            let [everywhere, outside, inside] =
                [raw(kinds[0]), raw(kinds[1]).outside_guests(), raw(kinds[2]).in_guests()]
                    .map(|event| opened(&mut counters, &processor, event));
            let bit = |id| counters.counter_of(id).unwrap().only().bits();
            let expected =
                GuestControl { guest: all.guest & !bit(outside), host: all.host & !bit(inside) };
            assert_eq!(host.control(), expected, "{context}");
            mock.clear();
            host.run(7);
            host.run(7);
            assert_eq!(mock.accesses().total(), 0, "{context}: no register");
            let totals = [everywhere, outside, inside].map(|id| total(&counters, id));
            assert_eq!(totals, [2028, 2014, 14], "{context}");
            // Without virtualization, nothing happens in guests.
            counters.set_virtualization(false).unwrap();
            host.run(5);
            assert_eq!(total(&counters, inside), 14, "{context}");
            counters.set_virtualization(true).unwrap();
            // On the counter that an event of guests had, others count in the host, too.
            counters.disable(inside, 0).unwrap();
            let next = opened(&mut counters, &processor, raw(kinds[2]));
            host.run(3);
            assert_eq!([total(&counters, inside), total(&counters, next)], [14, 1006]);
            counters.shut_down().unwrap();
            assert_eq!(guest_control(&host.source, &memory), None, "{context}: shut down");
        }
    }
}

/// Turns, groups, switches, a period at once, a window, and registers that lost their contents: what is of guests
/// never counts in the host, and everything else always does.
#[test]
fn an_event_of_guests_counts_in_guests_after_every_operation() {
    for processor in hosts() {
        let context = format!("{processor:?}");
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let host = Host::new(&processor, &table, &memory, &mock);
        let two = general(&processor, 0) | general(&processor, 1);
        let mut counters = processor.take_only(two, &mock, &memory, &table);
        counters.set_virtualization(true).unwrap();
        let not = |o: EventOverflow| panic!("{o:?}");
        let [inside, outside, everywhere] =
            [raw(2).in_guests().rotating(), raw(3).outside_guests().rotating(), raw(4).rotating()]
                .map(|event| opened(&mut counters, &processor, event.on(two)));
        // Two of the three have counters, by turns: the events of all that happen are known by who runs.
        let mut expected = [0; 3];
        for now in 1..20 {
            let ids = [inside, outside, everywhere];
            for ((expected, id), more) in expected.iter_mut().zip(ids).zip([1, 1001, 1002]) {
                *expected += if counters.counter_of(id).is_some() { more } else { 0 };
            }
            host.run(1);
            counters.rotate(now).unwrap();
            assert_eq!(ids.map(|id| total(&counters, id)), expected, "{context}: turn {now}");
        }
        assert!(expected.iter().all(|count| *count > 0), "{context}: {expected:?}");
        for id in [inside, outside, everywhere] {
            counters.close(id, 20).unwrap();
        }
        // A group, one of whose events is of guests.
        let events = [raw(2).every(PERIOD).with_total(), raw(3).in_guests()];
        let group = counters.open(&processor.unit, &events).unwrap();
        counters.enable(group, 20).unwrap();
        let mut thread: Vec<_> = counters.group_events(group).map(ThreadEvent::Opened).collect();
        host.run(1);
        counters.switch_out(&mut thread, 30, |sample| not(*sample)).unwrap();
        let counted = |event: &ThreadEvent| match event {
            ThreadEvent::SwitchedOut(event) => event.count().value,
            _ => panic!("{event:?}"),
        };
        let counts: Vec<_> = thread.iter().map(counted).collect();
        assert_eq!(counts, [1002, 1], "{context}");
        host.run(1);
        counters.switch_in(&processor.unit, &mut thread, 30).unwrap();
        let ids: Vec<_> = thread.iter().map(id_of).collect();
        let values = |counters: &Opened<'_, '_>| [0, 1].map(|member| total(counters, ids[member]));
        host.run(2);
        assert_eq!(values(&counters), [2006, 3], "{context}");
        counters.apply_period(ids[0], 0x10_0000, 30, not).unwrap();
        host.run(3);
        assert_eq!(values(&counters), [3012, 6], "{context}: a period");
        let mut window = counters.lend(30, |sample| not(*sample)).unwrap();
        assert_eq!(guest_control(&host.source, &memory), None, "{context}: lent");
        assert_eq!(window.lent().global_control(), 0, "{context}");
        window.end(40).unwrap();
        host.run(4);
        assert_eq!(values(&counters), [4020, 10], "{context}: a window");
        counters.disable(ids[1], 40).unwrap();
        host.run(5);
        counters.enable(ids[1], 40).unwrap();
        host.run(6);
        assert_eq!(values(&counters), [6042, 16], "{context}: a member");
        counters.suspend(41, |sample| not(*sample)).unwrap();
        assert_eq!(guest_control(&host.source, &memory), None, "{context}: suspended");
        mock.lose_registers();
        counters.resume(42, |sample| not(*sample)).unwrap();
        host.run(9);
        assert_eq!(values(&counters), [7060, 25], "{context}: a suspend");
        mock.lose_registers();
        counters.reprogram(|sample| not(*sample)).unwrap();
        host.run(7);
        // Since it was last on a counter.
        let last = values(&counters)[1];
        assert_eq!(last, 16 + 7, "{context}: lost registers");
        counters.disable(ids[0], 50).unwrap();
        counters.shut_down().unwrap();
        assert_eq!(running(&mock), CounterSet::NONE);
    }
}

/// The interrupt of an event of guests comes in the guest: VM exit loads the host's value, and the handler runs.
#[test]
fn an_event_of_guests_interrupts_and_goes_on() {
    for processor in hosts() {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let source = Events::new(&processor.unit, &table);
        let told = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            let load = |value| {
                let _ = mock.with_pmu(|pmu| pmu.write(GLOBAL_CTRL, value));
            };
            load(guest_control(&source, &memory).unwrap().host);
            service(&source, mock, &memory, |o| told.borrow_mut().push(o.period)).unwrap();
            load(guest_control(&source, &memory).unwrap().guest);
        };
        mock.on_interrupt(&handler);
        let mut counters = processor.take(&mock, &memory, &table);
        counters.set_virtualization(true).unwrap();
        let event = raw(2).every(PERIOD).with_total().in_guests();
        let inside = opened(&mut counters, &processor, event);
        let GuestControl { guest, host } = guest_control(&source, &memory).unwrap();
        let _ = mock.with_pmu(|pmu| pmu.write(GLOBAL_CTRL, guest));
        happen(&mock, 2, 3 * PERIOD + 5);
        let _ = mock.with_pmu(|pmu| pmu.write(GLOBAL_CTRL, host));
        happen(&mock, 2, 3 * PERIOD);
        assert_eq!(told.take(), [PERIOD; 3], "{processor:?}");
        assert_eq!(total(&counters, inside), 3 * PERIOD + 5, "{processor:?}");
        counters.shut_down().unwrap();
    }
}

/// A register faults at each access of the start of an event of guests, in the place of another one that rotates.
#[test]
fn a_fault_at_each_access_lets_no_event_of_guests_count_in_the_host() {
    for processor in hosts() {
        for access in 1.. {
            let mut reached = false;
            for fault in [Fault::At(access), Fault::From(access)] {
                let context = format!("{processor:?}, {fault:?}");
                let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
                let one = general(&processor, 0);
                let mut counters = processor.take_only(one, &mock, &memory, &table);
                counters.set_virtualization(true).unwrap();
                opened(&mut counters, &processor, raw(2).on(one).rotating());
                let inside = raw(3).on(one).in_guests();
                let inside = counters.open(&processor.unit, &[inside]).unwrap();
                mock.clear();
                mock.inject(fault);
                let started = counters.enable(inside, 1);
                reached = mock.accesses().total() >= access;
                mock.inject(Fault::None);
                assert!(started.is_ok() || matches!(fault, Fault::From(_)), "{context}");
                happen(&mock, 3, 9);
                if counters.counter_of(inside).is_some() {
                    assert_eq!(total(&counters, inside), 0, "{context}: {started:?}");
                }
                if started.is_ok() {
                    Host::new(&processor, &table, &memory, &mock).run(4);
                    assert_eq!(total(&counters, inside), 4, "{context}");
                }
                counters.shut_down().unwrap();
                assert_eq!(running(&mock), CounterSet::NONE, "{context}");
            }
            if !reached {
                assert!(access > 4, "{processor:?}: {access}");
                break;
            }
        }
    }
}

#[test]
fn without_a_global_control_register_or_on_amd_there_are_no_values() {
    let version_1 = Processor::intel(IntelConfiguration::new(1, 4, 0));
    let amd = processors(Deviations::NONE)
        .into_iter()
        .filter(|processor| matches!(processor.configuration, Configuration::Amd(_)));
    for processor in amd.chain([version_1]) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let source = Events::new(&processor.unit, &table);
        assert_eq!(guest_control(&source, &memory), None, "{processor:?}");
        let refused = counters.open(&processor.unit, &[raw(2).in_guests()]);
        assert_eq!(refused.reason(), Err(CounterError::GuestModeUnsupported), "{processor:?}");
        counters.shut_down().unwrap();
    }
}

/// An event of guests takes more than a free counter.
#[test]
fn enable_if_free_leaves_events_of_guests_to_start() {
    let processor = plain(4);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut counters = processor.take(&mock, &memory, &table);
    let [plain, inside] =
        [raw(2), raw(3).in_guests()].map(|event| counters.open(&processor.unit, &[event]).unwrap());
    let refused = counters.enable_if_free(inside, 0);
    assert_eq!(refused, Err(CounterError::NoCounterForEvent));
    counters.enable(inside, 0).unwrap();
    assert_eq!(counters.enable_if_free(plain, 0), Err(CounterError::NoFreeCounter));
    counters.enable(plain, 0).unwrap();
    counters.shut_down().unwrap();
}
