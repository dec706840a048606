//! The model and the naive one on random programs.

use crate::naive_precise::program::{Step, run};
use proptest::prelude::*;

/// Random numbers by Marsaglia's xorshift64*, the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Programs on every kind of records: `PMU_TEST_PROGRAMS` of them, or 2,000.
#[test]
fn the_models_of_precise_records_agree_on_many_programs() {
    let programs = std::env::var("PMU_TEST_PROGRAMS").map_or(2_000, |n| n.parse().unwrap());
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for number in 0..programs.min(20_000u32) {
        let words = random.next().to_le_bytes();
        let program: Vec<Step> = (0..10 + number % 60)
            .map(|_| {
                let bits = random.next().to_le_bytes();
                let choice = u32::from_le_bytes([bits[2], bits[3], bits[4], bits[5]]);
                (bits[0], bits[1], choice, random.next())
            })
            .collect();
        run([number as u8 % 8, words[1], words[2], words[3]], &program, number % 4 == 0);
    }
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
