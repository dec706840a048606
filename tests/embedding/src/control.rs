//! The control path on a painted stack: each of its operations, with registers that fault meanwhile.

use core::cell::{Cell, UnsafeCell};
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use pmu::Machine;
use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::frame::ProcessorNumber;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::profile::{
    AddedSlot, AddedSource, AddedSources, InterfaceError, KProfileSource, ProfileSource, Session,
};
use pmu_core::registers::{EventSelect, MAX_COUNTERS};
use pmu_core::thread::{SavedCounter, SavedCounters, ThreadEvent};
use pmu_core::x86::Snapshot;
use pmu_core::{
    CounterSession, CounterSet, CounterUnit, Event, EventCount, EventId, EventSource, Events,
    GenericEvent, Platform,
};
use pmu_kprofile::hardware::{Mailbox, Remote, RemoteProcessors, SourceRequest};
use pmu_kprofile::{Affinity, ProfileHardware};

use crate::machine::Apic;
use crate::{SOURCES, stack};

/// 1,024 registers, by the low bits of their numbers: every counter, select and extra register has its own place.
static REGISTERS: [AtomicU64; 0x400] = [const { AtomicU64::new(0) }; 0x400];
/// Number of a register that faults; 0: none.
static FAULTY: AtomicU32 = AtomicU32::new(0);

struct Msr;

fn register(number: u32) -> Result<&'static AtomicU64, AccessErrorKind> {
    let answers = FAULTY.load(Ordering::Relaxed) != number;
    let register = REGISTERS.get((number & 0x3FF) as usize).filter(|_| answers);
    register.ok_or(AccessErrorKind::Fault)
}

impl RegisterBackend for Msr {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        Ok(register(address.get())?.load(Ordering::Relaxed))
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        register(address.get())?.store(value, Ordering::Relaxed);
        Ok(())
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let register = register(update.register())?;
        let found = register.load(Ordering::Relaxed);
        if let Some(value) = update.apply(found) {
            register.store(value, Ordering::Relaxed);
        }
        Ok(found)
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        let first = if index.get() >> 30 & 1 != 0 { 0x309 } else { 0xC1 };
        Ok(register(first + (index.get() & 0xFF))?.load(Ordering::Relaxed))
    }
}

/// An operation, and the bytes of stack that it may take.
pub struct Operation {
    pub name: &'static str,
    pub limit: usize,
    deepest: AtomicUsize,
    succeeded: AtomicBool,
}

impl Operation {
    const fn new(name: &'static str, limit: usize) -> Self {
        Self { name, limit, deepest: AtomicUsize::new(0), succeeded: AtomicBool::new(false) }
    }

    /// Performs the operation on the painted stack.
    fn measure<R, E>(&self, operation: impl FnOnce() -> Result<R, E>) -> Option<R> {
        let (mut operation, mut result) = (Some(operation), None);
        let depth = stack::depth_of(&mut || result = operation.take().map(|operation| operation()));
        self.deepest.fetch_max(depth, Ordering::Relaxed);
        self.succeeded.fetch_or(matches!(result, Some(Ok(_))), Ordering::Relaxed);
        black_box(result)?.ok()
    }

    /// Returns the bytes of stack that it took at most.
    pub fn deepest(&self) -> usize {
        self.deepest.load(Ordering::Relaxed)
    }
}

/// Bytes that a start or a stop may take: in [`Mailbox::drain`] an interrupt's handler performs it.
const START: usize = 1024;
/// Bytes that a context switch may take, and what moves as many events as it does.
const SWITCH: usize = 1536;

macro_rules! operations {
    ($($operation:ident: $name:literal, $limit:expr;)*) => {
        $(static $operation: Operation = Operation::new($name, $limit);)*
        /// All of them.
        pub static OPERATIONS: &[&Operation] = &[$(&$operation),*];
    };
}

