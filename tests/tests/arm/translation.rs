//! The translation of registers, access by access.

use core::cell::RefCell;

use pmu_arm::registers::Register;
use pmu_arm::{ArmRegisters, Identification, SystemRegisters, counters};
use pmu_core::CounterUnit;
use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::registers::CounterId;

/// One step of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read(Register),
    Write(Register, u64),
    Synchronize,
}
use Access::{Read, Synchronize, Write};

/// Registers that all read as one value, and note each access.
struct Noted(u64, RefCell<Vec<Access>>);

impl SystemRegisters for Noted {
    type Error = AccessErrorKind;
    fn read(&self, register: Register) -> Result<u64, AccessErrorKind> {
        self.1.borrow_mut().push(Read(register));
        Ok(self.0)
    }
    fn write(&self, register: Register, value: u64) -> Result<(), AccessErrorKind> {
        self.1.borrow_mut().push(Write(register, value));
        Ok(())
    }
    fn synchronize(&self) {
        self.1.borrow_mut().push(Synchronize);
    }
}

/// Returns the result of an access where all registers read as `value`, and what it did.
fn noted<T>(value: u64, act: impl FnOnce(&ArmRegisters<&Noted>) -> T) -> (T, Vec<Access>) {
    let registers = Noted(value, RefCell::default());
    let result = act(&ArmRegisters::new(&registers));
    (result, registers.1.into_inner())
}

fn unit(version: u64, mdcr_el2: Option<u64>) -> CounterUnit {
    let processor = Identification {
        id_aa64dfr0_el1: version << 8,
        pmcr_el0: 16 << 11,
        pmmir_el1: 8 << 20,
        mdcr_el2,
        ..Identification::NONE
    };
    counters(&processor)
}

fn control(unit: &CounterUnit, counter: Option<CounterId>) -> RegisterAddress {
    unit.counter(counter.unwrap()).unwrap().control().register()
}

fn value(unit: &CounterUnit, counter: Option<CounterId>) -> RegisterAddress {
    unit.counter(counter.unwrap()).unwrap().value_register()
}

/// Returns the steps of writing a counter's control.
fn written(address: RegisterAddress, bits: u64) -> Vec<Access> {
    let (result, accesses) = noted(0, |msr| msr.write(address, bits));
    assert_eq!(result, Ok(()));
    accesses
}

fn started(of: Register, filter: u64, bit: u64) -> Vec<Access> {
    vec![Write(Register::Pmintenset, bit), Synchronize, Write(of, filter), Synchronize]
}

fn stopped(of: Register, filter: u64, bit: u64) -> Vec<Access> {
    vec![Write(of, filter), Synchronize, Write(Register::Pmintenclr, bit), Synchronize]
}

// Of PMEVTYPER<n>_EL0 and PMCCFILTR_EL0.
const P: u64 = 1 << 31;
const U: u64 = 1 << 30;
const NSH: u64 = 1 << 27;

#[test]
fn a_select_becomes_an_event_type_and_an_interrupt() {
    let (unit, of) = (unit(8, None), Register::Pmevtyper9);
    let select = control(&unit, CounterId::general(9));
    let bit = 1 << 9;
    // Enabled, with an interrupt: at both privileges, at EL0, and at EL1.
    assert_eq!(written(select, 0x53_4021), started(of, 0x4021, bit));
    assert_eq!(written(select, 0x51_0008), started(of, P | 0x08, bit));
    assert_eq!(written(select, 0x52_0008), started(of, U | 0x08, bit));
    // Without an interrupt.
    assert_eq!(written(select, 0x43_0008), stopped(of, 0x08, bit));
    // Not enabled, and at no privilege.
    assert_eq!(written(select, 0x13_0008), stopped(of, P | U | 0x08, bit));
    assert_eq!(written(select, 0x50_0008), stopped(of, P | U | 0x08, bit));
    assert_eq!(written(select, 0), stopped(of, P | U, bit));
    // At least 3, and fewer than 3. No threshold: bit 23 has no meaning.
    assert_eq!(written(select, 0x0353_0008), started(of, 0b101 << 61 | 3 << 32 | 0x08, bit));
    assert_eq!(written(select, 0x03D3_0008), started(of, 0b111 << 61 | 3 << 32 | 0x08, bit));
    assert_eq!(written(select, 0x00D3_0008), started(of, 0x08, bit));
}

