//! Sources of events for the guest's counters.

pub(crate) mod perf;
pub(crate) mod step;
pub(crate) mod time;

use core::time::Duration;

use iced_x86::Instruction;
use pmu_virt::{
    EventKey, FedEvent, FedEvents, FedEventsError, Feed, Privilege, Vendor, VirtualPmu,
};

use crate::cli::Count;
use crate::error::Error;
use crate::guest::Guest;

/// A quantity that a source counts, with its names of both vendors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Cycles,
    Instructions,
    ReferenceCycles,
    CacheReferences,
    CacheMisses,
    Branches,
    BranchMisses,
    TakenBranches,
}

impl Quantity {
    pub(crate) const ALL: [Self; 8] = [
        Self::Cycles,
        Self::Instructions,
        Self::ReferenceCycles,
        Self::CacheReferences,
        Self::CacheMisses,
        Self::Branches,
        Self::BranchMisses,
        Self::TakenBranches,
    ];

    /// Returns its bit in leaf 0x0A's EBX. SDM vol. 3B, "Pre-defined Architectural Performance Events".
    pub(crate) const fn architectural(self) -> u8 {
        match self {
            Self::Cycles => 1 << 0,
            Self::Instructions => 1 << 1,
            Self::ReferenceCycles => 1 << 2,
            Self::CacheReferences => 1 << 3,
            Self::CacheMisses => 1 << 4,
            Self::Branches => 1 << 5,
            Self::BranchMisses => 1 << 6,
            Self::TakenBranches => 0,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::Instructions => "instructions",
            Self::ReferenceCycles => "reference cycles",
            Self::CacheReferences => "cache references",
            Self::CacheMisses => "cache misses",
            Self::Branches => "branches",
            Self::BranchMisses => "mispredicted branches",
            Self::TakenBranches => "taken branches",
        }
    }

    /// Returns the events by which a guest selects it. Intel: the architectural events, and the fixed counter of
    /// reference cycles; the other fixed counters have the same keys as the events. AMD: "Core Performance Monitor
    /// Counters" in the processor programming references, PMCx076, x0C0, x0C2, x0C3 and x0C4.
    pub(crate) fn keys(self, vendor: Vendor) -> &'static [EventKey] {
        const fn key(event: u16, unit_mask: u8) -> EventKey {
            EventKey::general(event, unit_mask)
        }
        match (vendor, self) {
            (Vendor::Intel, Self::Cycles) => const { &[key(0x3C, 0)] },
            (Vendor::Intel, Self::Instructions) => const { &[key(0xC0, 0)] },
            (Vendor::Intel, Self::ReferenceCycles) => {
                const { &[key(0x3C, 1), EventKey::fixed(2).unwrap()] }
            }
            (Vendor::Intel, Self::CacheReferences) => const { &[key(0x2E, 0x4F)] },
            (Vendor::Intel, Self::CacheMisses) => const { &[key(0x2E, 0x41)] },
            (Vendor::Intel, Self::Branches) => const { &[key(0xC4, 0)] },
            (Vendor::Intel, Self::BranchMisses) => const { &[key(0xC5, 0)] },
            (Vendor::Amd, Self::Cycles) => const { &[key(0x76, 0)] },
            (Vendor::Amd, Self::Instructions) => const { &[key(0xC0, 0)] },
            (Vendor::Amd, Self::Branches) => const { &[key(0xC2, 0)] },
            (Vendor::Amd, Self::BranchMisses) => const { &[key(0xC3, 0)] },
            (Vendor::Amd, Self::TakenBranches) => const { &[key(0xC4, 0)] },
            _ => &[],
        }
    }
}

/// Returns the quantities that the source feeds, on this host.
pub(crate) fn quantities(count: Count) -> Result<Vec<Quantity>, Error> {
    match count {
        Count::Time => Ok(time::QUANTITIES.into()),
        Count::Step => Ok(step::QUANTITIES.into()),
        Count::Perf => perf::offered(&perf::PerfEvents).map_err(Error::NoCounters),
    }
}

/// Interval of looks at a guest that counts at the privilege where it last was not.
const ELSEWHERE: Duration = Duration::from_millis(1);

/// The quantities that a source feeds, with their events' places in a [`Feed`].
#[derive(Clone, Debug)]
pub(crate) struct Fed {
    pub(crate) events: FedEvents,
    places: Vec<(Quantity, EventKey, FedEvent)>,
}

impl Fed {
    /// Creates a feed of these quantities, by their events of `vendor`.
    pub(crate) fn new(quantities: &[Quantity], vendor: Vendor) -> Result<Self, FedEventsError> {
        let keys =
            || quantities.iter().flat_map(|what| what.keys(vendor).iter().map(|key| (*what, *key)));
        let events = FedEvents::new(&keys().map(|(_, key)| key).collect::<Vec<_>>())?;
        let places =
            keys().filter_map(|(what, key)| Some((what, key, events.find(key)?))).collect();
        Ok(Self { events, places })
    }

