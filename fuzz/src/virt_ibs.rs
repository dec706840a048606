//! A guest's accesses to instruction-based sampling, ops and fetches, on the model and on the naive one, with the state
//! saved and restored between any two steps; and saved states from anywhere, which are refused or written as they were
//! read.

use crate::input::Input;

#[path = "../../tests/tests/ibs/naive.rs"]
mod naive;

/// Runs one input: four words of a processor, then steps of four words each. The same bytes are read as a saved state
/// of that processor, behind the part that names the processor.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let configuration = naive::processor([(); 4].map(|()| input.u8()));
    let mut ibs = pmu_virt::ibs::VirtualIbs::new(configuration);
    let mut saved = ibs.to_bytes();
    let mut rest = input;
    for byte in &mut saved[13..] {
        *byte = rest.u8();
    }
    if ibs.restore(&saved).is_ok() {
        assert_eq!(ibs.to_bytes(), saved);
    }
    let mut both = naive::Both::new(configuration);
    while !input.is_empty() {
        both.step((input.u8(), input.u8(), input.u32(), input.u64()));
        both.save_and_restore();
    }
    both.finish();
}
