//! Hardware beside the counters of [the toy vendor](crate::toy_vendor): each event counter latches the address of the
//! instruction at which it overflows, if its bit in a register is set. [Precise](Event::precise) events ask for it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use pmu::core::access::{AccessFault, RegisterAccess, RegisterAddress, RegisterBackend};
use pmu::core::error::CounterError;
use pmu::core::facility::{Asked, EventFacility, Facility, Interrupted, Running, Unsettled};
use pmu::core::frame::PlainFrame;
use pmu::core::precise::{NotPrecise, PreciseSample, Precision, SampleParts};
use pmu::core::registers::{CounterId, EventSelect};
use pmu::core::{CounterSet, Event, SoftwareEvent};
use pmu::{Facilities, PhysicalAddress, PmuError};

use crate::toy_hardware::{BRANCHES, COUNTERS, CYCLES, Register};
use crate::toy_vendor::{
    Identification, LATCH_FAULTS, LATCHED, LATCHING, PLACE, PROCESSORS, interrupt, machine_with,
    on, shut_down, toy,
};

/// The counter of cycles latches nothing.
const LATCH: CounterSet = CounterSet::from_bits((1 << COUNTERS) - 1);

/// The latches of one processor, as a kernel lends them. All zeros: nothing is known.
#[derive(Debug)]
pub(crate) struct AddressLatches {
    are_there: AtomicBool,
    /// The counters whose events ask for addresses.
    asking: AtomicU64,
    /// Value of the register `LATCHING`, plus 1; 0 if it is unknown.
    known: AtomicU64,
    /// What the last interrupt found.
    addresses: [AtomicU64; COUNTERS],
}

impl Facilities<Identification> for AddressLatches {
    type Facility = Option<Latches>;

    const NEW: Self = Self {
        are_there: AtomicBool::new(false),
        asking: AtomicU64::new(0),
        known: AtomicU64::new(0),
        addresses: [const { AtomicU64::new(0) }; COUNTERS],
    };

    unsafe fn detect<M: RegisterBackend>(
        &'static self,
        this_processor: &Identification,
        _: &M,
        _: PhysicalAddress,
    ) {
        self.are_there.store(this_processor.latches, Relaxed);
    }

    fn facility(&'static self) -> Option<Latches> {
        let latches = Latches { memory: self, collected: CounterSet::NONE };
        self.are_there.load(Relaxed).then_some(latches)
    }
}

/// The latches, as the session and the interrupt handler use them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latches {
    memory: &'static AddressLatches,
    /// The counters whose addresses this interrupt has found.
    collected: CounterSet,
}

impl Latches {
    fn asking(&self) -> CounterSet {
        CounterSet::from_bits(self.memory.asking.load(Relaxed))
    }
}

impl Facility for Latches {
    fn is_idle(&self) -> bool {
        self.asking().is_empty()
    }

    fn collect<M: RegisterBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        self.collected = CounterSet::NONE;
        let mut outcome = Ok(0);
        for counter in (interrupted.overflowed & self.asking()).iter() {
            // SAFETY: a register of the vendor's, which is only read.
            let register = unsafe { RegisterAddress::new(LATCHED + u32::from(counter.bit())) };
            match (msr.read_retrying(register), self.memory.addresses.get(counter.bit() as usize)) {
                (Ok(address), Some(place)) => {
                    place.store(address, Relaxed);
                    self.collected = self.collected | counter.only();
                }
                (found, _) => outcome = outcome.and(found.map(|_| 0)),
            }
        }
        outcome
    }
}

impl EventFacility for Latches {
    const OFFERS: bool = true;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        if asked.precision.is_none() {
            return Ok(counters);
        }
        if (counters & LATCH).is_empty() {
            return Err(CounterError::NotPrecise(NotPrecise::NoExactCounter));
        }
        asked.precision = None;
        Ok(counters & LATCH)
    }

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let asks = |of: CounterId| running.on(of).is_some_and(|event| event.precision().is_some());
        let asking: CounterSet = running.counters().iter().filter(|of| asks(*of)).collect();
        self.memory.asking.store(asking.bits(), Relaxed);
        if self.memory.known.load(Relaxed) != asking.bits() + 1 {
            self.memory.known.store(0, Relaxed);
            // SAFETY: a register of the vendor's, which takes any value.
            let register = unsafe { RegisterAddress::new(LATCHING) };
            msr.write_retrying(register, asking.bits())
                .map_err(|fault| Unsettled { counters: asking, fault })?;
            self.memory.known.store(asking.bits() + 1, Relaxed);
        }
        Ok(())
    }

    fn lose(&self) {
        self.memory.known.store(0, Relaxed);
    }

    fn instruction(&self, counter: CounterId) -> Option<PreciseSample> {
        let place = self.memory.addresses.get(usize::from(counter.bit()))?;
        let address = self.collected.contains(counter).then(|| place.load(Relaxed))?;
        Some(PreciseSample { address: Some(address), ..PreciseSample::default() })
    }
}