operations! {
    TAKE: "Session::take", SWITCH;
    SHUT_DOWN: "shut_down", START;
    DRAIN_START: "Mailbox::drain of a start", START;
    DRAIN_STOP: "Mailbox::drain of a stop", START;
    START_ADDED: "Session::start of an added source", START;
    STOP_ADDED: "Session::stop of an added source", START;
    TAKE_MORE: "take_more", START;
    GIVE_BACK: "give_back", START;
    FREEZE: "freeze_on_interrupt", START;
    OTHERS: "set_others_control, set_others_fixed_control, acknowledge_others", START;
    VIRTUALIZATION: "set_virtualization", START;
    OPEN: "open", START;
    ENABLE: "enable", START;
    ENABLE_IF_FREE: "enable_if_free", START;
    READ: "read", START;
    VIEW: "user_view", START;
    DISABLE: "disable", START;
    CLOSE: "close", START;
    OPEN_GROUP: "open of a group", START;
    ENABLE_GROUP: "enable of a group", SWITCH;
    READ_GROUP: "read_group", START;
    DISABLE_GROUP: "disable of a group", START;
    CLOSE_GROUP: "close of a group", START;
    ROTATE: "rotate", SWITCH;
    SWITCH_OUT: "switch_out", SWITCH;
    SWITCH_IN: "switch_in", SWITCH;
    SAVE: "save", SWITCH;
    RESTORE: "restore", SWITCH;
    REPROGRAM: "reprogram_all", SWITCH;
}

type Table = EventTable<[EventEntry; 24]>;
type OneSession =
    Session<'static, Events<'static, Machine, (), &'static AddedSources>, (Msr, Apic)>;

static EVENTS: Table = EventTable::new();
static MEMORY: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new();
static MAILBOX: Mailbox<2> = Mailbox::new();

struct Place<T>(UnsafeCell<Option<T>>);
// SAFETY: the program has one thread.
unsafe impl<T> Sync for Place<T> {}
/// The session that the mailbox's requests are for.
static SESSION: Place<OneSession> = Place(UnsafeCell::new(None));

/// The requester is processor 0, and the session that of processor 1.
struct TwoProcessors(Cell<u16>);

impl RemoteProcessors for TwoProcessors {
    fn this_processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(self.0.get())
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        Affinity::first(2)
    }
    fn supports(&self, _: KProfileSource) -> bool {
        true
    }
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
        // SAFETY: the only reference to it: it is put there before, and taken away after the request.
        let session = unsafe { (*SESSION.0.get()).as_mut() };
        match (request, session) {
            (SourceRequest::Start(source), Some(session)) => session.start(source),
            (SourceRequest::Stop(source), Some(session)) => session.stop(source),
            (_, None) => Err(InterfaceError::NoAnswer(self.this_processor())),
        }
    }
    fn interrupt(&self, processor: ProcessorNumber) {
        self.0.set(processor.index() as u16);
        let operation =
            if STARTS.load(Ordering::Relaxed) == 1 { &DRAIN_START } else { &DRAIN_STOP };
        operation.measure(|| {
            MAILBOX.drain(self);
            Ok::<_, ()>(())
        });
        self.0.set(0);
    }
    fn keep_waiting(&self, _: u64) -> bool {
        false
    }
}

/// 1: the next request is a start.
static STARTS: AtomicUsize = AtomicUsize::new(0);

/// Starts and stops sources through the mailbox. Returns the session.
fn drain(session: OneSession, starts: bool) -> Option<OneSession> {
    let mut remote = Remote::new(&MAILBOX, TwoProcessors(Cell::new(0)));
    STARTS.store(starts.into(), Ordering::Relaxed);
    // SAFETY: nothing else uses it.
    unsafe { *SESSION.0.get() = Some(session) };
    for source in SOURCES.into_iter().chain([LATER.row().source()]) {
        let processor = ProcessorNumber::from_index(1);
        let _ =
            if starts { remote.start(processor, source) } else { remote.stop(processor, source) };
    }
    // SAFETY: nothing else uses it.
    unsafe { (*SESSION.0.get()).take() }
}

/// Opens events on every kind of counter, some of which exclude each other: alone, and in groups, with extra registers.
struct Opened {
    alone: [Option<EventId>; 12],
    groups: [Option<EventId>; 3],
}