#[test]
fn a_kernel_at_el2_counts_at_el2_and_el1() {
    let unit = unit(1, Some(16));
    let select = control(&unit, CounterId::general(0));
    assert_eq!(written(select, 0x53_0008), started(Register::Pmevtyper0, NSH | 0x08, 1));
    assert_eq!(written(select, 0x51_0008), started(Register::Pmevtyper0, P | 0x08, 1));
    assert_eq!(written(select, 0x52_0008), started(Register::Pmevtyper0, NSH | U | 0x08, 1));
    assert_eq!(written(select, 0), stopped(Register::Pmevtyper0, P | U, 1));
    let cycles = control(&unit, CounterId::fixed(0));
    assert_eq!(written(cycles, 0b1001), started(Register::Pmccfiltr, NSH | U, 1 << 31));
}

#[test]
fn the_control_of_the_cycle_counter_becomes_its_filter() {
    let address = control(&unit(1, None), CounterId::fixed(0));
    assert_eq!(written(address, 0b1011), started(Register::Pmccfiltr, 0, 1 << 31));
    assert_eq!(written(address, 0b1001), started(Register::Pmccfiltr, U, 1 << 31));
    assert_eq!(written(address, 0b1010), started(Register::Pmccfiltr, P, 1 << 31));
    assert_eq!(written(address, 0b0011), stopped(Register::Pmccfiltr, 0, 1 << 31));
    assert_eq!(written(address, 0), stopped(Register::Pmccfiltr, P | U, 1 << 31));
}

#[test]
fn what_is_read_back_is_what_was_written() {
    let unit = unit(8, None);
    let read =
        |counter: Option<CounterId>, found| noted(found, |msr| msr.read(control(&unit, counter))).0;
    let (first, second) = (CounterId::general(0), CounterId::general(1));
    // Bit 0 of the value stands for the interrupt of counter 0, too.
    assert_eq!(read(first, 0x21), Ok(0x53_0021));
    assert_eq!(read(second, 0x21), Ok(0x43_0021));
    assert_eq!(read(first, P | 0x21), Ok(0x51_0021));
    assert_eq!(read(first, U | 0x20), Ok(0x42_0020));
    assert_eq!(read(first, P | U | 0x21), Ok(0x10_0021));
    assert_eq!(read(first, 0b111 << 61 | 3 << 32 | 0x21), Ok(0x03D3_0021));
    assert_eq!(read(first, 0b101 << 61 | 3 << 32 | 0x21), Ok(0x0353_0021));
    // P is bit 31, that of the cycle counter's interrupt.
    let cycles = CounterId::fixed(0);
    assert_eq!(
        [0, U, P, P | U].map(|found| read(cycles, found).unwrap()),
        [0b11, 0b01, 0b1010, 0b1000]
    );
}

#[test]
fn a_value_is_read_after_and_written_before_a_synchronization() {
    let unit = unit(8, None);
    let (counter, cycles) = (CounterId::general(15), CounterId::fixed(0));
    let value_of = |counter| value(&unit, counter);
    let read = |register| vec![Synchronize, Read(register)];
    assert_eq!(noted(7, |msr| msr.read(value_of(counter))), (Ok(7), read(Register::Pmevcntr15)));
    assert_eq!(noted(7, |msr| msr.read(value_of(cycles))), (Ok(7), read(Register::Pmccntr)));
    let index = CounterIndex::new(1 << 30);
    assert_eq!(noted(7, |msr| msr.read_counter(index)), (Ok(7), read(Register::Pmccntr)));
    assert_eq!(written(value_of(counter), 9), [Write(Register::Pmevcntr15, 9), Synchronize]);
    let index = CounterIndex::new(15);
    assert_eq!(noted(7, |msr| msr.read_counter(index)), (Ok(7), read(Register::Pmevcntr15)));
    for index in [16, 31, 1 << 30 | 1] {
        let (result, accesses) = noted(7, |msr| msr.read_counter(CounterIndex::new(index)));
        assert_eq!((result, accesses), (Err(AccessErrorKind::Fault), vec![]));
    }
}

