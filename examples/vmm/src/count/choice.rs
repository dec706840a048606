//! The source that the command line chose.

use pmu_virt::configuration::Vendor;

use crate::count::clock::Clock;
use crate::count::fed::Fed;
use crate::count::perf::{self, Perf, PerfEvents};
use crate::count::quantity::Quantity;
use crate::count::source::Source;
use crate::count::step::{self, Step};
use crate::count::time::{self, Time};
use crate::error::Error;
use crate::guest_pmu::spec::GuestPmu;
use crate::options::{Count, Options};

/// The command line's choice of a source.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    count: Count,
    /// The quantities that the source feeds, on this host.
    pub(crate) quantities: Vec<Quantity>,
    frequency: u16,
    rate: u16,
    branch_rate: u16,
    may_step: bool,
}

impl Choice {
    /// Chooses the source of these options, for a guest with this PMU, and finds the quantities that it feeds on this
    /// host.
    pub(crate) fn of(options: &Options, pmu: &GuestPmu) -> Result<Self, Error> {
        let &Options { count, frequency, rate, branch_rate, .. } = options;
        let quantities = match count {
            Count::Time => time::QUANTITIES.into(),
            Count::Step => step::QUANTITIES.into(),
            Count::Perf => perf::offered(&PerfEvents).map_err(Error::NoCounters)?,
        };
        let may_step = pmu.branches.is_some() || pmu.precise.is_some() || pmu.sampling.is_some();
        Ok(Self { count, quantities, frequency, rate, branch_rate, may_step })
    }

    /// Creates the source of one processor, on its thread, for a PMU of this vendor.
    pub(crate) fn source(&self, vendor: Vendor) -> Result<Box<dyn Source>, Error> {
        let fed = Fed::new(&self.quantities, vendor).map_err(Error::internal)?;
        Ok(match self.count {
            Count::Time => {
                let clock = Clock::new(self.frequency, self.rate, self.branch_rate);
                Box::new(Time::new(fed, clock, self.may_step))
            }
            Count::Step => Box::new(Step::new(fed)),
            Count::Perf => Box::new(Perf::new(fed, PerfEvents)),
        })
    }
}
