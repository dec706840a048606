//! Sources beside the documents' table: Intel's 0x20 to 0x24, and those that are added at run time; on the software
//! PMU, which knows nothing of them.

use core::cell::RefCell;
use core::num::NonZeroU64;

use pmu_core::error::CounterError;
use pmu_core::interval::{IntervalLimits, IntervalUnit};
use pmu_core::memory::EventTable;
use pmu_core::profile::{
    AddedSlot, AddedSource, AddedSources, Availability, InterfaceError, KProfileSource, Overflow,
    ProfileSource, Session,
};
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_core::windows::{PointerWidth, Rules, WindowsVersion};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, Event, EventSource, Events, GenericEvent};
use pmu_intel::{Emon, add_later_sources};
use pmu_kprofile::compat::source_list::{SOURCE_LIST_CLASS, read_source_list, write_source_list};
use pmu_tests::deviations::snapshot;
use pmu_tests::opened::{self, Memory, Mock, Table};
use pmu_tests::reports::{Report, service_reports};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviations, PmiFault};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

/// Published listings of `wpr -pmcsources`: value, Windows' name, and the counter.
const LATER: [(u32, &str, CounterSet); 5] = [
    (0x20, "LbrInserts", CounterSet::GENERAL),
    (0x21, "InstructionsRetiredFixed", CounterSet::fixed(0b001)),
    (0x22, "UnhaltedCoreCyclesFixed", CounterSet::fixed(0b010)),
    (0x23, "UnhaltedReferenceCyclesFixed", CounterSet::fixed(0b100)),
    (0x24, "TimerFixed", CounterSet::fixed(0b100)),
];

const HERTZ: u64 = 2_000_000_000;

fn source(value: u32) -> KProfileSource {
    KProfileSource::new(value).unwrap()
}

fn configuration(fixed: u8) -> Configuration {
    Configuration::Intel(IntelConfiguration::new(4, 4, fixed))
}

/// A processor of this model of family 6 with that many fixed counters.
fn processor(model: u32, fixed: u8, hybrid: bool) -> Snapshot {
    let plain = snapshot(configuration(fixed), Deviations::NONE);
    Snapshot::capture(move |leaf: u32, subleaf: u32| {
        let mut found = plain.leaf(leaf, subleaf);
        if leaf == 1 {
            found.eax = 6 << 8 | (model & 0xF) << 4 | (model >> 4) << 16;
        }
        if leaf == 7 {
            found.edx = u32::from(hybrid) << 15;
        }
        found
    })
}

const SAPPHIRE_RAPIDS: u32 = 0x8F;

fn room() -> &'static AddedSources {
    Box::leak(Box::new(AddedSources::<[AddedSlot; 6]>::new()))
}

fn values(added: &AddedSources) -> Vec<u32> {
    added.iter().map(|source| source.row().source().value()).collect()
}

fn keys() -> [EventKey; 4] {
    let fixed = |counter| EventKey::fixed(counter).unwrap();
    [EventKey::general(0xCC, 0x20), fixed(0), fixed(1), fixed(2)]
}

type Pair<'a> = Events<'a, Emon, (), &'static AddedSources>;

/// A machine of one processor on which the sources of `added` may run, beside the table's.
struct Machine {
    emon: Emon,
    snapshot: Snapshot,
    added: &'static AddedSources,
    table: Table,
    memory: Memory,
    reports: RefCell<Vec<Report>>,
}

impl Machine {
    fn new() -> Self {
        let snapshot = processor(SAPPHIRE_RAPIDS, 3, false);
        let added = room();
        add_later_sources(added, &snapshot, Rules::LATEST, NonZeroU64::new(HERTZ)).unwrap();
        let emon = Emon::detect(&snapshot).unwrap();
        let (table, memory) = (Table::new(), Memory::new());
        Self { emon, snapshot, added, table, memory, reports: RefCell::default() }
    }

