//! Sessions on unlike processors.

use super::support;
use super::support::*;
use pmu_amd::Amd64;
use pmu_core::access::AccessOperation;
use pmu_core::error::CounterError;
use pmu_core::profile::{InterfaceError, KProfileSource, Session};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::testing::RecordingMsr;
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, EventSource};
use pmu_intel::Emon;
use pmu_tests::reports::service_sources;
use pmu_tests::{FakePlatform, Fault, RegisterFile, amd_processor, intel_processor};

#[test]
fn a_freeze_bit_that_does_not_stay_is_reported() {
    let ((emon, processor), memory) = (emon(4, 4), Memory::new());
    let msr = RegisterFile::intel(4, true).keeping(DEBUGCTL, !(1 << 12));
    msr.set(DEBUGCTL, 0b11);
    let platform = FakePlatform::default();
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    assert_eq!(
        session.freeze_on_interrupt(),
        Err(InterfaceError::Counters(CounterError::FreezeUnsupported))
    );
    assert_eq!(msr.get(DEBUGCTL), 0b11);
    // The interrupt path still stops the counters itself.
    session.start(CYCLES).unwrap();
    msr.set(GLOBAL_STATUS, 1);
    msr.take_writes();
    service_sources(&emon, &(&msr, &platform), &memory, |_| ()).unwrap();
    assert_eq!(msr.take_writes()[0], (GLOBAL_CTRL, 0));
}

/// Some hypervisors refuse the bit.
#[test]
fn the_frozen_bit_is_acknowledged_only_where_the_status_shows_it() {
    const FROZEN: u64 = 1 << 59;
    for left in [0, 0b1, FROZEN, FROZEN | 0b11] {
        let ((emon, processor), memory) = (emon(4, 4), Memory::new());
        let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
        msr.set(GLOBAL_STATUS, left);
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
        let written: Vec<_> =
            msr.take_writes().into_iter().filter(|(r, _)| *r == STATUS_RESET).collect();
        let expected = if left == 0 { vec![] } else { vec![(STATUS_RESET, left)] };
        assert_eq!(written, expected);
    }
}

