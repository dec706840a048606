//! One event is closed where a register of a facility does not answer any more.

use pmu::PmuError;
use pmu::core::branches::BranchFilter;
use pmu::core::error::CounterError;
use pmu::core::{Event, GenericEvent};
use pmu_virt::branches::BranchConfiguration;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::Fault;

use super::world::Machine;

/// `close_member`: "As `close`. If an access to a register failed, the event is closed nevertheless."
#[test]
fn an_event_is_closed_although_registers_do_not_answer() {
    for (single, which) in [(true, 0), (false, 0), (false, 1)] {
        for access in 1..40 {
            let configuration = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
            let (machine, pmu) =
                Machine::with_branches(configuration, BranchConfiguration::ARCHITECTURAL);
            machine.up();
            let sampled = Event::generic(GenericEvent::Instructions)
                .every(5_000)
                .with_branches(BranchFilter::KERNEL);
            let ids = if single {
                vec![pmu.start(&sampled).unwrap()]
            } else {
                pmu.start_group(&[sampled, Event::generic(GenericEvent::Cycles)]).unwrap().to_vec()
            };
            machine.mocks[0].clear();
            machine.mocks[0].inject(Fault::From(access));
            let closed = pmu.close_member(ids[which]);
            let reached = machine.mocks[0].accesses().total() >= access;
            machine.mocks[0].inject(Fault::None);
            if !reached {
                break;
            }
            assert_eq!(
                pmu.close_member(ids[which]),
                Err(PmuError::Counters(CounterError::NoSuchEvent(ids[which].id()))),
                "single {single}, which {which}, access {access}: {closed:?}"
            );
        }
    }
}
