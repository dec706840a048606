//! The policy for the events that a guest may count.

use core::ops::Deref;

/// The embedder's policy for the events that a guest may count. A guest can program a counter with a forbidden event,
/// but the counter does not count.
///
/// A [`VirtualPmu`](crate::VirtualPmu) asks the policy when the guest writes an event select. In
/// [`VirtualPmu::set_policy`](crate::VirtualPmu::set_policy), the PMU asks the policy about all counters.
///
/// ```
/// use pmu_virt::{Configuration, EventPolicy, FedEvents, IntelConfiguration, VirtualPmu};
/// /// Allows what every guest may know: its own cycles and instructions.
/// struct Harmless;
///
/// impl EventPolicy for Harmless {
///     fn allows_general(&self, event: u16, unit_mask: u8) -> bool {
///         matches!((event, unit_mask), (0x3C | 0xC0, 0))
///     }
///     fn allows_fixed(&self, counter: u8) -> bool {
///         counter < 3
///     }
/// }
///
/// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
/// let mut pmu = VirtualPmu::with_policy(configuration, FedEvents::NONE, Harmless)?;
/// let _ = pmu.write(0x186, 0x53_003C);
/// let _ = pmu.write(0x187, 0x53_412E); // misses of the last-level cache
/// assert_eq!(pmu.running().map(|event| event.counter).collect::<Vec<_>>(), [0]);
/// # Ok::<(), pmu_virt::ConfigurationError>(())
/// ```
pub trait EventPolicy {
    /// Returns whether a general counter may count this event.
    fn allows_general(&self, event: u16, unit_mask: u8) -> bool;

    /// Returns whether a general counter may count this event with this unit mask 2, which is not 0. Only version 6 of
    /// Intel's architectural performance monitoring has a second unit mask. The PMU calls this method only if
    /// [`allows_general`](Self::allows_general) allows the event. The default implementation returns `false`.
    fn allows_unit_mask_2(&self, _event: u16, _unit_mask: u8, _unit_mask_2: u8) -> bool {
        false
    }

    /// Returns whether the fixed counter with this number may count.
    fn allows_fixed(&self, counter: u8) -> bool;
}

/// Applies the policy that a handle points to: a reference, or an `Arc` that the PMUs of many guests share.
///
/// ```
/// use std::sync::Arc;
///
/// use pmu_virt::{AmdConfiguration, Configuration, EventFilter, FedEvents, FilterAction, FilterEntry, VirtualPmu};
/// let entries = [FilterEntry::new(0xC0, 0)];
/// let filter = Arc::new(EventFilter::<300>::compile(FilterAction::Allow, 0, &entries)?);
/// let configuration = Configuration::Amd(AmdConfiguration::CORE_EXTENSION);
/// let mut pmus = Vec::new();
/// for _ in 0..4 {
///     pmus.push(VirtualPmu::with_policy(configuration, FedEvents::NONE, Arc::clone(&filter))?);
/// }
/// let _ = pmus[3].write(0xC001_0200, 0x53_00C0);
/// assert_eq!(pmus[3].running().count(), 1);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
impl<H: Deref<Target: EventPolicy>> EventPolicy for H {
    fn allows_general(&self, event: u16, unit_mask: u8) -> bool {
        (**self).allows_general(event, unit_mask)
    }
    fn allows_unit_mask_2(&self, event: u16, unit_mask: u8, unit_mask_2: u8) -> bool {
        (**self).allows_unit_mask_2(event, unit_mask, unit_mask_2)
    }
    fn allows_fixed(&self, counter: u8) -> bool {
        (**self).allows_fixed(counter)
    }
}

/// Policy that allows every event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AllowAll;

impl EventPolicy for AllowAll {
    #[inline]
    fn allows_general(&self, _: u16, _: u8) -> bool {
        true
    }
    #[inline]
    fn allows_unit_mask_2(&self, _: u16, _: u8, _: u8) -> bool {
        true
    }
    #[inline]
    fn allows_fixed(&self, _: u8) -> bool {
        true
    }
}
