//! Hard cases: each once lost an overflow, invented one, or left a counter or an interrupt without an owner.

use core::cell::{Cell, RefCell};
use pmu_tests::StateRegisters;
use pmu_tests::reports::service_sources;

use pmu_core::access::{
    AccessErrorKind, AccessFault, AccessOperation, RegisterAddress, RegisterBackend,
};
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{DefaultInterface, InterfaceError, KProfileSource, Session};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_core::x86::Snapshot;
use pmu_core::{Claim, CounterSet, EventSource};
use pmu_intel::Emon;
use pmu_tests::deviations::snapshot;
use pmu_tests::{FakePlatform, Fault as FileFault, RegisterFile, intel_processor};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Deviations, Fault, MockMsr};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

type Memory = CounterMemory<[CounterSlot; MAX_COUNTERS]>;
type Mock<'h> = MockMsr<'h, 64>;

const CYCLES: KProfileSource = KProfileSource::TOTAL_CYCLES;
const BRANCHES: KProfileSource = KProfileSource::BRANCH_INSTRUCTIONS;
const KEYS: [EventKey; 2] = [EventKey::general(0x3C, 0), EventKey::general(0xC4, 0)];
const GLOBAL_CTRL: u32 = 0x38F;
const STATUS_SET: u32 = 0x391;

/// Version `version` with four counters and three fixed ones, on a platform.
fn machine(version: u8, deviations: Deviations) -> (Configuration, Emon) {
    let configuration = Configuration::Intel(IntelConfiguration::new(version, 4, 3));
    let emon = Emon::detect(&snapshot(configuration, deviations)).unwrap();
    emon.set_interval(CYCLES, 0x1000).unwrap();
    emon.set_interval(BRANCHES, 0x1000).unwrap();
    (configuration, emon)
}

fn mock<'h>(configuration: Configuration, deviations: Deviations) -> Mock<'h> {
    let events = FedEvents::new(&KEYS).unwrap();
    Mock::new(VirtualPmu::new(configuration, events).unwrap()).deviating(deviations)
}

fn happen(mock: &Mock<'_>, key: EventKey, count: u64) {
    let events = FedEvents::new(&KEYS).unwrap();
    let mut feed = Feed::new(&events);
    feed.add(events.find(key).unwrap(), Privilege::Kernel, count).unwrap();
    mock.advance(&mut feed);
}

/// A machine on a platform without deviations.
struct Plain {
    emon: Emon,
    processor: Snapshot,
    mock: Mock<'static>,
    memory: Memory,
}

impl Plain {
    fn new(version: u8) -> Self {
        let (configuration, emon) = machine(version, Deviations::NONE);
        Self {
            emon,
            processor: snapshot(configuration, Deviations::NONE),
            mock: mock(configuration, Deviations::NONE),
            memory: Memory::new(),
        }
    }
}

/// Unmasking raises an interrupt while a bit of the status is set: a bit that is never acknowledged raises them
/// without end.
fn does_not_storm(
    deviations: &[Deviation],
    memory: &CounterMemory,
    prepare: impl Fn(&mut VirtualPmu),
) {
    let deviations = Deviations::of(deviations);
    let (configuration, emon) = machine(4, deviations);
    let interrupts = Cell::new(0);
    let handler = |mock: &Mock<'_>| {
        interrupts.set(interrupts.get() + 1);
        assert!(interrupts.get() < 50, "a storm of interrupts");
        service_sources(&emon, mock, memory, |_| ()).unwrap();
    };
    let mock = mock(configuration, deviations);
    mock.with_pmu(prepare);
    mock.on_interrupt(&handler);
    let processor = snapshot(configuration, deviations);
    let mut session = Session::take(&emon, &processor, CounterSet::GENERAL, &mock, memory).unwrap();
    session.start(CYCLES).unwrap();
    happen(&mock, KEYS[0], 0x1000);
    session.shut_down().unwrap();
}

#[test]
fn an_overflow_that_a_dead_counter_left_raises_no_storm() {
    let deviations = [Deviation::DeadCounter, Deviation::LeftOverflowed, Deviation::RaisesOnUnmask];
    does_not_storm(&deviations, &Memory::new(), |_| ());
}

#[test]
fn overflows_that_counters_without_slots_left_raise_no_storm() {
    let two = CounterMemory::<[CounterSlot; 2]>::new();
    does_not_storm(&[Deviation::LeftOverflowed, Deviation::RaisesOnUnmask], &two, |_| ());
}