    fn run(
        &self,
        only: CounterSet,
        test: impl for<'s> FnOnce(&Mock<'_>, &mut Session<'s, Pair<'s>, &Mock<'_>>),
    ) {
        let pair = Events::new(&self.emon, &self.table).adding(self.added);
        let pmu = VirtualPmu::new(configuration(3), FedEvents::new(&keys()).unwrap()).unwrap();
        let mock = Mock::strict(pmu);
        let handler = |mock: &Mock<'_>| {
            let report = |report| self.reports.borrow_mut().push(report);
            service_reports(&pair, mock, &self.memory, report).unwrap();
        };
        mock.on_interrupt(&handler);
        let session = Session::take(pair, &self.snapshot, only, &mock, &self.memory);
        let mut session = session.unwrap();
        test(&mock, &mut session);
        session.shut_down().unwrap();
        assert_eq!(opened::running(&mock), CounterSet::NONE);
    }

    /// The sources whose intervals passed, and the events that each stands for.
    fn take_sources(&self) -> Vec<(u32, u64, CounterId)> {
        let of_source = |report| match report {
            Report::Source(Overflow { source, events, counter }) => {
                (source.value(), events, counter)
            }
            Report::Event(event) => panic!("{event:?}"),
        };
        self.reports.take().into_iter().map(of_source).collect()
    }
}

/// So many of the event of a source happen.
fn happen(mock: &Mock<'_>, place: usize, count: u64) {
    let events = FedEvents::new(&keys()).unwrap();
    let mut feed = Feed::new(&events);
    feed.add(events.find(keys()[place]).unwrap(), Privilege::User, count).unwrap();
    mock.advance(&mut feed);
}

/// An interval of the timer's default is 1 ms, a thousandth of an event at 1 Hz.
#[test]
fn a_timer_whose_interval_is_less_than_an_event_is_refused_and_not_silent() {
    let machine = Machine::new();
    let timer = machine.added.remove(source(0x24)).unwrap();
    machine.added.add_timer(timer, NonZeroU64::MIN).unwrap();
    machine.run(CounterSet::ALL, |_, session| {
        let refused = session.start(source(0x24));
        assert!(
            matches!(refused, Err(InterfaceError::Counters(CounterError::Period(1)))),
            "{refused:?}"
        );
        assert!(!session.is_running(source(0x24)));
    });
}

#[test]
fn each_later_source_interrupts_on_its_counter_each_time_that_its_interval_has_passed() {
    let machine = Machine::new();
    machine.run(CounterSet::ALL, |mock, session| {
        // The default of a counter source; and 1 ms at 2 GHz.
        let defaults = [65_536, 65_536, 65_536, 65_536, HERTZ / 1000];
        for ((place, (value, _, counters)), interval) in LATER.into_iter().enumerate().zip(defaults)
        {
            let (source, place) = (source(value), place.min(3));
            assert_eq!(session.query(source).availability, Availability::Verified);
            session.start(source).unwrap();
            assert!(session.is_running(source));
            assert_eq!(session.start(source), Err(InterfaceError::AlreadyStarted(source)));
            assert!(opened::running(mock).without(counters).is_empty(), "{value:#x}");
            happen(mock, place, interval - 1);
            assert_eq!(machine.take_sources(), [], "{value:#x}");
            assert_eq!(session.read(source), Ok(interval - 1));
            happen(mock, place, 1);
            let reported = machine.take_sources();
            assert_eq!(reported.len(), 1);
            assert_eq!((reported[0].0, reported[0].1), (value, interval));
            assert!(counters.contains(reported[0].2), "{value:#x} on {:?}", reported[0].2);
            happen(mock, place, 3 * interval);
            assert_eq!(machine.take_sources().len(), 3);
            session.stop(source).unwrap();
            assert_eq!(session.stop(source), Err(InterfaceError::NotStarted(source)));
            assert_eq!(session.read(source), Err(InterfaceError::NotStarted(source)));
            happen(mock, place, 3 * interval);
            assert_eq!(machine.take_sources(), [], "a stopped source is silent");
        }
    });
}

