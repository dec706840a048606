//! Requests that a processor's units take, and those that they refuse.

use pmu_amd::ibs::{IbsCapabilities, IbsKind, IbsSampling, IbsSamplingError, IbsUnits};
use pmu_core::Event;
use pmu_core::error::CounterError;
use pmu_core::precise::{NotPrecise, Precision, SampleParts};
use pmu_core::registers::{CounterId, EventSelect};
use pmu_tests::Reason;
use pmu_tests::recorded;
use pmu_virt::ibs::IbsConfiguration;

use pmu_tests::ibs_processor as processor;

use crate::decode::ZEN_3;
use crate::support::*;

/// Capabilities of Zen 5 and of its successor: the latency filter, and bits 13 to 16.
const ZEN_5: u32 = 0x8_1BFF;
const ZEN_6: u32 = 0x9_FBFF;

fn units_of(family: u32, model: u32, capabilities: u32) -> IbsUnits {
    IbsUnits::of(&processor(family, model, capabilities)).expect("units")
}

#[test]
fn what_a_processor_lacks_is_refused_by_name() {
    use IbsSamplingError::*;
    let zen_3 = units_of(0x19, 0x21, ZEN_3);
    let ops = IbsSampling::ops();
    assert_eq!(zen_3.check(&ops), Ok(()));
    assert_eq!(zen_3.check(&ops.l3_misses_only()), Err(NoL3MissFilter));
    assert_eq!(zen_3.check(&ops.slower_than(128)), Err(NoLatencyFilter));
    assert_eq!(zen_3.check(&ops.streaming_stores_only()), Err(NoStreamingStoreFilter));
    assert_eq!(zen_3.check(&IbsSampling::fetches().l3_misses_only()), Err(NoL3MissFilter));
    let fetch_only = units_of(0x19, 0x11, 0b011);
    assert_eq!(fetch_only.check(&ops), Err(NoUnit));
    assert_eq!(fetch_only.check(&IbsSampling::fetches()), Ok(()));
    let family_10h = units_of(0x10, 0x02, 0x7);
    assert_eq!(family_10h.check(&ops), Err(CountsCyclesOnly));
    assert_eq!(family_10h.check(&IbsSampling::cycles()), Ok(()));
    // Only ops stream.
    let zen_6 = units_of(0x1A, 0x50, ZEN_6);
    assert_eq!(zen_6.check(&ops.streaming_stores_only()), Ok(()));
    let fetches = IbsSampling::fetches().streaming_stores_only();
    assert_eq!(zen_6.check(&fetches), Err(NoStreamingStoreFilter));
}

#[test]
fn latencies_are_multiples_of_128_up_to_the_register_s_limit() {
    let zen_6 = units_of(0x1A, 0x50, ZEN_6);
    for (sampling, max) in [(IbsSampling::ops(), 2048), (IbsSampling::fetches(), 1920)] {
        for latency in [128, 256, max] {
            assert_eq!(zen_6.check(&sampling.slower_than(latency)), Ok(()), "{latency}");
        }
        for latency in [1, 127, 129, max + 128] {
            let refused = Err(IbsSamplingError::Latency { max });
            assert_eq!(zen_6.check(&sampling.slower_than(latency)), refused, "{latency}");
        }
    }
    // Erratum 1606.
    for model in [0x02, 0x24, 0x44, 0x70] {
        let zen_5 = units_of(0x1A, model, ZEN_5);
        let slow = IbsSampling::ops().slower_than(128);
        assert_eq!(zen_5.check(&slow), Err(IbsSamplingError::LatencyNeedsL3Miss));
        assert_eq!(zen_5.check(&slow.l3_misses_only()), Ok(()));
    }
    // A processor without the second control register has no fetch filter, whatever bit 14 says.
    let without = units_of(0x1A, 0x24, ZEN_5 | 1 << 14);
    let slow = IbsSampling::fetches().slower_than(128);
    assert_eq!(without.check(&slow), Err(IbsSamplingError::NoLatencyFilter));
}

/// Asks a processor for an event, and tells why it cannot be opened.
fn opened(processor: Processor, event: &Event) -> Result<(), CounterError> {
    sampler!(processor, IbsKind::Op => mock, kernel, session);
    session.open(&kernel.counters, &[*event]).map(drop).reason()
}

/// Whatever an event asks for that no sample can have is told when the event is opened, and what it is.
#[test]
fn an_event_that_cannot_be_sampled_so_is_refused_by_its_part() {
    for processor in processors() {
        let what = processor.name;
        let refused = |event: &Event, reason: NotPrecise| {
            assert_eq!(opened(processor, event), Err(CounterError::NotPrecise(reason)), "{what}");
        };
        let counts_ops = processor.unit(IbsKind::Op).capabilities().counts_ops();
        for kind in [IbsKind::Fetch, IbsKind::Op] {
            let request = processor.request(kind);
            let event = every(request);
            assert_eq!(opened(processor, &event), Ok(()), "{what}");
            refused(&request.event(), NotPrecise::NoPeriod);
            refused(&event.precise(Precision::ZeroSkidRequired), NotPrecise::NoExactCounter);
            let more = SampleParts::ACCESS.and(SampleParts::REGISTERS);
            assert_eq!(opened(processor, &event.recording(SampleParts::ACCESS)), Ok(()), "{what}");
            refused(&event.recording(more), NotPrecise::Parts(SampleParts::REGISTERS));
            refused(&event.in_guests(), NotPrecise::Unsupported);
            // No register has this threshold.
            refused(&every(request.slower_than(129)), NotPrecise::Filter);
            if !processor.unit(kind).capabilities().l3_miss_only() {
                refused(&every(request.l3_misses_only()), NotPrecise::Filter);
            }
        }
        if !counts_ops {
            refused(&every(IbsSampling::ops()), NotPrecise::Event);
            refused(&precise(0xC1, Precision::ConstantSkid), NotPrecise::Event);
        }
        // Only cycles and retired ops are sampled as ops.
        let loads = opened(processor, &precise(0x29, Precision::ConstantSkid));
        assert_eq!(loads, Err(CounterError::NotPrecise(NotPrecise::Event)), "{what}");
    }
}

