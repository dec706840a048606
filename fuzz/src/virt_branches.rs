//! A guest's accesses to branch records, and branches, on the model and on the naive one, with the records saved and
//! restored between any two steps; and saved records from anywhere, which are refused or written as they were read.

use crate::input::Input;

#[path = "../../tests/tests/virt/naive_branches/mod.rs"]
mod naive;

/// Runs one input: four words of a processor, then steps of four words each. The same bytes are read as saved records
/// of that processor, behind the header that such records have.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let words = [(); 4].map(|()| input.u8());
    let (configuration, branches, _) = naive::program::processor(words);
    let mut records = pmu_virt::branches::VirtualBranches::new(&configuration, branches).unwrap();
    let mut saved = records.to_bytes();
    let mut rest = input;
    for byte in &mut saved[16..] {
        *byte = rest.u8();
    }
    if records.restore(&saved).is_ok() {
        assert_eq!(records.to_bytes(), saved);
    }
    let mut program: Vec<naive::Step> = Vec::new();
    while !input.is_empty() {
        program.push((input.u8(), input.u8(), input.u32(), input.u64()));
    }
    naive::run(words, &program, true);
}
