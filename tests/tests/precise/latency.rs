//! Loads that are sampled by their latency.

use pmu_core::{CounterError, DataSource, Event, EventSelect, MsrAddress};
use pmu_intel::precise::{PreciseError, PreciseEvent, PreciseEventError, Precision};
use pmu_virt::Read;

use crate::support::*;

/// MEM_TRANS_RETIRED.LOAD_LATENCY.
pub(crate) fn loads(cycles: u16) -> PreciseEvent {
    let event = Event::raw(EventSelect::from_bits(0x01CD)).user_only().every(PERIOD);
    let event = PreciseEvent::new(event, Precision::ZeroSkidRequested);
    if cycles == 0 { event } else { event.with_latency(cycles) }
}

/// The least latency is in one register, for the events that the session counts and for those that it records.
#[test]
fn an_event_of_the_session_and_a_recorded_event_have_only_one_latency() {
    let processor = processors().into_iter().find(|p| p.name == "format 3").unwrap();
    processor.run(|kernel, mock| {
        let (mut session, mut recorder) = kernel.take(mock);
        // SAFETY: the mock's registers are numbers.
        let register = unsafe { MsrAddress::new(0x3F6) };
        let counted = Event::raw(EventSelect::from_bits(0x01CD)).with_extra(register, 30);
        let counted = session.open_event(&kernel.counters, &counted).unwrap();
        session.start_event(counted, 0).unwrap();
        let in_use = CounterError::ExtraRegisterInUse(0x3F6);
        let refused = recorder.start(&mut session, &loads(50), |_| ());
        assert_eq!(refused, Err(PreciseError::Counters(in_use)));
        session.stop_event(counted, 0).unwrap();
        let recorded = recorder.start(&mut session, &loads(50), |_| ()).unwrap();
        assert_eq!(session.start_event(counted, 0), Err(in_use));
        recorder.stop(&mut session, recorded, |_| ()).unwrap();
        session.start_event(counted, 0).unwrap();
    });
}

/// Sapphire Rapids: an auxiliary event, 0x03 with unit mask 0x82, is counted beside it and begins before it.
#[test]
fn sapphire_rapids_counts_its_auxiliary_event_beside_a_latency_event() {
    let processor = processors().into_iter().find(|p| p.name == "format 4").unwrap();
    processor.run(|kernel, mock| {
        let read = |register| match mock.with_pmu(|pmu| pmu.read(register)) {
            Read::Value(value) => value,
            other => panic!("{other:?}"),
        };
        let (mut session, mut recorder) = kernel.take(mock);
        let missing = recorder.start(&mut session, &loads(0), |_| ());
        assert_eq!(missing, Err(PreciseError::Event(PreciseEventError::NoLatency)));
        let counter = recorder.start(&mut session, &loads(30), |_| ()).unwrap();
        // The first free counter has the auxiliary event: counted in user and kernel mode, without INT (bit 20).
        assert_eq!(read(0x186) & 0xFFFF_FFFF, 0x43_8203);
        assert_eq!(counter.bit(), 1);
        // Adaptive: the group of memory.
        let select = mock.trace().records().filter(|record| record.register == 0x187).last();
        assert_eq!(select.unwrap().outcome, Ok(1 << 34 | 0x41_01CD));
        // Only the latency event writes records.
        assert_eq!(mock.with_precise_records(|precise| precise.enabled()), Some(0b10));
        let busy = recorder.start(&mut session, &loads(31), |_| ());
        assert_eq!(busy, Err(PreciseError::LatencyInUse(30)));
        recorder.stop(&mut session, counter, |_| ()).unwrap();
        assert_eq!((read(0x186), read(0x187)), (0, 0));
        let counter = recorder.start(&mut session, &loads(31), |_| ()).unwrap();
        recorder.stop(&mut session, counter, |_| ()).unwrap();
    });
}

/// Panther Lake's event list has the register for its load-latency events.
#[test]
fn a_load_latency_event_has_its_cycles_in_the_register_beside_architectural_records_too() {
    let listed = pmu_events::PANTHERLAKE_COUGARCOVE.event("MEM_TRANS_RETIRED.LOAD_LATENCY_GT_64");
    let listed = listed.unwrap().extra().unwrap();
    assert_eq!((listed.register, listed.value), (0x3F6, 64));
    for processor in processors().into_iter().filter(|p| p.counters.version == 6) {
        processor.run(|kernel, mock| {
            let what = format!("{}, {}", processor.name, processor.freezes);
            let read = || {
                mock.with_precise_records(|records| {
                    mock.with_pmu(|pmu| pmu.read_beside(records, listed.register))
                })
            };
            let (mut session, mut recorder) = kernel.take(mock);
            recorder.start(&mut session, &loads(64), |_| ()).unwrap();
            assert_eq!(read(), Some(Read::Value(64)), "{what}");
            kernel.ends(mock, session, recorder, 0, &what);
            assert_eq!(read(), Some(Read::Value(0)), "{what}");
        });
    }
}

/// Skylake: no auxiliary event; bit 32 + n of IA32_PEBS_ENABLE lets the latency filter the records of counter n.
#[test]
fn skylake_filters_by_a_bit_of_the_enable_register_and_decodes_the_source() {
    let processor = processors().into_iter().find(|p| p.name == "format 3").unwrap();
    let fed = |number| {
        let mut fed = instruction(number);
        (fed.data_address, fed.data_source, fed.latency) = (0x7000, 0x34, 55);
        fed
    };
    processor.run_with(fed, |kernel, mock| {
        let (mut session, mut recorder) = kernel.take(mock);
        let counter = recorder.start(&mut session, &loads(50), |_| ()).unwrap();
        let bit = counter.only().bits();
        let enable = mock.trace().records().filter(|record| record.register == 0x3F1).last();
        assert_eq!(enable.unwrap().outcome, Ok(bit << 32 | bit));
        let latency = mock.trace().records().filter(|record| record.register == 0x3F6).last();
        assert_eq!(latency.unwrap().outcome, Ok(50));
        mock.inject_pmi(pmu_virt::mock::PmiFault::Lost);
        // The counter overflows before the next access.
        mock.interrupt_at(1);
        let mut samples = vec![];
        recorder.drain(&mut session, |report| samples.push(report.sample())).unwrap();
        let access = samples[0].access.unwrap();
        // 0x34: the third-level cache, a page walk, a lock.
        assert_eq!((access.source, access.latency), (Some(DataSource::L3), Some(55)));
        assert_eq!((access.locked, access.address), (Some(true), Some(0x7000)));
        assert_eq!(access.translation, Some(pmu_core::Translation::PageWalk));
        assert!(access.load && !access.store);
        assert_eq!(samples[0].address, Some(address(0)));
    });
}
