//! Time that passes on a mock processor: feeds.

use crate::events::feed::Feed;
use crate::mock::deviation::Deviation;
use crate::mock::processor::MockMsr;
use crate::model::advanced::Advanced;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Sets the feed that passes while the driver next [reports](Self::reported) an overflow, on a platform where
    /// counters [overflow while serviced](Deviation::OverflowsWhileServiced).
    pub fn pass_while_serviced(&self, feed: Feed) {
        self.while_serviced.set(Some(feed));
    }

    /// Plays the platform's part in the report of an overflow. Call it where the driver reports one.
    pub fn reported(&self) {
        if self.deviations.contains(Deviation::OverflowsWhileServiced)
            && let Some(mut feed) = self.while_serviced.take()
        {
            self.advance(&mut feed);
        }
    }

    /// Lets all of `feed` happen, and delivers the overflows' interrupts.
    ///
    /// # Panics
    /// The feed is of other events than those of this processor's PMU.
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

    /// Lets `feed` happen up to the first overflow that interrupts, and does not [deliver](Self::deliver) the
    /// interrupt yet.
    ///
    /// # Panics
    /// The feed is of other events than those of this processor's PMU.
    pub fn pass(&self, feed: &mut Feed) -> Advanced {
        match self.pmu.borrow_mut().advance(feed) {
            Ok(advanced) => {
                self.overflowed.set(self.overflowed.get() | advanced.overflowed);
                advanced
            }
            Err(error) => panic!("the feed is {error}"),
        }
    }
}
