//! The thread of one processor.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};

use kvm_bindings::CpuId;
use kvm_ioctls::VcpuFd;
use pmu_virt::VirtualPmu;
use pmu_virt::configuration::Configuration;

use crate::count::choice::Choice;
use crate::count::handler::Handler;
use crate::error::Error;
use crate::guest_pmu::deviating::{Deviating, Observable};
use crate::guest_pmu::facilities::Facilities;
use crate::guest_pmu::inverted::Inverted;
use crate::processor::extended_entries::ExtendedEntries;
use crate::processor::state::{Debugging, Processor};
use crate::shared::end::End;
use crate::shared::machine::Machine;
use crate::stats::Stats;

/// A thread that runs a processor, and returns its statistics.
pub(crate) type ProcessorThread = JoinHandle<Stats>;

/// A processor's result when it ends the machine.
pub(crate) type Verdict = Result<End, Error>;

/// Parts from which a processor's thread creates its processor.
pub(crate) struct Plan {
    pub(crate) number: u8,
    pub(crate) pmu: Configuration,
    pub(crate) facilities: Facilities,
    pub(crate) seen: CpuId,
    pub(crate) choice: Choice,
    pub(crate) inverted: Option<Inverted>,
    pub(crate) deviation: Option<Observable>,
}

/// Starts the thread, which sends a verdict if its processor ends the machine.
pub(crate) fn spawn(
    machine: Arc<Machine>,
    vcpu: VcpuFd,
    plan: Plan,
    sender: Sender<Verdict>,
) -> Result<ProcessorThread, Error> {
    let work = move || {
        let number = plan.number;
        let made = plan.choice.source(plan.pmu.vendor()).and_then(|source| {
            let pmu = VirtualPmu::new(plan.pmu, source.fed().events);
            let mut pmu = pmu.map_err(Error::internal)?;
            let deviating = Deviating::new(plan.deviation, &mut pmu);
            let (stats, debugging) = (Stats::default(), Debugging::default());
            let Plan { seen, inverted, facilities, .. } = plan;
            Ok(Processor {
                number,
                machine,
                vcpu,
                seen,
                pmu,
                facilities,
                extended_entries: ExtendedEntries::new(),
                source,
                handler: Handler::new(),
                debugging,
                stats,
                told_overwritten: false,
                inverted,
                deviating,
            })
        });
        let (verdict, stats) = match made {
            Ok(mut processor) => (processor.run(), processor.stats),
            Err(error) => (Err(error), Stats::default()),
        };
        // The receiver is gone after the end.
        let _ = verdict.transpose().map(|verdict| sender.send(verdict));
        stats
    };
    thread::Builder::new().spawn(work).map_err(Error::system("a thread"))
}
