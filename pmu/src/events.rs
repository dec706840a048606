//! Events of the embedder's own, on the machine's counters.

use core::sync::atomic::AtomicU32;

use pmu_core::{
    CounterUnit, IntervalLimits, KProfileSource, Snapshot, SourceInterface, SourceTable,
};

use crate::Machine;

/// A table of the embedder's own over the machine's general counters: any event of the processor's manual.
///
/// Its rows are sources as any others are: sessions start them, profile objects count them. Their values are
/// the embedder's to give: from [`FIRST`](Self::FIRST) on, without a gap. Such a session and one of the machine's own table
/// need memory of their own, and share no counter: give each processor one of the two, and call the `service` of
/// that one.
///
/// ```
/// use pmu::core::{EventSelect, KProfileSource, ProfileInterface, ProfileSource, SourceIndex, SourceTable};
/// # use pmu::core::{CpuidDump, Snapshot};
/// use pmu::{Events, Machine};
///
/// // Event 0x2E, unit mask 0x41 and event 0xC0, cycles in which at least 4 retired; at every privilege.
/// static ROWS: [ProfileSource; 2] = [
///     ProfileSource::new(0x19, "LastLevelMisses", EventSelect::from_bits(0x0003_412E)),
///     ProfileSource::new(0x1A, "BusyCycles", EventSelect::from_bits(0x0403_00C0)),
/// ];
/// static INDEX: SourceIndex<8> = SourceIndex::new(&ROWS);
/// static TABLE: SourceTable = SourceTable::new(&ROWS, &INDEX);
///
/// # let dump = CpuidDump::parse(
/// #     "   0x00000000 0x00: eax=0x0000000a ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
/// #         0x0000000a 0x00: eax=0x07300404 ebx=0x00000000 ecx=0x00000000 edx=0x00000603",
/// # )?;
/// # let snapshot = Snapshot::capture(&dump);
/// let machine = Machine::detect(&snapshot);
/// let events = Events::<2>::new(&machine, &TABLE);
/// let busy = KProfileSource::new(0x1A).unwrap();
/// events.set_interval(busy, 0x10_0000)?;
/// assert!(events.query(busy).is_supported());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Events<'m, const N: usize> {
    machine: &'m Machine,
    table: &'static SourceTable,
    intervals: [AtomicU32; N],
}

impl<'m, const N: usize> Events<'m, N> {
    /// The value of a table's first source: those below are Windows' general ones.
    pub const FIRST: u32 = KProfileSource::MAXIMUM + 1;

    /// The rows of `table`, the first `N` of them, at the default interval.
    ///
    /// Whether the processor has an event is not known: one that it lacks counts nothing, or something else.
    /// One whose bits no select may have is refused when it is started.
    pub const fn new(machine: &'m Machine, table: &'static SourceTable) -> Self {
        let intervals = [const { AtomicU32::new(IntervalLimits::EVENTS.default) }; N];
        Self { machine, table, intervals }
    }
}

impl<const N: usize> SourceInterface for Events<'_, N> {
    fn name(&self) -> &'static str {
        "Events"
    }

    fn requires_memory(&self) -> bool {
        true
    }

    fn table(&self) -> &'static SourceTable {
        self.table
    }

    #[inline]
    fn unit(&self) -> &CounterUnit {
        self.machine.unit()
    }

    fn unit_of(&self, processor: &Snapshot) -> CounterUnit {
        self.machine.unit_of(processor)
    }

    fn is_declared(&self, row: usize) -> bool {
        row < N && self.machine.unit().counters() != 0
    }

    #[inline]
    fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
        self.intervals.get(row)
    }
}
