//! `--count perf`: the host's own counters, of the processor's thread inside the guest.

use core::time::Duration;
use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use pmu_virt::{Feed, Privilege, RunningEvent, VirtualPmu};

use crate::count::fed::Fed;
use crate::count::quantity::Quantity;
use crate::count::source::{Source, Stop};
use crate::error::Error;
use crate::guest::{self, Guest};
use crate::guest_pmu::facilities::Facilities;

/// Assumed greatest rate per second: 4 instructions per cycle, at 4 GHz. It sets the timer, so that an overflow is
/// seen in time; nothing is counted by it.
const AT_MOST_PER_SECOND: u64 = 16_000_000_000;

/// A host with counters.
pub(crate) trait Host {
    type Counter: HostCounter;

    /// Opens a running counter of this thread's execution in the guest at one privilege.
    fn open(&self, what: Quantity, privilege: Privilege) -> io::Result<Self::Counter>;
}

/// A counter that runs.
pub(crate) trait HostCounter {
    /// Returns its count so far.
    fn read(&mut self) -> io::Result<u64>;
}

/// Linux' perf events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerfEvents;

impl Host for PerfEvents {
    type Counter = Counter;

    fn open(&self, what: Quantity, privilege: Privilege) -> io::Result<Counter> {
        let event = match what {
            Quantity::Cycles => Hardware::CPU_CYCLES,
            Quantity::Instructions => Hardware::INSTRUCTIONS,
            Quantity::ReferenceCycles => Hardware::REF_CPU_CYCLES,
            Quantity::CacheReferences => Hardware::CACHE_REFERENCES,
            Quantity::CacheMisses => Hardware::CACHE_MISSES,
            Quantity::Branches => Hardware::BRANCH_INSTRUCTIONS,
            Quantity::BranchMisses => Hardware::BRANCH_MISSES,
            // Linux has no name for them.
            Quantity::TakenBranches | Quantity::Slots | Quantity::Loads | Quantity::Stores => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        };
        // Pinned: a counter that shares its place with others would have to be extrapolated.
        Builder::new(event)
            .exclude_host(true)
            .exclude_guest(false)
            .exclude_hv(true)
            .exclude_user(privilege == Privilege::Kernel)
            .exclude_kernel(privilege == Privilege::User)
            .pinned(true)
            .enabled(true)
            .build()
    }
}

impl HostCounter for Counter {
    fn read(&mut self) -> io::Result<u64> {
        Counter::read(self)
    }
}

/// Returns the quantities that the host counts at both privileges.
///
/// # Errors
/// The host counts nothing: its error for cycles.
pub(crate) fn offered(host: &impl Host) -> io::Result<Vec<Quantity>> {
    let open = |what| {
        host.open(what, Privilege::User)?;
        host.open(what, Privilege::Kernel).map(drop)
    };
    let quantities: Vec<_> = Quantity::ALL.into_iter().filter(|what| open(*what).is_ok()).collect();
    if quantities.is_empty() {
        open(Quantity::Cycles)?;
    }
    Ok(quantities)
}

/// The source: a host's counter for each event and privilege that the guest counts, while it does.
pub(crate) struct Perf<H: Host> {
    fed: Fed,
    host: H,
    open: Vec<Open<H::Counter>>,
}

struct Open<C> {
    what: Quantity,
    privilege: Privilege,
    counter: C,
    /// Part of the count that was already fed.
    fed: u64,
}

impl<H: Host> Perf<H> {
    pub(crate) fn new(fed: Fed, host: H) -> Self {
        Self { fed, host, open: Vec::new() }
    }

    /// Opens the host counters that the guest's running counters need, and closes the rest.
    fn program(&mut self, running: impl Iterator<Item = RunningEvent>) -> io::Result<()> {
        let mut needed = Vec::new();
        for event in running {
            let Some(what) = self.fed.quantity(event.key) else { continue };
            needed.extend(event.user.then_some((what, Privilege::User)));
            needed.extend(event.kernel.then_some((what, Privilege::Kernel)));
        }
        self.open.retain(|open| needed.contains(&(open.what, open.privilege)));
        for (what, privilege) in needed {
            if self.open.iter().any(|open| (open.what, open.privilege) == (what, privilege)) {
                continue;
            }
            let counter = self.host.open(what, privilege)?;
            self.open.push(Open { what, privilege, counter, fed: 0 });
        }
        Ok(())
    }

    /// Adds the counts since the last call.
    fn collect(&mut self, happened: &mut Feed) -> io::Result<()> {
        for open in &mut self.open {
            let count = open.counter.read()?;
            let since = count.saturating_sub(open.fed);
            self.fed.add(happened, open.what, open.privilege, since);
            open.fed = count;
        }
        Ok(())
    }
}

impl<H: Host> Source for Perf<H> {
    fn fed(&self) -> &Fed {
        &self.fed
    }

