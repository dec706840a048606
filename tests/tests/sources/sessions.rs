//! The driver's control and interrupt path, on passive registers: its writes, its refusals, and its state after a
//! fault half way through.

use core::sync::atomic::{AtomicU32, Ordering};

use super::support::*;
use pmu_amd::Amd64;
use pmu_core::access::AccessOperation;
use pmu_core::error::CounterError;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{
    Availability, DefaultInterface, InterfaceError, KProfileSource, NtStatus, Session,
};
use pmu_core::registers::Counter;
use pmu_core::testing::{Access, RecordingMsr, ScriptedRegisters};
use pmu_core::{CounterSet, CounterUnit, EventSource};
use pmu_intel::Emon;
use pmu_kprofile::compat::source_list::{SOURCE_LIST_CLASS, read_source_list, write_source_list};
use pmu_tests::{FakePlatform, Fault, RegisterFile, Row, amd_processor, data, intel_processor};

/// Every declared select is loaded with zero first; then each counter is verified.
#[test]
fn initialize_zeroes_the_selects_and_proves_the_counters() {
    let interface = emon(1, 2);
    let script = [
        Access::write(0x186, 0),
        Access::write(0x187, 0),
        Access::write(0xC1, 0x0135_7AC0),
        Access::write(0xC2, 0x0135_7AC1),
        Access::read(0xC1, 0x0135_7AC0),
        Access::read_counter(0, 0x0135_7AC0),
        Access::read(0xC2, 0x0135_7AC1),
        Access::read_counter(1, 0x0135_7AC1),
        Access::write(0xC1, 0),
        Access::write(0xC2, 0),
    ];
    let (msr, platform, memory) =
        (ScriptedRegisters::new(&script), FakePlatform::default(), Memory::new());
    let session = Session::take(
        &interface,
        &intel_processor(1, 2),
        CounterSet::GENERAL,
        (&msr, &platform),
        &memory,
    )
    .unwrap();
    msr.finish();
    assert_eq!(platform.unmasked.get(), 1);
    assert_eq!(session.query(CYCLES).availability, Availability::Verified);
    assert_eq!(interface.query(CYCLES).availability, Availability::Declared);
}

/// The encodings of SDM vol. 3B and APM vol. 2: event, unit mask, USR, OS, INT and EN.
#[test]
fn start_loads_the_counter_and_then_the_select() {
    let (msr, platform, memory) =
        (RegisterFile::intel(4, false), FakePlatform::default(), Memory::new());
    let interface = emon(1, 4);
    interface.set_interval(BRANCHES, 0x1234).unwrap();
    let mut session = open(&interface, &msr, &platform, &memory);
    msr.take_writes();
    session.start(BRANCHES).unwrap();
    assert_eq!(msr.take_writes(), [(0xC1, (1 << 48) - 0x1234), (0x186, 0x0053_00C4)]);
    session.start(CYCLES).unwrap();
    assert_eq!(msr.take_writes(), [(0xC2, (1 << 48) - 0x1_0000), (0x187, 0x0053_003C)]);
    session.stop(BRANCHES).unwrap();
    assert_eq!(msr.take_writes(), [(0x186, 0)]);

    let (msr, memory, interface) = (RegisterFile::amd(), Memory::new(), Amd64::declared());
    let mut session = open(&interface, &msr, &platform, &memory);
    msr.take_writes();
    session.start(source(0xAA)).unwrap();
    let expected = [(0xC001_0004, (1 << 48) - 0x1_0000), (0xC001_0000, 0x0053_0FEC)];
    assert_eq!(msr.take_writes(), expected);
}

/// Runs a check against the Intel and against the AMD driver.
fn both(check: impl Fn(&dyn Fn(&dyn Fn(&mut dyn Control, &RegisterFile, &FakePlatform)))) {
    check(&|body| {
        for (version, global) in [(1, false), (2, true), (4, true)] {
            let (interface, memory) = (emon(version, 4), Memory::new());
            let (msr, platform) = (RegisterFile::intel(4, global), FakePlatform::default());
            body(&mut open(&interface, &msr, &platform, &memory), &msr, &platform);
        }
        let (interface, memory) = (Amd64::declared(), Memory::new());
        let (msr, platform) = (RegisterFile::amd(), FakePlatform::default());
        body(&mut open(&interface, &msr, &platform, &memory), &msr, &platform);
    });
}