/// The fixed counters' shared control, by the data file.
#[test]
fn a_fixed_counter_counts_at_every_privilege_level_and_interrupts() {
    let fields = ["EN0_OS", "EN0_USR", "PMI0"];
    let bits: u64 = fields.map(|name| pmu_tests::field("IA32_FIXED_CTR_CTRL", name)).iter().sum();
    let machine = Machine::new();
    machine.run(CounterSet::ALL, |mock, session| {
        session.start(source(0x21)).unwrap();
        assert_eq!(mock.with_pmu(|pmu| pmu.read(0x38D)), pmu_virt::Read::Value(bits));
    });
}

/// 0x23 and 0x24 are one counter; those of the table run on the others.
#[test]
fn sources_of_one_fixed_counter_exclude_each_other_and_no_other_source() {
    let machine = Machine::new();
    machine.run(CounterSet::ALL, |_, session| {
        for value in [0x21, 0x22, 0x23, 0x19, 0x1A, 0x1D, 0x20] {
            session.start(source(value)).unwrap();
        }
        let timer = source(0x24);
        assert_eq!(session.start(timer), Err(InterfaceError::NoFreeCounter(timer)));
        assert!(!session.is_running(timer));
        session.stop(source(0x23)).unwrap();
        session.start(timer).unwrap();
        let miss = source(0x1F);
        assert_eq!(session.start(miss), Err(InterfaceError::NoFreeCounter(miss)));
    });
}

#[test]
fn an_interval_that_is_set_is_taken_up_at_the_next_overflow() {
    let machine = Machine::new();
    let interface = Events::new(&machine.emon, EventTable::none()).adding(machine.added);
    machine.run(CounterSet::ALL, |mock, session| {
        for (value, place, units, events) in
            [(0x21, 1, 5000, 5000), (0x24, 3, 1221, 1221 * HERTZ / 10_000_000)]
        {
            let source = source(value);
            let before = if value == 0x21 { 65_536 } else { HERTZ / 1000 };
            session.start(source).unwrap();
            assert_eq!(interface.set_interval(source, units).unwrap().get(), units as u32);
            happen(mock, place, before - 1);
            assert_eq!(machine.take_sources(), []);
            happen(mock, place, 1);
            assert_eq!(machine.take_sources()[0].1, before);
            happen(mock, place, events);
            assert_eq!(machine.take_sources()[0].1, events);
            session.stop(source).unwrap();
        }
    });
    let limits = |value| interface.query(source(value)).limits;
    assert_eq!((limits(0x23), limits(0x24)), (IntervalLimits::EVENTS, IntervalLimits::TIME));
    assert_eq!(limits(0x24).unit, IntervalUnit::HundredNanoseconds);
    assert!(interface.set_interval(source(0x24), 1220).is_err());
    assert_eq!(interface.set_interval_clamped(source(0x20), 1).unwrap().get(), 4096);
}

#[test]
fn a_session_without_the_fixed_counters_has_none_of_their_sources() {
    let machine = Machine::new();
    machine.run(CounterSet::GENERAL, |_, session| {
        for (value, _, counters) in LATER {
            let source = source(value);
            let general = counters == CounterSet::GENERAL;
            assert_eq!(session.query(source).is_supported(), general);
            let unsupported = Err(InterfaceError::UnsupportedSource(source));
            assert_eq!(session.start(source), if general { Ok(()) } else { unsupported });
        }
    });
}

/// An event of the same counters, of another owner in the kernel, is reported as what it is.
#[test]
fn opened_events_beside_added_sources_stay_events() {
    let machine = Machine::new();
    machine.run(CounterSet::ALL, |mock, session| {
        let unit = *machine.emon.unit();
        let event = Event::generic(GenericEvent::Instructions).every(0x1000).tagged(0x22);
        let event = session.counters_mut().open(&unit, &[event]).unwrap();
        session.counters_mut().enable(event, 0).unwrap();
        session.start(source(0x22)).unwrap();
        happen(mock, 1, 0x1000);
        happen(mock, 2, 0x1_0000);
        match machine.reports.take()[..] {
            [Report::Event(first), Report::Source(second)] => {
                assert_eq!((first.event, second.source), (event, source(0x22)));
            }
            ref others => panic!("{others:?}"),
        }
        session.counters_mut().close(event, 0).unwrap();
    });
}