// The tests.

/// Addresses of instructions, before that at which the interrupt comes.
const BRANCH: u64 = PLACE - 0x10;
const OTHER: u64 = PLACE - 0x20;

/// An event of which every 10,000th occurrence is sampled, with this tag.
fn sampled(event: u8, tag: u64) -> Event {
    Event::raw(EventSelect::from_bits(event.into())).every(10_000).tagged(tag)
}

fn precise(event: u8, tag: u64) -> Event {
    sampled(event, tag).precise(Precision::ZeroSkidRequired)
}

/// Lets events happen at an instruction of user mode, then interrupts. Returns the samples' tags and addresses.
fn execute(happening: &[(u8, u64)], times: u64) -> Vec<(u64, u64)> {
    for (event, at) in happening {
        toy().at.set(*at);
        assert_eq!(toy().happen(*event, true, times), times);
    }
    let mut samples = vec![];
    interrupt(true, |sample| {
        assert_eq!(sample.instruction().is_some(), sample.address(PLACE) != PLACE);
        samples.push((sample.tag, sample.address(PLACE)));
    });
    samples
}

fn latching() -> u64 {
    toy().read(Register::Latching)
}

#[test]
fn each_sample_of_an_interrupt_has_the_address_of_its_own_counter() {
    let pmu = machine_with(PROCESSORS);
    let events = [precise(BRANCHES, 1), sampled(BRANCHES, 2), precise(CYCLES, 3)];
    let [branches, plain, cycles] = events.map(|event| pmu.start(&event).unwrap());
    let faults = pmu.start(&Event::software(SoftwareEvent::PageFaults)).unwrap();
    assert_eq!(latching().count_ones(), 2);
    for _ in 0..3 {
        let mut samples = execute(&[(BRANCHES, BRANCH), (CYCLES, OTHER)], 10_000);
        samples.sort_unstable();
        assert_eq!(samples, [(1, BRANCH), (2, PLACE), (3, OTHER)]);
    }
    // The cycles overflow without the branches, whose address is still latched.
    assert_eq!(execute(&[(CYCLES, OTHER)], 10_000), [(3, OTHER)]);
    pmu.happened(SoftwareEvent::MinorFaults, &PlainFrame::default(), |_| ());
    assert_eq!(pmu.read(faults).unwrap().value, 1);
    pmu.disable(branches).unwrap();
    assert_eq!(latching().count_ones(), 1);
    assert_eq!(execute(&[(BRANCHES, BRANCH), (CYCLES, OTHER)], 10_000), [(2, PLACE), (3, OTHER)]);
    pmu.close(cycles).unwrap();
    assert_eq!(latching(), 0);
    assert_eq!(execute(&[(BRANCHES, BRANCH), (CYCLES, OTHER)], 10_000), [(2, PLACE)]);
    // Another event on the counter does not have the address of the former one.
    pmu.close(plain).unwrap();
    pmu.enable(branches).unwrap();
    assert_eq!(execute(&[(BRANCHES, OTHER)], 10_000), [(1, OTHER)]);
    shut_down(pmu);
}

#[test]
fn a_profile_has_the_latched_addresses() {
    let pmu = machine_with(PROCESSORS);
    let buckets = [const { AtomicU32::new(0) }; 16];
    let profile = pmu.profile(precise(BRANCHES, 0), BRANCH..BRANCH + 64, &buckets, || {
        for _ in 0..5 {
            execute(&[(BRANCHES, BRANCH)], 10_000);
        }
    });
    assert_eq!(profile.unwrap().hits().collect::<Vec<_>>(), [(BRANCH..BRANCH + 4, 5)]);
    shut_down(pmu);
}

