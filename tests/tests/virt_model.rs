//! The model against a naive one, on random programs.

mod virt_naive;

use proptest::prelude::*;
use virt_naive::{Step, configuration, run};

fn program() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<Step>(), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_and_the_naive_one_agree(words: [u8; 4], program in program()) {
        run(configuration(words), &program, false);
    }

    #[test]
    fn saving_and_restoring_between_the_steps_makes_no_difference(
        words: [u8; 4],
        program in program(),
    ) {
        run(configuration(words), &program, true);
    }
}
