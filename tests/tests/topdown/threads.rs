//! Top-down counts of threads, of guests' hosts, and of E-cores.

use pmu_core::{CounterSession, CounterSet, OpenedEvents};
use pmu_intel::topdown::{SavedTopDown, TopDownCounter, TopDownFilter, TopDownPart, TopDownUnit};
use pmu_tests::opened::Random;
use pmu_virt::{
    Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege, VirtualPmu,
};

use crate::support::*;

#[test]
fn the_slots_of_each_thread_are_its_own_and_the_processors_are_all() {
    for processor in processors() {
        for whole in [false, true] {
            let mock = processor.mock();
            let kernel = Kernel::new(&processor, &mock);
            let handler = |mock: &Mock<'_>| kernel.handle(mock);
            mock.on_interrupt(&handler);
            let mut session = kernel.take(&mock);
            let mut topdown =
                TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
            if whole {
                topdown.start(&mut session, TopDownFilter::ALL).unwrap();
            }
            let mut threads = [SavedTopDown::new(TopDownFilter::ALL); 3];
            let mut expected = [0; 3].map(|_| Expected::of(&processor));
            let mut all = Expected::of(&processor);
            let mut random = Random(0xABCD_EF01);
            for _ in 0..60 {
                let (next, mix) = (random.below(3) as usize, MIXES[random.below(4) as usize]);
                let bits = random.below(44);
                let slots = 1 + random.below(1 << bits);
                // A thread that is not counted runs in between.
                pass(&mock, 1_000, MIXES[0]);
                all.add(1_000, MIXES[0]);
                topdown.switch_in(&mut session, &threads[next]).unwrap();
                pass(&mock, slots, mix);
                expected[next].add(slots, mix);
                all.add(slots, mix);
                if random.below(3) == 0 {
                    let read = topdown.read_thread(&mut session, &threads[next]).unwrap();
                    expected[next].check(&read, 200, "of a running thread");
                }
                topdown.switch_out(&mut session, &mut threads[next]).unwrap();
                // The next thread sees nothing of this one.
                assert_eq!(mock.with_metrics(|metrics| metrics.metrics()), Some(0));
            }
            for (thread, expected) in threads.iter().zip(&expected) {
                expected.check(&thread.counts(), 200, &format!("{processor:?}"));
            }
            let counted = topdown.read(&mut session).unwrap();
            match whole {
                true => all.check(&counted, 300, &format!("{processor:?}")),
                false => assert_eq!(counted.slots, 0),
            }
            assert_eq!(counts_slots(&mock), whole);
            assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0));
        }
    }
}

/// In a window, the borrower finds the slots' counter stopped and nothing of the host in it.
#[test]
fn a_window_suspends_the_counts_and_leaves_nothing_of_them() {
    for processor in processors() {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        let mut session = kernel.take(&mock);
        let mut topdown =
            TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
        topdown.start(&mut session, TopDownFilter::ALL).unwrap();
        let mut expected = Expected::of(&processor);
        for round in 0..4u64 {
            pass(&mock, 700 + round, MIXES[1]);
            expected.add(700 + round, MIXES[1]);
            let window = session.lend_with(0, &mut topdown, |_, _| ()).unwrap();
            assert!(!counts_slots(&mock));
            pass(&mock, 5_000, MIXES[2]);
            let held = mock.with_pmu(|pmu| pmu.read(0x30C));
            assert_eq!(held, pmu_virt::Read::Value(0), "{processor:?}");
            assert_eq!(mock.with_metrics(|metrics| metrics.metrics()), Some(0));
            if round == 2 {
                // A borrower that leaves values and status bits there.
                let _ = mock.with_pmu(|pmu| pmu.host_write(0x30C, 0x777));
                let _ = mock.with_pmu(|pmu| pmu.host_write(0x38E, 1 << 35));
                let written = mock.with_metrics(|metrics| {
                    use pmu_virt::{GuestFacility, Writer};
                    let _ = metrics.write(Writer::Guest, 0x38E, 1 << 48);
                    metrics.write(Writer::Guest, 0x329, 0x1234_5678)
                });
                assert!(written.is_some());
            }
            window.end(0).unwrap();
            assert!(counts_slots(&mock));
            assert_eq!(mock.with_pmu(|pmu| pmu.read(0x38E)), pmu_virt::Read::Value(0));
        }
        pass(&mock, 99, MIXES[3]);
        expected.add(99, MIXES[3]);
        expected.check(&topdown.read(&mut session).unwrap(), 10, &format!("{processor:?}"));
    }
}