/// A session of either vendor.
trait Control {
    fn start(&mut self, source: KProfileSource) -> Result<(), InterfaceError>;
    fn stop(&mut self, source: KProfileSource) -> Result<(), InterfaceError>;
    fn is_running(&self, source: KProfileSource) -> bool;
    fn shut_down(&mut self) -> Result<(), InterfaceError>;
    fn selects(&self) -> Vec<u32>;
    fn counters(&self) -> Vec<u32>;
}

impl<I: EventSource> Control for Session<'_, &I, (&RegisterFile, &FakePlatform)> {
    fn start(&mut self, source: KProfileSource) -> Result<(), InterfaceError> {
        Session::start(self, source)
    }
    fn stop(&mut self, source: KProfileSource) -> Result<(), InterfaceError> {
        Session::stop(self, source)
    }
    fn is_running(&self, source: KProfileSource) -> bool {
        Session::is_running(self, source)
    }
    fn shut_down(&mut self) -> Result<(), InterfaceError> {
        Session::shut_down(self)
    }
    fn selects(&self) -> Vec<u32> {
        let interface = self.interface();
        general(interface.unit()).map(|counter| counter.control().register().get()).collect()
    }
    fn counters(&self) -> Vec<u32> {
        let interface = self.interface();
        general(interface.unit()).map(|counter| counter.value_register().get()).collect()
    }
}

/// The counters on which sources run.
fn general(unit: &CounterUnit) -> impl Iterator<Item = Counter> {
    unit.iter().filter(|(counter, _)| !counter.is_fixed()).map(|(_, counter)| counter)
}

#[test]
fn bad_requests_are_refused_and_change_nothing() {
    both(|with| {
        with(&|session, msr, platform| {
            let unsupported = source(0x1234);
            let before = msr.accesses();
            assert_eq!(
                session.start(unsupported),
                Err(InterfaceError::UnsupportedSource(unsupported))
            );
            assert_eq!(
                session.start(unsupported).unwrap_err().status(),
                Some(NtStatus::NOT_SUPPORTED)
            );
            assert_eq!(
                session.start(KProfileSource::ALIGNMENT_FIXUP),
                Err(InterfaceError::UnsupportedSource(KProfileSource::ALIGNMENT_FIXUP))
            );
            let stopped = InterfaceError::NotStarted(BRANCHES);
            assert_eq!(session.stop(BRANCHES), Err(stopped));
            assert_eq!(stopped.status(), Some(NtStatus::PROFILING_NOT_STARTED));
            assert_eq!(session.stop(TIME), Err(InterfaceError::NotStarted(TIME)));
            assert_eq!(session.stop(unsupported), Err(InterfaceError::NotStarted(unsupported)));
            platform.timerless.set(true);
            assert!(matches!(session.start(TIME), Err(InterfaceError::Platform(_))));
            assert!(!session.is_running(TIME));
            assert_eq!(msr.accesses(), before, "no register was touched");

            session.start(BRANCHES).unwrap();
            let before = msr.accesses();
            assert_eq!(session.start(BRANCHES), Err(InterfaceError::AlreadyStarted(BRANCHES)));
            // Three more fill the four counters; aliases are sources of their own.
            for value in [0x02, 0x0B, 0x1A] {
                session.start(source(value)).unwrap();
            }
            let after = msr.accesses();
            assert_eq!(after - before, 6);
            let full = session.start(source(0x1B)).unwrap_err();
            assert_eq!(full, InterfaceError::NoFreeCounter(source(0x1B)));
            assert_eq!(full.status(), Some(NtStatus::INSUFFICIENT_RESOURCES));
            assert_eq!(msr.accesses(), after);
            session.stop(source(0x0B)).unwrap();
            session.start(source(0x1B)).unwrap();
        });
    });
}