/// APM vol. 2: PerfCntrGlobalStatus bit 59; the interface never asks for freezing.
#[test]
fn counters_of_amd_that_firmware_left_frozen_are_released() {
    let (processor, memory) = (amd_processor(true, 6), Memory::new());
    let amd64 = Amd64::detect(&processor).unwrap();
    let registers = (0xC001_0200..0xC001_020C).chain(0xC000_0300..0xC000_0304);
    let msr = RegisterFile::new(registers, 0xC001_0201).rdpmc_step(2);
    msr.set(0xC000_0300, 1 << 59);
    let platform = FakePlatform::default();
    Session::take(&amd64, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    assert_eq!(msr.get(0xC000_0302), 1 << 59);
    assert_eq!(msr.get(0xC000_0301), 0x3F);
}

/// APM vol. 3, RDPMC: from 6 on, ECX names the counters of other units.
#[test]
fn core_counters_beyond_the_sixth_are_read_by_their_registers() {
    let (processor, memory) = (amd_processor(true, 8), Memory::new());
    let amd64 = Amd64::detect(&processor).unwrap();
    let registers = (0xC001_0200..0xC001_0210).chain(0xC000_0300..0xC000_0304);
    let file = RegisterFile::new(registers, 0xC001_0201).rdpmc_step(2);
    let (msr, platform) = (RecordingMsr::<_, 200>::new(file), FakePlatform::default());
    let mut session =
        Session::take(&amd64, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    assert_eq!(session.counters().usable.bits(), 0xFF);
    for value in (0x19..0x21).chain(0x21..0x29) {
        let _ = session.start(KProfileSource::new(value).unwrap());
    }
    let mut area = SavedCounters::<[SavedCounter; 8]>::new();
    session.save(&mut area, |o| panic!("{o:?}")).unwrap();
    assert_eq!(area.len(), 8);
    let indices: Vec<u32> = msr
        .take()
        .iter()
        .filter(|access| access.operation == AccessOperation::ReadCounter)
        .map(|access| access.register)
        .collect();
    assert!(!indices.is_empty() && indices.iter().all(|index| *index < 6), "{indices:?}");
}

/// SDM vol. 3B, "Processor Event-Based Sampling": an overflow of such a counter writes a record.
#[test]
fn precise_sampling_that_firmware_left_on_is_taken_from_own_counters() {
    let plain = intel_processor(4, 4);
    let declared = Snapshot::capture(move |leaf: u32, subleaf: u32| {
        let mut answer = plain.leaf(leaf, subleaf);
        answer.edx |= u32::from(leaf == 1) << 21;
        answer
    });
    let emon = Emon::detect(&declared).unwrap();
    let found = |misc_enable: u64, enabled: u64, fault: Fault| {
        let (msr, platform) = (RegisterFile::intel(4, true), FakePlatform::default());
        msr.set(0x1A0, misc_enable);
        msr.set(0x3F1, enabled);
        msr.fail(fault);
        let memory = Memory::new();
        let session =
            Session::take(&emon, &declared, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        let counters = session.counters();
        (msr.get(0x3F1), counters.usable.bits())
    };
    // Others' bits stay.
    assert_eq!(found(1 << 7, 0xFF, Fault::Never), (0xF0, 0xF));
    assert_eq!(found(1 << 7, 0, Fault::WritesTo(0x3F1)), (0, 0xF));
    // If it cannot be disabled, the counter is not used.
    assert_eq!(found(1 << 7, 0b101, Fault::WritesTo(0x3F1)), (0b101, 0b1010));
    // IA32_MISC_ENABLE says that there is no PEBS: its register is not touched.
    assert_eq!(found(1 << 7 | 1 << 12, 0xFF, Fault::Register(0x3F1)), (0xFF, 0xF));
    // CPUID does: nor is IA32_MISC_ENABLE.
    let (msr, platform, memory) =
        (RegisterFile::intel(4, true), FakePlatform::default(), Memory::new());
    Session::take(&emon, &intel_processor(4, 4), CounterSet::GENERAL, (&msr, &platform), &memory)
        .unwrap();
}

#[test]
fn a_processor_with_fewer_counters_uses_those_that_it_shares() {
    let (emon, _) = emon(4, 8);
    let smaller = intel_processor(4, 6);
    let (msr, platform, memory) =
        (RegisterFile::intel(6, true), FakePlatform::default(), Memory::new());
    let mut session =
        Session::take(&emon, &smaller, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    assert_eq!(session.counters().usable.bits(), 0x3F);
    assert_eq!(msr.get(GLOBAL_CTRL), 0x3F, "no bit that this processor lacks");
    session.start(CYCLES).unwrap();
    session.shut_down().unwrap();
    // With more, it uses those that the interface has.
    let (emon, _) = support::emon(4, 6);
    let memory = Memory::new();
    let msr = RegisterFile::intel(8, true);
    let session = Session::take(
        &emon,
        &intel_processor(4, 8),
        CounterSet::GENERAL,
        (&msr, &platform),
        &memory,
    )
    .unwrap();
    assert_eq!(session.counters().usable.bits(), 0x3F);
}

#[test]
fn a_processor_of_another_kind_is_refused() {
    let (emon, _) = emon(4, 8);
    let platform = FakePlatform::default();
    let narrower = Snapshot::capture(|leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            0x0A => (0x0728_0804, 0, 0, 0),
            _ => (0, 0, 0, 0),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    });
    for other in [intel_processor(1, 8), intel_processor(3, 8), amd_processor(true, 6), narrower] {
        let (msr, memory) = (RegisterFile::intel(8, true), Memory::new());
        let error = Session::take(&emon, &other, CounterSet::GENERAL, (&msr, &platform), &memory)
            .unwrap_err();
        assert_eq!(error, InterfaceError::Counters(CounterError::OtherProcessor));
        assert_eq!(msr.accesses(), 0);
    }
    let amd64 = Amd64::detect(&amd_processor(true, 6)).unwrap();
    for other in [amd_processor(true, 0), amd_processor(false, 0), intel_processor(4, 4)] {
        let (msr, memory) = (RegisterFile::amd(), Memory::new());
        let error = Session::take(&amd64, &other, CounterSet::GENERAL, (&msr, &platform), &memory)
            .unwrap_err();
        assert_eq!(error, InterfaceError::Counters(CounterError::OtherProcessor));
    }
}

/// Whatever a processor declares, there is a slot for each of its counters.
#[test]
fn no_claimed_interface_has_more_counters_than_the_most() {
    let most = (0..=255)
        .filter_map(|counters| Emon::detect(&intel_processor(4, counters)).ok())
        .map(|emon| emon.unit().counters().len())
        .max();
    assert_eq!(most, Some(10));
    let most = (0..=0xF).map(|counters| {
        let processor = amd_processor(true, counters);
        Amd64::detect(&processor).unwrap().unit().counters().len()
    });
    assert_eq!(most.max(), Some(15));
    const { assert!(MAX_COUNTERS >= 15) };
}