    fn enter(&mut self, _: Guest<'_>, pmu: &VirtualPmu, _: &Facilities) -> Result<bool, Error> {
        self.program(pmu.running()).map_err(Error::NoCounters)?;
        Ok(false)
    }

    fn leave(
        &mut self,
        _: Guest<'_>,
        _: Stop,
        _: &mut VirtualPmu,
        _: &mut Facilities,
        happened: &mut Feed,
    ) -> Result<bool, Error> {
        self.collect(happened).map_err(Error::NoCounters)?;
        Ok(true)
    }

    fn due(&self, guest: Guest<'_>, pmu: &mut VirtualPmu, _: &Facilities) -> Option<Duration> {
        self.fed.due(pmu, guest::privilege(&guest.system()), |_| AT_MOST_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use pmu_virt::configuration::{Configuration, IntelConfiguration, Vendor};
    use pmu_virt::{Read, Write};

    use super::*;

    /// A fake host that has cycles and branches, with counts that a test sets.
    #[derive(Clone, Default)]
    struct Fake {
        counts: Rc<RefCell<BTreeMap<(&'static str, bool), u64>>>,
        opened: Rc<RefCell<Vec<(&'static str, bool)>>>,
    }

    struct FakeCounter {
        host: Fake,
        key: (&'static str, bool),
        start: u64,
    }

    impl Host for Fake {
        type Counter = FakeCounter;

        fn open(&self, what: Quantity, privilege: Privilege) -> io::Result<FakeCounter> {
            if !matches!(what, Quantity::Cycles | Quantity::Branches) {
                return Err(io::ErrorKind::NotFound.into());
            }
            let key = (what.name(), privilege == Privilege::Kernel);
            self.opened.borrow_mut().push(key);
            let start = self.counts.borrow().get(&key).copied().unwrap_or(0);
            Ok(FakeCounter { host: self.clone(), key, start })
        }
    }

    impl HostCounter for FakeCounter {
        fn read(&mut self) -> io::Result<u64> {
            let now = self.host.counts.borrow().get(&self.key).copied().unwrap_or(0);
            Ok(now - self.start)
        }
    }

    impl Drop for FakeCounter {
        fn drop(&mut self) {
            let mut opened = self.host.opened.borrow_mut();
            let place = opened.iter().position(|key| *key == self.key).unwrap();
            opened.swap_remove(place);
        }
    }

    impl Fake {
        fn count(&self, what: Quantity, kernel: bool, count: u64) {
            *self.counts.borrow_mut().entry((what.name(), kernel)).or_default() += count;
        }
    }

    #[test]
    fn what_the_host_lacks_is_not_offered() {
        let offered = offered(&Fake::default()).unwrap();
        assert_eq!(offered, [Quantity::Cycles, Quantity::Branches]);
    }

    #[test]
    fn a_host_without_counters_says_so() {
        struct Nothing;
        impl Host for Nothing {
            type Counter = FakeCounter;

            fn open(&self, _: Quantity, _: Privilege) -> io::Result<FakeCounter> {
                Err(io::ErrorKind::NotFound.into())
            }
        }
        assert_eq!(offered(&Nothing).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_guest_counts_what_the_host_counts_at_its_privileges_while_its_counter_runs() {
        let host = Fake::default();
        let fed = Fed::new(&offered(&host).unwrap(), Vendor::Intel).unwrap();
        let configuration = Configuration::Intel(IntelConfiguration::new(2, 2, 0));
        let mut pmu = VirtualPmu::new(configuration, fed.events).unwrap();
        let mut perf = Perf::new(fed, host.clone());
        let mut happened = Feed::new(pmu.events());
        // IA32_PERFEVTSEL0 and 1: cycles at any privilege, branches in user mode; both enabled.
        host.count(Quantity::Cycles, true, 1_000);
        assert_eq!(pmu.write(0x186, 0x43_003C).answer, Write::Done);
        assert_eq!(pmu.write(0x187, 0x41_00C4).answer, Write::Done);
        perf.program(pmu.running()).unwrap();
        host.count(Quantity::Cycles, true, 7);
        host.count(Quantity::Cycles, false, 5);
        host.count(Quantity::Branches, true, 100);
        host.count(Quantity::Branches, false, 3);
        perf.collect(&mut happened).unwrap();
        pmu.advance_through(&mut happened).unwrap();
        assert_eq!(pmu.read(0xC1), Read::Value(12));
        assert_eq!(pmu.read(0xC2), Read::Value(3));

        assert_eq!(pmu.write(0x186, 0).answer, Write::Done);
        perf.program(pmu.running()).unwrap();
        assert_eq!(*host.opened.borrow(), [("branches", false)]);
        host.count(Quantity::Cycles, false, 50);
        host.count(Quantity::Branches, false, 4);
        perf.collect(&mut happened).unwrap();
        pmu.advance_through(&mut happened).unwrap();
        assert_eq!(pmu.read(0xC1), Read::Value(12));
        assert_eq!(pmu.read(0xC2), Read::Value(7));
    }
}