/// `ProfileTime` never takes a counter.
#[test]
fn time_runs_on_the_platforms_timer() {
    both(|with| {
        with(&|session, msr, platform| {
            let before = msr.accesses();
            session.start(TIME).unwrap();
            assert_eq!(platform.timer.get().map(|i| i.get()), Some(10_000));
            assert_eq!(session.start(TIME), Err(InterfaceError::AlreadyStarted(TIME)));
            session.stop(TIME).unwrap();
            assert_eq!(platform.timer.get(), None);
            assert_eq!(msr.accesses(), before);
        });
    });
}

#[test]
fn a_running_timer_takes_up_a_new_interval_when_told() {
    let interface = DefaultInterface::new();
    let (msr, platform) = (RegisterFile::new([], 0), FakePlatform::default());
    let memory = CounterMemory::<[CounterSlot; 0]>::new();
    let any = intel_processor(0, 0);
    let mut session =
        Session::take(&interface, &any, CounterSet::GENERAL, (&msr, &platform), &memory).unwrap();
    assert_eq!(session.apply_interval(TIME), Err(InterfaceError::NotStarted(TIME)));
    session.start(TIME).unwrap();
    interface.set_interval(TIME, 20_000).unwrap();
    session.apply_interval(TIME).unwrap();
    assert_eq!(platform.timer.get().map(|i| i.get()), Some(20_000));
    assert_eq!(platform.unmasked.get(), 0, "there are no counters to interrupt");
}

/// Without memory Emon goes on, with every source unsupported; Amd64 does not. "Failure to get the memory … causes all
/// profile sources to be treated as unsupported": by the session, by the machine, and in the kernel's list.
#[test]
fn no_memory() {
    let (msr, platform) = (RegisterFile::intel(4, false), FakePlatform::default());
    let none = CounterMemory::<[CounterSlot; 0]>::new();
    let interface = emon(1, 4);
    let mut session = open(&interface, &msr, &platform, &none);
    for entry in interface.sources() {
        let source = pmu_core::profile::ProfileSource::source(entry);
        assert_eq!(session.query(source).availability, Availability::Unsupported);
        assert_eq!(session.start(source), Err(InterfaceError::UnsupportedSource(source)));
    }
    assert_eq!(session.counters().without_slot.bits(), 0xF);
    session.shut_down().unwrap();
    assert_eq!(msr.accesses(), 0);
    let list = || {
        let mut buffer = [0; 1024];
        buffer[..4].copy_from_slice(&SOURCE_LIST_CLASS.to_le_bytes());
        let length = write_source_list(&interface, &mut buffer).unwrap();
        read_source_list(&buffer[..length]).map(Result::unwrap).count()
    };
    for entry in interface.sources() {
        let (source, unsupported) = (entry.source(), InterfaceError::UnsupportedSource);
        let information = interface.query(source);
        assert_eq!(information.availability, Availability::Unsupported, "{source}");
        assert_eq!(information.interval, 0, "{source}");
        assert_eq!(interface.set_interval(source, 0x2_0000), Err(unsupported(source)));
        assert_eq!(interface.set_interval_clamped(source, 1), Err(unsupported(source)));
    }
    assert_eq!(list(), 0);
    // A session of no counters needs no memory, and does not tell.
    let other = emon(1, 4);
    let (processor, only) = (intel_processor(1, 4), CounterSet::NONE);
    Session::take(&other, &processor, only, (&msr, &platform), &none).unwrap().shut_down().unwrap();
    assert!(other.query(TIME).is_supported() && other.query(CYCLES).is_supported());
    // A processor that has memory has the sources, and so has the machine.
    let memory = Memory::new();
    open(&interface, &msr, &platform, &memory).shut_down().unwrap();
    assert_eq!(list(), interface.sources().len());
    open(&interface, &msr, &platform, &none).shut_down().unwrap();
    assert_eq!(list(), interface.sources().len(), "another processor's memory is there");

    let (msr, interface) = (RegisterFile::amd(), Amd64::declared());
    let processor = amd_processor(false, 0);
    let error =
        Session::take(&interface, &processor, CounterSet::GENERAL, (&msr, &platform), &none)
            .unwrap_err();
    assert_eq!(
        error,
        InterfaceError::Counters(CounterError::InsufficientMemory { needed: 4, lent: 0 })
    );
    assert_eq!(msr.accesses(), 0);
}

