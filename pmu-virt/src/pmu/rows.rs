//! The registers of a facility as rows of a table, and the answers that follow from the rows.

// To add a register of a facility:
//
// 1. In the facility's file: the value's field and its value after reset, its constant, a row, and an arm of `held` and
//    of `hold`.
// 2. Its bytes and their line of the table, in the file of `bytes` with the facility's name. A narrow value that is 0
//    after reset goes into a spare byte of the header, which `restore` reads before it compares the header, and refuses
//    where there is no such register. Otherwise there is a second `BYTES_VERSION`, and both are read.
// 3. `not_offered` in the vendor's table (`registers`), so that the register faults without the facility.
// 4. The naive model: what the register does in its `read` and `write`, and its address where the model lists them.
//    Branches: `tests/tests/virt/naive_branches/mod.rs`, `REGISTERS`. Precise records: `virt/naive_precise`. Ops, top-down and
//    reload: `model.rs` in the folder of that name.
// 5. The value among those whose bytes are tested: `tests/tests/virt/branches/state.rs`, or where the facility's bytes
//    are.
//
// `cargo test -p pmu-tests --test virt` (or the facility's) checks the rest by the rows. The driver's register is one
// like any: `registers.rs` of the vendor's crate.

use crate::pmu::facility::{GuestFacility, Writer};
use crate::pmu::msr::{Bits, Read, Write, Written};
use crate::registers::layout::{RegisterInfo, RegisterKind};
use crate::registers::table::WriteAs;

/// Row of a facility's table: a register, or registers that follow the same rule. The registers of a row have numbers
/// below 64. A row per counter numbers its registers like the bits of the global status: fixed counters from 32 on.
#[derive(Clone, Copy)]
pub(crate) struct FacilityRow<F: 'static> {
    /// Names in the manual: of a register, and of a fixed counter's; empty if the PMU lists the register.
    names: [&'static str; 2],
    manual: &'static str,
    address: u32,
    /// Binary logarithm of the distance of the addresses.
    shift: u8,
    /// Name of the value, by which the facility finds what it holds.
    pub(crate) value: usize,
    exists: fn(&F) -> bool,
    /// Bitmap of the registers.
    numbers: fn(&F) -> u64,
    /// Bits that belong to the facility; 0 if another facility answers, and this facility only keeps a copy.
    owned: fn(&F, usize) -> u64,
    legal: fn(&F) -> u64,
    /// Illegal bits that fault (#GP). Any other illegal bit is dropped.
    faults: fn(&F) -> u64,
    guest: WriteAs,
    host: WriteAs,
}

impl<F> FacilityRow<F> {
    /// Creates a row of one register that every processor with the facility has, and of which all bits are legal.
    pub(crate) const fn new(
        address: u32,
        value: usize,
        name: &'static str,
        manual: &'static str,
    ) -> Self {
        Self {
            names: [name; 2],
            manual,
            address,
            shift: 0,
            value,
            exists: |_| true,
            numbers: |_| 1,
            owned: |_, _| u64::MAX,
            legal: |_| u64::MAX,
            faults: |_| u64::MAX,
            guest: WriteAs::Stored,
            host: WriteAs::Stored,
        }
    }

    /// Creates a row of a register of the PMU, of which these bits belong to the facility.
    pub(crate) const fn shared(address: u32, value: usize, owned: fn(&F, usize) -> u64) -> Self {
        Self::new(address, value, "", "").owned(owned)
    }

    /// Makes the row one register per counter, four addresses apart.
    pub(crate) const fn each_counter(self, fixed: &'static str, counters: fn(&F) -> u64) -> Self {
        let [general, _] = self.names;
        Self { names: [general, fixed], ..self.each(4, counters) }
    }

    /// Makes the row several registers, `stride` addresses apart: 1, 2 or 4.
    pub(crate) const fn each(self, stride: u32, numbers: fn(&F) -> u64) -> Self {
        Self { shift: stride.trailing_zeros() as u8, numbers, ..self }
    }

