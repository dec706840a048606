//! `--count time`: cycles from the processor time that the guest took, instructions and branches at stated rates.

use core::mem::zeroed;
use core::time::Duration;

use iced_x86::Instruction;
use pmu_virt::topdown::TopDownMix;
use pmu_virt::{Feed, Privilege, VirtualPmu};

use crate::count::clock::Clock;
use crate::count::fed::Fed;
use crate::count::quantity::Quantity;
use crate::count::source::{Source, Stop};
use crate::count::stretch::Stretch;
use crate::count::tagging::Tagging;
use crate::emulation::pvm;
use crate::error::Error;
use crate::guest::{self, Guest};
use crate::guest_pmu::facilities::Facilities;

/// The quantities that time counts.
pub(crate) const QUANTITIES: [Quantity; 7] = [
    Quantity::Cycles,
    Quantity::ReferenceCycles,
    Quantity::Instructions,
    Quantity::Branches,
    Quantity::Slots,
    Quantity::Loads,
    Quantity::Stores,
];

/// Source by the time that the guest ran: its thread's processor time within KVM_RUN. A processor that halts, or
/// waits for its turn, has no cycles.
pub(crate) struct Time {
    fed: Fed,
    entered: Duration,
    /// The guest was entered to execute one instruction.
    stepped: bool,
    clock: Clock,
    /// Time that is not counted yet, in ring 3 and in ring 0.
    owed: [Duration; 2],
    /// Steps before an overflow, while branches are recorded.
    stretch: Stretch,
    /// Sampled ops, and precise records.
    tagging: Tagging,
    may_step: bool,
}

/// Place of a privilege in [`Time::owed`].
const fn place(privilege: Privilege) -> usize {
    match privilege {
        Privilege::User => 0,
        Privilege::Kernel => 1,
    }
}

impl Time {
    /// Creates the source. `may_step`: the guest has branch records or precise records, or samples ops.
    pub(crate) fn new(fed: Fed, clock: Clock, may_step: bool) -> Self {
        Self {
            fed,
            entered: Duration::ZERO,
            stepped: false,
            clock,
            owed: [Duration::ZERO; 2],
            stretch: Stretch::new(),
            tagging: Tagging::new(clock),
            may_step,
        }
    }

    /// Counts a run of the guest, which was at `before` until it stopped, and at which an interrupt would come `now`:
    /// another privilege where an exception or interrupt stopped the guest.
    ///
    /// An overflow in ring 3 is not found in the handler of another interrupt, since a sample would be of it: the
    /// time from there on is owed until the guest is in ring 3. No overflow is found while overflows are `held` for the
    /// branches before them. Returns whether one was held.
    fn pass(
        &mut self,
        span: Duration,
        before: Privilege,
        now: impl FnOnce() -> Privilege,
        held: bool,
        pmu: &mut VirtualPmu,
        happened: &mut Feed,
    ) -> bool {
        let span = span + core::mem::take(&mut self.owed[place(before)]);
        if before == Privilege::Kernel && !held {
            self.count(span, before, happened);
            return false;
        }
        let room = self.room(before, pmu);
        let waits = span > room && (held || now() == Privilege::Kernel);
        let counted = if waits { room } else { span };
        self.owed[place(before)] = span - counted;
        self.count(counted, before, happened);
        held && waits
    }

    /// Returns the part of a time within KVM_RUN that is the guest's: of a step, what an instruction takes at the
    /// stated rate. The rest is KVM's, which takes thousands of times as long for a step; counted, it would end the
    /// next period before the guest has executed anything else.
    fn guests_part(&self, span: Duration) -> Duration {
        if self.stepped { span.min(self.clock.of_instruction()) } else { span }
    }

    /// Returns the time until the first overflow that interrupts.
    fn overflow_due(&self, guest: Guest<'_>, pmu: &mut VirtualPmu) -> Option<Duration> {
        let privilege = guest::privilege(&guest.system());
        let due = self.fed.due(pmu, privilege, |what| self.clock.per_second(what))?;
        // The owed time is past.
        Some(due.saturating_sub(self.owed[place(privilege)]))
    }

    /// Returns the time at a privilege in which no counter overflows.
    fn room(&self, privilege: Privilege, pmu: &mut VirtualPmu) -> Duration {
        let headroom = pmu.next_overflow();
        let left = self.fed.places().filter_map(|(what, place)| {
            Some(self.clock.time_before(what, headroom.of(place, privilege)?))
        });
        left.min().unwrap_or(Duration::MAX)
    }

    /// Adds the cycles and instructions of this time.
    fn count(&mut self, span: Duration, privilege: Privilege, happened: &mut Feed) {
        let passed = self.clock.pass(span);
        for what in QUANTITIES {
            self.fed.add(happened, what, privilege, passed(what));
        }
    }
}