#[test]
fn an_overflow_that_a_fixed_counter_left_raises_no_storm() {
    does_not_storm(&[Deviation::RaisesOnUnmask], &Memory::new(), |pmu| {
        let _ = pmu.write(STATUS_SET, 1 << 33);
    });
}

#[test]
fn the_overflow_of_a_fixed_counter_that_is_enabled_is_its_owners() {
    let Plain { emon, processor, mock, memory } = Plain::new(4);
    mock.with_pmu(|pmu| {
        let _ = pmu.write(GLOBAL_CTRL, 1 << 33);
        let _ = pmu.write(STATUS_SET, 1 << 33);
    });
    Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
    assert_eq!(mock.with_pmu(|pmu| pmu.state()).global_status(), 1 << 33);
}

/// A predecessor that stopped its counters by the control register alone.
#[test]
fn an_overflow_of_a_counter_that_the_control_register_stopped_raises_no_storm() {
    let two = CounterMemory::<[CounterSlot; 2]>::new();
    does_not_storm(&[Deviation::RaisesOnUnmask], &two, |pmu| {
        let _ = pmu.write(GLOBAL_CTRL, 0);
        let _ = pmu.write(0x188, 0x53_00C0);
        let _ = pmu.write(STATUS_SET, 1 << 2);
    });
}

/// A reset enables all general counters: they count as soon as their selects are enabled, while the rest is still
/// being programmed.
#[test]
fn an_overflow_while_lost_registers_are_programmed_leaves_its_source_counting() {
    for version in [2, 4] {
        for at in 1..40 {
            let deviations = Deviations::of(&[Deviation::LosesRegisters]);
            let (configuration, emon) = machine(version, deviations);
            let (memory, told, access) = (Memory::new(), Cell::new(0), Cell::new(0));
            let handler = |mock: &Mock<'_>| {
                service_sources(&emon, mock, &memory, |_| told.set(told.get() + 1)).unwrap();
            };
            let before_access = |mock: &Mock<'_>| {
                access.set(access.get() + 1);
                if access.get() == at {
                    happen(mock, KEYS[0], 0x1000);
                }
            };
            let mock = mock(configuration, deviations);
            mock.on_interrupt(&handler);
            mock.on_access(&before_access);
            access.set(100);
            let processor = snapshot(configuration, deviations);
            let mut session =
                Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
            session.start(CYCLES).unwrap();
            session.start(BRANCHES).unwrap();
            mock.lose_registers();
            access.set(0);
            let anew = session.reprogram(|_| ());
            assert_eq!(anew.map(CounterSet::bits), Ok(0b11), "version {version}, access {at}");
            access.set(100);
            told.set(0);
            happen(&mock, KEYS[0], 0x4000);
            assert!(told.get() >= 3, "version {version}, access {at}: {} overflows", told.get());
            session.shut_down().unwrap();
        }
    }
}

#[test]
fn a_start_after_the_control_register_failed_writes_it() {
    for fault_at in 1..10 {
        let (configuration, emon) = machine(2, Deviations::NONE);
        let (memory, told) = (Memory::new(), Cell::new(0));
        let handler = |mock: &Mock<'_>| {
            let _ = service_sources(&emon, mock, &memory, |_| told.set(told.get() + 1));
        };
        let mock = mock(configuration, Deviations::NONE);
        mock.on_interrupt(&handler);
        let processor = snapshot(configuration, Deviations::NONE);
        let mut session =
            Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
        session.start(CYCLES).unwrap();
        mock.interrupt_at(1);
        mock.inject(Fault::From(fault_at));
        let mut area = SavedCounters::<[SavedCounter; 4]>::new();
        let _ = session.save(&mut area, |_| ());
        mock.inject(Fault::None);
        if mock.performance_entry() >> 16 & 1 != 0 {
            // The interrupt could not read the status, or clear it.
            let masked = session.start(BRANCHES);
            assert_eq!(masked, Err(InterfaceError::NoFreeCounter(BRANCHES)));
            session.reprogram(|overflow| panic!("{overflow:?}")).unwrap();
        }
        session.start(BRANCHES).unwrap();
        told.set(0);
        happen(&mock, KEYS[1], 0x4000);
        assert_eq!(told.get(), 4, "from access {fault_at}");
        session.shut_down().unwrap();
    }
}

#[test]
fn reprogram_reports_no_overflow_that_firmware_left() {
    let Plain { emon, processor, mock, memory } = Plain::new(4);
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
    session.start(CYCLES).unwrap();
    mock.lose_registers();
    let _ = mock.with_pmu(|pmu| pmu.write(STATUS_SET, 0b11));
    assert_eq!(
        session.reprogram(|overflow| panic!("invented: {overflow:?}")).map(CounterSet::bits),
        Ok(1)
    );
    assert_eq!(mock.with_pmu(|pmu| pmu.state()).global_status(), 0);
}

