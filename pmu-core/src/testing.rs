//! Backends for tests of drivers: a scripted mock, and a recorder that passes each access on to another backend.

use core::cell::{Cell, RefCell};

use heapless::Vec;

use crate::access::address::{CounterIndex, RegisterAddress, RegisterUpdate};
use crate::access::backend::{AccessErrorKind, AccessOperation, RegisterBackend};

/// One register access: its operation, its register, and the value that was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Access {
    /// The operation.
    pub operation: AccessOperation,
    /// The register's number, or the counter's index.
    pub register: u32,
    /// The value that was read or written, or the kind of failure.
    pub outcome: Result<u64, AccessErrorKind>,
}

impl Access {
    /// Describes a read of `register` that returns `value`.
    pub const fn read(register: u32, value: u64) -> Self {
        Self { operation: AccessOperation::Read, register, outcome: Ok(value) }
    }

    /// Describes a write of `value` to `register`.
    pub const fn write(register: u32, value: u64) -> Self {
        Self { operation: AccessOperation::Write, register, outcome: Ok(value) }
    }

    /// Describes a read of the counter with this `index` that returns `value`.
    pub const fn read_counter(index: u32, value: u64) -> Self {
        Self { operation: AccessOperation::ReadCounter, register: index, outcome: Ok(value) }
    }

    /// Makes the access fault.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAccess, RegisterAddress};
    /// # use pmu_core::testing::{Access, ScriptedRegisters};
    /// // A driver that retries once gets over a transient fault.
    /// let accesses = [Access::read(0xC1, 0).faulting(), Access::read(0xC1, 42)];
    /// let script = ScriptedRegisters::new(&accesses);
    /// // SAFETY: a counter.
    /// let counter = unsafe { RegisterAddress::new(0xC1) };
    /// assert_eq!(script.read_retrying(counter).unwrap(), 42);
    /// script.finish();
    /// ```
    pub const fn faulting(mut self) -> Self {
        self.outcome = Err(AccessErrorKind::Fault);
        self
    }
}

/// A backend that expects exactly the accesses of a script, in order.
///
/// If an access differs from the script, the backend panics during this access. The panic message contains the expected
/// and the actual access. Call [`finish`](Self::finish) at the end.
///
/// ```
/// use pmu_core::access::{RegisterAddress, RegisterBackend};
/// use pmu_core::testing::{Access, ScriptedRegisters};
/// let accesses = [Access::write(0x186, 0), Access::read(0xC1, 42)];
/// let script = ScriptedRegisters::new(&accesses);
/// // SAFETY: an event select and a counter.
/// let (select, counter) = unsafe { (RegisterAddress::new(0x186), RegisterAddress::new(0xC1)) };
/// script.write(select, 0).unwrap();
/// assert_eq!(script.read(counter), Ok(42));
/// script.finish();
/// ```
#[derive(Debug)]
pub struct ScriptedRegisters<'s> {
    script: &'s [Access],
    next: Cell<usize>,
}

impl<'s> ScriptedRegisters<'s> {
    /// Creates a backend that expects exactly the accesses of `script`.
    pub const fn new(script: &'s [Access]) -> Self {
        Self { script, next: Cell::new(0) }
    }

    /// Asserts that every access of the script was made.
    ///
    /// # Panics
    /// An access of the script was not made.
    #[track_caller]
    pub fn finish(&self) {
        let missing = self.script.get(self.next.get()..).unwrap_or(&[]);
        assert!(missing.is_empty(), "accesses that did not come: {missing:x?}");
    }

    fn play(
        &self,
        operation: AccessOperation,
        register: u32,
        value: Option<u64>,
    ) -> Result<u64, AccessErrorKind> {
        let index = self.next.get();
        let Some(expected) = self.script.get(index) else {
            panic!("access after the script's end: {operation:?} {register:#X} {value:x?}");
        };
        let same_value = match (value, expected.outcome) {
            (Some(value), Ok(expected)) => value == expected,
            _ => true,
        };
        assert!(
            expected.operation == operation && expected.register == register && same_value,
            "access {index}: expected {expected:x?}, got {operation:?} {register:#X} {value:x?}"
        );
        self.next.set(index + 1);
        expected.outcome
    }
}

impl RegisterBackend for ScriptedRegisters<'_> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.play(AccessOperation::Read, address.get(), None)
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.play(AccessOperation::Write, address.get(), Some(value)).map(|_| ())
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.play(AccessOperation::ReadCounter, index.get(), None)
    }

    /// Makes a read, and then a write if the value changes. The script must list the read and the write as two
    /// accesses.
    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let found = self.play(AccessOperation::Read, update.register(), None)?;
        if let Some(value) = update.apply(found) {
            self.play(AccessOperation::Write, update.register(), Some(value))?;
        }
        Ok(found)
    }
}