/// With some, the counters that have a slot are used, and the others are named. "Initially, the Emon profile interface
/// loads zero into each of the declared Performance Event Select Registers": into theirs, too, and nothing else of them
/// is touched.
#[test]
fn too_little_memory() {
    fn check<I: Claimed>(interface: &I, msr: &RegisterFile, others: [u32; 2]) {
        let platform = FakePlatform::default();
        let three = CounterMemory::<[CounterSlot; 3]>::new();
        others.iter().for_each(|register| msr.set(*register, 7));
        let mut session = open(interface, msr, &platform, &three);
        let counters = session.counters();
        assert_eq!(
            (counters.usable.bits(), counters.without_slot.bits(), counters.unresponsive.bits()),
            (0b111, 0b1000, 0)
        );
        for value in [0x02, 0x06, 0x0B] {
            session.start(source(value)).unwrap();
        }
        let full = InterfaceError::NoFreeCounter(source(0x1A));
        assert_eq!(session.start(source(0x1A)), Err(full));
        session.shut_down().unwrap();
        let [select, value] = others.map(|register| msr.get(register));
        assert_eq!((select, value), (0, 7), "a counter without a slot");
    }
    check(&emon(1, 4), &RegisterFile::intel(4, false), [0x189, 0xC4]);
    check(&Amd64::declared(), &RegisterFile::amd(), [0xC001_0003, 0xC001_0007]);
}

/// A counter that does not answer is left out and named, and the others work.
#[test]
fn counters_that_do_not_echo_are_left_out() {
    let platform = FakePlatform::default();
    let usable = |interface: &Emon, msr: &RegisterFile| {
        let memory = Memory::new();
        let found = Session::take(
            &interface,
            &interface.processor(),
            CounterSet::GENERAL,
            (msr, &platform),
            &memory,
        );
        found.map(|mut session| {
            let counters = session.counters();
            session.start(CYCLES).unwrap();
            session.start(BRANCHES).unwrap();
            session.shut_down().unwrap();
            (counters.usable.bits(), counters.unresponsive.bits())
        })
    };
    let one = RegisterFile::intel(4, true).keeping(0xC3, 0);
    one.set(0x38F, 0b100);
    assert_eq!(usable(&emon(2, 4), &one), Ok((0b1011, 0b0100)));
    assert_eq!(one.get(0x38F), 0b100, "the bit of a counter that is left out is another owner's");
    // PMC0's select cannot be written.
    let locked = RegisterFile::intel(4, true);
    locked.fail(Fault::WritesTo(0x186));
    assert_eq!(usable(&emon(2, 4), &locked), Ok((0b1110, 0b0001)));
    // Two of three have no registers.
    let missing = RegisterFile::intel(2, false);
    assert_eq!(usable(&emon(1, 3), &missing), Ok((0b011, 0b100)));
}

#[test]
fn counters_of_which_none_answers_are_found_out() {
    let platform = FakePlatform::default();
    // As an emulator without a PMU: writes are ignored, reads are zero.
    let dead = (0xC1..0xC5).fold(RegisterFile::intel(4, false), |msr, r| msr.keeping(r, 0));
    let (interface, memory) = (emon(1, 4), Memory::new());
    let outcome = Session::take(
        &interface,
        &interface.processor(),
        CounterSet::GENERAL,
        (&dead, &platform),
        &memory,
    );
    assert_eq!(outcome.unwrap_err(), InterfaceError::Counters(CounterError::Unresponsive));
    assert_eq!(platform.unmasked.get(), 0);
    let dead = (0xC001_0004..0xC001_0008).fold(RegisterFile::amd(), |msr, r| msr.keeping(r, 0));
    let (interface, processor) = (Amd64::declared(), amd_processor(false, 0));
    let error =
        Session::take(&interface, &processor, CounterSet::GENERAL, (&dead, &platform), &memory)
            .unwrap_err();
    assert_eq!(error, InterfaceError::Counters(CounterError::Unresponsive));
    assert_eq!(error.status(), None);
}

