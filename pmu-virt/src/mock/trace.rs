//! Record of a driver's accesses.

use core::fmt;

use pmu_core::access::{AccessErrorKind, AccessOperation};

/// One access that the driver made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Record {
    /// The kind of access.
    pub operation: AccessOperation,
    /// The address of the register, or the index of RDPMC.
    pub register: u32,
    /// The value that the driver read or wrote, or the kind of failure.
    pub outcome: Result<u64, AccessErrorKind>,
}

/// Numbers of the driver's accesses by kind. The numbers include failed accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Accesses {
    /// Number of RDMSR instructions.
    pub reads: u32,
    /// Number of WRMSR instructions.
    pub writes: u32,
    /// Number of RDPMC instructions.
    pub pmc_reads: u32,
}

impl Accesses {
    pub(super) const NONE: Self = Self { reads: 0, writes: 0, pmc_reads: 0 };

    /// Returns the number of all accesses.
    pub const fn total(self) -> u32 {
        self.reads.saturating_add(self.writes).saturating_add(self.pmc_reads)
    }

    pub(super) const fn and(mut self, operation: AccessOperation) -> Self {
        let count = match operation {
            AccessOperation::Read | AccessOperation::Update => &mut self.reads,
            AccessOperation::Write => &mut self.writes,
            AccessOperation::ReadCounter => &mut self.pmc_reads,
        };
        *count = count.saturating_add(1);
        self
    }
}

/// Access by the driver that the manual does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Breach {
    /// The kind of access.
    pub operation: AccessOperation,
    /// The address of the register, or the index of RDPMC.
    pub register: u32,
    /// The value that the driver wrote.
    pub value: u64,
    /// Bits that the manual does not allow: set bits of `value`, or clear ones that another write is to clear first
    /// (the enable bit of AMD's sampling units, erratum 420). The field is 0 for a read, and for a register that this
    /// vendor's PMUs lack.
    pub illegal: u64,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, register, value, illegal } = self;
        match operation {
            AccessOperation::Read | AccessOperation::Update => {
                write!(f, "RDMSR {register:#X}: no such register")
            }
            AccessOperation::ReadCounter => write!(f, "RDPMC {register:#X}: no such counter"),
            AccessOperation::Write => {
                write!(f, "WRMSR {register:#X} of {value:#X}: illegal bits {illegal:#X}")
            }
        }
    }
}

/// The driver's last `T` accesses, the oldest first.
///
/// ```
/// # use pmu_core::access::{RegisterAddress, RegisterBackend};
/// use pmu_virt::{FedEvents, VirtualPmu};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// use pmu_virt::mock::MockMsr;
/// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
/// let mock = MockMsr::<2>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
/// # // SAFETY: the mock's registers are numbers.
/// # let msr = |address| unsafe { RegisterAddress::new(address) };
/// // A driver loads a counter before it enables it: the order is what a test checks.
/// for (register, value) in [(0x38F, 0), (0x4C1, (1 << 48) - 1_000), (0x186, 0x53_003C)] {
///     mock.write(msr(register), value).unwrap();
/// }
/// let trace = mock.trace();
/// assert!(trace.records().map(|access| access.register).eq([0x4C1, 0x186]));
/// assert_eq!(trace.dropped(), 1);
/// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace<const T: usize> {
    records: [Option<Record>; T],
    total: usize,
}

impl<const T: usize> Trace<T> {
    pub(super) const fn new() -> Self {
        Self { records: [None; T], total: 0 }
    }

    pub(super) fn push(&mut self, record: Record) {
        // A mock may keep no trace at all: `T` is 0 then.
        if let Some(place) = self.total.checked_rem(T).and_then(|p| self.records.get_mut(p)) {
            *place = Some(record);
        }
        self.total = self.total.saturating_add(1);
    }

    /// Returns the accesses in the trace, the oldest first.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let oldest = if self.total > T { self.total.checked_rem(T).unwrap_or(0) } else { 0 };
        let (newer, older) = self.records.split_at(oldest);
        older.iter().chain(newer).flatten().copied()
    }

    /// Returns the number of earlier accesses that the trace no longer holds.
    pub fn dropped(&self) -> usize {
        self.total.saturating_sub(T)
    }
}

#[cfg(feature = "defmt")]
impl<const T: usize> defmt::Format for Trace<T> {
    fn format(&self, f: defmt::Formatter<'_>) {
        for record in self.records() {
            defmt::write!(f, "{} ", record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_last_in_order() {
        let mut trace = Trace::<3>::new();
        let record =
            |register| Record { operation: AccessOperation::Read, register, outcome: Ok(0) };
        for register in 0..5 {
            trace.push(record(register));
        }
        assert!(trace.records().eq([2, 3, 4].map(record)));
        assert_eq!(trace.dropped(), 2);
        let mut none = Trace::<0>::new();
        none.push(record(0));
        assert_eq!((none.records().count(), none.dropped()), (0, 1));
    }
}