    pub(crate) const fn when(self, exists: fn(&F) -> bool) -> Self {
        Self { exists, ..self }
    }

    pub(crate) const fn owned(self, owned: fn(&F, usize) -> u64) -> Self {
        Self { owned, ..self }
    }

    pub(crate) const fn legal(self, legal: fn(&F) -> u64) -> Self {
        Self { legal, ..self }
    }

    pub(crate) const fn faults(self, faults: fn(&F) -> u64) -> Self {
        Self { faults, ..self }
    }

    /// Sets the effects of a guest's write and of the host's. The PMU refuses a guest's write of a shared register that
    /// the row refuses.
    pub(crate) const fn write(self, guest: WriteAs, host: WriteAs) -> Self {
        Self { guest, host, ..self }
    }
}

/// Register of a row.
pub(crate) struct Register<F: 'static> {
    pub(crate) row: &'static FacilityRow<F>,
    pub(crate) number: usize,
}

impl<F> Register<F> {
    pub(crate) fn address(&self) -> u32 {
        self.row.address + ((self.number as u32) << self.row.shift)
    }

    /// Returns the place of the register's counter: 0–15.
    pub(crate) const fn counter(&self) -> usize {
        self.number % 8 + self.number / 32 % 2 * 8
    }

    fn exists(&self, facility: &F) -> bool {
        (self.row.exists)(facility) && (self.row.numbers)(facility) >> self.number & 1 != 0
    }

    fn owned(&self, facility: &F) -> u64 {
        (self.row.owned)(facility, self.number)
    }
}