/// Returns a plain event that is precise.
fn precise(event: u64, precision: Precision) -> Event {
    Event::raw(EventSelect::from_bits(event)).every(PERIOD.into()).precise(precision)
}

/// Precise cycles and retired ops are sampled as ops: by a period of cycles, and by one of ops. The same events without
/// precision are plain counters, and no other bit of a select goes with a sample.
#[test]
fn precise_cycles_and_retired_ops_are_the_unit_s() {
    use Precision::{ConstantSkid, ZeroSkidRequested};
    for processor in processors() {
        for (event, by_ops) in [(0x76, false), (0xC1, true)] {
            if by_ops && !processor.unit(IbsKind::Op).capabilities().counts_ops() {
                continue;
            }
            for precision in [ConstantSkid, ZeroSkidRequested] {
                let what = format!("{}, {event:#x}, {precision:?}", processor.name);
                sampler!(processor, IbsKind::Op => mock, kernel, session);
                let sampled = precise(event, precision).user_only();
                let id = kernel.start(&mut session, &sampled).unwrap();
                assert_eq!(session.counter_of(id), Some(CounterId::OP_UNIT), "{what}");
                let bits = read(&mock, control(IbsKind::Op).0);
                assert_eq!(bits >> 19 & 1, by_ops.into(), "{what}");
                assert!(kernel.run(&mock, PERIOD), "{what}");
                kernel.all_reported(&what);
                let plain = Event::raw(EventSelect::from_bits(event)).every(PERIOD.into());
                let plain = kernel.start(&mut session, &plain).unwrap();
                assert!(!session.counter_of(plain).is_some_and(CounterId::is_fixed), "{what}");
                // With an inverted comparison it is another event.
                let other = precise(event | 1 << 23 | 1 << 24, precision);
                let refused = session.open(&kernel.counters, &[other]);
                assert_eq!(
                    refused.reason(),
                    Err(CounterError::NotPrecise(NotPrecise::Event)),
                    "{what}"
                );
            }
        }
    }
}

/// A processor with one unit has events of that unit.
#[test]
fn the_unit_that_a_processor_lacks_is_no_counter() {
    for (capabilities, there, lacking) in [
        (0b011, IbsSampling::fetches(), IbsSampling::cycles()),
        (0b101, IbsSampling::cycles(), IbsSampling::fetches()),
    ] {
        let ibs = IbsConfiguration { capabilities, ..named("Zen 4").ibs };
        let processor = Processor { ibs, ..named("Zen 4") };
        sampler!(processor, there.kind() => mock, kernel, session);
        let refused = session.open(&kernel.counters, &[every(lacking)]);
        assert_eq!(refused.reason(), Err(CounterError::NotPrecise(NotPrecise::Event)));
        kernel.start(&mut session, &every(there)).unwrap();
        assert!(kernel.run(&mock, PERIOD));
        kernel.all_reported("one unit");
        assert_eq!(mock.breach(), None);
    }
}

#[test]
fn capabilities_are_those_that_cpuid_declares() {
    let none = processor(0x19, 0x11, 0); // The leaf is not valid, and the family is not 10h.
    assert_eq!(IbsCapabilities::of(&none), None);
    let family_10h = IbsCapabilities::of(&processor(0x10, 0x02, 0)).expect("capabilities");
    assert!(family_10h.fetch() && family_10h.op() && !family_10h.counts_ops());
    let fetch_only = processor(0x19, 0x11, 0b011);
    let units = IbsUnits::of(&fetch_only).expect("a unit");
    assert!(units.get(IbsKind::Fetch).is_some() && units.get(IbsKind::Op).is_none());
    assert_eq!(IbsCapabilities::of(&pmu_tests::intel_processor(5, 8)), None);
}

/// Recorded processors of AMD's.
#[test]
fn recorded_processors_have_what_their_generation_has() {
    let mut seen = 0;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/data/cpuid");
    for file in std::fs::read_dir(folder).expect("the recorded processors") {
        let name = file.expect("a file").file_name().into_string().expect("a name");
        if !name.ends_with(".txt") {
            continue;
        }
        let processor = recorded(&name);
        let Some(capabilities) = IbsCapabilities::of(&processor) else { continue };
        assert_eq!(&processor.vendor(), b"AuthenticAMD", "{name}");
        assert!(capabilities.fetch() && capabilities.op(), "{name}");
        assert_eq!(capabilities.l3_miss_only(), processor.family() >= 0x1A || is_zen_4(&processor));
        seen += 1;
    }
    assert!(seen > 0, "no recorded processor has instruction-based sampling");
}

fn is_zen_4(processor: &pmu_core::x86::Snapshot) -> bool {
    processor.family() == 0x19 && matches!(processor.model(), 0x10..=0x1F | 0x60..=0xAF)
}
