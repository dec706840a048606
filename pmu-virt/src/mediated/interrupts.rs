//! The state of a guest's interrupts, which the guest's task and the interrupt path share.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use pmu_core::CounterSet;
use pmu_core::access::RegisterBackend;

use crate::mediated::host_counters::HostCounters;
use crate::mediated::registers::Access;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::EventPolicy;

/// State of the interrupts that the real counters raise for one virtual processor. The state takes 16 bytes, and can be
/// stored in a `static`. The virtual processor's task and the interrupt handler share this state. The interrupt handler
/// does not use any other state of the guest.
///
/// Each processor's interrupt handler uses the `GuestInterrupts` of the guest that was last
/// [loaded](HostCounters::load) on the processor. The handler continues to use this state after
/// [`put`](HostCounters::put). Just before the hypervisor loads another guest, the hypervisor gives the other guest's
/// state to the handler.
///
/// ```
/// use core::sync::atomic::{AtomicUsize, Ordering};
/// use pmu_core::{Claim, EventSource, Hardware, Sample, service};
/// use pmu_core::memory::CounterMemory;
/// use pmu_virt::mediated::{GuestInterrupts, HostCounters};
/// static INTERRUPTS: [GuestInterrupts; 4] = [const { GuestInterrupts::new() }; 4]; // one per virtual processor
/// static LAST: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2]; // one per processor; set before `load`
///
/// /// The performance counters' part of an NMI handler, in a window and outside. Returns the number of interrupts
/// /// that it accounts for, as `Claim::interrupts`; 0: the NMI is another source's.
/// fn counters_interrupted<S: EventSource, H: Hardware>(
///     host: &HostCounters,
///     processor: usize,
///     source: &S,
///     (hardware, memory): (&H, &CounterMemory),
///     sample: impl FnMut(Sample<'_, S::Facility>),
/// ) -> u32 {
///     let serviced = service(source, hardware, memory, sample);
///     let claimed = serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim).interrupts();
///     let is_lent = serviced.is_ok_and(|serviced| serviced.lent);
///     // Within the window whatever the session claimed; outside, what is left over.
///     let last = &INTERRUPTS[LAST[processor].load(Ordering::Relaxed)];
///     let is_guests = (is_lent || claimed == 0) && host.interrupted(last, hardware);
///     // Within the window the LVT entry stays masked, where delivery masked it: the task unmasks it before VM entry.
///     claimed + u32::from(is_guests)
/// }
/// ```
#[derive(Debug)]
pub struct GuestInterrupts {
    /// Flags; and in the counters' bits, the overflows whose interrupt the guest has had or did not ask for.
    state: AtomicU64,
    /// Counters that interrupt.
    interrupting: AtomicU64,
}

/// Bits of the global status that are counters'.
const COUNTERS: u64 = CounterSet::ALL.bits();
/// The other bits of the status that raise an interrupt (SDM vol. 4, table 2-2, IA32_PERF_GLOBAL_STATUS): a trace's
/// table (55), the uncore (61), the Debug Store's buffer (62). A guest can set them; then unmasking the LVT entry
/// raises one.
const OTHERS: u64 = 1 << 55 | 1 << 61 | 1 << 62;
/// The guest is on the counters. The flags lie between the bits of the general counters and of the fixed ones.
const LOADED: u64 = 1 << 16;
/// Flag: an interrupt has come that the guest has not had.
const PENDING: u64 = 1 << 17;
/// Flag: a put announced an interrupt, which has not come.
const EXPECTED: u64 = 1 << 18;
/// Flag, after a put: an interrupt that comes is of a second overflow of a counter whose first the guest has had.
const POSSIBLE: u64 = 1 << 19;

const _: () = assert!(COUNTERS & (LOADED | PENDING | EXPECTED | POSSIBLE) == 0);
const _: () = assert!(size_of::<GuestInterrupts>() == 16);

impl GuestInterrupts {
    /// Creates the interrupt state of a virtual processor that is not loaded and has no pending interrupt.
    pub const fn new() -> Self {
        Self { state: AtomicU64::new(0), interrupting: AtomicU64::new(0) }
    }

    /// Makes an interrupt [pending](VirtualPmu::pmi_pending) in the guest, if the interrupt handler has
    /// [noted](HostCounters::interrupted) an interrupt for the guest. Returns whether the handler had noted an
    /// interrupt. The hypervisor calls this method after each exit, and when a virtual processor sleeps.
    ///
    /// # Context
    /// Task.
    pub fn deliver_to<P: EventPolicy>(&self, guest: &mut VirtualPmu<P>) -> bool {
        let pending = self.state.fetch_and(!PENDING, AcqRel) & PENDING != 0;
        if pending {
            guest.set_pmi_pending(true);
        }
        pending
    }

    /// Returns whether the interrupt handler has [noted](HostCounters::interrupted) an interrupt that was not yet
    /// [delivered](Self::deliver_to). If the result is `true`, the hypervisor makes a running guest exit, and wakes a
    /// sleeping guest.
    ///
    /// # Context
    /// Any context.
    pub fn is_pending(&self) -> bool {
        self.state.load(Acquire) & PENDING != 0
    }

    /// Notes that the guest is loaded, and that it has had the interrupts of the overflows `known`.
    pub(super) fn load(&self, known: u64, interrupting: u64) {
        // Before the flag that the guest is loaded: a handler that sees the flag sees these counters, too.
        self.interrupting.store(interrupting, Relaxed);
        // An interrupt that an earlier put announced may come as late as now.
        let load = |state| Some(state & (PENDING | EXPECTED) | LOADED | known & COUNTERS);
        let _ = self.state.fetch_update(AcqRel, Acquire, load);
    }

