//! The programs of the property tests, on the model and on the naive one, with the model saved and
//! restored between any two steps.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/tests/virt_naive/mod.rs"]
mod naive;

fuzz_target!(|input: ([u8; 4], Vec<naive::Step>)| {
    let (words, program) = input;
    naive::run(naive::configuration(words), &program, true);
});
