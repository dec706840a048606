//! Samples: exact, alone and beside the counters, filtered, and with errata.

use pmu_amd::ibs::{IbsKind, IbsSampling};
use pmu_core::CounterSet;
use pmu_core::access::{AccessOperation, RegisterAddress, RegisterBackend};
use pmu_core::error::CounterError;
use pmu_core::precise::NotPrecise;
use pmu_tests::opened::{happened, raw};
use pmu_virt::ibs::{FedFetch, FedOp, IbsConfiguration};
use pmu_virt::mock::PmiFault;
use pmu_virt::{GuestFacility, Read, Writer};

use crate::support::*;

#[test]
fn each_sample_is_reported_once_and_each_interrupt_is_claimed() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        assert_eq!(mock.extended_entry(1), 0x400, "{what}");
        let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
        for number in 1..=20 {
            if kind == IbsKind::Fetch {
                // Four random bits. On families 16h-18h, this counts only after a reset.
                assert!(!kernel.run(&mock, PERIOD - 16), "{what}: {number}");
            }
            assert!(kernel.run(&mock, PERIOD), "{what}: {number}");
            assert_eq!((kernel.claimed.get(), mock.interrupts()), (number, number), "{what}");
            // Counted by its period.
            let total = session.read(event, 0).unwrap().value;
            let (whole, more) = (total / u64::from(PERIOD), total % u64::from(PERIOD));
            assert!(whole == number.into() && more < 128, "{what}: {total} after {number}");
        }
        kernel.all_reported(&what);
        // Another one's interrupt.
        mock.interrupt_from_elsewhere();
        assert_eq!((kernel.claimed.get(), kernel.unclaimed.get()), (20, 1), "{what}");
        session.disable(event, 0).unwrap();
        assert!(!kernel.run(&mock, 2 * PERIOD), "{what}: stopped");
        session.shut_down().unwrap();
        assert!(kernel.start(&mut session, &processor.event(kind)).is_err(), "{what}");
        assert_eq!(mock.breach(), None, "{what}");
    }
}

#[test]
fn samples_and_overflows_in_one_interrupt_are_both_served() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        kernel.start(&mut session, &raw(3).every(10_000)).unwrap();
        kernel.start(&mut session, &processor.event(kind)).unwrap();
        // Each alone.
        mock.advance(&mut happened(3, 10_000));
        assert!(kernel.run(&mock, PERIOD));
        assert_eq!((kernel.overflows.get(), kernel.claimed.get()), (1, 2), "{what}");
        // Both in one: the interrupt of the sample is lost, and the counter's is served.
        mock.inject_pmi(PmiFault::Lost);
        assert!(kernel.run(&mock, PERIOD));
        mock.inject_pmi(PmiFault::None);
        mock.advance(&mut happened(3, 10_000));
        assert_eq!((kernel.overflows.get(), kernel.claimed.get()), (2, 4), "{what}");
        assert_eq!(mock.interrupts(), 3, "{what}");
        kernel.all_reported(&what);
        session.shut_down().unwrap();
    }
}

/// An address of the kernel's half.
const KERNEL: u64 = 0xFFFF_FFFF_8000_0000;

#[test]
fn samples_of_the_other_privilege_level_are_left_out_and_counted() {
    for (processor, kind) in units() {
        for (user, kernel_too) in [(true, false), (false, true), (true, true)] {
            let what = format!("{}, {kind:?}, {user} {kernel_too}", processor.name);
            sampler!(processor, kind => mock, kernel, session);
            let event = processor.event(kind);
            let event = if !kernel_too { event.user_only() } else { event };
            let event = if !user { event.kernel_only() } else { event };
            kernel.start(&mut session, &event).unwrap();
            let mut sampled = [0_u32; 2];
            for number in 0..20 * u64::from(PERIOD) {
                // Blocks of both halves, of which none is a multiple of the period.
                let half = usize::from(number % 450 < 200);
                let address = [0x40_0000, KERNEL][half] + 16 * number;
                sampled[half] += u32::from(step(&mock, kind, address));
            }
            let reported = kernel.reported();
            let of_kernel = reported.iter().filter(|address| **address >= KERNEL).count() as u32;
            let of_user = reported.len() as u32 - of_kernel;
            let by_hardware = processor.ibs == named("Zen 6").ibs;
            let wanted = |asked: bool, samples: u32| if asked { samples } else { 0 };
            assert_eq!(of_user, wanted(user, sampled[0]), "{what}");
            assert_eq!(of_kernel, wanted(kernel_too, sampled[1]), "{what}");
            let dropped = sampled[0] + sampled[1] - of_user - of_kernel;
            assert_eq!(kernel.memory.dropped(), dropped, "{what}");
            assert_eq!(dropped == 0, by_hardware || user && kernel_too, "{what}");
            assert!(of_user + of_kernel > 4, "{what}");
        }
    }
}