#[test]
fn registers_that_were_lost_are_programmed_again_for_added_sources() {
    let machine = Machine::new();
    machine.run(CounterSet::ALL, |mock, session| {
        session.start(source(0x21)).unwrap();
        session.start(source(0x20)).unwrap();
        mock.lose_registers();
        session.reprogram(|sample| panic!("{sample:?}")).unwrap();
        happen(mock, 1, 0x1_0000);
        happen(mock, 0, 0x1_0000);
        let reported: Vec<u32> = machine.take_sources().iter().map(|report| report.0).collect();
        assert_eq!(reported, [0x21, 0x20]);
    });
}

/// A guest has the counters meanwhile. An overflow that is pending before is the source's.
#[test]
fn added_sources_come_back_from_a_guests_window() {
    let machine = Machine::new();
    machine.run(CounterSet::ALL, |mock, session| {
        session.start(source(0x21)).unwrap();
        session.start(source(0x20)).unwrap();
        happen(mock, 1, 0x700);
        happen(mock, 0, 0x700);
        let before = mock.with_pmu(|pmu| pmu.state());
        let mut window = session.lend(0, |overflow| panic!("{overflow:?}")).unwrap();
        window.lent().set_programmed(true);
        for (register, value) in [(0x186, 0x53_003C), (0x309, 5), (0x30A, 6), (0x38D, 0)] {
            let written = mock.with_pmu(|pmu| pmu.write(register, value).answer);
            assert_eq!(written, pmu_virt::Write::Done);
        }
        window.end(0).unwrap();
        assert_eq!(mock.with_pmu(|pmu| pmu.state()), before);
        mock.inject_pmi(PmiFault::Lost);
        happen(mock, 1, 0x1_0000 - 0x700);
        let told = RefCell::new(vec![]);
        let events = *session.interface();
        let window = session.lend(0, |sample| {
            let source = events.overflow(&sample).map(|overflow| overflow.source.value());
            told.borrow_mut().extend(source);
        });
        window.unwrap().end(0).unwrap();
        assert_eq!((told.take(), machine.take_sources()), (vec![0x21], vec![]));
        mock.inject_pmi(PmiFault::None);
        happen(mock, 0, 0x1_0000 - 0x700);
        assert_eq!(machine.take_sources()[0].0, 0x20);
    });
}

/// A source of the table stands still meanwhile.
#[test]
fn an_added_source_runs_on_while_the_others_are_saved() {
    let machine = Machine::new();
    machine.run(CounterSet::ALL, |_, session| {
        session.start(source(0x21)).unwrap();
        session.start(KProfileSource::TOTAL_CYCLES).unwrap();
        let mut area = SavedCounters::<[SavedCounter; 16]>::new();
        session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
        assert_eq!(area.len(), 1);
        assert!(session.is_running(source(0x21)));
        assert!(!session.is_running(KProfileSource::TOTAL_CYCLES));
    });
    machine.run(CounterSet::ALL, |mock, session| {
        session.start(source(0x21)).unwrap();
        let mut area = SavedCounters::<[SavedCounter; 16]>::new();
        session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
        happen(mock, 1, 0x1_0000);
        let reported: Vec<u32> = machine.take_sources().iter().map(|report| report.0).collect();
        assert_eq!(reported, [0x21]);
    });
}