impl Opened {
    fn open<S: EventSource, P: Platform>(
        unit: &CounterUnit,
        counters: &mut CounterSession<'_, S, (Msr, P)>,
    ) -> Self {
        let raw = |event| Event::raw(EventSelect::from_bits(event));
        // SAFETY: places in memory.
        let [first, second] = unsafe { [RegisterAddress::new(0x1A6), RegisterAddress::new(0x1A7)] };
        let refined = |value| raw(0x01B7).with_extra(first, value).or_with_extra(0x01BB, second);
        let on = |bits| raw(0x01D1).on(CounterSet::from_bits(bits));
        let alone = [
            Event::generic(GenericEvent::Instructions),
            raw(0x01D1).with_total().every(1 << 40).rotating(),
            on(0b0011),
            on(0b0110).rotating(),
            on(0b1100).every(0x1000),
            on(0b1_1000).rotating(),
            refined(1).rotating(),
            refined(2),
            refined(3).rotating(),
            raw(0x02D1).rotating(),
            raw(0x03D1).rotating(),
            on(0b1).rotating(),
        ];
        let alone = alone.map(|event| OPEN.measure(|| counters.open(unit, &[event])));
        let groups = [
            [on(0b0111).rotating(), refined(1), raw(0x04D1)],
            [refined(2).rotating(), refined(4), on(0b1111)],
            [Event::generic(GenericEvent::Cycles), on(0b1_0011), refined(2)],
        ];
        let groups = groups.map(|events| OPEN_GROUP.measure(|| counters.open(unit, &events)));
        Self { alone, groups }
    }

    fn each_alone(&self) -> impl Iterator<Item = EventId> {
        self.alone.iter().flatten().copied()
    }

    fn each_group(&self) -> impl Iterator<Item = EventId> {
        self.groups.iter().flatten().copied()
    }
}

/// Starts, turns, switches and stops a processor's events.
fn count<S: EventSource, P: Platform>(
    unit: &CounterUnit,
    counters: &mut CounterSession<'_, S, (Msr, P)>,
    opened: &Opened,
) -> Option<()> {
    for event in opened.each_alone().take(3) {
        ENABLE_IF_FREE.measure(|| counters.enable_if_free(event, 1));
    }
    for group in opened.each_group() {
        ENABLE_GROUP.measure(|| counters.enable(group, 1));
    }
    for event in opened.each_alone() {
        ENABLE.measure(|| counters.enable(event, 2));
    }
    for turn in 0..8 {
        ROTATE.measure(|| counters.rotate(3 + turn));
    }
    VIRTUALIZATION.measure(|| counters.set_virtualization(true));
    for event in opened.each_alone() {
        READ.measure(|| counters.read(event, 20));
        VIEW.measure(|| counters.user_view(event, 20));
    }
    for group in opened.each_group() {
        READ_GROUP.measure(|| counters.read_group(group, 21, &mut [EventCount::default(); 3]));
    }
    let mut thread = [ThreadEvent::Unused; 12];
    let groups = opened.each_group().take(2).flat_map(|group| counters.group_events(group));
    let events = opened.each_alone().step_by(2).chain(groups);
    thread.iter_mut().zip(events).for_each(|(place, event)| *place = ThreadEvent::Opened(event));
    for turn in 0..4 {
        SWITCH_OUT.measure(|| counters.switch_out(&mut thread, 30 + turn, |_| ()));
        SWITCH_IN.measure(|| counters.switch_in(unit, &mut thread, 31 + turn));
        thread.reverse();
    }
    for group in opened.each_group() {
        DISABLE_GROUP.measure(|| counters.disable(group, 40));
        CLOSE_GROUP.measure(|| counters.close(group, 41));
    }
    for event in opened.each_alone().take(6) {
        DISABLE.measure(|| counters.disable(event, 42));
    }
    Some(())
}

