//! Costs of the driver's operations in register accesses: exact, and equal to the table in tests/data/accesses.md.
//!
//! R, W and P are RDMSR, WRMSR and RDPMC; A is an unmask of the LVT entry, counted at the
//! platform.

use core::fmt;

use pmu_amd::Amd64;
use pmu_core::access::AccessOperation;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{KProfileSource, ProfileSource, Session};
use pmu_core::testing::RecordingMsr;
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, EventSource};
use pmu_intel::Emon;
use pmu_tests::reports::service_sources;
use pmu_tests::{FakePlatform, RegisterFile, amd_processor, intel_processor};

type Recorder = RecordingMsr<RegisterFile, 128>;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Cost {
    r: u32,
    w: u32,
    p: u32,
    a: u32,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [(self.r, 'R'), (self.w, 'W'), (self.p, 'P'), (self.a, 'A')];
        let parts = parts.iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{n}{kind}"));
        f.write_str(&parts.collect::<Vec<_>>().join(" "))
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn cost(r: u32, w: u32, p: u32, a: u32) -> Cost {
    Cost { r, w, p, a }
}

/// Returns the accesses since the last call.
fn take(msr: &Recorder, platform: &FakePlatform) -> Cost {
    assert_eq!(msr.dropped(), 0);
    let mut cost = Cost { a: platform.unmasked.take(), ..Cost::default() };
    for access in &msr.take() {
        *match access.operation {
            AccessOperation::Read | AccessOperation::Update => &mut cost.r,
            AccessOperation::Write => &mut cost.w,
            AccessOperation::ReadCounter => &mut cost.p,
        } += 1;
    }
    cost
}

/// A machine: its interface, its registers, and the status of an overflow of counter 0.
struct Machine<I> {
    processor: Snapshot,
    interface: I,
    registers: RegisterFile,
    freeze: bool,
    counter_0: u32,
    status: Option<(u32, u64)>,
}

fn intel(version: u32, freeze: bool) -> Machine<Emon> {
    let processor = intel_processor(version, 8);
    let registers = RegisterFile::intel(8, version >= 2);
    registers.set(0x1D9, 0);
    Machine {
        interface: Emon::detect(&processor).unwrap(),
        processor,
        registers,
        freeze,
        counter_0: 0xC1,
        // From version 4 on bit 59 shows that the counters are frozen.
        status: (version >= 2).then_some((0x38E, 1 | u64::from(freeze && version >= 4) << 59)),
    }
}

fn amd(core: bool, v2: bool) -> Machine<Amd64> {
    amd_of(amd_processor(core, if v2 { 6 } else { 0 }), core, v2)
}

/// Returns an AMD machine in a virtual machine.
fn amd_guest(core: bool, v2: bool) -> Machine<Amd64> {
    let processor = amd_processor(core, if v2 { 6 } else { 0 });
    let guest = Snapshot::capture(move |leaf, subleaf| {
        let mut answer = processor.leaf(leaf, subleaf);
        answer.ecx |= u32::from(leaf == 1) << 31;
        answer
    });
    amd_of(guest, core, v2)
}

fn amd_of(processor: Snapshot, core: bool, v2: bool) -> Machine<Amd64> {
    let registers = match (core, v2) {
        (false, _) => RegisterFile::amd(),
        (_, v2) => {
            let global = if v2 { 0xC000_0300..0xC000_0304 } else { 0..0 };
            RegisterFile::new((0xC001_0200..0xC001_020C).chain(global), 0xC001_0201).rdpmc_step(2)
        }
    };
    Machine {
        interface: Amd64::detect(&processor).unwrap(),
        processor,
        registers,
        freeze: false,
        counter_0: if core { 0xC001_0201 } else { 0xC001_0004 },
        status: v2.then_some((0xC000_0300, 1)),
    }
}

/// Measures one overflow of `n` counters, a switch out and in, one more start, and a guest's window.
fn measure<I: EventSource<Processor = Snapshot>>(
    machine: Machine<I>,
    n: usize,
) -> (Cost, Cost, Cost, Cost) {
    let Machine { processor, interface, registers, freeze, counter_0, status } = machine;
    let (msr, platform) = (Recorder::new(registers), FakePlatform::default());
    let memory = CounterMemory::<[CounterSlot; 8]>::new();
    let mut session =
        Session::take(&interface, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
            .unwrap();
    if freeze {
        session.freeze_on_interrupt().unwrap();
    }
    let sources: Vec<KProfileSource> =
        interface.sources().iter().skip(1).map(ProfileSource::source).take(n).collect();
    let (last, others) = sources.split_last().unwrap();
    for source in others {
        session.start(*source).unwrap();
    }
    take(&msr, &platform);
    session.start(*last).unwrap();
    let start = take(&msr, &platform);

    msr.inner().set(counter_0, 5);
    if let Some((register, value)) = status {
        msr.inner().set(register, value);
    }
    let serviced = service_sources(&interface, &(&msr, &platform), &memory, |_| {}).unwrap();
    assert_eq!(serviced.overflows, 1);
    let pmi = take(&msr, &platform);

    if let Some((register, _)) = status {
        msr.inner().set(register, 0);
    }
    let mut area = SavedCounters::<[SavedCounter; 8]>::new();
    session.save(&mut area, |_| panic!("nothing is pending")).unwrap();
    assert_eq!(area.len(), n);
    session.restore(&area).unwrap();
    let switch = take(&msr, &platform);
    session.lend(0, |overflow| panic!("{:?}", *overflow)).unwrap().end(0).unwrap();
    (pmi, switch, start, take(&msr, &platform))
}

#[test]
fn operations_cost_what_the_table_says() {
    for n in [1, 2, 4] {
        let m = n as u32;
        let start = cost(0, 2, 0, 0);
        let switch = cost(0, m + 2, m, 0);
        let switch_by_select = cost(0, 3 * m, m, 0);
        // Selects are written again, since a guest changes them.
        let window = cost(1, 2 * m + 2, m, 0);
        let window_by_select = switch_by_select;
        for version in [2, 3, 4, 5] {
            let found = measure(intel(version, false), n);
            assert_eq!(found, (cost(1, 4, 0, 1), switch, start, window), "v{version}, {n}");
        }
        for version in [4, 5] {
            let found = measure(intel(version, true), n);
            assert_eq!(
                found,
                (cost(1, 2, 0, 1), switch, start, window),
                "v{version} freezing, {n}"
            );
        }
        let found = measure(intel(3, true), n);
        assert_eq!(found, (cost(1, 3, 0, 1), switch, start, window), "v3 freezing, {n}");
        assert_eq!(
            measure(intel(1, false), n),
            (cost(0, 1, m, 1), switch_by_select, start, window_by_select)
        );
        let legacy = (cost(0, 1, m, 0), switch_by_select, start, window_by_select);
        assert_eq!(measure(amd(false, false), n), legacy);
        assert_eq!(measure(amd(true, false), n), legacy);
        assert_eq!(measure(amd(true, true), n), (cost(1, 2, 0, 0), switch, start, window));
        let legacy = (cost(0, 1, m, 1), switch_by_select, start, window_by_select);
        assert_eq!(measure(amd_guest(false, false), n), legacy, "a hypervisor may mask the entry");
        assert_eq!(measure(amd_guest(true, false), n), legacy);
        assert_eq!(measure(amd_guest(true, true), n), (cost(1, 2, 0, 1), switch, start, window));
    }
}

/// The rows of tests/data/accesses.md agree with the measurement, for N = 4.
#[test]
fn the_table_of_costs_is_what_is_measured() {
    let table = include_str!("../../data/accesses.md");
    let rows = [
        ("Intel, version 2 on", measure(intel(2, false), 4)),
        ("Intel, version 4 on, freezing", measure(intel(4, true), 4)),
        ("AMD, legacy and core extension", measure(amd(false, false), 4)),
        ("AMD in a guest, legacy and core extension", measure(amd_guest(false, false), 4)),
        ("AMD, PerfMonV2", measure(amd(true, true), 4)),
        ("AMD in a guest, PerfMonV2", measure(amd_guest(true, true), 4)),
    ];
    for (name, (pmi, switch, start, window)) in rows {
        let row = format!("| {name} | {pmi} | {switch} | {start} | {window} |");
        println!("{row}");
        assert!(table.contains(&row), "tests/data/accesses.md lacks: {row}");
    }
}

mod switch {
    use super::*;
    use core::cell::RefCell;

    type Control<'a, I> = Session<'a, &'a I, (&'a Recorder, &'a FakePlatform)>;

    /// Two threads with different sources take turns on one processor.
    fn take_turns<I: EventSource<Processor = Snapshot>>(machine: Machine<I>, selects: [u32; 2]) {
        let (msr, platform) = (Recorder::new(machine.registers), FakePlatform::default());
        let memory = CounterMemory::<[CounterSlot; 8]>::new();
        let (interface, processor) = (machine.interface, machine.processor);
        let mut session: Control<'_, I> =
            Session::take(&interface, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        let [a, b, c] = [0x02, 0x06, 0x0B].map(|value| KProfileSource::new(value).unwrap());
        let (mut first, mut second) =
            (SavedCounters::<[SavedCounter; 8]>::new(), SavedCounters::<[SavedCounter; 8]>::new());
        let nothing = |_| panic!("nothing is pending");
        session.start(a).unwrap();
        session.start(b).unwrap();
        msr.inner().set(machine.counter_0, msr.inner().get(machine.counter_0) + 100);
        session.save(&mut first, nothing).unwrap();
        assert!(!session.is_running(a) && !session.is_running(b));
        assert_eq!(first.len(), 2);

        // The other thread's sources do not mix with the parked ones.
        session.start(c).unwrap();
        assert_eq!(msr.inner().get(selects[1]), 0, "no counter runs without a source");
        msr.inner().set(machine.counter_0, msr.inner().get(machine.counter_0) + 7);
        let mut blocked = session.restore(&first);
        assert_eq!(
            blocked,
            Err(pmu_core::profile::InterfaceError::Counters(
                pmu_core::error::CounterError::NotRestorable
            ))
        );
        session.save(&mut second, nothing).unwrap();

        session.restore(&first).unwrap();
        assert_eq!((session.read(a), session.read(b)), (Ok(100), Ok(0)));
        blocked = session.restore(&first);
        assert_eq!(
            blocked,
            Err(pmu_core::profile::InterfaceError::Counters(
                pmu_core::error::CounterError::NotRestorable
            ))
        );
        session.save(&mut first, nothing).unwrap();
        session.restore(&second).unwrap();
        assert_eq!(session.read(c), Ok(7));
        assert!(!session.is_running(a));
        session.shut_down().unwrap();
        assert_eq!(selects.map(|select| msr.inner().get(select)), [0, 0]);
    }

    #[test]
    fn threads_with_different_sources_do_not_mix() {
        take_turns(intel(2, false), [0x186, 0x187]);
        take_turns(intel(1, false), [0x186, 0x187]);
        take_turns(amd(false, false), [0xC001_0000, 0xC001_0001]);
        take_turns(amd(true, true), [0xC001_0200, 0xC001_0202]);
    }

    /// An overflow that became pending on the way out is reported once and acknowledged, and later events stay
    /// counted.
    fn pending<I: EventSource<Processor = Snapshot>>(machine: Machine<I>) {
        let (msr, platform) = (Recorder::new(machine.registers), FakePlatform::default());
        let memory = CounterMemory::<[CounterSlot; 8]>::new();
        let (interface, processor) = (machine.interface, machine.processor);
        let mut session: Control<'_, I> =
            Session::take(&interface, &processor, CounterSet::GENERAL, (&msr, &platform), &memory)
                .unwrap();
        let source = KProfileSource::TOTAL_ISSUES;
        session.start(source).unwrap();
        msr.inner().set(machine.counter_0, 9);
        if let Some((register, value)) = machine.status {
            msr.inner().set(register, value & 1);
        }
        take(&msr, &platform);
        let told = RefCell::new(Vec::new());
        let mut area = SavedCounters::<[SavedCounter; 8]>::new();
        session
            .save(&mut area, |overflow| told.borrow_mut().extend(interface.overflow(&overflow)))
            .unwrap();
        let expected = pmu_core::profile::Overflow {
            source,
            events: 0x1_0000,
            counter: pmu_core::registers::CounterId::general(0).unwrap(),
        };
        assert_eq!(*told.borrow(), [expected]);
        let acknowledged = u32::from(machine.status.is_some());
        // With a global control register, the select is read: an overflow, or registers lost?
        assert_eq!(take(&msr, &platform), cost(acknowledged, 1 + acknowledged, 1, 0));
        // The interrupt comes after all, and is spurious.
        let serviced =
            service_sources(&interface, &(&msr, &platform), &memory, |o| panic!("{o:?}")).unwrap();
        assert_eq!(serviced.overflows, 0);
        session.restore(&area).unwrap();
        assert_eq!(session.read(source), Ok(9));
    }

    #[test]
    fn a_pending_overflow_is_neither_lost_nor_told_twice() {
        pending(intel(2, false));
        pending(intel(1, false));
        pending(amd(false, false));
        pending(amd(true, true));
    }
}

mod freezing {
    use super::*;

    /// Bit 12 of IA32_DEBUGCTL is the session's while it lives; the others have other owners.
    #[test]
    fn the_bit_is_set_and_given_back() {
        for before in [0b11, 1 << 12 | 0b11] {
            let machine = intel(4, true);
            machine.registers.set(0x1D9, before);
            let (msr, platform) = (machine.registers, FakePlatform::default());
            let memory = CounterMemory::<[CounterSlot; 8]>::new();
            let hardware = (&msr, &platform);
            let mut session = Session::take(
                &machine.interface,
                &machine.processor,
                CounterSet::GENERAL,
                hardware,
                &memory,
            )
            .unwrap();
            session.freeze_on_interrupt().unwrap();
            assert_eq!(msr.get(0x1D9), 1 << 12 | 0b11);
            msr.set(0x1D9, msr.get(0x1D9) & !1);
            session.shut_down().unwrap();
            assert_eq!(msr.get(0x1D9), before & !1);
        }
    }

    #[test]
    fn not_every_processor_can() {
        fn refused<I: EventSource<Processor = Snapshot>>(machine: Machine<I>) {
            let (msr, platform) = (machine.registers, FakePlatform::default());
            let memory = CounterMemory::<[CounterSlot; 8]>::new();
            let hardware = (&msr, &platform);
            let mut session = Session::take(
                &machine.interface,
                &machine.processor,
                CounterSet::GENERAL,
                hardware,
                &memory,
            )
            .unwrap();
            let error = session.freeze_on_interrupt();
            assert_eq!(
                error,
                Err(pmu_core::profile::InterfaceError::Counters(
                    pmu_core::error::CounterError::FreezeUnsupported
                ))
            );
        }
        refused(intel(1, false));
        refused(amd(false, false));
        refused(amd(true, true));
    }
}
