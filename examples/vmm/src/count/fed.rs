//! The quantities that a source feeds, as events of the guest's PMU.

use core::time::Duration;

use pmu_virt::configuration::Vendor;
use pmu_virt::{EventKey, FedEvent, FedEvents, FedEventsError, Feed, Privilege, VirtualPmu};

use crate::count::quantity::Quantity;

/// Interval of looks at a guest that counts only at the other privilege than it last had.
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
    pub(crate) fn places(&self) -> impl Iterator<Item = (Quantity, FedEvent)> {
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

#[cfg(test)]
mod tests {
    use pmu_virt::Write;
    use pmu_virt::configuration::{Configuration, IntelConfiguration};

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
