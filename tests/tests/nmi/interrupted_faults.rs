//! Faults and interrupts together, on opened events: an access faults, and the performance interrupt comes at any
//! access around it. `opened/faults.rs` has the faults alone, `event_operations.rs` the interrupts alone.
//!
//! In every case other owners' registers stay as they are, no count and no report is invented, every error is a
//! register's, and a repeated shutdown gives everything back.

use core::cell::Cell;

use super::world::{Accesses, World};
use pmu::Watchdog;
use pmu_core::error::CounterError;
use pmu_core::interrupt::EventOverflow;
use pmu_core::registers::CounterId;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, EventId, Events, service};
use pmu_tests::StateRegisters;
use pmu_tests::opened::operations::*;
use pmu_tests::opened::*;
use pmu_virt::PmuState;
use pmu_virt::mock::{Deviations, Fault};

/// The other owner's fixed counter.
const OTHERS_FIXED: CounterSet = CounterSet::fixed(0b10);
/// The session's bits of the fixed counters' control: of fixed counter 0, with RDPMC user disable.
const OWN_FIXED_CONTROL: u64 = 1 << 33 | 0xF;
/// Value of the other owner's counter.
const OTHERS_VALUE: u64 = 0x1234;

/// Time of the interrupt. Accesses are counted from 1, those of the interrupts included.
#[derive(Clone, Copy, Debug)]
enum Interrupts {
    /// Every running counter overflows just before this access, and the interrupt is delivered `late` accesses later.
    At { access: u32, late: u32 },
    /// At every second of the first sixty accesses, outside of the interrupts, events 0 and 2 overflow. (An
    /// interrupted reading begins anew, so without this limit it would never end.)
    EverySecond,
}

struct Disturbed<'a> {
    processor: &'a Processor,
    scene: Scene,
    context: String,
    /// By place of the event: number of its occurrences while it was counted, by its counter's registers.
    counted: [Cell<u64>; 3],
    told: [Cell<u64>; 3],
    watchdog: Watchdog,
    interrupts: Cell<Option<Interrupts>>,
    accesses: Accesses,
    serving: Cell<bool>,
}

impl World<64> for Disturbed<'_> {
    type Plan = Interrupts;

    fn accesses(&self) -> &Accesses {
        &self.accesses
    }

    fn plan(&self) -> Option<Interrupts> {
        self.interrupts.get()
    }

    fn disturb(&self, mock: &Mock<'_>, interrupts: Interrupts, made: u32) {
        match interrupts {
            Interrupts::At { access, late } if access == made => {
                self.overflow_all(mock, [0, 1, 2].map(|place| (place, 1)), late);
            }
            Interrupts::EverySecond
                if made.is_multiple_of(2) && made < 60 && !self.serving.get() =>
            {
                [0, 2].into_iter().for_each(|place| self.happen(mock, place, PERIOD));
            }
            _ => {}
        }
    }

    fn pass(&self, mock: &Mock<'_>, place: usize, count: u64) -> (u64, bool) {
        let counts = self.scene.counts(mock, place);
        let mut feed = self.scene.happened(place, count);
        let advanced = mock.pass(&mut feed);
        let left = self.scene.left(place, &feed);
        if counts {
            self.counted[place].set(self.counted[place].get() + count - left);
        }
        (left, advanced.pmi)
    }
}

impl Disturbed<'_> {
    fn end(&self, mock: &Mock<'_>) {
        self.interrupts.set(None);
        self.accesses.deliver_late(mock);
    }

    fn told(&self, overflow: EventOverflow) {
        let (place, context) = (overflow.tag as usize, &self.context);
        let told = &self.told[place];
        told.set(told.get() + 1);
        assert!(place != 1, "{context}: {overflow:?}: it is counted only");
        assert_eq!(overflow.period, PERIOD, "{context}: {overflow:?}");
        let most = self.counted[place].get() / PERIOD;
        assert!(told.get() <= most, "{context}: {overflow:?} is invented");
        // No tick comes: event 0, which is watched, is late from its second period on.
        let late = place == 0 && told.get() > 1;
        assert_eq!(self.watchdog.is_stuck(overflow.event), late, "{context}: the watchdog");
    }
}

/// Another owner's counters beside a session.
struct Others {
    select: Option<CounterId>,
    fixed: bool,
}

