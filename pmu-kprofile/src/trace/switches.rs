//! Tracing of context switches.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pmu_core::frame::ProcessorNumber;
use pmu_core::windows::PointerWidth;

use crate::trace::event::context_switch::ContextSwitch;
use crate::trace::extended::Extended;
use crate::trace::record::Record;
use crate::trace::ring::SwitchRing;

/// Writes a trace record of each context switch into the ring of the processor that switches.
///
/// Records are written while the group mask of [`TraceControl`](crate::trace::TraceControl) contains
/// [`PERF_CONTEXT_SWITCH`](crate::trace::PERF_CONTEXT_SWITCH).
///
/// ```
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_kprofile::PointerWidth;
/// use pmu_kprofile::trace::{ContextSwitch, Extended, SwitchRing, SwitchTrace};
/// static RINGS: [SwitchRing<128>; 2] = [const { SwitchRing::new() }; 2];
/// static SWITCHES: SwitchTrace<128> = SwitchTrace::new(PointerWidth::Bits64, &RINGS);
///
/// /// What a scheduler does on the way from one thread to the other.
/// fn switched(on: ProcessorNumber, old_thread: u32, new_thread: u32, time: u64, index: Option<u64>) {
///     if SWITCHES.is_traced() {
///         let switch = ContextSwitch { old_thread, new_thread, ..ContextSwitch::default() };
///         let extended = Extended { pebs_index: index, ..Extended::default() };
///         SWITCHES.record(on, time, extended, switch);
///     }
/// }
/// ```
#[derive(Debug)]
pub struct SwitchTrace<const N: usize> {
    width: PointerWidth,
    rings: &'static [SwitchRing<N>],
    gate: Gate,
    ringless: AtomicU64,
}

/// The settings of the control for context switches.
#[derive(Debug)]
pub(super) struct Gate {
    traced: AtomicBool,
    stamped: AtomicBool,
}

impl Gate {
    pub(super) fn set_traced(&self, traced: bool) {
        self.traced.store(traced, Ordering::Relaxed);
    }

    pub(super) fn set_stamped(&self, stamped: bool) {
        self.stamped.store(stamped, Ordering::Relaxed);
    }
}

impl<const N: usize> SwitchTrace<N> {
    /// Creates a trace of context switches that writes into `rings`. `rings` has one ring per processor, by processor
    /// index. The trace is off.
    pub const fn new(width: PointerWidth, rings: &'static [SwitchRing<N>]) -> Self {
        let gate = Gate { traced: AtomicBool::new(false), stamped: AtomicBool::new(false) };
        Self { width, rings, gate, ringless: AtomicU64::new(0) }
    }

    pub(super) const fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Returns whether context switches are traced.
    ///
    /// # Context
    /// Any.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.gate.traced.load(Ordering::Relaxed)
    }

    /// Records a context switch if context switches are traced.
    ///
    /// The PEBS index of `extended` is recorded only if
    /// [`TraceControl::set_pebs_hooks`](crate::trace::TraceControl::set_pebs_hooks) requested PEBS indexes.
    ///
    /// # Context
    /// Any, on the processor `on`, which is switching threads. Wait-free.
    pub fn record(
        &self,
        on: ProcessorNumber,
        timestamp: u64,
        mut extended: Extended,
        switch: ContextSwitch,
    ) {
        if !self.is_traced() {
            return;
        }
        let Some(ring) = self.rings.get(on.index()) else {
            self.ringless.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if !self.gate.stamped.load(Ordering::Relaxed) {
            extended.pebs_index = None;
        }
        ring.push(&Record { extended, ..Record::new(self.width, timestamp, switch) });
    }

    /// Returns the number of context switches that were lost so far. A context switch is lost if the ring is full, or
    /// if the processor has no ring.
    ///
    /// # Context
    /// Any.
    pub fn dropped(&self) -> u64 {
        let full: u64 = self.rings.iter().map(SwitchRing::dropped).sum();
        full + self.ringless.load(Ordering::Relaxed)
    }
}
