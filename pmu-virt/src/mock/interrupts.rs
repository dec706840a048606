//! Interrupts of a mock processor.

use core::cell::Cell;

use crate::events::feed::Feed;
use crate::mock::backend::PmiFault;
use crate::mock::deviation::Deviation;
use crate::mock::facilities::Armed;
use crate::mock::processor::{MASKED, MockMsr};
use crate::model::Advanced;
use crate::pmu::facility::GuestFacility;
use crate::pmu::virtual_pmu::{Delivery, PerformanceEntry, PmiOutcome};

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Notes that the PMU raised an interrupt.
    pub(super) fn raised(&self) {
        if !self.deviations.contains(Deviation::NeverFreezesBranches) {
            self.beside.borrow_mut().pmi_raised();
        }
    }

    /// Delivers the pending interrupt, or applies the injected [fault](PmiFault).
    pub(super) fn interrupt(&self) {
        match self.plan.pmi.get() {
            PmiFault::None => self.deliver(),
            // INIT drops the pending interrupt, and leaves every register as it is.
            PmiFault::Lost => self.pmu.borrow_mut().init(),
            PmiFault::Late(accesses) => self.plan.deliver_in.set(accesses.saturating_add(1)),
        }
    }

    /// Delivers a pending interrupt of the PMU. If the LVT entry is not masked, the call executes the test's handler.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, events)?);
    /// mock.set_performance_entry(0x400);
    /// mock.write(msr(0x4C1), (1 << 48) - 100).unwrap();
    /// mock.write(msr(0x186), 0x53_003C).unwrap();
    /// let mut feed = Feed::new(&events);
    /// feed.add(events.find(CYCLES).unwrap(), Privilege::Kernel, 250)?;
    /// // Interrupts are off while the counter overflows. The driver stops it, and then enables interrupts.
    /// assert!(mock.pass(&mut feed).pmi && mock.interrupts() == 0);
    /// mock.write(msr(0x38F), 0).unwrap();
    /// mock.deliver();
    /// assert_eq!(mock.interrupts(), 1);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn deliver(&self) {
        let overflowed = self.overflowed.take();
        if self.precise.get() & overflowed != 0 {
            // With PEBS an overflow writes a record, and raises no interrupt.
            self.pmu.borrow_mut().init();
        }
        let outcome = self.pmu.borrow_mut().deliver_pmi(&mut Entry(&self.entry));
        if let PmiOutcome::Raised(_) = outcome {
            if self.deviations.contains(Deviation::MasksOnDelivery) {
                self.entry.set(self.entry.get() | MASKED);
            }
            let second = self.deviations.contains(Deviation::LatchesSecondInterrupt)
                && overflowed.count_ones() > 1;
            self.execute_handler(second);
        }
    }

    /// Delivers an NMI that does not come from the PMU. If the test's handler is already running, the call returns
    /// `false`, and the NMI is delivered when the handler returns.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// // The kernel's NMI handler asks each source. The counters' part of it may not claim this one.
    /// let claimed = core::cell::Cell::new(false);
    /// let handler = |mock: &MockMsr<8>| claimed.set(mock.read(msr(0x38E)).unwrap() != 0);
    /// mock.on_interrupt(&handler);
    /// assert!(mock.interrupt_from_elsewhere());
    /// assert!(!claimed.get() && mock.interrupts() == 1);
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn interrupt_from_elsewhere(&self) -> bool {
        self.execute_handler(false)
    }

    /// Executes the handler. While it is being executed already, latches one interrupt instead.
    fn execute_handler(&self, second: bool) -> bool {
        let outer = self.handling.get();
        if second {
            self.latched.set(true);
        }
        // While an NMI is handled, one more is latched, and all further ones are lost.
        if outer && !self.deviations.contains(Deviation::NestsInterrupts) {
            self.latched.set(true);
            return false;
        }
        self.handling.set(true);
        loop {
            self.handled.set(self.handled.get().saturating_add(1));
            if let Some(handler) = self.handler.get() {
                handler(self);
            }
            // An NMI that was latched comes when the outermost handler returns.
            if outer || !self.latched.take() {
                break;
            }
        }
        self.handling.set(outer);
        true
    }

    /// Sets the feed whose events the next call of [`reported`](Self::reported) counts. `reported` counts only on a
    /// platform with the deviation [`OverflowsWhileServiced`](Deviation::OverflowsWhileServiced).
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::{Deviation, Deviations, MockMsr};
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let platform = Deviations::of(&[Deviation::OverflowsWhileServiced]);
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, events)?).deviating(platform);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// mock.write(msr(0x186), 0x53_003C).unwrap();
    /// let mut during = Feed::new(&events);
    /// during.add(events.find(CYCLES).unwrap(), Privilege::Kernel, 500)?;
    /// mock.pass_while_serviced(during);
    /// // The driver's callback, in which the counter runs on.
    /// let report = || mock.reported();
    /// report();
    /// assert_eq!(mock.read(msr(0x4C1)), Ok(500));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn pass_while_serviced(&self, feed: Feed) {
        self.while_serviced.set(Some(feed));
    }

    /// Counts the events of the feed that the test has passed to [`pass_while_serviced`](Self::pass_while_serviced). A
    /// test calls this method in the callback to which the driver reports an overflow.
    pub fn reported(&self) {
        if self.deviations.contains(Deviation::OverflowsWhileServiced)
            && let Some(mut feed) = self.while_serviced.take()
        {
            self.advance(&mut feed);
        }
    }

    /// Counts all events of `feed`, and delivers each interrupt that an overflow raises. On a processor
    /// [with auto counter reload](Self::with_reload), pass a feed that causes fewer than 1,024 reloads.
    ///
    /// # Panics
    /// The call panics if the events of the feed differ from the [events](crate::VirtualPmu::events) of this
    /// processor's PMU.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// # use pmu_core::Platform;
    /// use core::cell::Cell;
    ///
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::strict(VirtualPmu::new(configuration, events)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// // A driver's handler: acknowledges, loads the counter again, and unmasks.
    /// let samples = Cell::new(0);
    /// let handler = |mock: &MockMsr<8>| {
    ///     let overflowed = mock.read(msr(0x38E)).unwrap();
    ///     mock.write(msr(0x390), overflowed).unwrap();
    ///     mock.write(msr(0x4C1), (1 << 48) - 1_000).unwrap();
    ///     samples.set(samples.get() + 1);
    ///     mock.unmask_performance_interrupt();
    /// };
    /// mock.on_interrupt(&handler);
    /// mock.unmask_performance_interrupt();
    /// mock.write(msr(0x4C1), (1 << 48) - 1_000).unwrap();
    /// mock.write(msr(0x186), 0x53_003C).unwrap();
    /// let mut feed = Feed::new(&events);
    /// feed.add(events.find(CYCLES).unwrap(), Privilege::Kernel, 10_500)?;
    /// mock.advance(&mut feed);
    /// assert_eq!((samples.get(), mock.interrupts()), (10, 10));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn advance(&self, feed: &mut Feed) {
        let late = self.deviations.contains(Deviation::ServicesLate);
        let mut pmi = false;
        while !feed.is_empty() {
            pmi |= self.pass(feed).pmi;
            if pmi && !late {
                self.interrupt();
                pmi = false;
            }
        }
        if pmi {
            self.interrupt();
        }
    }

    /// Counts the events of `feed` up to the first overflow that raises an interrupt. The interrupt stays pending until
    /// the test calls [`deliver`](Self::deliver).
    ///
    /// # Panics
    /// The call panics if the events of the feed differ from the [events](crate::VirtualPmu::events) of this
    /// processor's PMU.
    pub fn pass(&self, feed: &mut Feed) -> Advanced {
        let armed = Armed::arm(self, &mut self.pmu.borrow_mut());
        match self.count(feed) {
            Ok(mut advanced) => {
                armed.disarm(&mut self.pmu.borrow_mut(), &mut advanced);
                self.overflowed.set(self.overflowed.get() | advanced.overflowed);
                advanced.pmi |= self.write_records(advanced.records);
                if advanced.pmi {
                    self.raised();
                }
                advanced
            }
            Err(error) => panic!("the feed is {error}"),
        }
    }
}

/// The LVT entry alone: the caller executes the handler afterwards.
pub(super) struct Entry<'e>(pub(super) &'e Cell<u32>);

impl PerformanceEntry for Entry<'_> {
    fn entry(&self) -> u32 {
        self.0.get()
    }
    fn set_entry(&mut self, entry: u32) {
        self.0.set(entry);
    }
    fn raise(&mut self, _: Delivery) {}
}