impl Others {
    fn of(processor: &Processor, scene: Scene) -> Self {
        let free = processor.unit.counters() & CounterSet::GENERAL;
        let free = free.without(scene.only(processor) | scene.more(processor));
        let free = match scene.operation {
            // It is the one that is enabled.
            Operation::OthersControl => free.without(general(processor, 3)),
            _ => free,
        };
        Self { select: free.iter().next(), fixed: processor.fixed() }
    }

    fn control(&self) -> u64 {
        let general = self.select.map_or(0, |counter| counter.only().bits());
        general | if self.fixed { OTHERS_FIXED.bits() } else { 0 }
    }

    /// Enables them, for events that do not happen.
    fn set_up(&self, processor: &Processor, scene: Scene, mock: &Mock<'_>) {
        let write = |register: u32, value: u64| {
            let _ = mock.with_pmu(|pmu| pmu.write(register, value));
        };
        if let Some(counter) = self.select {
            let registers = processor.unit.counter(counter).unwrap();
            write(registers.value_register().get(), OTHERS_VALUE);
            let (event, unit_mask) = KINDS[7];
            let select = 0x53_0000 | u64::from(unit_mask) << 8 | u64::from(event);
            write(registers.control().register().get(), select);
        }
        if self.fixed && scene.operation != Operation::OthersFixedControl {
            write(0x38D, 0xB << 4);
        }
        if let Some(global) = processor.unit.global() {
            write(global.control.get(), self.control());
        }
    }

    #[track_caller]
    fn assert_untouched(
        &self,
        world: &Disturbed<'_>,
        faults: bool,
        before: &PmuState,
        mock: &Mock<'_>,
    ) {
        let Disturbed { scene, processor, context, .. } = world;
        let after = mock.with_pmu(|pmu| pmu.state());
        if let Some(counter) = self.select {
            let number = usize::from(counter.number());
            let of = |state: &PmuState| (state.selects()[number], state.general()[number]);
            assert_eq!(of(&after), of(before), "{context}: the other owner's counter");
        }
        let fixed = |state: &PmuState| state.fixed_control() & !OWN_FIXED_CONTROL;
        if scene.operation == Operation::OthersFixedControl {
            let either = [0, 0xB << 4].contains(&fixed(&after));
            assert!(either, "{context}: {:#X}", after.fixed_control());
        } else {
            assert_eq!(fixed(&after), fixed(before), "{context}: the other owner's fixed counters");
        }
        let own = scene.only(processor) | scene.more(processor);
        let own = match scene.operation {
            Operation::OthersControl => own | general(processor, 3),
            _ => own,
        };
        let global = |state: &PmuState| state.global_control() & !own.bits();
        // One that freezes its counters by the control register is released by a write of it.
        let frozen = faults && processor.freezing && !processor.freezes_by_status();
        let expected = if frozen { global(&after) & global(before) } else { global(before) };
        assert_eq!(global(&after), expected, "{context}: the other owner's control bits");
        assert_eq!(after.fixed()[1..], before.fixed()[1..], "{context}");
    }
}