#[test]
fn reprogram_takes_precise_sampling_away_that_firmware_left() {
    let deviations = Deviations::of(&[Deviation::LeftPrecise]);
    let (configuration, emon) = machine(2, deviations);
    let (memory, told) = (Memory::new(), Cell::new(0));
    let handler = |mock: &Mock<'_>| {
        service_sources(&emon, mock, &memory, |_| told.set(told.get() + 1)).unwrap();
    };
    let mock = mock(configuration, deviations);
    mock.on_interrupt(&handler);
    let processor = snapshot(configuration, deviations);
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
    session.start(CYCLES).unwrap();
    mock.lose_registers();
    // SAFETY: no processor is behind the mock.
    mock.write(unsafe { RegisterAddress::new(0x3F1) }, 0xFF).unwrap();
    assert_eq!(session.reprogram(|overflow| panic!("{overflow:?}")).map(CounterSet::bits), Ok(1));
    happen(&mock, KEYS[0], 0x4000);
    assert_eq!(told.get(), 4);
}

#[test]
fn reprogram_marks_every_source_where_the_control_register_does_not_answer() {
    let Plain { emon, processor, mock, memory } = Plain::new(2);
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
    session.start(CYCLES).unwrap();
    mock.inject(Fault::Register(GLOBAL_CTRL));
    let outcome = session.reprogram(|overflow| panic!("{overflow:?}"));
    assert!(
        matches!(outcome, Err(InterfaceError::Counters(CounterError::StateUnknown(f))) if f.register == GLOBAL_CTRL)
    );
    assert!(!session.is_running(CYCLES), "it cannot count");
}

#[test]
fn a_source_that_is_started_after_a_failed_shut_down_counts() {
    let (configuration, emon) = machine(2, Deviations::NONE);
    let (memory, told) = (Memory::new(), Cell::new(0));
    let handler = |mock: &Mock<'_>| {
        service_sources(&emon, mock, &memory, |_| told.set(told.get() + 1)).unwrap();
    };
    let mock = mock(configuration, Deviations::NONE);
    mock.on_interrupt(&handler);
    // The predecessor left one counter's bit.
    let _ = mock.with_pmu(|pmu| pmu.write(GLOBAL_CTRL, 1));
    let processor = snapshot(configuration, Deviations::NONE);
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
    session.start(CYCLES).unwrap();
    mock.inject(Fault::Register(0x186));
    assert!(session.shut_down().is_err());
    mock.inject(Fault::None);
    session.start(BRANCHES).unwrap();
    happen(&mock, KEYS[1], 0x4000);
    assert_eq!(told.get(), 4);
    session.shut_down().unwrap();
    assert_eq!(mock.with_pmu(|pmu| pmu.state()).global_control(), 1);
}

#[test]
fn an_overflow_that_save_cannot_acknowledge_is_not_the_next_sources() {
    const ACKNOWLEDGE: u32 = 0x390;
    let Plain { emon, processor, mock, memory } = Plain::new(2);
    let only = CounterSet::from_bits(1);
    let mut session = Session::take(&emon, &processor, only, &mock, &memory).unwrap();
    session.start(CYCLES).unwrap();
    // Pending, and its interrupt is not taken.
    let fed = FedEvents::new(&KEYS).unwrap();
    let mut feed = Feed::new(&fed);
    feed.add(fed.find(KEYS[0]).unwrap(), Privilege::Kernel, 0x1000).unwrap();
    mock.pass(&mut feed);
    mock.inject(Fault::Register(ACKNOWLEDGE));
    let (mut area, told) = (SavedCounters::<[SavedCounter; 4]>::new(), Cell::new(0));
    let saved = session.save(&mut area, |_| told.set(told.get() + 1));
    let fault = InterfaceError::Counters(CounterError::StateUnknown(AccessFault {
        operation: AccessOperation::Write,
        register: ACKNOWLEDGE,
        kind: AccessErrorKind::Fault,
    }));
    assert_eq!((saved, told.get()), (Err(fault), 1));
    mock.inject(Fault::None);
    let started = session.start(BRANCHES);
    service_sources(&emon, &mock, &memory, |overflow| panic!("{overflow:?}")).unwrap();
    assert_eq!(started, Err(InterfaceError::NoFreeCounter(BRANCHES)));
    session.shut_down().unwrap();
    assert_eq!(mock.with_pmu(|pmu| pmu.state()).global_status(), 0);
}

