//! A guest's accesses to precise records, overflows, traced branches, and any bytes in the guest's memory, on the model
//! and on the naive one. The records are saved and restored between any two steps. Saved records from anywhere are
//! refused, or written as they were read.

use crate::input::Input;

#[path = "../../tests/tests/virt/naive_precise/mod.rs"]
mod naive;

/// Length of the header of saved records, which says of which processor they are.
const HEADER: usize = 24;

/// Runs one input: four words of a processor, then steps of four words each. The same bytes are read as saved records
/// of that processor, behind the header that such records have.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let words = [(); 4].map(|()| input.u8());
    let (configuration, precise, ..) = naive::registers::processor(words);
    let mut records = pmu_virt::precise::VirtualPrecise::new(&configuration, precise).unwrap();
    let mut saved = records.to_bytes();
    let mut rest = input;
    for byte in &mut saved[HEADER..] {
        *byte = rest.u8();
    }
    if records.restore(&saved).is_ok() {
        assert_eq!(records.to_bytes(), saved);
    }
    let mut program: Vec<naive::program::Step> = Vec::new();
    while !input.is_empty() {
        program.push((input.u8(), input.u8(), input.u32(), input.u64()));
    }
    naive::program::run(words, &program, true);
}
