//! Trace records of call chains from the processor's call stack.

use super::support::*;
use core::cell::RefCell;
use core::ops::ControlFlow;
use pmu_core::branch_recording::BranchRecorder;
use pmu_core::branches::{BranchFilter, CallStackFrame};
use pmu_core::frame::{InterruptFrame, PlainFrame};
use pmu_core::windows::PointerWidth;
use pmu_kprofile::trace::{Event, Record, StackRing};
use pmu_virt::Privilege;
use pmu_virt::branches::{FedBranch, FedBranchKind};

#[test]
fn a_call_chain_of_the_trace_has_the_callers_that_the_processor_recorded() {
    for processor in processors() {
        let (unit, mock, records) = (processor.unit(), processor.mock(), Records::new());
        if !unit.offers().call_stack {
            continue;
        }
        let mut recorder = BranchRecorder::take(&unit, &mock, &records).unwrap();
        recorder.start(BranchFilter::USER.call_stack()).unwrap();
        for from in [0x1000, 0x2000, 0x3000] {
            let kind = FedBranchKind::RelativeCall;
            mock.branch(&FedBranch::new(from, 0x9000, kind, Privilege::User));
        }
        let branches = recorder.read().unwrap();
        let interrupted =
            PlainFrame { pc: 0x3456, cs: 0x33, flags: 0x202, processor: 0, process: None };
        let frame = CallStackFrame::new(&interrupted, &branches);
        assert_eq!((frame.pc(), frame.cs()), (0x3456, 0x33));
        let chain = RefCell::new(vec![]);
        frame.call_chain(&mut |address| {
            chain.borrow_mut().push(address);
            if chain.borrow().len() < 2 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        assert_eq!(chain.into_inner(), [0x3000, 0x2000]);
        // In the record 0x1820, as 64-bit addresses.
        let ring = StackRing::<4>::new();
        assert!(ring.push_call_chain(PointerWidth::Bits64, &frame));
        let bytes = ring.drain().next().unwrap();
        let Record { event: Event::StackWalk(walk), .. } = bytes.decode().unwrap() else {
            panic!("another record")
        };
        let addresses: Vec<u64> = walk.addresses().collect();
        assert_eq!(addresses, [0x3456, 0x3000, 0x2000, 0x1000], "{}", processor.name);
    }
}
