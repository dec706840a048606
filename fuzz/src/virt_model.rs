//! The programs of the property tests, on the model and on the naive one, with the model saved and
//! restored between any two steps.

use crate::input::Input;

#[path = "../../tests/tests/virt/naive/mod.rs"]
mod naive;

/// Runs one input: four words of a configuration, then steps of four words each.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let words = [(); 4].map(|()| input.u8());
    let mut program: Vec<naive::Step> = Vec::new();
    while !input.is_empty() {
        program.push((input.u8(), input.u8(), input.u32(), input.u64()));
    }
    naive::run(naive::configuration(words), &program, true);
}