/// A facility whose registers are rows.
pub(crate) trait Rows: GuestFacility + Copy + 'static {
    const KIND: RegisterKind;

    /// The rows, in the order in which their registers are restored.
    const ROWS: &'static [FacilityRow<Self>];

    /// Returns what a register holds.
    fn held(&self, register: &Register<Self>) -> u64;

    /// Sets what a register holds. Constants stay.
    fn hold(&mut self, writer: Writer, register: &Register<Self>, value: u64);

    /// Returns whether accesses to the register fault in the facility's present state.
    fn is_beyond(&self, register: &Register<Self>) -> bool {
        let _ = register;
        false
    }

    /// Returns the bits by which a write breaks a rule that the row does not have.
    fn breaks(&self, writer: Writer, register: &Register<Self>, value: u64) -> u64 {
        let _ = (writer, register, value);
        0
    }

    /// Returns the bits of a write that are to be reported as illegal, although hardware takes them.
    fn reports(&self, writer: Writer, register: &Register<Self>, value: u64) -> u64 {
        let _ = (writer, register, value);
        0
    }

    /// Returns the register at an address, if the processor has it.
    fn locate(&self, address: u32) -> Option<Register<Self>> {
        Self::ROWS.iter().find_map(|row| {
            let distance = address.checked_sub(row.address)?;
            let register = Register { row, number: (distance >> row.shift) as usize };
            // An address between two registers of a row belongs to none of them.
            let exists =
                register.number < 64 && register.address() == address && register.exists(self);
            exists.then_some(register)
        })
    }

    /// Returns the registers of the processor, in the order in which they are restored.
    fn every(&self) -> impl Iterator<Item = Register<Self>> {
        let all =
            (0..64).flat_map(|number| Self::ROWS.iter().map(move |row| Register { row, number }));
        all.filter(|register| register.exists(self))
    }

    /// Answers RDMSR.
    fn read_row(&self, address: u32) -> Read {
        let Some(register) = self.locate(address) else { return Read::Unhandled };
        if self.is_beyond(&register) {
            return Read::GeneralProtection;
        }
        match (register.row.guest, register.owned(self)) {
            // The PMU answers these as 0.
            (WriteAs::Cleared | WriteAs::Set, _) | (_, 0) => Read::Unhandled,
            (_, u64::MAX) => Read::Value(self.held(&register)),
            (_, mask) => Read::Shared { value: self.held(&register), mask },
        }
    }

    /// Answers WRMSR, and returns what the register then holds.
    fn judge_row(
        &self,
        writer: Writer,
        address: u32,
        value: u64,
    ) -> (Written, Option<(Register<Self>, u64)>) {
        let Some(register) = self.locate(address) else { return (Written::UNHANDLED, None) };
        let owned = register.owned(self);
        let write = match writer {
            Writer::Guest => register.row.guest,
            Writer::Host => register.row.host,
        };
        if self.is_beyond(&register) {
            return (Written::REFUSED, None);
        }
        // The PMU refuses the register as a whole, this facility's bits included.
        if write == WriteAs::Refused && owned != u64::MAX {
            return (Written::UNHANDLED, None);
        }
        let bits = Bits {
            held: self.held(&register),
            // A copy takes what the other facility takes.
            legal: (register.row.legal)(self) & if owned == 0 { u64::MAX } else { owned },
            owned,
            faults: (register.row.faults)(self),
        };
        let (mut written, stored) = bits.judge(write, value);
        let broken = self.breaks(writer, &register, value);
        if broken != 0 {
            written.answer = Write::GeneralProtection;
        }
        written.illegal |= broken | self.reports(writer, &register, value);
        (written, Some((register, stored)))
    }

    /// Executes WRMSR.
    fn write_row(&mut self, writer: Writer, address: u32, value: u64) -> Written {
        let (written, stored) = self.judge_row(writer, address, value);
        if let Some((register, stored)) = stored
            && written.answer != Write::GeneralProtection
        {
            self.hold(writer, &register, stored);
        }
        written
    }

    /// Returns the registers that the PMU does not list.
    fn list_rows(&self) -> impl Iterator<Item = RegisterInfo> {
        self.every().filter_map(|register| {
            let Register { row, number } = register;
            let (name, owned) = (row.names[usize::from(number >= 32)], register.owned(self));
            let is_writable = row.guest != WriteAs::Refused;
            (!name.is_empty() && owned != 0).then(|| RegisterInfo {
                address: register.address(),
                name,
                manual: row.manual,
                kind: Self::KIND,
                counter: if row.shift == 2 { number as u8 % 8 } else { 0 },
                exists: true,
                is_writable,
                legal: (row.legal)(self) & owned,
                owned,
                // A register that faults at present cannot be read to be saved.
                is_state: is_writable && !self.is_beyond(&register),
            })
        })
    }

    /// Returns `reset` after the host has written this state's registers: this state, if a guest can have reached it.
    fn restored_from(&self, mut reset: Self) -> Self {
        for register in self.every() {
            // A register that only sets or clears bits of another one holds nothing of its own.
            if !matches!(register.row.host, WriteAs::Stored | WriteAs::StoredWhole) {
                continue;
            }
            let _ = reset.write(Writer::Host, register.address(), self.held(&register));
        }
        reset
    }
}

/// The answers to accesses, and the list of registers, in an implementation of [`GuestFacility`] for [`Rows`].
macro_rules! answers_by_rows {
    () => {
        fn read(&self, address: u32) -> crate::pmu::msr::Read {
            crate::pmu::rows::Rows::read_row(self, address)
        }

        fn check_write(
            &self,
            writer: crate::pmu::facility::Writer,
            address: u32,
            value: u64,
        ) -> crate::pmu::msr::Written {
            crate::pmu::rows::Rows::judge_row(self, writer, address, value).0
        }

        fn write(
            &mut self,
            writer: crate::pmu::facility::Writer,
            address: u32,
            value: u64,
        ) -> crate::pmu::msr::Written {
            crate::pmu::rows::Rows::write_row(self, writer, address, value)
        }

        fn registers(&self) -> impl Iterator<Item = crate::registers::layout::RegisterInfo> {
            crate::pmu::rows::Rows::list_rows(self)
        }
    };
}
pub(crate) use answers_by_rows;