/// To QEMU's TCG, whose `EPYC` ignores writes to counters, RDPMC is an undefined opcode: a panic with `NativeMsr`.
#[test]
fn rdpmc_is_not_executed_on_a_counter_that_rdmsr_disproves() {
    let (platform, memory) = (FakePlatform::default(), Memory::new());
    let read_counter = |msr: &RecordingMsr<&RegisterFile, 64>| {
        let accesses = msr.take();
        let by_index =
            accesses.iter().filter(|access| access.operation == AccessOperation::ReadCounter);
        by_index.map(|access| access.register).collect::<Vec<_>>()
    };
    let dead = (0xC001_0004..0xC001_0008).fold(RegisterFile::amd(), |msr, r| msr.keeping(r, 0));
    let (msr, interface) = (RecordingMsr::new(&dead), Amd64::declared());
    let processor = amd_processor(false, 0);
    let outcome =
        Session::take(&interface, &processor, CounterSet::GENERAL, (&msr, &platform), &memory);
    assert_eq!(outcome.unwrap_err(), InterfaceError::Counters(CounterError::Unresponsive));
    assert_eq!(read_counter(&msr), []);

    let one = RegisterFile::intel(4, false).keeping(0xC3, 0);
    let (msr, interface) = (RecordingMsr::new(&one), emon(1, 4));
    let session = Session::take(
        &interface,
        &interface.processor(),
        CounterSet::GENERAL,
        (&msr, &platform),
        &memory,
    )
    .unwrap();
    assert_eq!(session.counters().unresponsive.bits(), 0b0100);
    assert_eq!(read_counter(&msr), [0, 1, 3]);
}

/// After one transient fault at any access the source is either started or stopped, as the result says, and
/// everything keeps working.
#[test]
fn a_transient_fault_at_any_access_leaves_started_or_stopped() {
    both(|with| {
        for at in 0..4 {
            with(&|session, msr, _| {
                let select = session.selects()[0];
                msr.fail(Fault::Once(at));
                let started = session.start(BRANCHES);
                let runs = msr.get(select) != 0;
                assert_eq!(started.is_ok(), runs, "access {at}: {started:?}");
                assert_eq!(session.is_running(BRANCHES), runs);
                assert!(!matches!(
                    started,
                    Err(InterfaceError::Counters(CounterError::StateUnknown(_)))
                ));
                msr.fail(Fault::Never);
                if !runs {
                    session.start(BRANCHES).unwrap();
                }

                msr.fail(Fault::Once(at));
                let stopped = session.stop(BRANCHES);
                assert_eq!(stopped, Ok(()), "access {at}");
                assert_eq!(msr.get(select), 0);
                assert!(!session.is_running(BRANCHES));
                msr.fail(Fault::Never);
                session.start(BRANCHES).unwrap();
            });
        }
    });
}

/// After a permanent fault the error names the register, the source does not claim to run, and the other counters
/// continue.
#[test]
fn a_persistent_fault_is_named_and_the_counter_is_given_up() {
    both(|with| {
        with(&|session, msr, _| {
            let (select, counter) = (session.selects()[0], session.counters()[0]);
            // The counter cannot be loaded: nothing was programmed.
            msr.fail(Fault::WritesTo(counter));
            assert_eq!(
                session.start(BRANCHES),
                Err(InterfaceError::Counters(CounterError::Unchanged(write_fault(counter))))
            );
            assert_eq!(msr.get(select), 0);
            // Neither the select nor undoing it: presumed running, until shut-down.
            msr.fail(Fault::WritesTo(select));
            assert_eq!(
                session.start(BRANCHES),
                Err(InterfaceError::Counters(CounterError::StateUnknown(write_fault(select))))
            );
            assert!(!session.is_running(BRANCHES));
            assert_eq!(session.stop(BRANCHES), Err(InterfaceError::NotStarted(BRANCHES)));
            // The next start takes another counter.
            session.start(BRANCHES).unwrap();
            assert_ne!(msr.get(session.selects()[1]), 0);
            assert_eq!(
                session.shut_down(),
                Err(InterfaceError::Counters(CounterError::StateUnknown(write_fault(select))))
            );
            assert_eq!(msr.get(session.selects()[1]), 0, "the others were stopped");
            msr.fail(Fault::Never);
            assert_eq!(session.shut_down(), Ok(()));
            assert_eq!(msr.get(select), 0);
        });
        with(&|session, msr, _| {
            let select = session.selects()[0];
            session.start(BRANCHES).unwrap();
            msr.fail(Fault::From(0));
            assert_eq!(
                session.stop(BRANCHES),
                Err(InterfaceError::Counters(CounterError::StateUnknown(write_fault(select))))
            );
            assert!(!session.is_running(BRANCHES));
            msr.fail(Fault::Never);
            session.shut_down().unwrap();
            assert_eq!(msr.get(select), 0, "shut-down tries again");
        });
    });
}

