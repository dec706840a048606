//! Zen 3, which samples branches after the overflow of a counter (BRS): a mock of its counters, and the registers of
//! the sampling beside it. PPR of family 19h, models 00h to 0Fh: `DebugExtnCtl`, and `SamplingBranchFrom` and `…To`.

use core::cell::{Cell, RefCell};

use pmu::core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu::core::frame::PlainFrame;
use pmu::core::x86::Snapshot;
use pmu::perf::PerfEventAttr;
use pmu::{X86, X86Kernel};
use pmu_core::Platform;
use pmu_tests::StateRegisters;
use pmu_tests::opened::Random;
use pmu_virt::configuration::{AmdConfiguration, Configuration};
use pmu_virt::mock::MockMsr;
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

use crate::kernel::{Everything, Port, World};
use crate::machine::{attr, bytes};
use crate::records::{Record, read_count, read_records};
use crate::subsystem::Perf;
use crate::world::{self, EINVAL, EOPNOTSUPP, Has, INTERRUPTED, System, go_to};
use crate::{BRANCHES, PERIOD, PLAIN, of, plain};

const CONTROL: u32 = 0xC000_010F;
const RECORDS: core::ops::Range<u32> = 0xC001_0300..0xC001_0320;
/// Bits 4:3 of the control are always set; bit 2 samples, bit 5 says that there are records, and 19:16 are the next.
const STOPPED: u64 = 0x18;
const SAMPLING: u64 = 1 << 2;
const VALID: u64 = 1 << 5;
const DEPTH: u64 = 16;

const INSTRUCTIONS: EventKey = EventKey::general(0xC0, 0);
const CYCLES: EventKey = EventKey::general(0x76, 0);
const TAKEN: EventKey = EventKey::general(0xC4, 0);

/// Taken branches, sampled with the branches.
fn taken() -> Vec<u8> {
    bytes("cpu/event=0xc4,period=4096/", true)
}

type Mock = MockMsr<'static, 64>;

/// The processor.
struct Zen3 {
    mock: Mock,
    events: FedEvents,
    control: Cell<u64>,
    records: RefCell<[u64; 32]>,
    /// The number of branches since the overflow whose interrupt is held.
    held: Cell<Option<u64>>,
}

thread_local! {
    static ZEN_3: Cell<Option<&'static Zen3>> = const { Cell::new(None) };
}

fn zen_3() -> &'static Zen3 {
    ZEN_3.get().unwrap()
}

impl Zen3 {
    fn happen(&self, key: EventKey, count: u64) {
        let mut feed = Feed::new(&self.events);
        feed.add(self.events.find(key).unwrap(), Privilege::User, count).unwrap();
        self.mock.advance(&mut feed);
    }

    /// Takes a branch. An overflow while the processor samples is held until 16 more branches are taken.
    fn branch(&self, from: u64) {
        if let Some(taken) = self.held.get() {
            let place = 2 * (taken % DEPTH) as usize;
            self.records.borrow_mut()[place..place + 2].copy_from_slice(&[from, from + 0x10]);
            self.held.set(Some(taken + 1));
            let next = (taken + 1) % DEPTH;
            self.control.set(self.control.get() & !(0xF << 16) | VALID | next << 16);
        }
        let mut feed = Feed::new(&self.events);
        feed.add(self.events.find(TAKEN).unwrap(), Privilege::User, 1).unwrap();
        let overflows = self.mock.pass(&mut feed).pmi;
        if !self.is_sampling() {
            if overflows {
                self.mock.deliver();
            }
        } else if overflows && self.held.get().is_none() {
            self.held.set(Some(0));
        } else if self.held.get() == Some(DEPTH) {
            self.deliver_held();
        }
    }

    fn is_sampling(&self) -> bool {
        self.control.get() & SAMPLING != 0
    }

    fn deliver_held(&self) {
        if self.held.take().is_some() {
            self.mock.deliver();
        }
    }

