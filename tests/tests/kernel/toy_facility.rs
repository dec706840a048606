//! Hardware beside the counters of [the toy vendor](crate::toy_vendor): each event counter latches the address of the
//! instruction at which it overflows, if its bit in a register is set. [Precise](pmu::core::Event::precise) events ask
//! for it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pmu::core::CounterSet;
use pmu::core::access::{AccessFault, RegisterAccess, RegisterAddress, RegisterBackend};
use pmu::core::error::CounterError;
use pmu::core::facility::{Asked, EventFacility, Facility, Interrupted, Running, Unsettled};
use pmu::core::precise::{NotPrecise, PreciseSample};
use pmu::core::registers::CounterId;
use pmu::facilities::{Facilities, KernelFunctions};

use crate::toy_hardware::{COUNTERS, Identification};

pub(crate) const LATCHING: u32 = 0x60;
pub(crate) const LATCHED: u32 = 0x70;

/// The counter of cycles latches nothing.
pub(crate) const LATCH: CounterSet = CounterSet::from_bits((1 << COUNTERS) - 1);

/// The latches of one processor, as a kernel lends them. All zeros: nothing is known.
#[derive(Debug)]
pub(crate) struct AddressLatches {
    are_there: AtomicBool,
    /// The counters whose events ask for addresses.
    asking: AtomicU64,
    /// Value of the register `LATCHING`, plus 1; 0 if it is unknown.
    known: AtomicU64,
    /// The addresses that the last interrupt found.
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
        _: &KernelFunctions,
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
