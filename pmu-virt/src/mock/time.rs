//! Time that passes on a mock processor: feeds.

use crate::events::feed::Feed;
use crate::mock::deviation::Deviation;
use crate::mock::due::Armed;
use crate::mock::processor::MockMsr;
use crate::model::advanced::Advanced;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Sets the feed whose events the next call of [`reported`](Self::reported) counts. `reported` counts only on a
    /// platform with the deviation [`OverflowsWhileServiced`](Deviation::OverflowsWhileServiced).
    ///
    /// ```
    /// # use pmu_core::msr::{MsrAddress, MsrBackend};
    /// use pmu_virt::mock::{Deviation, Deviations, MockMsr};
    /// use pmu_virt::{Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege, VirtualPmu};
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let platform = Deviations::of(&[Deviation::OverflowsWhileServiced]);
    /// let mock = MockMsr::<8>::new(VirtualPmu::new(configuration, events)?).deviating(platform);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { MsrAddress::new(address) };
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
    /// # use pmu_core::msr::{MsrAddress, MsrBackend};
    /// # use pmu_core::Platform;
    /// use core::cell::Cell;
    ///
    /// use pmu_virt::mock::MockMsr;
    /// use pmu_virt::{Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege, VirtualPmu};
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mock = MockMsr::<8>::strict(VirtualPmu::new(configuration, events)?);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { MsrAddress::new(address) };
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