/// What cannot be latched is refused, each for its own reason.
#[test]
fn an_event_that_no_counter_can_latch_is_not_opened() {
    let pmu = machine_with(1);
    let refused = |event: Event, why| {
        assert_eq!(pmu.open(&event).err(), Some(PmuError::Counters(CounterError::NotPrecise(why))));
    };
    on(1, || refused(precise(BRANCHES, 1), NotPrecise::NoFacility));
    refused(precise(CYCLES, 1).on(CounterSet::fixed(1)), NotPrecise::NoExactCounter);
    let registers = SampleParts::REGISTERS;
    refused(precise(BRANCHES, 1).recording(registers), NotPrecise::Parts(registers));
    refused(sampled(BRANCHES, 1).recording(registers), NotPrecise::Parts(registers));
    // The counter of cycles stays free.
    for tag in 0..COUNTERS as u64 {
        pmu.start(&precise(CYCLES, tag)).unwrap();
    }
    let fifth = pmu.start(&precise(CYCLES, 5)).err();
    assert_eq!(fifth, Some(PmuError::Counters(CounterError::NoFreeCounter)));
    assert!(pmu.start(&sampled(CYCLES, 5)).is_ok());
    shut_down(pmu);
}

/// On a processor without latches, a thread's event waits.
#[test]
fn a_thread_s_event_latches_wherever_the_thread_runs() {
    let pmu = machine_with(1);
    let mut events = [pmu.thread_event(&precise(BRANCHES, 7)).unwrap()];
    let mut turn = |processor, times| {
        on(processor, || {
            pmu.switch(&mut [], &mut events, |_| ()).unwrap();
            let samples = execute(&[(BRANCHES, BRANCH)], times);
            pmu.switch(&mut events, &mut [], |_| ()).unwrap();
            assert_eq!((latching(), toy().read(Register::Latched(0))), (0, 0));
            assert_eq!(execute(&[(BRANCHES, OTHER)], 10_000), []); // another thread's
            samples
        })
    };
    assert_eq!(turn(0, 6_000), []);
    assert_eq!(turn(1, 10_000), []);
    assert_eq!(turn(0, 4_000), [(7, BRANCH)]);
    assert_eq!(turn(0, 10_000), [(7, BRANCH)]);
    shut_down(pmu);
}

#[test]
fn a_guest_and_a_suspend_find_no_latch_and_leave_none() {
    let pmu = machine_with(PROCESSORS);
    pmu.start(&precise(BRANCHES, 1)).unwrap();
    let own = latching();
    let sample = || execute(&[(BRANCHES, BRANCH)], 10_000);
    assert_eq!(sample(), [(1, BRANCH)]);
    let guest = |programs: bool| {
        let lent = pmu.lend(
            |_| (),
            |lent| {
                assert_eq!((latching(), toy().read(Register::Latched(0))), (0, 0));
                lent.set_programmed(programs);
                toy().write(Register::Latching, if programs { 0b1110 } else { 0 });
            },
        );
        assert_eq!((lent, latching()), (Ok(()), own));
        assert_eq!(sample(), [(1, BRANCH)]);
    };
    guest(false);
    guest(true);
    pmu.processor_suspended(|_| ()).unwrap();
    assert_eq!(latching(), 0);
    toy().lose_registers();
    toy().write(Register::Latching, 0b1110);
    pmu.processor_resumed().unwrap();
    assert_eq!((latching(), sample()), (own, vec![(1, BRANCH)]));
    // Without a word before: the registers are lost.
    toy().lose_registers();
    pmu.processor_resumed().unwrap();
    assert_eq!((latching(), sample()), (own, vec![(1, BRANCH)]));
    shut_down(pmu);
}

#[test]
fn no_event_runs_without_the_latch_that_it_asks_for() {
    let pmu = machine_with(PROCESSORS);
    let [event, plain] =
        [precise(BRANCHES, 1), sampled(BRANCHES, 2)].map(|of| pmu.open(&of).unwrap());
    LATCH_FAULTS.set(true);
    assert!(pmu.enable(event).is_err());
    assert_eq!(execute(&[(BRANCHES, BRANCH)], 10_000), []);
    LATCH_FAULTS.set(false);
    pmu.enable(plain).unwrap();
    pmu.enable(event).unwrap();
    let mut samples = execute(&[(BRANCHES, BRANCH)], 10_000);
    samples.sort_unstable();
    assert_eq!(samples, [(1, BRANCH), (2, PLACE)]);
    shut_down(pmu);
}