    /// Returns the quantity that a guest's counter with this key counts, if it is fed.
    pub(crate) fn quantity(&self, key: EventKey) -> Option<Quantity> {
        self.places.iter().find(|(_, known, _)| *known == key).map(|(what, ..)| *what)
    }

    /// Returns the quantities, each with its event's place in a feed; one may have several.
    fn places(&self) -> impl Iterator<Item = (Quantity, FedEvent)> {
        self.places.iter().map(|(what, _, place)| (*what, *place))
    }

    /// Adds `count` of a quantity to a feed.
    pub(crate) fn add(&self, feed: &mut Feed, what: Quantity, privilege: Privilege, count: u64) {
        for (_, _, place) in self.places.iter().filter(|(quantity, ..)| *quantity == what) {
            feed.add(*place, privilege, count).expect("the feed is of these events");
        }
    }

    /// Returns the time until the first overflow that interrupts, given each quantity's greatest rate per second;
    /// `None` if no overflow is due.
    ///
    /// The guest is at `privilege`. Overflows at the other privilege are not due before the guest gets there, which
    /// nothing announces: an early look finds nothing, and the next one would be as early again.
    pub(crate) fn due(
        &self,
        pmu: &mut VirtualPmu,
        privilege: Privilege,
        mut per_second: impl FnMut(Quantity) -> u64,
    ) -> Option<Duration> {
        let headroom = pmu.next_overflow();
        let dues = self.places.iter().flat_map(|(what, _, place)| {
            let rate = u128::from(per_second(*what).max(1));
            [Privilege::User, Privilege::Kernel].map(|counted| {
                let left = u128::from(headroom.of(*place, counted)?);
                let nanoseconds = u64::try_from(left * 1_000_000_000 / rate).unwrap_or(u64::MAX);
                let due = Duration::from_nanos(nanoseconds);
                Some(if counted == privilege { due } else { due.max(ELSEWHERE) })
            })
        });
        dues.flatten().min()
    }
}

/// Progress of the guest between two looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// One instruction was executed, or an exception or interrupt was taken.
    Stepped,
    /// The guest ran until any other stop.
    Ran,
}

/// A source of events for one virtual processor.
///
/// While a counter runs the processor calls [`enter`](Self::enter) before it runs the guest, and
/// [`leave`](Self::leave) afterwards, before it serves the guest's exit.
pub(crate) trait Source {
    /// Returns the quantities that it feeds.
    fn fed(&self) -> &Fed;

    /// Returns whether it ever stops the guest after one instruction.
    fn steps(&self) -> bool {
        false
    }

    /// Prepares for a run of the guest while no counter runs.
    fn idle(&mut self) {}

    /// Notes an instruction that the monitor executed for the guest.
    fn executed(&mut self, _: Instruction, _: Privilege) {}

    /// Prepares for a run of the guest. Returns whether the guest is to stop after one instruction.
    fn enter(&mut self, guest: Guest<'_>, pmu: &VirtualPmu) -> Result<bool, Error>;

    /// Adds the events of the guest's run to `happened`. Returns whether they are known; if not, nothing was added.
    fn leave(
        &mut self,
        guest: Guest<'_>,
        stop: Stop,
        pmu: &mut VirtualPmu,
        happened: &mut Feed,
    ) -> Result<bool, Error>;

    /// Returns the time until the next look at the guest: an overflow may be due then.
    fn due(&self, guest: Guest<'_>, pmu: &mut VirtualPmu) -> Option<Duration>;
}

#[cfg(test)]
mod tests {
    use pmu_virt::{Configuration, IntelConfiguration, Write};

    use super::*;

    #[test]
    fn a_counter_of_ring_3_is_not_looked_at_all_the_time_while_the_guest_is_in_ring_0() {
        let fed = Fed::new(&[Quantity::Cycles], Vendor::Intel).unwrap();
        let configuration = Configuration::Intel(IntelConfiguration::new(1, 1, 0));
        let mut pmu = VirtualPmu::new(configuration, fed.events).unwrap();
        // Cycles of ring 3, with an interrupt after 20: bits 22, 20 and 16.
        for (address, value) in [(0xC1, 0xFFFF_FFEC), (0x186, 1 << 22 | 1 << 20 | 1 << 16 | 0x3C)] {
            assert_eq!(pmu.write(address, value).answer, Write::Done);
        }
        let mut due = |privilege| fed.due(&mut pmu, privilege, |_| 1_000_000_000);
        assert_eq!(due(Privilege::User), Some(Duration::from_nanos(20)));
        assert_eq!(due(Privilege::Kernel), Some(Duration::from_millis(1)));
    }
}