    fn write_control(&self, value: u64) {
        assert_eq!(value & STOPPED, STOPPED, "{value:#X}");
        let stops = self.control.replace(value) & !value & SAMPLING != 0;
        if stops {
            self.deliver_held();
        }
    }
}

pub(crate) struct Registers;

impl RegisterBackend for Registers {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        match address.get() {
            CONTROL => Ok(zen_3().control.get()),
            record if RECORDS.contains(&record) => {
                Ok(zen_3().records.borrow()[(record - RECORDS.start) as usize])
            }
            _ => zen_3().mock.read(address),
        }
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        match address.get() {
            CONTROL => zen_3().write_control(value),
            record if RECORDS.contains(&record) => {
                zen_3().records.borrow_mut()[(record - RECORDS.start) as usize] = value;
            }
            _ => return zen_3().mock.write(address, value),
        }
        Ok(())
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        zen_3().mock.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        if update.register() != CONTROL {
            return zen_3().mock.update(update);
        }
        let found = zen_3().control.get();
        if let Some(value) = update.apply(found) {
            zen_3().write_control(value);
        }
        Ok(found)
    }
}

/// The port to it.
pub(crate) struct Zen3Port;

impl Port for Zen3Port {
    type Registers = Registers;
    type Architecture = X86<Everything, Self>;
    const REGISTERS: Registers = Registers;
    fn set_interrupt_masked(masked: bool) {
        match masked {
            false => zen_3().mock.unmask_performance_interrupt(),
            true => zen_3().mock.mask_performance_interrupt(),
        }
    }
}

impl X86Kernel for Zen3Port {}

pub(crate) struct Zen3Machine {
    perf: &'static Perf<World<Zen3Port>>,
}

impl Zen3Machine {
    pub(crate) fn new() -> Self {
        let configuration = Configuration::Amd(AmdConfiguration::CORE_EXTENSION);
        let events = FedEvents::new(&[INSTRUCTIONS, CYCLES, TAKEN]).unwrap();
        let mock = Mock::strict(VirtualPmu::new(configuration, events).unwrap());
        let snapshot = mock.snapshot();
        // Vermeer; CPUID 0x80000008, EBX bit 31 (APM vol. 3, appendix E).
        let snapshot = Snapshot::capture(|leaf: u32, subleaf: u32| {
            let mut found = snapshot.leaf(leaf, subleaf);
            match leaf {
                1 => found.eax = 0x00A2_0F10,
                0x8000_0000 => found.eax = found.eax.max(0x8000_0008),
                0x8000_0008 => found.ebx |= 1 << 31,
                _ => {}
            }
            found
        });
        let (control, records, held) = (Cell::new(STOPPED), RefCell::default(), Cell::new(None));
        let perf = Perf::new().unwrap();
        world::boot(perf);
        let of = &*Box::leak(Box::new(Zen3 { mock, events, control, records, held }));
        of.mock.on_interrupt(Box::leak(Box::new(|_: &Mock| {
            let frame = PlainFrame { pc: INTERRUPTED, ..PlainFrame::default() };
            let interrupted = perf.pmu.interrupt(&frame);
            assert_eq!(interrupted.error, None);
            assert!(interrupted.claim.interrupts() > 0);
        })));
        ZEN_3.set(Some(of));
        go_to(0);
        perf.pmu.processor_up(&snapshot).unwrap();
        Self { perf }
    }

    /// Takes branches from these addresses, of which each is an instruction.
    fn branches(&self, from: core::ops::Range<u64>) {
        for from in from {
            zen_3().happen(INSTRUCTIONS, 1);
            zen_3().happen(CYCLES, 1);
            zen_3().branch(from);
        }
    }
}

impl System for Zen3Machine {
    type Kernel = World<Zen3Port>;

    fn name(&self) -> String {
        String::from("Zen 3")
    }

    fn has(&self) -> Has {
        Has { counters: 6, branches: Err(EINVAL), precise: Err(EOPNOTSUPP), part: Ok(()) }
    }