    /// Notes that the load failed. What was pending or announced before stays so.
    pub(super) fn cancel_load(&self) {
        self.state.fetch_and(PENDING | EXPECTED, AcqRel);
    }

    /// Notes overflows that do not interrupt.
    pub(super) fn know(&self, overflows: u64) {
        self.state.fetch_or(overflows & COUNTERS, AcqRel);
    }

    /// Notes that these overflows are acknowledged.
    pub(super) fn acknowledged(&self, overflows: u64) {
        self.state.fetch_and(!(overflows & COUNTERS), AcqRel);
    }

    /// Sets the counters that interrupt, and returns those that did not before.
    pub(super) fn set_interrupting(&self, interrupting: u64) -> u64 {
        interrupting & !self.interrupting.swap(interrupting, Relaxed)
    }

    /// Notes that the guest left the counters with this status. Returns whether an interrupt is still to come.
    pub(super) fn put(&self, status: u64) -> bool {
        let overflowed = status & self.interrupting.load(Relaxed) & COUNTERS;
        let mut coming = false;
        let put = |state: u64| {
            coming = overflowed & !state != 0;
            // A counter that overflowed may have done so again since the guest's last interrupt, and that interrupt is
            // yet to come.
            let known = if overflowed != 0 { POSSIBLE } else { 0 };
            Some(state & PENDING | if coming { EXPECTED } else { known })
        };
        // An interrupt in between has noted the overflow.
        let _ = self.state.fetch_update(AcqRel, Acquire, put);
        coming
    }

    /// Notes an interrupt, at which the status was `status`. Returns whether the interrupt is the guest's.
    fn interrupted(&self, status: u64) -> bool {
        let overflowed = status & (self.interrupting.load(Relaxed) & COUNTERS | OTHERS);
        let noted = self.state.fetch_update(AcqRel, Acquire, |state| {
            // An announced interrupt never comes if the LVT entry was masked. So an interrupt that finds an overflow is
            // the guest's; at worst the guest gets one more than it needs.
            let is_known = overflowed & !state == 0;
            let flags = state & !COUNTERS & if is_known { !EXPECTED } else { u64::MAX };
            if state & EXPECTED != 0 && overflowed == 0 {
                Some(state & !EXPECTED)
            } else if state & LOADED == 0 {
                (state & POSSIBLE != 0).then_some(state & !POSSIBLE | PENDING)
            } else {
                (overflowed != 0).then_some(flags | PENDING | status & COUNTERS)
            }
        });
        noted.is_ok()
    }

    fn is_loaded(&self) -> bool {
        self.state.load(Acquire) & LOADED != 0
    }
}

impl Default for GuestInterrupts {
    fn default() -> Self {
        Self::new()
    }
}

impl HostCounters {
    /// Returns whether an interrupt of the performance counters belongs to the guest that was last loaded on this
    /// processor. If so, the call also notes the interrupt for [`deliver_to`](GuestInterrupts::deliver_to).
    ///
    /// While the guest is loaded, the interrupt belongs to the guest in two cases:
    ///
    /// - A counter with an enabled interrupt has overflowed.
    /// - Another bit of the status register is set, and this bit raises an interrupt.
    ///
    /// After a [`put`](Self::put), the interrupt belongs to the guest in two cases:
    ///
    /// - [`interrupt_is_coming`](crate::mediated::Put::interrupt_is_coming) was set in the result of `put`.
    /// - `put` found an overflow, but the guest had already received an interrupt for this overflow. A second overflow
    ///   of the same counter may have raised the new interrupt.
    ///
    /// An interrupt that belongs to this guest is never attributed to the guest that is loaded next.
    ///
    /// While the guest is loaded, this function reads the global status register. If the read fails, the function
    /// returns `true`.
    ///
    /// # Context
    /// Any context: task, interrupt or NMI. Takes no lock, and does not allocate or panic.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mediated::{GuestInterrupts, HostCounters};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
    /// # let processor = MockMsr::<64>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// let host = HostCounters::new(configuration)?;
    /// let mut guest = VirtualPmu::new(host.guest(), FedEvents::NONE)?;
    /// let _ = guest.write(0x186, 0x53_003C); // counts cycles, and interrupts
    /// let (mut lent, interrupts) = (host.stop(&processor)?, GuestInterrupts::new());
    /// let loaded = host.load(&mut lent, &mut guest, &interrupts, &processor)?;
    /// // Nothing has overflowed: an NMI that comes now is another source's.
    /// assert!(!host.interrupted(&interrupts, &processor));
    /// // The guest's counter overflows, and the handler attributes the NMI to the guest. The task delivers it.
    /// # // SAFETY: sets bits of the status.
    /// # processor.write(unsafe { RegisterAddress::new(0x391) }, 1).unwrap();
    /// assert!(host.interrupted(&interrupts, &processor) && interrupts.is_pending());
    /// assert!(interrupts.deliver_to(&mut guest) && guest.pmi_pending() && !interrupts.is_pending());
    /// let saved = loaded.global_control();
    /// host.put(loaded, saved, &mut guest, &processor).map_err(|(_, error)| error)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn interrupted<M: RegisterBackend>(&self, interrupts: &GuestInterrupts, msr: &M) -> bool {
        let status = if interrupts.is_loaded() {
            // A status that cannot be read may have any overflow. The guest then gets at worst one interrupt too many.
            Access(msr).read(self.registers.status).unwrap_or(u64::MAX)
        } else {
            0
        };
        interrupts.interrupted(status)
    }
}