/// Changes what is the session's, beside running events.
fn share<S: EventSource, P: Platform>(
    unit: &CounterUnit,
    counters: &mut CounterSession<'_, S, (Msr, P)>,
    opened: &Opened,
) {
    FREEZE.measure(|| counters.freeze_on_interrupt());
    OTHERS.measure(|| counters.set_others_control(1 << 40, true));
    OTHERS.measure(|| counters.set_others_fixed_control(0xF000, 0));
    OTHERS.measure(|| counters.acknowledge_others(1 << 62));
    for event in opened.each_alone() {
        CLOSE.measure(|| counters.close(event, 50));
    }
    let last = CounterSet::from_bits(1 << 34 | 1 << 7);
    GIVE_BACK.measure(|| counters.give_back(last));
    TAKE_MORE.measure(|| counters.take_more(unit, last));
}

/// Runs a session through every operation, with a register that faults from its initialization on (0: none).
fn session(machine: &'static Machine, processor: &Snapshot, faulty: u32) -> Option<()> {
    let both = Events::new(machine, &EVENTS).adding(&ADDED);
    let all = CounterSet::ALL;
    let mut session = TAKE.measure(|| Session::take(both, processor, all, (Msr, Apic), &MEMORY))?;
    let unit = machine.unit_of(processor);
    let opened = Opened::open(&unit, session.counters_mut());
    session = drain(session, true)?;
    FAULTY.store(faulty, Ordering::Relaxed);
    session = drain(session, false)?;
    session = drain(session, true)?;
    count(&unit, session.counters_mut(), &opened);
    let mut area = SavedCounters::<[SavedCounter; MAX_COUNTERS]>::new();
    session = drain(drain(session, false)?, true)?;
    SAVE.measure(|| session.save(&mut area, |_| ()));
    RESTORE.measure(|| session.restore(&area));
    REPROGRAM.measure(|| session.reprogram(|_| ()));
    share(&unit, session.counters_mut(), &opened);
    session = drain(session, false)?;
    SHUT_DOWN.measure(|| session.shut_down());
    FAULTY.store(0, Ordering::Relaxed);
    SHUT_DOWN.measure(|| session.shut_down())
}

/// A source of later versions than the table's.
static LATER: AddedSource = AddedSource::new(
    ProfileSource::new(0x25, "ProfileLater", EventSelect::from_bits(0x1_01D0)),
    CounterSet::GENERAL,
);
static ADDED: AddedSources<[AddedSlot; 1]> = AddedSources::new();

/// Starts and stops an added source, beside events that are opened, with a register that faults meanwhile.
fn added(machine: &'static Machine, processor: &Snapshot, faulty: u32) -> Option<()> {
    let source = LATER.row().source();
    let both = Events::new(machine, &EVENTS).adding(&ADDED);
    let all = CounterSet::ALL;
    let mut session = Session::take(both, processor, all, (Msr, Apic), &MEMORY).ok()?;
    let unit = machine.unit_of(processor);
    let opened = Opened::open(&unit, session.counters_mut());
    for event in opened.each_alone() {
        let _ = session.counters_mut().enable(event, 0);
    }
    FAULTY.store(faulty, Ordering::Relaxed);
    START_ADDED.measure(|| session.start(source));
    STOP_ADDED.measure(|| session.stop(source));
    FAULTY.store(0, Ordering::Relaxed);
    session.shut_down().ok()
}

/// Measures every operation. `None`: a step that has to succeed did not.
pub fn measure(machine: &'static Machine, processor: &Snapshot) -> Option<()> {
    let selects = 0x186..0x18E;
    let counters = (0xC1..0xC9).chain(0x4C1..0x4C9).chain(0x309..0x30C);
    let others = [0x1A6, 0x1A7, 0x38D, 0x38E, 0x38F, 0x390];
    ADDED.add(&LATER).ok()?;
    for faulty in selects.chain(counters).chain(others).chain([0]) {
        session(machine, processor, faulty)?;
        added(machine, processor, faulty)?;
    }
    let covered = OPERATIONS.iter().all(|operation| operation.succeeded.load(Ordering::Relaxed));
    covered.then_some(())
}
