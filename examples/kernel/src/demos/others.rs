//! Profiles of another processor: started and stopped from here while it is being interrupted.

use core::sync::atomic::{AtomicU64, Ordering};

use pmu::core::EventSource;
use pmu::core::frame::InterruptFrame;
use pmu::core::profile::KProfileSource;
use pmu_kprofile::{ProfileCallback, ProfileObject, Rules};

use crate::demos::failure::Failure;
use crate::demos::profile::Plan;
use crate::embedding::memory::PMU;
use crate::embedding::sessions::Sessions;
use crate::line;
use crate::machine::{clock, smp};

/// Time for which the second profile is started each time, and for which it waits for processors that were not
/// interrupted by then: a hypervisor that is busy lets one wait.
const INTERVAL_MS: u64 = 100;
const PATIENCE_MS: u64 = 5_000;
/// The second profile's interval, in units of 100 ns: on a slow machine too, a processor then has time left
/// for what the first is to sample.
const TIMER: u64 = 200_000;

/// Counts what was interrupted where.
struct Counts {
    here: AtomicU64,
    elsewhere: AtomicU64,
}

impl Counts {
    /// Returns whether both were interrupted so far.
    fn are_complete(&self) -> bool {
        self.here.load(Ordering::Relaxed) != 0 && self.elsewhere.load(Ordering::Relaxed) != 0
    }
}

impl ProfileCallback for Counts {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
        let here = frame.processor().index() == 0;
        (if here { &self.here } else { &self.elsewhere }).fetch_add(1, Ordering::Relaxed);
    }
}

/// Profiles processor 1 by `plan` while it executes the workload, and meanwhile starts and stops a
/// second profile, by time on all processors, again and again.
///
/// # Errors
/// Those of the plan; a second profile without interrupts.
pub fn run(plan: Plan, sessions: &Sessions) -> Result<(), Failure> {
    let counts = Counts { here: AtomicU64::new(0), elsewhere: AtomicU64::new(0) };
    let second = ProfileObject::callback(Rules::LATEST, KProfileSource::TIME, &counts)?;
    sessions.machine().set_interval_clamped(KProfileSource::TIME, TIMER)?;
    let mut restarts = 0;
    smp::set_busy(true);
    let outcome = plan.run(sessions, |sessions| {
        let started = clock::now();
        // SAFETY: object and counts are on this stack until `stop`, which follows.
        unsafe { PMU.profiles().start_borrowed(&second, &mut sessions.hardware())? };
        clock::wait(INTERVAL_MS);
        let begin = clock::now();
        while !counts.are_complete() && clock::now() - begin < clock::milliseconds(PATIENCE_MS) {
            core::hint::spin_loop();
        }
        PMU.profiles().stop(&second, &mut sessions.hardware())?;
        restarts += 1;
        // A processor that executes one step at a time spends all of this time in the second profile's interrupts: it
        // gets as much for what the first is to sample.
        let stopped = clock::now();
        while clock::now() - stopped < stopped - started {
            core::hint::spin_loop();
        }
        Ok(())
    });
    smp::set_busy(false);
    outcome?;
    let (here, elsewhere) =
        (counts.here.load(Ordering::Relaxed), counts.elsewhere.load(Ordering::Relaxed));
    line!("restarts {} here {} elsewhere {}", restarts, here, elsewhere);
    if !counts.are_complete() {
        return Err(Failure::Wrong("the second profile did not interrupt every processor"));
    }
    Ok(())
}