    fn perf(&self) -> &'static Perf<Self::Kernel> {
        self.perf
    }

    fn work(&self, count: u64, branch: u64) {
        zen_3().branch(branch);
        zen_3().happen(INSTRUCTIONS, count);
        zen_3().happen(CYCLES, count);
    }

    fn lose_registers(&self) {
        zen_3().mock.lose_registers();
        zen_3().control.set(STOPPED);
        zen_3().held.set(None);
        zen_3().records.take();
    }

    fn read_counter(&self, number: u32) -> u64 {
        Registers.read_counter(CounterIndex::new(number)).unwrap()
    }

    fn end(self) {
        self.perf.pmu.processor_down().unwrap();
        let of = zen_3();
        assert_eq!(of.mock.with_pmu(|pmu| pmu.state()).selects(), [0; 8]);
        assert_eq!((of.control.get(), of.held.get(), of.records.take()), (STOPPED, None, [0; 32]));
        assert_eq!(of.mock.breach(), None);
    }
}

/// A model of a counter and of the sampling, which takes one branch at a time.
struct Naive {
    period: u64,
    /// Branches in all, and since the last sample.
    total: u64,
    since: u64,
    /// Those that are sampled, the newest first.
    sampled: Vec<u64>,
    samples: Vec<(u64, Vec<u64>)>,
}

impl Naive {
    const fn new() -> Self {
        Self { period: PERIOD, total: 0, since: 0, sampled: vec![], samples: vec![] }
    }

    fn branch(&mut self, from: u64) {
        (self.total, self.since) = (self.total + 1, self.since + 1);
        if self.since > self.period - DEPTH {
            self.sampled.insert(0, from);
        }
        if self.since == self.period {
            self.sample();
        }
    }

    fn sample(&mut self) {
        self.samples.push((self.period, core::mem::take(&mut self.sampled)));
        self.since = 0;
    }

    /// The event leaves its counter: an interrupt that is held comes at once, with the branches so far.
    fn leave(&mut self) {
        if self.since >= self.period - DEPTH {
            self.sample();
        }
    }

    #[track_caller]
    fn check(&mut self, records: &[Record], at: &str) {
        let found = of(records, BRANCHES).into_iter().map(|of| (of.period, of.branches));
        assert_eq!(found.collect::<Vec<_>>(), core::mem::take(&mut self.samples), "{at}");
    }
}

#[test]
fn each_period_of_taken_branches_has_its_last_sixteen() {
    let machine = Zen3Machine::new();
    let perf = machine.perf;
    let event = perf.open(&taken(), BRANCHES, None).unwrap();
    let beside = perf.open(&plain(), PLAIN, None).unwrap();
    let mut naive = Naive::new();
    let (mut taken, mut instructions, mut periods) = (0, 0, 0);
    // The branches of some periods, and of a longer one.
    for (period, number) in [(PERIOD, 5 * PERIOD + 100), (PERIOD + 5, 2 * PERIOD), (PERIOD, PERIOD)]
    {
        if period != naive.period {
            perf.set_period(event, period).unwrap();
            naive.leave();
            (naive.period, naive.since) = (period, 0);
        }
        machine.branches(taken + 1..taken + number + 1);
        for from in taken + 1..taken + number + 1 {
            instructions += 1;
            // The other counter's interrupt serves this one, too.
            if instructions % PERIOD == 0 {
                periods += 1;
                naive.leave();
            }
            naive.branch(from);
        }
        taken += number;
        let records = read_records(perf);
        naive.check(&records, &format!("period {period}"));
        assert!(of(&records, BRANCHES).iter().all(|record| record.address == INTERRUPTED));
        assert_eq!(read_count(perf, event).unwrap().value, naive.total);
        assert_eq!(read_count(perf, beside).unwrap().value, instructions);
        assert_eq!(of(&records, PLAIN).len(), core::mem::take(&mut periods));
    }
    perf.close(event).unwrap();
    assert!(!zen_3().is_sampling());
    perf.close(beside).unwrap();
    machine.end();
}