/// Disturbs an operation by a fault and interrupts. `shuts_down_under_fault`: it ends by a shutdown while the fault
/// stays.
fn disturb(
    processor: &Processor,
    scene: Scene,
    fault: Fault,
    interrupts: Interrupts,
    shuts_down_under_fault: bool,
) {
    let context = format!("{processor:?}, {scene:?}, {fault:?}, {interrupts:?}");
    let transient = matches!(fault, Fault::At(_));
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let world = Disturbed {
        processor,
        scene,
        context,
        counted: Default::default(),
        told: Default::default(),
        watchdog: Watchdog::new(),
        interrupts: Cell::new(None),
        accesses: Accesses::default(),
        serving: Cell::new(false),
    };
    let context = &world.context;
    let handler = |mock: &Mock<'_>| {
        world.serving.set(true);
        let source = Events::new(&processor.unit, &table);
        let outcome = service(&source, mock, &memory, |overflow| world.told(*overflow));
        if let Err(fault) = outcome {
            assert!(!transient, "{}: {fault:?}: what passes is tried again", world.context);
        }
        world.serving.set(false);
    };
    let before_access = |mock: &Mock<'_>| world.step(mock);
    mock.on_interrupt(&handler);
    mock.on_access(&before_access);
    let others = Others::of(processor, scene);
    others.set_up(processor, scene, &mock);
    let found = mock.with_pmu(|pmu| pmu.state());

    let mut case = scene.prepare(processor, PERIOD - 1, &mock, &memory, &table);
    (0..3).for_each(|place| world.counted[place].set(PERIOD - 1));
    // The event that is only counted is about to wrap.
    let counter = case.counters.counter_of(case.events[1]).unwrap();
    let mask = processor.unit.counter(counter).unwrap().mask();
    let state = mock.with_pmu(|pmu| pmu.state());
    let values = if counter.is_fixed() { state.fixed() } else { state.general() };
    world.happen(&mock, 1, mask - values[usize::from(counter.number())]);
    world.watchdog.watch(case.events[0]);

    world.interrupts.set(Some(interrupts));
    mock.inject(fault);
    let outcome = scene.operate(processor, &mut case, |overflow| world.told(overflow));
    let context = &format!("{context}: {outcome:?}");
    let typed = |outcome: Result<(), CounterError>| match outcome {
        Ok(()) | Err(CounterError::Unchanged(_) | CounterError::Unresponsive) => {}
        Err(CounterError::StateUnknown(_)) => assert!(!transient, "{context}"),
        Err(other) => panic!("{context}: {other:?}"),
    };
    typed(outcome);
    let untouched = |faults: bool| others.assert_untouched(&world, faults, &found, &mock);
    // One that is still frozen has its interrupt to come.
    untouched(!transient || world.accesses.is_late());
    if shuts_down_under_fault {
        let under_fault = case.counters.shut_down();
        typed(under_fault);
        untouched(true);
    }
    mock.inject(Fault::None);
    world.end(&mock);

    let shut_down = shuts_down_under_fault || scene.operation == Operation::ShutDown;
    if !shut_down {
        if transient {
            assert_eq!(outcome, Ok(()), "{context}: what passes is survived");
        } else {
            // A permanent fault is repaired by reprogramming.
            let anew = case.counters.reprogram(|overflow| world.told(*overflow));
            assert!(anew.is_ok(), "{context}: {anew:?}");
        }
        // Events between reading and loading a running counter are lost.
        let within = matches!(scene.operation, Operation::Reprogram | Operation::Suspend);
        let exact = transient && !(within && matches!(interrupts, Interrupts::EverySecond));
        continue_software(&world, &mut case, &mock, exact, context);
    }
    case.counters.shut_down().unwrap();
    given_back(processor, scene, &found, &mock, context);
    untouched(false);
    // The memory, too.
    let told: Vec<u64> = world.told.iter().map(Cell::get).collect();
    (0..3).for_each(|place| world.happen(&mock, place, 2 * PERIOD));
    assert_eq!(told, world.told.iter().map(Cell::get).collect::<Vec<_>>(), "{context}: not silent");
    let mut counters = processor.take_only(scene.only(processor), &mock, &memory, &table);
    assert_eq!(counters.counters().usable, scene.only(processor), "{context}");
    counters.shut_down().unwrap();
}

/// Asserts that running events are counted, and reported once per period; counts are lost only under a permanent
/// fault, and none is invented.
fn continue_software(
    world: &Disturbed<'_>,
    case: &mut Case<'_, '_>,
    mock: &Mock<'_>,
    exact: bool,
    context: &str,
) {
    let stopped: EventId = case.events[2];
    let ends = matches!(
        world.scene.operation,
        Operation::Stop | Operation::Close | Operation::ApplyPeriod
    );
    for place in 0..3 {
        let event = case.events[place];
        if case.counters.counter_of(event).is_none() {
            assert!(!world.scene.counts(mock, place), "{context}: {place} runs for nothing");
            let lost = !exact
                || event == stopped && !matches!(case.thread[0], ThreadEvent::Opened(_))
                || matches!(world.scene.operation, Operation::Rotate | Operation::StartExclusive);
            assert!(lost, "{context}: {place} does not run");
            continue;
        }
        let counted = world.counted[place].get();
        let value = case.counters.read(event, 2).unwrap().value;
        assert!(value <= counted, "{context}: {place}: {value} of {counted} counted");
        if exact {
            assert_eq!(value, counted, "{context}: {place}");
        }
        // To the middle of a period, from any point of it.
        let before = world.told[place].get();
        let goal = (counted / PERIOD + 3) * PERIOD + PERIOD / 2;
        world.happen(mock, place, goal - counted);
        assert_eq!(world.counted[place].get(), goal, "{context}: {place} does not count");
        let now = case.counters.read(event, 3).unwrap().value;
        assert_eq!(now - value, goal - counted, "{context}: {place}");
        let told = world.told[place].get();
        if place != 1 {
            let due = if exact {
                goal / PERIOD - u64::from(ends && event == stopped)
            } else {
                before + 2
            };
            assert!(told >= due, "{context}: {place} was told {told} times of {due}");
        }
    }
}