/// An interrupt comes between the stored value of the interrupt path and the register's write, which faults: sources
/// reported as running do run, and the register is unchanged or the sources are faulted.
#[test]
fn a_control_register_that_faults_under_an_interrupt_leaves_nothing_half() {
    for fault_at in 1..16 {
        for fault in [Fault::At(fault_at), Fault::From(fault_at)] {
            for others in [false, true] {
                let (configuration, emon) = machine(2, Deviations::NONE);
                let (memory, told) = (Memory::new(), Cell::new(0));
                let handler = |mock: &Mock<'_>| {
                    let _ = service_sources(&emon, mock, &memory, |_| told.set(told.get() + 1));
                };
                let mock = mock(configuration, Deviations::NONE);
                mock.on_interrupt(&handler);
                let _ = mock.with_pmu(|pmu| pmu.write(GLOBAL_CTRL, 0));
                let processor = snapshot(configuration, Deviations::NONE);
                let mut session =
                    Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
                session.start(CYCLES).unwrap();
                mock.interrupt_at(1);
                mock.inject(fault);
                let mut area = SavedCounters::<[SavedCounter; 4]>::new();
                let outcome = if others {
                    session.set_others_control(1 << 33, true)
                } else {
                    session.save(&mut area, |_| ())
                };
                mock.inject(Fault::None);
                let context = format!("{fault:?}, {others}: {outcome:?}");
                let control = mock.with_pmu(|pmu| pmu.state()).global_control();
                if others
                    && matches!(outcome, Err(InterfaceError::Counters(CounterError::Unchanged(_))))
                {
                    assert_eq!(control & 1 << 33, 0, "{context}: the register is as it was");
                }
                told.set(0);
                happen(&mock, KEYS[0], 0x4000);
                let counts = told.get() > 0;
                assert_eq!(counts, session.is_running(CYCLES), "{context}: control {control:#x}");
                session.shut_down().unwrap();
            }
        }
    }
}