/// After a suspend, both registers begin again.
#[test]
fn after_a_suspend_the_slots_are_counted_on() {
    for processor in processors() {
        let mock = processor.mock();
        let kernel = Kernel::new(&processor, &mock);
        let mut session = kernel.take(&mock);
        let mut topdown =
            TopDownCounter::take(kernel.unit, &mock, &mut session, &kernel.memory).unwrap();
        topdown.start(&mut session, TopDownFilter::ALL).unwrap();
        let mut expected = Expected::of(&processor);
        pass(&mock, 1_000, MIXES[1]);
        expected.add(1_000, MIXES[1]);
        topdown.read(&mut session).unwrap();
        mock.lose_registers();
        session.reprogram(|_| ()).unwrap();
        topdown.reprogram(&mut session).unwrap();
        pass(&mock, 2_000, MIXES[2]);
        expected.add(2_000, MIXES[2]);
        expected.check(&topdown.read(&mut session).unwrap(), 2, &format!("{processor:?}"));
    }
}

/// An E-core counts each part by a counter: three fixed ones, and the architectural event of the back end.
#[test]
fn an_e_core_has_the_same_parts_as_counts() {
    let intel = IntelConfiguration::new(6, 8, 4).with(|intel| intel.fixed = 0b111_0111);
    let keys = [
        EventKey::fixed(6).unwrap(),
        EventKey::fixed(4).unwrap(),
        EventKey::fixed(5).unwrap(),
        EventKey::general(0xA4, 0x02),
    ];
    let events = FedEvents::new(&keys).unwrap();
    let pmu = VirtualPmu::new(Configuration::Intel(intel), events).unwrap();
    let mock = Mock::strict(pmu);
    let unit = TopDownUnit::of(&mock.snapshot(), &mock).unwrap();
    assert!(!unit.has_metrics() && !unit.has_level_2());
    let counters = pmu_intel::counters(&mock.snapshot()).unwrap();
    let (memory, lent) = (pmu_core::CounterMemory::<[_; 24]>::new(), Default::default());
    let table = pmu_core::EventTable::<[pmu_core::EventEntry; 4]>::new();
    let source = OpenedEvents::new(&counters, &table as &pmu_core::EventTable);
    let mut session =
        CounterSession::take(source, &counters, CounterSet::ALL, &mock, &mock, &memory).unwrap();
    let mut topdown = TopDownCounter::take(unit, &mock, &mut session, &lent).unwrap();
    let feed = |slots: [u64; 4]| {
        let mut feed = Feed::new(&events);
        for (key, slots) in keys.into_iter().zip(slots) {
            feed.add(events.find(key).unwrap(), Privilege::User, slots).unwrap();
        }
        mock.advance(&mut feed);
    };
    topdown.start(&mut session, TopDownFilter::USER).unwrap();
    feed([500, 20, 300, 180]);
    let counts = topdown.read(&mut session).unwrap();
    let of = |counts: &pmu_intel::topdown::TopDownCounts| {
        TopDownPart::LEVEL_1.map(|part| counts.of(part).unwrap())
    };
    assert_eq!((counts.slots, of(&counts)), (1_000, [500, 20, 300, 180]));
    assert_eq!(counts.per_mille(TopDownPart::FrontendBound), Some(300));
    assert_eq!(counts.of(TopDownPart::MemoryBound), None);
    // A thread beside the processor.
    let mut thread = SavedTopDown::new(TopDownFilter::USER);
    topdown.switch_in(&mut session, &thread).unwrap();
    feed([1, 2, 3, 4]);
    topdown.switch_out(&mut session, &mut thread).unwrap();
    feed([10, 0, 0, 0]);
    assert_eq!(of(&thread.counts()), [1, 2, 3, 4]);
    topdown.stop(&mut session).unwrap();
    feed([7; 4]);
    assert_eq!(of(&topdown.read(&mut session).unwrap()), [511, 22, 303, 184]);
    topdown.shut_down(&mut session).unwrap();
    assert_eq!(session.events().count(), 0);
    assert!(mock.breach().is_none());
}