#[test]
fn a_latency_filter_reports_slow_loads_only() {
    let processor = named("Zen 6");
    sampler!(processor, IbsKind::Op => mock, kernel, session);
    kernel.start(&mut session, &every(IbsSampling::ops().slower_than(256))).unwrap();
    let load = |latency: u64| FedOp { data3: latency << 32 | 1 << 7 | 1, ..FedOp::new(0x1000) };
    let feed = |op: FedOp| (0..PERIOD).any(|_| mock.execute(&op));
    // The processor leaves out a fast load, and lets through what is no load.
    assert!(!feed(load(256)));
    assert!(feed(FedOp::new(0x2000)) && kernel.reported().is_empty());
    assert_eq!(kernel.memory.dropped(), 1);
    assert!(feed(load(257)) && kernel.reported().len() == 1);
}

/// Any capabilities: what the driver touches is there, whatever is asked for. The mock is strict.
#[test]
fn no_register_is_touched_without_its_capability_bit() {
    let all = IbsConfiguration::ZEN_6.capabilities | 1 << 10;
    let lacking = (3..=16).map(|bit| all & !(1 << bit));
    let alone = (3..=16).map(|bit| 0b111 | 1 << bit);
    for capabilities in lacking.chain(alone).chain([all, 0b111, 0b011, 0b101]) {
        let ibs = IbsConfiguration { capabilities, ..named("Zen 6").ibs };
        let processor = Processor { ibs, ..named("Zen 6") };
        for kind in [IbsKind::Op, IbsKind::Fetch] {
            if capabilities >> [1, 2][usize::from(kind == IbsKind::Op)] & 1 == 0 {
                continue;
            }
            let what = format!("{capabilities:#X}, {kind:?}");
            sampler!(processor, kind => mock, kernel, session);
            let plain = match kind {
                IbsKind::Op => IbsSampling::cycles(),
                IbsKind::Fetch => IbsSampling::fetches(),
            };
            let plain = plain.with_physical_addresses();
            for event in [
                every(plain),
                every(IbsSampling::ops()),
                every(plain).user_only(),
                every(plain.l3_misses_only()),
                every(plain.slower_than(128)),
                every(plain.streaming_stores_only()),
            ] {
                let Ok(id) = kernel.start(&mut session, &event) else { continue };
                if session.counter_of(id).is_none_or(|unit| unit.number() != kind as u8) {
                    session.close(id, 0).unwrap();
                    continue;
                }
                // A taken branch that loads from memory, with every register that has a meaning, and streams.
                let (branch, load) =
                    (1 << 37 | 1 << 35, 500 << 32 | 1 << 20 | 0b11 << 17 | 1 << 7 | 1);
                let op =
                    FedOp { data: branch, data2: 1 << 8 | 3, data3: load, ..FedOp::new(0x1000) };
                let control = 1 << 61 | 1 << 55 | 1 << 52 | 500 << 32;
                let fetch = FedFetch { control, ..FedFetch::new(0x1000) };
                let sampled = (0..2 * PERIOD).any(|_| match kind {
                    IbsKind::Op => mock.execute(&op),
                    IbsKind::Fetch => mock.fetch(&fetch),
                });
                assert!(sampled, "{what}: {event:?}");
                session.close(id, 0).unwrap();
            }
            session.shut_down().unwrap();
            assert!(kernel.reported().len() as u32 + kernel.memory.dropped() > 0, "{what}");
            assert_eq!(mock.breach(), None, "{what}");
        }
    }
}

/// The processor's own filters, from the request to the sample.
#[test]
fn only_misses_of_the_third_level_cache_and_only_streaming_stores_are_sampled() {
    let miss = FedOp { data2: 3, data3: 1 << 20 | 1 << 7 | 1, ..FedOp::new(0x1000) };
    let hit = FedOp { data2: 1, ..miss };
    let streams = FedOp { data2: 1 << 8, data3: 1 << 1, ..FedOp::new(0x2000) };
    let stores = FedOp { data3: 1 << 1, ..FedOp::new(0x2000) };
    let ops = IbsSampling::ops();
    for (name, request, left_out, sampled) in [
        ("Zen 4", ops.l3_misses_only(), hit, miss),
        ("Zen 6", ops.l3_misses_only(), hit, miss),
        ("Zen 6", ops.streaming_stores_only(), stores, streams),
    ] {
        let processor = named(name);
        sampler!(processor, IbsKind::Op => mock, kernel, session);
        kernel.start(&mut session, &every(request)).unwrap();
        assert!(!(0..4 * PERIOD).any(|_| mock.execute(&left_out)), "{name}, {request:?}");
        assert!((0..PERIOD).any(|_| mock.execute(&sampled)), "{name}, {request:?}");
        assert_eq!(kernel.reported(), [sampled.rip], "{name}, {request:?}");
    }
    let processor = named("Zen 4");
    sampler!(processor, IbsKind::Fetch => mock, kernel, session);
    kernel.start(&mut session, &every(IbsSampling::fetches().l3_misses_only())).unwrap();
    let missed = FedFetch { control: 1 << 61, ..FedFetch::new(0x3000) };
    assert!(!(0..4 * PERIOD).any(|_| mock.fetch(&FedFetch::new(0x3000))));
    assert!((0..PERIOD).any(|_| mock.fetch(&missed)));
    assert_eq!(kernel.reported(), [0x3000]);
}

