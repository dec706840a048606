//! The time that a guest ran, as cycles, instructions, branches and accesses to memory at stated rates.

use core::time::Duration;

use pmu_virt::topdown::TopDownMix;

use crate::count::quantity::Quantity;

const NANOSECONDS: u128 = 1_000_000_000;
/// Issue slots of a cycle.
const SLOTS: u64 = 4;
const INSTRUCTIONS_PER_LOAD: u64 = 4;
const INSTRUCTIONS_PER_STORE: u64 = 8;

/// The time that was counted so far, and the rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    rates: Rates,
    counted: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Rates {
    /// Cycles per second.
    frequency: u64,
    /// Instructions and branches per 1000 cycles.
    instructions: u64,
    branches: u64,
}

impl Rates {
    fn per_second(self, what: Quantity) -> u64 {
        match what {
            Quantity::Instructions => self.frequency * self.instructions / 1000,
            Quantity::Branches => self.frequency * self.branches / 1000,
            Quantity::Slots => self.frequency * SLOTS,
            Quantity::Loads => self.per_second(Quantity::Instructions) / INSTRUCTIONS_PER_LOAD,
            Quantity::Stores => self.per_second(Quantity::Instructions) / INSTRUCTIONS_PER_STORE,
            _ => self.frequency,
        }
    }

    /// Returns the count of a quantity after this time.
    fn count(self, time: Duration, what: Quantity) -> u64 {
        (time.as_nanos() * u128::from(self.per_second(what)) / NANOSECONDS) as u64
    }
}

impl Clock {
    /// Creates a clock; `megahertz` is the nominal frequency, `instructions` and `branches` their numbers per 1000
    /// cycles.
    pub(crate) fn new(megahertz: u16, instructions: u16, branches: u16) -> Self {
        let rates = Rates {
            frequency: u64::from(megahertz) * 1_000_000,
            instructions: instructions.into(),
            branches: branches.into(),
        };
        Self { rates, counted: Duration::ZERO }
    }

    /// Returns the rate of a quantity per second.
    pub(crate) fn per_second(&self, what: Quantity) -> u64 {
        self.rates.per_second(what)
    }

    /// Returns the parts of the issue slots: an instruction retires from one, and the others wait for the back end.
    pub(crate) fn mix(&self) -> TopDownMix {
        let retiring = (self.rates.instructions * 255 / (1000 * SLOTS)).min(255) as u8;
        TopDownMix { shares: [retiring, 0, 0, 255 - retiring, 0, 0, 0, 0] }
    }

    /// Returns the time that an instruction takes at the stated rate, at least a nanosecond.
    pub(crate) fn of_instruction(&self) -> Duration {
        let nanoseconds = NANOSECONDS / u128::from(self.per_second(Quantity::Instructions).max(1));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX).max(1))
    }

    /// Counts a time. Returns the count of each quantity in it; no fraction is lost from one time to the next.
    pub(crate) fn pass(&mut self, span: Duration) -> impl Fn(Quantity) -> u64 + use<> {
        let (rates, before) = (self.rates, self.counted);
        self.counted += span;
        let after = self.counted;
        move |what| rates.count(after, what) - rates.count(before, what)
    }

    /// Returns the count of a quantity so far.
    pub(crate) fn so_far(&self, what: Quantity) -> u64 {
        self.rates.count(self.counted, what)
    }

    /// Returns the time in which fewer than `count` of a quantity pass.
    pub(crate) fn time_before(&self, what: Quantity, count: u64) -> Duration {
        let reached = u128::from(self.so_far(what)) + u128::from(count);
        let until = (reached * NANOSECONDS).div_ceil(self.per_second(what).max(1).into());
        let until = until.saturating_sub(1).saturating_sub(self.counted.as_nanos());
        Duration::from_nanos(u64::try_from(until).unwrap_or(u64::MAX))
    }
}