#[test]
fn a_source_is_added_and_removed_while_others_run() {
    static TAKEN: AddedSource = AddedSource::new(
        ProfileSource::new(0x25, "ProfileTakenBranches", EventSelect::from_bits(0x3_20CC)),
        CounterSet::GENERAL,
    );
    static OF_TABLE: AddedSource = AddedSource::new(
        ProfileSource::new(0x19, "ProfileMine", EventSelect::from_bits(0x3_00FF)),
        CounterSet::GENERAL,
    );
    let machine = Machine::new();
    let taken = source(0x25);
    machine.run(CounterSet::ALL, |mock, session| {
        session.start(source(0x21)).unwrap();
        assert_eq!(session.start(taken), Err(InterfaceError::UnsupportedSource(taken)));
        machine.added.add(&TAKEN).unwrap();
        assert_eq!(machine.added.add(&TAKEN), Err(InterfaceError::Exists(taken)));
        assert_eq!(machine.added.add(&OF_TABLE), Err(InterfaceError::Full { room: 6 }));
        session.start(taken).unwrap();
        happen(mock, 0, 0x1_0000);
        assert_eq!(machine.take_sources()[0].0, 0x25);
        session.stop(taken).unwrap();
        assert!(machine.added.remove(taken).is_some_and(|removed| core::ptr::eq(removed, &TAKEN)));
        assert!(machine.added.remove(taken).is_none());
        assert_eq!(session.start(taken), Err(InterfaceError::UnsupportedSource(taken)));
        // The table's own sources stay the table's.
        machine.added.add(&OF_TABLE).unwrap();
        session.start(source(0x19)).unwrap();
        assert_eq!(
            session
                .counters_mut()
                .counter_of(
                    Events::new(&machine.emon, EventTable::none())
                        .adding(machine.added)
                        .event(source(0x19))
                        .unwrap()
                )
                .map(CounterId::is_fixed),
            Some(false)
        );
        happen(mock, 1, 0x1_0000);
        assert_eq!(machine.take_sources()[0].0, 0x21, "which ran all the time");
    });
}

/// A source that was removed before it was stopped: its overflows are no source's.
#[test]
fn a_source_that_is_removed_while_it_runs_is_reported_as_an_event() {
    let machine = Machine::new();
    machine.run(CounterSet::ALL, |mock, session| {
        session.start(source(0x21)).unwrap();
        machine.added.remove(source(0x21)).unwrap();
        happen(mock, 1, 0x1_0000);
        assert!(matches!(machine.reports.take()[..], [Report::Event(_)]));
        assert!(!session.is_running(source(0x21)));
    });
}

/// Windows has them from version 1903 on; the machine, by its fixed counters, its model and its clock.
#[test]
fn later_sources_are_of_their_versions_and_of_the_machine() {
    let hertz = NonZeroU64::new(HERTZ);
    let of = |version, width, model, fixed, hybrid, hertz| {
        let added = room();
        let rules = Rules { version, width };
        add_later_sources(added, &processor(model, fixed, hybrid), rules, hertz).unwrap();
        values(added)
    };
    use PointerWidth::{Bits32, Bits64};
    use WindowsVersion::{Windows10v1809, Windows10v1903, Windows11};
    let all = [0x20, 0x21, 0x22, 0x23, 0x24];
    for (version, width, expected) in [
        (WindowsVersion::Windows7, Bits64, &[][..]),
        (Windows10v1809, Bits64, &[]),
        (Windows10v1903, Bits64, &all),
        (Windows10v1903, Bits32, &all),
        (Windows11, Bits64, &all),
    ] {
        assert_eq!(of(version, width, SAPPHIRE_RAPIDS, 3, false, hertz), expected, "{version:?}");
    }
    let latest = |model, fixed, hybrid, hertz| of(Windows11, Bits64, model, fixed, hybrid, hertz);
    assert_eq!(latest(SAPPHIRE_RAPIDS, 3, false, None), all[..4]);
    assert_eq!(latest(SAPPHIRE_RAPIDS, 2, false, hertz), all[..3]);
    assert_eq!(latest(SAPPHIRE_RAPIDS, 0, false, hertz), all[..1]);
    assert_eq!(latest(SAPPHIRE_RAPIDS, 3, true, hertz), all[1..]);
    // Nehalem's event files have no such event.
    assert_eq!(latest(0x1A, 3, false, hertz), all[1..]);
}