/// Whatever takes the event from its counter, at each place of a period.
#[test]
fn the_branches_of_a_task_are_sampled_exactly_whatever_happens_in_between() {
    let machine = Zen3Machine::new();
    let perf = machine.perf;
    let mut task = vec![];
    perf.open_of(&mut task, &taken(), BRANCHES).unwrap();
    perf.switch(&mut vec![], &mut task).unwrap();
    let (mut naive, mut random, mut from) = (Naive::new(), Random(0x9E37_79B9_7F4A_7C15), 1);
    let mut held = 0;
    for turn in 0..120 {
        // Often into the branches for which an interrupt is held.
        let left = PERIOD - naive.since;
        let number = match random.below(3) {
            0 => random.below(600),
            1 => left.saturating_sub(random.below(DEPTH + 2)),
            _ => left + random.below(40),
        };
        for _ in 0..number {
            machine.branches(from..from + 1);
            naive.branch(from);
            from += 1;
        }
        let at = format!("turn {turn}, {} since the sample", naive.since);
        naive.check(&read_records(perf), &at);
        held += u64::from(zen_3().held.get().is_some());
        assert_eq!(zen_3().held.get().is_some(), naive.since >= PERIOD - DEPTH, "{at}");
        match random.below(4) {
            0 => {
                perf.switch(&mut task, &mut vec![]).unwrap();
                assert!(!zen_3().is_sampling(), "{at}");
                machine.branches(9_000_000..9_000_100);
                perf.switch(&mut vec![], &mut task).unwrap();
                naive.leave();
            }
            1 => {
                machine.suspend();
                naive.leave();
            }
            2 => {
                perf.run_guest(|| machine.branches(9_000_000..9_000_100)).unwrap();
                naive.leave();
            }
            _ => perf.tick().unwrap(),
        }
        naive.check(&read_records(perf), &format!("after {at}"));
        assert_eq!(perf.pmu.read_thread(&task[0]).unwrap().value, naive.total, "{at}");
        assert!(zen_3().is_sampling(), "{at}");
    }
    assert!(held > 20, "{held}");
    perf.switch(&mut task, &mut vec![]).unwrap();
    machine.end();
}

/// While the processor idles it does not sample.
#[test]
fn the_sampling_stops_around_an_idle_wait() {
    let machine = Zen3Machine::new();
    let perf = machine.perf;
    perf.open(&taken(), BRANCHES, None).unwrap();
    machine.branches(1..PERIOD - 5);
    assert_eq!((read_records(perf), zen_3().held.get()), (vec![], Some(10)));
    perf.pmu.before_idle().unwrap();
    let [ref record] = read_records(perf)[..] else { panic!() };
    assert_eq!(record.branches, (PERIOD - 15..PERIOD - 5).rev().collect::<Vec<_>>());
    assert!(!zen_3().is_sampling());
    perf.pmu.after_idle().unwrap();
    machine.branches(1..PERIOD + 1);
    let [ref record] = read_records(perf)[..] else { panic!() };
    assert_eq!(record.branches, (PERIOD - 15..PERIOD + 1).rev().collect::<Vec<_>>());
}

/// Linux' `amd_brs_hw_config`: other events, and those that only count, are invalid.
#[test]
fn only_taken_branches_have_branches() {
    let machine = Zen3Machine::new();
    let others = ["instructions/period=4096/", "cpu/event=0xc2,period=4096/", "cpu/event=0xc4/"];
    for text in others.into_iter().chain(["cpu/event=0xc4,period=16/"]) {
        let opened = machine.perf.open(&bytes(text, true), BRANCHES, None);
        assert_eq!(opened, Err(EINVAL), "{text}");
    }
    // A call stack.
    let mut calls = attr("cpu/event=0xc4,period=4096/");
    calls.sample_type |= PerfEventAttr::SAMPLE_BRANCH_STACK;
    calls.branch_sample_type = 1 << 11; // PERF_SAMPLE_BRANCH_CALL_STACK
    assert_eq!(machine.perf.open(&calls.to_bytes(), BRANCHES, None), Err(EINVAL));
    machine.end();
}