impl Source for Time {
    fn fed(&self) -> &Fed {
        &self.fed
    }

    fn may_step(&self) -> bool {
        self.may_step
    }

    fn steps(&self, facilities: &Facilities) -> bool {
        self.stretch.is_under_way() || Tagging::is_due(facilities)
    }

    fn mix(&self) -> TopDownMix {
        self.clock.mix()
    }

    fn idle(&mut self) {
        self.stretch.end();
        self.tagging.idle();
    }

    fn executed(&mut self, instruction: Instruction, privilege: Privilege) {
        if self.stretch.is_under_way() {
            self.stretch.executed(instruction, privilege);
        }
        self.tagging.executed(instruction, privilege);
    }

    fn enter(
        &mut self,
        guest: Guest<'_>,
        pmu: &VirtualPmu,
        facilities: &Facilities,
    ) -> Result<bool, Error> {
        let steps = [self.stretch.enter(guest), self.tagging.enter(guest, pmu, facilities)];
        self.stepped = steps.contains(&true);
        self.entered = thread_time();
        Ok(self.stepped)
    }

    /// Adds the time since the last stop at the privilege at which the guest now stopped, or was interrupted: with
    /// PMIs at regular intervals, a sample.
    fn leave(
        &mut self,
        guest: Guest<'_>,
        stop: Stop,
        pmu: &mut VirtualPmu,
        facilities: &mut Facilities,
        happened: &mut Feed,
    ) -> Result<bool, Error> {
        let span = self.guests_part(thread_time().saturating_sub(self.entered));
        let (registers, system) = (guest.registers(), guest.system());
        let before = guest::privilege_before(&guest, &registers, &system);
        let now = || match guest.is_interrupted() || pvm::is_at_entry(guest) {
            true => Privilege::Kernel,
            false => guest::privilege(&system),
        };
        self.tagging.leave(guest, stop, span, &self.fed, pmu, facilities);
        let ((branches, _), _) = facilities;
        let recording = branches.as_mut().filter(|branches| branches.is_recording());
        let Some(branches) = recording else {
            self.stretch.end();
            self.pass(span, before, now, false, pmu, happened);
            return Ok(true);
        };
        self.stretch.leave(guest, stop, branches);
        let complete = self.stretch.is_complete();
        let held = self.pass(span, before, now, !complete, pmu, happened);
        if complete {
            self.stretch.end();
        } else if held && !self.stretch.is_under_way() {
            self.stretch.begin(before, branches);
        }
        Ok(true)
    }