/// The processor's filter is coarser here: the driver drops what it lets through.
#[test]
fn a_latency_filter_reports_slow_fetches_only() {
    let processor = named("Zen 6");
    sampler!(processor, IbsKind::Fetch => mock, kernel, session);
    kernel.start(&mut session, &every(IbsSampling::fetches().slower_than(256))).unwrap();
    let control2 = mock.with_sampling_unit(|unit| unit.read(0xC001_103F));
    assert_eq!(control2, Some(Read::Value(2 << 1)), "in units of 128 cycles");
    let fetch = |latency: u64| FedFetch { control: latency << 32, ..FedFetch::new(0x1000) };
    let feed = |fetch: FedFetch| {
        let _ = mock.with_sampling_unit(|unit| unit.write(Writer::Host, 0xC001_103F, 1 << 1));
        (0..PERIOD).any(|_| mock.fetch(&fetch))
    };
    assert!(!feed(fetch(128)), "the processor leaves it out");
    assert!(feed(fetch(256)) && kernel.reported().is_empty());
    assert_eq!(kernel.memory.dropped(), 1);
    assert!(feed(fetch(257)) && kernel.reported().len() == 1);
}

/// Erratum 1197.
#[test]
fn a_fetch_without_an_address_is_left_out_on_an_early_zen_3() {
    for (name, reported) in [("Zen 3, early", 0), ("Zen 3", 1)] {
        let processor = named(name);
        sampler!(processor, IbsKind::Fetch => mock, kernel, session);
        kernel.start(&mut session, &every(IbsSampling::fetches())).unwrap();
        assert!((0..PERIOD).any(|_| mock.fetch(&FedFetch::new(0))));
        assert_eq!(kernel.reported().len(), reported, "{name}");
        assert_eq!(kernel.memory.dropped(), 1 - reported as u32, "{name}");
        assert_eq!(kernel.claimed.get(), 1, "{name}: claimed nevertheless");
    }
}

/// The rest of a period goes on where it was.
#[test]
fn a_stopped_unit_goes_on_with_what_is_left_of_its_period() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        sampler!(processor, kind => mock, kernel, session);
        let event = kernel.start(&mut session, &processor.event(kind)).unwrap();
        for _ in 0..3 {
            assert!(!kernel.run(&mock, 40), "{what}");
            session.disable(event, 0).unwrap();
            assert!(!kernel.run(&mock, 200), "{what}: stopped");
            session.enable(event, 0).unwrap();
        }
        let exact = processor.is_exact(kind);
        // Without a count that can be written, the shortest period is longer than what is left.
        let (least, most) = match (kind, exact) {
            (_, true) => (40, 40),
            (IbsKind::Op, false) => (0x90, 0x90),
            // Of each 40 fetches, 32 or 48 are counted, and so in the last part.
            (IbsKind::Fetch, _) => (1, 64),
        };
        assert!(!kernel.run(&mock, least - 1), "{what}");
        assert!(kernel.run(&mock, most - least + 1), "{what}");
        kernel.all_reported(&what);
    }
}

#[test]
fn the_random_bits_of_the_count_begin_the_next_period() {
    for name in ["Zen 3", "family 10h"] {
        let processor = named(name);
        sampler!(processor, IbsKind::Op => mock, kernel, session);
        kernel.start(&mut session, &processor.event(IbsKind::Op)).unwrap();
        for _ in 0..20 {
            assert!(kernel.run(&mock, PERIOD));
        }
        let sampled = kernel.sampled();
        let periods: std::collections::BTreeSet<u64> =
            sampled.windows(2).map(|pair| (pair[1] - pair[0]) / 16).collect();
        let (shortest, longest) = (periods.first().unwrap(), periods.last().unwrap());
        assert!(*longest <= PERIOD.into(), "{periods:?}");
        // Seven random bits, where the count can be written.
        let is_random = name == "Zen 3";
        assert_eq!(periods.len() > 10, is_random, "{name}: {periods:?}");
        assert_eq!(*shortest >= PERIOD.into(), !is_random, "{name}");
    }
}