/// Asserts that no register has bits of the session's left.
fn given_back(
    processor: &Processor,
    scene: Scene,
    found: &PmuState,
    mock: &Mock<'_>,
    context: &str,
) {
    let state = mock.with_pmu(|pmu| pmu.state());
    let own = scene.only(processor) | scene.more(processor);
    for counter in (own & CounterSet::GENERAL).iter() {
        let select = state.selects()[usize::from(counter.number())];
        assert_eq!(select, 0, "{context}: {counter} is still programmed");
    }
    assert_eq!(
        state.fixed_control() & OWN_FIXED_CONTROL,
        0,
        "{context}: fixed counter 0 is still programmed"
    );
    let bits = own.bits();
    let (control, before) = (state.global_control(), found.global_control());
    assert_eq!(control & bits, before & bits, "{context}: the control register");
    assert_eq!(state.debug_control(), found.debug_control(), "{context}: it freezes");
    assert_eq!(state.global_status() & (bits | 1 << 59), 0, "{context}: an overflow is left");
}

fn accesses_of(processor: &Processor, scene: Scene) -> u32 {
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let mut case = scene.prepare(processor, PERIOD - 1, &mock, &memory, &table);
    mock.clear();
    scene.operate(processor, &mut case, |o| panic!("{o:?}")).unwrap();
    mock.accesses().total()
}

/// Every fault within an operation, and within the interrupt that comes in it.
fn everywhere(interrupts: impl Fn(u32) -> Vec<Interrupts>) {
    /// Number of accesses of about the longest interrupt.
    const OF_INTERRUPT: u32 = 8;
    for processor in processors(Deviations::NONE) {
        for scene in Scene::all(&processor) {
            for access in 1..=accesses_of(&processor, scene) + OF_INTERRUPT {
                for interrupts in interrupts(access) {
                    disturb(&processor, scene, Fault::At(access), interrupts, false);
                    for under_fault in [false, true] {
                        disturb(&processor, scene, Fault::From(access), interrupts, under_fault);
                    }
                }
            }
        }
    }
}

/// The interrupt comes up to six accesses before the one that faults, and up to two after it.
#[test]
fn an_interrupt_near_an_access_that_faults_leaves_nothing_half() {
    everywhere(|access| {
        let near = access.saturating_sub(6).max(1)..=access + 2;
        near.map(|access| Interrupts::At { access, late: 0 }).collect()
    });
}

/// The counters overflow, and the interrupt comes when the register has faulted already.
#[test]
fn an_interrupt_that_comes_late_and_meets_a_fault_leaves_nothing_half() {
    everywhere(|access| {
        let near = access.saturating_sub(3).max(1)..=access;
        near.flat_map(|access| [1, 3].map(|late| Interrupts::At { access, late })).collect()
    });
}

#[test]
fn interrupts_at_every_second_access_and_a_fault_leave_nothing_half() {
    everywhere(|_| vec![Interrupts::EverySecond]);
}

/// One register does not answer, while everything else does.
#[test]
fn a_shut_down_that_one_register_refuses_is_tried_again() {
    for processor in processors(Deviations::NONE) {
        let of_counters = processor.unit.iter().flat_map(|(_, counter)| {
            [counter.control().register().get(), counter.value_register().get()]
        });
        // The global registers, and IA32_DEBUGCTL.
        let mut registers: Vec<u32> = of_counters
            .chain([0x38E, 0x38F, 0x390, 0x1D9])
            .chain([0xC000_0300, 0xC000_0301, 0xC000_0302])
            .collect();
        registers.dedup();
        let shut_downs =
            Scene::all(&processor).filter(|scene| scene.operation == Operation::ShutDown);
        for scene in shut_downs {
            for register in &registers {
                for access in 1..12 {
                    let interrupts = Interrupts::At { access, late: 0 };
                    disturb(&processor, scene, Fault::Register(*register), interrupts, false);
                }
            }
        }
    }
}
