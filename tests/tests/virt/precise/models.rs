//! The model and the naive one on random programs.

use crate::naive_precise::program::{Step, run};
use crate::random::{self, Random};
use proptest::prelude::*;

/// Programs on every kind of records: `PMU_TEST_PROGRAMS` of them, or 2,000.
#[test]
fn the_models_of_precise_records_agree_on_many_programs() {
    let programs = random::programs(2_000);
    let (mut random, mut late) = (Random::default(), 0);
    for number in 0..programs.min(20_000) {
        let words = random.next().to_le_bytes();
        let program: Vec<Step> = random.steps(10 + number % 60).collect();
        late += run([number as u8 % 8, words[1], words[2], words[3]], &program, number % 4 == 0);
    }
    println!("{late} records were due while an interrupt froze their counters");
    assert!(late > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_models_of_precise_records_agree_on_any_program(
        words: [u8; 4],
        program in prop::collection::vec(any::<Step>(), 1..120),
    ) {
        run(words, &program, true);
    }
}