/// A backend that passes every access on to another backend, and keeps the first `N` accesses.
///
/// ```
/// # use pmu_core::access::{RegisterAddress, RegisterBackend};
/// # use pmu_core::testing::{Access, RecordingMsr, ScriptedRegisters};
/// let script = [Access::write(0x186, 0), Access::write(0x187, 0)];
/// let recorder = RecordingMsr::<_, 8>::new(ScriptedRegisters::new(&script));
/// for select in [0x186, 0x187] {
///     // SAFETY: event selects.
///     recorder.write(unsafe { RegisterAddress::new(select) }, 0).unwrap();
/// }
/// assert_eq!(recorder.take().as_slice(), script);
/// assert_eq!(recorder.dropped(), 0);
/// recorder.inner().finish();
/// ```
#[derive(Debug)]
pub struct RecordingMsr<B, const N: usize> {
    inner: B,
    accesses: RefCell<Vec<Access, N>>,
    dropped: Cell<usize>,
}

impl<B: RegisterBackend, const N: usize> RecordingMsr<B, N> {
    /// Creates a backend that passes every access on to `inner`.
    pub const fn new(inner: B) -> Self {
        Self { inner, accesses: RefCell::new(Vec::new()), dropped: Cell::new(0) }
    }

    /// Returns the inner backend.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Returns the accesses recorded since the last call of `take`, and removes them from the record.
    pub fn take(&self) -> Vec<Access, N> {
        self.dropped.set(0);
        self.accesses.take()
    }

    /// Returns the number of accesses since the last [`take`](Self::take) that were not recorded, because `N` accesses
    /// were already recorded.
    pub fn dropped(&self) -> usize {
        self.dropped.get()
    }

    fn record<E: crate::access::AccessError>(
        &self,
        operation: AccessOperation,
        register: u32,
        outcome: Result<u64, &E>,
    ) {
        let outcome = outcome.map_err(crate::access::AccessError::kind);
        if self.accesses.borrow_mut().push(Access { operation, register, outcome }).is_err() {
            self.dropped.set(self.dropped.get() + 1);
        }
    }
}

impl<B: RegisterBackend, const N: usize> RegisterBackend for RecordingMsr<B, N> {
    type Error = B::Error;

    fn read(&self, address: RegisterAddress) -> Result<u64, B::Error> {
        let result = self.inner.read(address);
        self.record(AccessOperation::Read, address.get(), result.as_ref().copied());
        result
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), B::Error> {
        let result = self.inner.write(address, value);
        self.record(AccessOperation::Write, address.get(), result.as_ref().map(|()| value));
        result
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, B::Error> {
        let result = self.inner.read_counter(index);
        self.record(AccessOperation::ReadCounter, index.get(), result.as_ref().copied());
        result
    }

    /// Records the update as one access. The access has the value that the register held before the update.
    fn update(&self, update: RegisterUpdate) -> Result<u64, B::Error> {
        let result = self.inner.update(update);
        self.record(AccessOperation::Update, update.register(), result.as_ref().copied());
        result
    }

    fn user_index(&self, index: CounterIndex) -> CounterIndex {
        self.inner.user_index(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorder_keeps_what_passed_and_counts_what_found_no_room() {
        let script =
            [Access::read(1, 7), Access::write(2, 8).faulting(), Access::read_counter(0, 9)];
        let recorder = RecordingMsr::<_, 2>::new(ScriptedRegisters::new(&script));
        // SAFETY: no register is touched.
        let (one, two) = unsafe { (RegisterAddress::new(1), RegisterAddress::new(2)) };
        assert_eq!(recorder.read(one), Ok(7));
        assert!(recorder.write(two, 8).is_err());
        assert_eq!(recorder.read_counter(CounterIndex::new(0)), Ok(9));
        assert_eq!(recorder.dropped(), 1);
        assert_eq!(recorder.take(), script[..2]);
        recorder.inner().finish();
    }

    #[test]
    #[should_panic(expected = "expected")]
    fn an_access_off_the_script_fails_the_test() {
        let script = [Access::write(1, 7)];
        // SAFETY: no register is touched.
        let _ = ScriptedRegisters::new(&script).write(unsafe { RegisterAddress::new(1) }, 8);
    }

    #[test]
    #[should_panic(expected = "did not come")]
    fn a_missing_access_fails_the_test() {
        ScriptedRegisters::new(&[Access::write(1, 7)]).finish();
    }
}