/// E and LC; LP where there are counters of 64 bits.
#[test]
fn the_enable_word_sets_and_clears_bits() {
    let [short, long] = [5, 6].map(|version| unit(version, None).global().unwrap().control);
    let word = 1 << 32 | 0b101;
    let enabled = |found, address| noted(found, |msr| msr.write(address, word)).1;
    let after = [
        Synchronize,
        Write(Register::Pmcntenclr, 0xFFFA),
        Write(Register::Pmcntenset, 1 << 31 | 0b101),
        Synchronize,
    ];
    let reset = [Register::Pmcntenclr, Register::Pmintenclr, Register::Pmovsclr];
    let reset = reset.map(|register| Write(register, 0x7FFF_FFFA));
    let with = |first: &[Access]| [first, &after].concat();
    // As it is already; then without LC; and frozen by FZO. N stays as it was found.
    assert_eq!(enabled(0x3041, short), with(&[Read(Register::Pmcr)]));
    assert_eq!(enabled(0x30C1, long), with(&[Read(Register::Pmcr)]));
    let [read, changed] = [Read(Register::Pmcr), Write(Register::Pmcr, 0x3041)];
    assert_eq!(enabled(0x3001, short), with(&[read, changed]));
    assert_eq!(enabled(0x3241, short), with(&[read, changed]));
    assert_eq!(enabled(0x3041, long), with(&[read, Write(Register::Pmcr, 0x30C1)]));
    // After a reset, nothing else is enabled, interrupts or has overflowed.
    assert_eq!(enabled(0x3040, short), with(&[&[read], &reset[..], &[changed]].concat()));
}

#[test]
fn the_words_with_a_bit_per_counter_have_the_cycle_counter_at_bit_32() {
    let unit = unit(1, None);
    let global = unit.global().unwrap();
    let (status, accesses) = noted(1 << 31 | 0x7FFF_8003, |msr| msr.read(global.status));
    assert_eq!((status, accesses), (Ok(1 << 32 | 0x8003), vec![Read(Register::Pmovsclr)]));
    let acknowledged = written(global.acknowledge, 1 << 32 | 0x8001);
    assert_eq!(acknowledged, [Write(Register::Pmovsclr, 1 << 31 | 0x8001), Synchronize]);
    // E is bit 0: while it is clear, nothing is enabled.
    let enabled = |found| noted(found, |msr| msr.read(global.control)).0;
    assert_eq!(enabled(1 << 31 | 0b11), Ok(1 << 32 | 0b11));
    assert_eq!(enabled(1 << 31 | 0b10), Ok(0));
}

#[test]
fn a_change_reads_and_writes_only_what_differs() {
    let unit = unit(1, None);
    let address = value(&unit, CounterId::general(2));
    // SAFETY: the value of a counter.
    let change = |clear, set| unsafe { RegisterUpdate::new(address.get(), clear, set) };
    let read = [Synchronize, Read(Register::Pmevcntr2)];
    let updated = |change| noted(0b1100, |msr| msr.update(change));
    assert_eq!(
        updated(change(0b100, 0b1000)).1,
        [&read[..], &[Write(Register::Pmevcntr2, 0b1000), Synchronize]].concat()
    );
    assert_eq!(updated(change(0b11, 0b100)), (Ok(0b1100), read.to_vec()));
    assert_eq!(updated(RegisterUpdate::read(address.get())), (Ok(0b1100), read.to_vec()));
}

/// MSRs of x86, registers of the extension that the driver does not use, and other system registers.
#[test]
fn other_registers_are_not_accessed() {
    let others = [Register::Pmcr, Register::Pmuserenr, Register::Pmovsset, Register::Pmintenset];
    let others = others.map(|register| u32::from(register.encoding()));
    // TTBR0_EL1; the registers before and after those of event counters; a bit more.
    let near = [0xC100, 0xDF3F, 0xDF50, 0xDF5F, 0xDF7F + (1 << 18), 0x186, 0x38F, u32::MAX];
    for address in others.into_iter().chain(near) {
        // SAFETY: nothing accesses the register.
        let register = unsafe { RegisterAddress::new(address) };
        let none = |(result, accesses): (Result<u64, _>, Vec<Access>)| {
            assert_eq!(result, Err(AccessErrorKind::Fault), "{address:#x}");
            assert_eq!(accesses, [], "{address:#x}");
        };
        none(noted(0, |msr| msr.read(register)));
        none(noted(0, |msr| msr.write(register, 0).map(|()| 0)));
        none(noted(0, |msr| msr.update(RegisterUpdate::read(address))));
    }
}