/// "The generally defined profile sources … that the Emon profile interface can support are just those that map to the
/// Emon-specific profile sources": what one name sets, the other has. The Amd64 interface's map in the same way.
#[test]
fn two_names_of_a_source_have_one_interval() {
    fn check<I: Claimed>(interface: &I, rows: &[Row<'_>], msr: &RegisterFile, first: u32) {
        let mut aliases = 0;
        for row in rows {
            let Some(canonical) = row.optional("alias_of").map(|of| source(of as u32)) else {
                continue;
            };
            let alias = source(row.number("value") as u32);
            let (platform, memory) = (FakePlatform::default(), Memory::new());
            for (at, [set, other]) in [(1, [alias, canonical]), (2, [canonical, alias])] {
                let units = 0x1_2345 * at;
                interface.set_interval(set, units.into()).unwrap();
                assert_eq!(interface.query(other).interval, units, "{set}: {other}");
                let clamped = interface.set_interval_clamped(set, 1).unwrap().get();
                assert_eq!(interface.query(other).interval, clamped, "{set}: {other}");
                interface.set_interval(set, units.into()).unwrap();
                // The counter of the other name counts it.
                let mut session = open(interface, msr, &platform, &memory);
                session.start(other).unwrap();
                assert_eq!(session.query(other).interval, units);
                let value = msr.get(first) as u32;
                assert_eq!(value, units.wrapping_neg(), "{set}: {other}");
                session.shut_down().unwrap();
            }
            aliases += 1;
        }
        assert!(aliases >= 5, "{aliases}");
        // Other sources keep theirs.
        assert_eq!(interface.query(source(0x1B)).interval, 0x1_0000);
        assert_eq!(interface.query(TIME).interval, 10_000);
    }
    let (intel, amd) = (data!("emon_sources.csv"), data!("amd64_sources.csv"));
    check(&emon(1, 4), &intel, &RegisterFile::intel(4, false), 0xC1);
    check(&Amd64::declared(), &amd, &RegisterFile::amd(), 0xC001_0004);
}

/// Two tasks set the interval by two names at once: afterwards each counter has the interval that a query returns.
#[test]
fn names_that_two_tasks_set_at_once_do_not_part() {
    let interface = emon(1, 4);
    let [alias, canonical] = [0x02, 0x1A].map(source);
    let cell = |name| interface.row(name).and_then(|row| interface.intervals().get(row)).unwrap();
    let turn = AtomicU32::new(0);
    // Waits until both tasks have come as often.
    let meet = |times: u32| {
        turn.fetch_add(1, Ordering::SeqCst);
        while turn.load(Ordering::SeqCst) < 2 * times {
            core::hint::spin_loop();
        }
    };
    let set_often = |name, first: u64| {
        for round in 0..20_000 {
            meet(2 * round + 1);
            interface.set_interval(name, first + u64::from(round)).unwrap();
            meet(2 * round + 2);
            let set = interface.query(name).interval;
            let cells = [alias, canonical].map(|name| cell(name).load(Ordering::Relaxed));
            assert_eq!(cells, [set, set], "{round}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| set_often(alias, 0x1_0000));
        set_often(canonical, 0x10_0000);
    });
}
