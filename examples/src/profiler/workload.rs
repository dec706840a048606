//! A program to profile whose shares of time are known by construction: four functions with the same
//! loop, which run for a fixed proportion of iterations.

use std::hint::black_box;
use std::time::Duration;

use super::timer::thread_time;

/// A part of the workload.
#[derive(Debug)]
pub struct Part {
    /// The function's full name.
    pub name: &'static str,
    /// Its share of all iterations, in percent.
    pub percent: u64,
    run: fn(u64),
}

macro_rules! parts {
    ($($function:ident $percent:literal $multiplier:literal;)*) => {
        /// The workload's parts; their shares add up to 100 percent.
        pub static PARTS: [Part; [$($percent),*].len()] = [$(Part {
            name: concat!(module_path!(), "::", stringify!($function)),
            percent: $percent,
            run: $function,
        }),*];

        // Each step depends on the one before, so an iteration takes its latency, wherever the loop
        // lies in memory. The multipliers differ so that no function is merged with another.
        $(#[inline(never)]
        fn $function(iterations: u64) {
            let mut value = black_box($multiplier);
            let mut left = iterations;
            while left != 0 {
                value = (value ^ (value >> 7)).wrapping_mul($multiplier);
                left -= 1;
            }
            black_box(value);
        })*
    };
}

parts! {
    forty_percent 40 0x9E37_79B9_7F4A_7C15_u64;
    thirty_percent 30 0xD1B5_4A32_D192_ED03_u64;
    twenty_percent 20 0xBF58_476D_1CE4_E5B9_u64;
    ten_percent 10 0x94D0_49BB_1331_11EB_u64;
}

/// How long a round is to take. A part's stretch is then many interrupts long, so that how often it
/// is interrupted is nearly exactly its share, and not left to chance.
const ROUND: Duration = Duration::from_millis(100);

/// The workload, fitted to this processor's speed.
#[derive(Debug)]
pub struct Workload {
    iterations_per_percent: u64,
}

impl Workload {
    /// Finds how many iterations a round must have.
    pub fn calibrate() -> Self {
        let mut iterations_per_percent = 100;
        loop {
            let trial = Self { iterations_per_percent };
            let before = thread_time();
            trial.round();
            let taken = thread_time().saturating_sub(before);
            if taken >= ROUND / 10 {
                let scale = ROUND.as_secs_f64() / taken.as_secs_f64();
                let fitted = iterations_per_percent as f64 * scale;
                return Self { iterations_per_percent: fitted as u64 };
            }
            iterations_per_percent *= 2;
        }
    }

    /// Runs every part once, for its share.
    pub fn round(&self) {
        for part in &PARTS {
            (part.run)(part.percent * self.iterations_per_percent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_add_up() {
        assert_eq!(PARTS.iter().map(|part| part.percent).sum::<u64>(), 100);
    }
}