#[test]
fn physical_addresses_are_read_only_where_they_are_asked_for() {
    const DC_PHYSADDR: u32 = 0xC001_1039;
    let processor = named("Zen 4");
    for asked in [false, true] {
        sampler!(processor, IbsKind::Op => mock, kernel, session);
        let request = IbsSampling::ops();
        let request = if asked { request.with_physical_addresses() } else { request };
        kernel.start(&mut session, &every(request)).unwrap();
        let load = FedOp { data3: 0b11 << 17 | 1, physical_address: 7, ..FedOp::new(0x1000) };
        assert!((0..PERIOD).any(|_| mock.execute(&load)));
        let read = mock.trace().records().any(|record| record.register == DC_PHYSADDR);
        assert_eq!(read, asked);
    }
}

#[test]
fn a_unit_without_an_interrupt_is_refused_and_left_alone() {
    let processor = named("Zen 4");
    let without =
        Processor { ibs: IbsConfiguration { lvt_entry: None, ..processor.ibs }, ..processor };
    let refused = Err(CounterError::NotPrecise(NotPrecise::NoInterrupt));
    let of_unit = |mock: &Mock<'_>| {
        let of_unit = |register: u32| (0xC001_1030..=0xC001_103F).contains(&register);
        mock.trace()
            .records()
            .filter(|record| of_unit(record.register) && record.operation == AccessOperation::Write)
            .count()
    };
    {
        sampler!(without, IbsKind::Op => mock, kernel, session);
        assert_eq!(kernel.start(&mut session, &processor.event(IbsKind::Op)), refused);
        assert_eq!(session.counters().unresponsive, CounterSet::fixed(0b11));
        assert_eq!(of_unit(&mock), 0);
    }
    // Another user's vector in the same entry.
    let mock = processor.mock();
    mock.set_extended_entry(1, 0xE1);
    let kernel = Kernel::new(processor, IbsKind::Op, &mock);
    let mut session = kernel.take(&mock);
    assert_eq!(kernel.start(&mut session, &processor.event(IbsKind::Op)), refused);
    assert_eq!((of_unit(&mock), mock.extended_entry(1)), (0, 0xE1));
    session.shut_down().unwrap();
    // The memory is free again, and an entry that already delivers the same is shared.
    mock.set_extended_entry(1, 0x400);
    let mut session = kernel.take(&mock);
    assert!(kernel.start(&mut session, &processor.event(IbsKind::Op)).is_ok());
    assert_eq!(kernel.try_take(&mock, CounterSet::ALL).map(drop), Err(CounterError::MemoryInUse));
}

#[test]
fn what_a_predecessor_left_is_stopped_and_its_sample_is_not_reported() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        let mock = processor.mock();
        let old = Kernel::new(processor, kind, &mock);
        let mut left = old.take(&mock);
        old.start(&mut left, &processor.event(kind)).unwrap();
        // A sample without a handler: its interrupt comes when the next kernel has the unit.
        mock.inject_pmi(PmiFault::Late(1_000));
        assert!(old.run(&mock, PERIOD));
        mock.inject_pmi(PmiFault::None);
        let kernel = Kernel::new(processor, kind, &mock);
        let handler = |mock: &Mock<'_>| kernel.handle(mock);
        mock.on_interrupt(&handler);
        let mut session = kernel.take(&mock);
        assert_eq!(mock.with_sampling_unit(|unit| unit.is_enabled()), Some(false), "{what}");
        mock.deliver_sample();
        assert_eq!((kernel.claimed.get(), kernel.reported().len()), (1, 0), "{what}");
        kernel.start(&mut session, &processor.event(kind)).unwrap();
        assert!(kernel.run(&mock, PERIOD), "{what}");
        kernel.all_reported(&what);
    }
}

/// A handler that a kernel calls before its session is there.
#[test]
fn an_interrupt_accesses_nothing_before_the_session_starts() {
    let processor = named("Zen 4");
    let mock = processor.mock();
    let kernel = Kernel::new(processor, IbsKind::Op, &mock);
    kernel.handle(&mock);
    assert_eq!((mock.accesses().total(), kernel.unclaimed.get()), (0, 1));
    // SAFETY: the mock's registers are numbers.
    let extended = unsafe { RegisterAddress::new(0xC001_103E) };
    let lenient = Mock::new(mock.with_pmu(|pmu| pmu.clone()));
    assert!(lenient.read(extended).is_err(), "hidden by default");
}