/// Intel's event files (intel/perfmon): `LBR_INSERTS` of a model.
#[test]
fn inserted_branches_are_the_cores_own_event() {
    for (model, event, unit_mask) in [
        (0x2A, 0xCC, 0x20), // Sandy Bridge
        (0x3F, 0xCC, 0x20), // Haswell, server
        (0x9E, 0xCC, 0x20), // Skylake, client
        (0x6A, 0xCC, 0x20), // Ice Lake, server
        (0xCF, 0xCC, 0x20), // Emerald Rapids
        (0xBE, 0xE4, 0x01), // Gracemont
        (0xAF, 0xE4, 0x01), // Sierra Forest
    ] {
        let added = room();
        add_later_sources(added, &processor(model, 0, false), Rules::LATEST, None).unwrap();
        let select = added.iter().next().unwrap().row().select();
        assert_eq!((select.event_number(), select.event_unit_mask()), (event, unit_mask));
    }
}

/// The models of Intel's event files are those of family 6.
#[test]
fn inserted_branches_are_not_another_family_s_of_the_same_model_number() {
    // Sapphire Rapids' model number, 0x8F, in family 15 of Intel's, and in family 6 of another vendor's.
    for (signature, vendor) in [(0x8_0FF0, *b"GenuineIntel"), (0x8_06F0, *b"CentaurHauls")] {
        let plain = processor(SAPPHIRE_RAPIDS, 0, false);
        let word = |at: usize| u32::from_le_bytes(vendor[at..at + 4].try_into().unwrap());
        let vendor = [word(0), word(8), word(4)];
        let boot = Snapshot::capture(move |leaf: u32, subleaf: u32| {
            let mut found = plain.leaf(leaf, subleaf);
            match leaf {
                0 => [found.ebx, found.ecx, found.edx] = vendor,
                1 => found.eax = signature,
                _ => {}
            }
            found
        });
        let added = room();
        add_later_sources(added, &boot, Rules::LATEST, None).unwrap();
        assert!(!values(added).contains(&0x20), "{signature:#x}");
    }
}

#[test]
fn what_does_not_find_room_is_not_added_in_part() {
    let added: &'static AddedSources = Box::leak(Box::new(AddedSources::<[AddedSlot; 4]>::new()));
    let boot = processor(SAPPHIRE_RAPIDS, 3, false);
    let outcome = add_later_sources(added, &boot, Rules::LATEST, NonZeroU64::new(HERTZ));
    assert_eq!(outcome, Err(InterfaceError::Full { room: 4 }));
    assert_eq!(values(added), []);
    add_later_sources(added, &boot, Rules::LATEST, None).unwrap();
    assert_eq!(values(added), [0x20, 0x21, 0x22, 0x23]);
}

#[test]
fn later_sources_follow_the_table_in_windows_source_list_and_not_in_the_table() {
    let machine = Machine::new();
    let interface = Events::new(&machine.emon, EventTable::none()).adding(machine.added);
    assert_eq!(interface.sources().len(), 13);
    for (value, name, _) in LATER {
        assert_eq!(machine.added.named(name), Some(source(value)));
        assert_eq!(machine.added.named(&format!("Profile{name}")), Some(source(value)));
        assert_eq!(interface.row(source(value)), None);
        assert!(!machine.emon.query(source(value)).is_supported());
    }
    let mut buffer = vec![0; 4096];
    buffer[..4].copy_from_slice(&SOURCE_LIST_CLASS.to_le_bytes());
    let length = write_source_list(&interface, &mut buffer).unwrap();
    let listed: Vec<_> = read_source_list(&buffer[..length]).map(Result::unwrap).collect();
    assert_eq!(listed.len(), 18);
    for (entry, (value, name, _)) in listed[13..].iter().zip(LATER) {
        assert_eq!(
            (entry.source.value(), entry.name().collect::<String>().as_str()),
            (value, name)
        );
        let limits = if value == 0x24 { (1221, 1_000_000) } else { (4096, 0x7FFF_FFFF) };
        assert_eq!((entry.min_interval, entry.max_interval), limits);
    }
}
