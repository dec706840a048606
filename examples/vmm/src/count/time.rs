//! `--count time`: cycles from the processor time that the guest took, instructions at a stated rate.

use core::mem::zeroed;
use core::time::Duration;

use pmu_virt::{Feed, Privilege, VirtualPmu};

use super::{Fed, Quantity, Source, Stop};
use crate::error::Error;
use crate::guest::{self, Guest};

/// The quantities that time counts.
pub(crate) const QUANTITIES: [Quantity; 3] =
    [Quantity::Cycles, Quantity::ReferenceCycles, Quantity::Instructions];

/// Source by the time that the guest ran: its thread's processor time within KVM_RUN. A processor that halts, or
/// waits for its turn, has no cycles.
pub(crate) struct Time {
    fed: Fed,
    /// Cycles per second, and instructions per 1000 cycles.
    frequency: u64,
    rate: u64,
    entered: Duration,
    /// The guest's time so far, and the events fed for it.
    ran: Duration,
    cycles: u64,
    instructions: u64,
}

impl Time {
    /// Creates the source; `megahertz` is the nominal frequency, `rate` the instructions per 1000 cycles.
    pub(crate) fn new(fed: Fed, megahertz: u16, rate: u16) -> Self {
        Self {
            fed,
            frequency: u64::from(megahertz) * 1_000_000,
            rate: rate.into(),
            entered: Duration::ZERO,
            ran: Duration::ZERO,
            cycles: 0,
            instructions: 0,
        }
    }

    /// Returns the rate of a quantity per second.
    fn per_second(&self, what: Quantity) -> u64 {
        match what {
            Quantity::Instructions => self.frequency * self.rate / 1000,
            _ => self.frequency,
        }
    }

    /// Adds the cycles and instructions since the last call.
    fn count(&mut self, privilege: Privilege, happened: &mut Feed) {
        let nanoseconds = self.ran.as_nanos();
        let so_far = |rate: u64| (nanoseconds * u128::from(rate) / 1_000_000_000) as u64;
        let cycles = so_far(self.frequency);
        let instructions = so_far(self.per_second(Quantity::Instructions));
        for (what, count) in [
            (Quantity::Cycles, cycles - self.cycles),
            (Quantity::ReferenceCycles, cycles - self.cycles),
            (Quantity::Instructions, instructions - self.instructions),
        ] {
            self.fed.add(happened, what, privilege, count);
        }
        (self.cycles, self.instructions) = (cycles, instructions);
    }
}

impl Source for Time {
    fn fed(&self) -> &Fed {
        &self.fed
    }

    fn enter(&mut self, _: Guest<'_>, _: &VirtualPmu) -> Result<bool, Error> {
        self.entered = thread_time();
        Ok(false)
    }

    /// Adds the time since the last stop at the privilege at which the guest now stopped, or was interrupted: with
    /// PMIs at regular intervals, a sample.
    fn leave(&mut self, guest: Guest<'_>, _: Stop, happened: &mut Feed) -> Result<bool, Error> {
        self.ran += thread_time().saturating_sub(self.entered);
        let (registers, system) = (guest.registers(), guest.system());
        self.count(guest::privilege_before(&guest, &registers, &system), happened);
        Ok(true)
    }

    fn due(&self, guest: Guest<'_>, pmu: &mut VirtualPmu) -> Option<Duration> {
        self.fed.due(pmu, guest::privilege(&guest.system()), |what| self.per_second(what))
    }
}

/// Returns the processor time of this thread.
fn thread_time() -> Duration {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut time: libc::timespec = unsafe { zeroed() };
    // SAFETY: the pointer is valid for the call. The clock exists on every Linux, so it cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use pmu_virt::Vendor;

    use super::*;

    #[test]
    fn no_fraction_of_a_cycle_is_lost() {
        let fed = Fed::new(&QUANTITIES, Vendor::Intel).unwrap();
        let mut time = Time::new(fed, 1500, 500);
        let mut happened = Feed::new(&time.fed.events);
        for _ in 0..1000 {
            time.ran += Duration::from_nanos(1);
            time.count(Privilege::User, &mut happened);
        }
        for (what, expected) in [
            (Quantity::Cycles, 1500),
            (Quantity::ReferenceCycles, 1500),
            (Quantity::Instructions, 750),
        ] {
            let key = what.keys(Vendor::Intel)[0];
            let place = time.fed.events.find(key).unwrap();
            assert_eq!(happened.count(place, Privilege::User), expected, "{what:?}");
            assert_eq!(happened.count(place, Privilege::Kernel), 0);
        }
    }
}
