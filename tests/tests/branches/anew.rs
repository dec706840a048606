//! A call stack whose recording an interrupt could not start again begins anew: later samples have what was called
//! since.

use core::cell::RefCell;

use super::scene::stack_of;
use super::support::*;
use pmu_core::branches::Branches;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterSession, CounterSet, Events, Sample, service};
use pmu_tests::opened::{happened, raw};
use pmu_virt::Privilege;
use pmu_virt::branches::{FedBranch, FedBranchKind};
use pmu_virt::mock::Fault;

const PERIOD: u64 = 100_000;

#[test]
fn samples_after_one_whose_recording_could_not_go_on_have_calls_again() {
    let mut lost = 0;
    for of in processors() {
        let Some(filter) = stack_of(&of) else { continue };
        for access in 1..80 {
            let at = format!("{}, {access}", of.name);
            let (mock, counters, unit) = (of.mock(), of.counters(), of.unit());
            let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
            let table = EventTable::<[EventEntry; 4]>::new();
            let records = Records::new();
            let seen = RefCell::new(vec![]);
            let source = Events::new(&counters, &table).with(Branches::new(&unit, &records));
            let handler = |mock: &Mock<'_>| {
                let _ = service(&source, mock, &memory, |sample: Sample<'_, Branches<'_>>| {
                    let found: Vec<u64> = sample.branches().map(|of| of.from).collect();
                    seen.borrow_mut().push(found);
                });
            };
            let begun = core::cell::Cell::new(u32::MAX);
            let heal = |mock: &Mock<'_>| {
                if mock.accesses().total() == begun.get() {
                    mock.inject(Fault::None);
                }
            };
            mock.on_interrupt(&handler);
            let mut session =
                CounterSession::take(source, &counters, CounterSet::ALL, &mock, &memory).unwrap();
            let event = raw(2).every(PERIOD).with_branches(filter);
            session.start(&counters, &[event], 0).unwrap();
            let call = |number: u64| {
                let kind = FedBranchKind::RelativeCall;
                mock.branch(&FedBranch::new(number << 12, 0x9000, kind, Privilege::User));
            };
            call(1);
            // An access of the interrupt fails, with its retry.
            let before = mock.accesses().total();
            begun.set(before + access + 1);
            mock.on_access(&heal);
            mock.inject(Fault::From(access));
            mock.advance(&mut happened(2, PERIOD));
            let is_reached = mock.accesses().total() >= before + access;
            mock.inject(Fault::None);
            if !is_reached {
                break;
            }
            for number in 2..6 {
                call(number);
                mock.advance(&mut happened(2, PERIOD));
            }
            let seen = seen.borrow();
            if seen.len() == 5 {
                let last = &seen[4];
                assert_eq!(last.first(), Some(&(5 << 12)), "{at}: {seen:X?}");
            } else {
                lost += 1;
            }
        }
    }
    assert!(lost > 0);
}
