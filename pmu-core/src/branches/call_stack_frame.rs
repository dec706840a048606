//! An interrupted context whose call chain is the processor's own.

use core::any::Any;
use core::ops::ControlFlow;

use crate::branches::sampled::Branches;
use crate::frame::{InterruptFrame, ProcessId, ProcessorNumber};

/// An [`InterruptFrame`] that takes its [call chain](InterruptFrame::call_chain) from the processor's branch records.
/// The interrupted code needs no frame pointers.
///
/// Use this frame while a [`BranchRecorder`](crate::branch_recording::BranchRecorder) records a [call
/// stack](crate::branches::BranchFilter::call_stack). The chain has the addresses of the call instructions, not the
/// return addresses. The chain has at most as many addresses as the processor has records.
///
/// ```
/// use pmu_core::branches::{Branches, CallStackFrame};
/// use pmu_core::frame::InterruptFrame;
/// # struct StackRing;
/// # impl StackRing { fn push_call_chain(&self, _: &dyn InterruptFrame) -> bool { true } }
/// /// In the closure given to `service`, with the sample's `branch_records`.
/// /// For `pmu_kprofile::trace::StackRing`, the record 0x1820.
/// fn sample(ring: &StackRing, frame: &dyn InterruptFrame, branches: &Branches<'_>) {
///     ring.push_call_chain(&CallStackFrame::new(frame, branches));
/// }
/// ```
#[derive(Clone, Copy)]
pub struct CallStackFrame<'a> {
    frame: &'a dyn InterruptFrame,
    branches: &'a Branches<'a>,
}

impl<'a> CallStackFrame<'a> {
    /// Creates a frame with the registers of `frame`. The call stack in `branches` replaces the call chain of `frame`.
    pub const fn new(frame: &'a dyn InterruptFrame, branches: &'a Branches<'a>) -> Self {
        Self { frame, branches }
    }
}

impl InterruptFrame for CallStackFrame<'_> {
    fn pc(&self) -> u64 {
        self.frame.pc()
    }
    fn cs(&self) -> u16 {
        self.frame.cs()
    }
    fn flags(&self) -> u64 {
        self.frame.flags()
    }
    fn processor(&self) -> ProcessorNumber {
        self.frame.processor()
    }
    fn process(&self) -> Option<ProcessId> {
        self.frame.process()
    }
    fn thread(&self) -> u32 {
        self.frame.thread()
    }
    fn timestamp(&self) -> u64 {
        self.frame.timestamp()
    }
    fn pebs_index(&self) -> Option<u64> {
        self.frame.pebs_index()
    }
    fn embedder(&self) -> Option<&dyn Any> {
        self.frame.embedder()
    }
    /// Visits the addresses of the call instructions in the call stack, the innermost call first.
    fn call_chain(&self, visit: &mut dyn FnMut(u64) -> ControlFlow<()>) {
        let _ = self.branches.iter().try_for_each(|branch| visit(branch.from));
    }
}