#[test]
fn an_interface_without_counters_leaves_anothers_session_alone() {
    let Plain { emon, processor, mock, memory } = Plain::new(2);
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
    session.start(CYCLES).unwrap();
    let time_only = DefaultInterface::new();
    let mut other =
        Session::take(&time_only, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
    assert_eq!(other.counters().usable.bits(), 0);
    assert_eq!(other.reprogram(|overflow| panic!("{overflow:?}")).map(CounterSet::bits), Ok(0));
    other.shut_down().unwrap();
    assert!(session.is_running(CYCLES));
    session.shut_down().unwrap();
    assert_eq!(mock.with_pmu(|pmu| pmu.running().count()), 0, "a counter runs unowned");
}

mod claims {
    use super::*;

    /// Returns the claims of the next interrupts.
    fn claims(emon: &Emon, msr: &RegisterFile, memory: &CounterMemory) -> [Claim; 2] {
        let platform = FakePlatform::default();
        [(), ()]
            .map(|()| service_sources(&emon, &(&msr, &&platform), memory, |_| ()).unwrap().claim)
    }

    #[test]
    fn a_switch_without_an_overflow_leaves_no_interrupt_to_be_expected() {
        let (msr, platform, memory) =
            (RegisterFile::intel(4, false), FakePlatform::default(), Memory::new());
        let processor = intel_processor(1, 4);
        let emon = Emon::detect(&processor).unwrap();
        let mut session =
            Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        // The first may be of counters that firmware left: without a status it cannot be excluded.
        assert_eq!(claims(&emon, &msr, &memory), [Claim::Ours, Claim::NotOurs]);
        session.start(CYCLES).unwrap();
        let mut area = SavedCounters::<[SavedCounter; 4]>::new();
        session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
        assert_eq!(claims(&emon, &msr, &memory), [Claim::NotOurs; 2]);
    }

    #[test]
    fn an_interrupt_that_only_froze_the_counters_is_claimed() {
        let (msr, platform, memory) =
            (RegisterFile::intel(4, true), FakePlatform::default(), Memory::new());
        let processor = intel_processor(4, 4);
        let emon = Emon::detect(&processor).unwrap();
        Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
        msr.set(0x38E, 1 << 59);
        assert_eq!(claims(&emon, &msr, &memory)[0], Claim::Ours);
        assert_eq!(msr.get(0x390), 1 << 59);
    }
}

mod faults {
    use super::*;

    /// A running session, whose counter 0 overflowed.
    fn overflowed(fault: FileFault, then: impl FnOnce(Result<u32, u32>, bool, u32)) {
        let (msr, platform, memory) =
            (RegisterFile::intel(4, true), FakePlatform::default(), Memory::new());
        let processor = intel_processor(2, 4);
        let emon = Emon::detect(&processor).unwrap();
        let mut session =
            Session::take(&emon, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        session.start(CYCLES).unwrap();
        msr.set(0x38E, 1);
        platform.unmasked.set(0);
        msr.fail(fault);
        let serviced = service_sources(&emon, &(&msr, &platform), &memory, |_| ());
        let outcome =
            serviced.map(|serviced| serviced.overflows).map_err(|error| error.fault.register);
        then(outcome, session.is_running(CYCLES), platform.unmasked.get());
    }

    #[test]
    fn a_status_that_cannot_be_read_leaves_the_entry_masked_and_no_source_running() {
        overflowed(FileFault::Register(0x38E), |outcome, runs, unmasked| {
            assert_eq!((outcome, runs, unmasked), (Err(0x38E), false, 0));
        });
    }

    #[test]
    fn a_status_that_cannot_be_acknowledged_leaves_the_entry_masked_and_no_source_running() {
        overflowed(FileFault::WritesTo(0x390), |outcome, runs, unmasked| {
            assert_eq!((outcome, runs, unmasked), (Err(0x390), false, 0));
        });
    }

    /// The driver stopped the counters, and cannot start them again: the next start tries again.
    #[test]
    fn counters_that_cannot_be_restarted_are_by_the_next_start() {
        let (memory, writes) = (Memory::new(), Cell::new(0));
        let (configuration, emon) = machine(2, Deviations::NONE);
        let told = RefCell::new(vec![]);
        let handler = |mock: &Mock<'_>| {
            writes.set(writes.get() + 1);
            if writes.get() == 1 {
                // Stop, status, acknowledge, reload; then the restart faults twice.
                mock.inject(Fault::From(5));
            }
            let _ = service_sources(&emon, mock, &memory, |o| told.borrow_mut().push(o.source));
            mock.inject(Fault::None);
        };
        let mock = mock(configuration, Deviations::NONE);
        mock.on_interrupt(&handler);
        let processor = snapshot(configuration, Deviations::NONE);
        let mut session =
            Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
        session.start(CYCLES).unwrap();
        happen(&mock, KEYS[0], 0x1000);
        assert_eq!(*told.borrow(), [CYCLES]);
        assert!(!session.is_running(CYCLES), "they stand still");
        session.start(BRANCHES).unwrap();
        happen(&mock, KEYS[1], 0x2000);
        assert_eq!(*told.borrow(), [CYCLES, BRANCHES, BRANCHES]);
        session.shut_down().unwrap();
    }

    #[test]
    fn a_freeze_bit_that_cannot_be_read_back_is_taken_away_again() {
        let (configuration, emon) = machine(4, Deviations::NONE);
        let (memory, accesses) = (Memory::new(), Cell::new(0));
        let before_access = |mock: &Mock<'_>| {
            accesses.set(accesses.get() + 1);
            mock.inject(if [3, 4].contains(&accesses.get()) { Fault::At(1) } else { Fault::None });
        };
        let mock = mock(configuration, Deviations::NONE);
        let processor = snapshot(configuration, Deviations::NONE);
        let mut session =
            Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
        // Read and write; the read-back faults twice.
        mock.on_access(&before_access);
        assert!(matches!(
            session.freeze_on_interrupt(),
            Err(InterfaceError::Counters(CounterError::Unchanged(_)))
        ));
        let debug_control = mock.with_pmu(|pmu| pmu.read(0x1D9));
        assert_eq!(debug_control, pmu_virt::Read::Shared { value: 0, mask: 0x7FC1 });
        session.freeze_on_interrupt().unwrap();
    }
}

#[test]
fn a_saved_counter_stays_stopped_over_reprogram() {
    let Plain { emon, processor, mock, memory } = Plain::new(4);
    let mut session =
        Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
    session.start(CYCLES).unwrap();
    let mut area = SavedCounters::<[SavedCounter; 4]>::new();
    session.save(&mut area, |_| ()).unwrap();
    let enabled = || mock.with_pmu(|pmu| pmu.state()).global_control() & 1;
    assert_eq!(enabled(), 0);
    session.reprogram(|_| ()).unwrap();
    assert_eq!(enabled(), 0, "the saved counter counts");
    session.restore(&area).unwrap();
    assert_eq!(enabled(), 1);
}