    fn due(
        &self,
        guest: Guest<'_>,
        pmu: &mut VirtualPmu,
        facilities: &Facilities,
    ) -> Option<Duration> {
        let overflow = match self.stretch.is_under_way() {
            true => self.stretch.due(guest),
            false => self.overflow_due(guest, pmu),
        };
        overflow.into_iter().chain(self.tagging.due(guest, pmu, facilities)).min()
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
    use pmu_virt::Write;
    use pmu_virt::configuration::{Configuration, IntelConfiguration};

    use super::*;

    const USER: Privilege = Privilege::User;
    const KERNEL: Privilege = Privilege::Kernel;

    fn time(megahertz: u16, rate: u16) -> (Time, Feed, VirtualPmu) {
        let fed = Fed::new(&QUANTITIES, pmu_virt::configuration::Vendor::Intel).unwrap();
        let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
        let pmu = VirtualPmu::new(configuration, fed.events).unwrap();
        (
            Time::new(fed.clone(), Clock::new(megahertz, rate, 200), false),
            Feed::new(&fed.events),
            pmu,
        )
    }

    /// Programs counter `number` to interrupt after `missing` events.
    fn arm(pmu: &mut VirtualPmu, number: u32, select: u64, missing: u64) {
        for (address, value) in
            [(0x4C1 + number, (1 << 48) - missing), (0x186 + number, select | 1 << 20 | 1 << 22)]
        {
            assert_eq!(pmu.write(address, value).answer, Write::Done);
        }
    }

    fn counted(time: &Time, happened: &Feed, privilege: Privilege) -> [u64; 7] {
        QUANTITIES.map(|what| {
            let place =
                time.fed.events.find(what.keys(pmu_virt::configuration::Vendor::Intel)[0]).unwrap();
            happened.count(place, privilege)
        })
    }

    #[test]
    fn no_fraction_of_a_cycle_is_lost() {
        let (mut time, mut happened, mut pmu) = time(1500, 500);
        for _ in 0..1000 {
            time.pass(Duration::from_nanos(1), USER, || USER, false, &mut pmu, &mut happened);
        }
        assert_eq!(counted(&time, &happened, USER), [1500, 1500, 750, 300, 6000, 187, 93]);
        assert_eq!(counted(&time, &happened, KERNEL), [0; 7]);
    }

    /// An overflow of ring 3 that is found in the handler of another interrupt would be a sample of the handler.
    #[test]
    fn an_overflow_of_ring_3_is_not_found_in_ring_0_and_nothing_is_lost() {
        const OS: u64 = 1 << 17;
        const USR: u64 = 1 << 16;
        // Frequency and rate, and how long an instruction counter that misses 1000 may run.
        for (megahertz, rate, room) in
            [(1000, 1000, 999), (2000, 500, 999), (750, 333, 4004), (3000, 7, 47_619)]
        {
            let (mut time, mut happened, mut pmu) = time(megahertz, rate);
            arm(&mut pmu, 0, 0xC0 | USR, 1_000);
            // A counter of the kernel's does not hold ring 3 up.
            arm(&mut pmu, 1, 0x3C | OS, 1);
            let span = |nanoseconds| Duration::from_nanos(nanoseconds);
            time.pass(span(room + 5_000), USER, || KERNEL, false, &mut pmu, &mut happened);
            assert_eq!(
                (counted(&time, &happened, USER)[2], time.owed),
                (999, [span(5_000), span(0)]),
                "{megahertz} {rate}"
            );
            assert!(!pmu.advance_through(&mut happened).unwrap().pmi);
            // In ring 0 it stays owed, also when ring 3 was interrupted at once.
            for before in [KERNEL, USER] {
                time.pass(span(0), before, || KERNEL, false, &mut pmu, &mut happened);
                assert!(!pmu.advance_through(&mut happened).unwrap().pmi, "{before:?}");
            }
            time.pass(span(0), USER, || USER, false, &mut pmu, &mut happened);
            assert!(pmu.advance_through(&mut happened).unwrap().pmi);
            let all =
                u128::from(room + 5_000) * u128::from(megahertz) / 1000 * u128::from(rate) / 1000;
            assert!(
                u128::from(time.clock.so_far(Quantity::Instructions)).abs_diff(all) <= 1
                    && time.owed == [Duration::ZERO; 2]
            );
        }
    }

    #[test]
    fn a_step_counts_as_one_instruction_and_not_as_the_time_that_it_takes() {
        for (megahertz, rate, nanoseconds) in [(1000, 1000, 1), (100, 500, 20), (3000, 1000, 1)] {
            let (mut time, ..) = self::time(megahertz, rate);
            let span = Duration::from_micros(15);
            assert_eq!(time.guests_part(span), span);
            time.stepped = true;
            assert_eq!(time.guests_part(span), Duration::from_nanos(nanoseconds));
            assert_eq!(time.guests_part(Duration::ZERO), Duration::ZERO);
        }
    }

    /// While an overflow is held for the branches before it, at either privilege, its counter stays short of it by one,
    /// and nothing is lost.
    #[test]
    fn an_overflow_that_is_held_for_branches_comes_when_it_is_released() {
        for (privilege, bit) in [(USER, 1 << 16), (KERNEL, 1 << 17)] {
            let (mut time, mut happened, mut pmu) = time(1000, 1000);
            arm(&mut pmu, 0, 0xC0 | bit, 1_000);
            let span = Duration::from_nanos;
            let mut pass = |nanoseconds, held, pmu: &mut VirtualPmu| {
                let waits =
                    time.pass(span(nanoseconds), privilege, || privilege, held, pmu, &mut happened);
                (waits, pmu.advance_through(&mut happened).unwrap().pmi)
            };
            assert_eq!(pass(500, true, &mut pmu), (false, false), "{privilege:?}");
            // Steps of the stretch pass as well.
            assert_eq!(pass(5_000, true, &mut pmu), (true, false));
            assert_eq!(pass(10, true, &mut pmu), (true, false));
            assert_eq!(pmu.read(0xC1), pmu_virt::Read::Value((1 << 48) - 1));
            assert_eq!(pass(0, false, &mut pmu), (false, true));
            assert_eq!(pmu.read(0xC1), pmu_virt::Read::Value(5_510 - 1_000));
            assert!(time.owed == [Duration::ZERO; 2]);
        }
    }

    #[test]
    fn a_counter_of_ring_0_overflows_in_ring_0() {
        let (mut time, mut happened, mut pmu) = time(1000, 1000);
        arm(&mut pmu, 0, 0x3C | 1 << 17, 1_000);
        time.pass(Duration::from_nanos(5_000), USER, || KERNEL, false, &mut pmu, &mut happened);
        assert!(
            !pmu.advance_through(&mut happened).unwrap().pmi && time.owed == [Duration::ZERO; 2]
        );
        time.pass(Duration::from_nanos(1_000), KERNEL, || KERNEL, false, &mut pmu, &mut happened);
        assert!(pmu.advance_through(&mut happened).unwrap().pmi);
    }
}
