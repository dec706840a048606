//! A program to profile whose shares of time are known by construction: four functions that take
//! turns, each for a fixed part of the thread's processor time.

use core::hint::black_box;
use core::time::Duration;

use super::processor::thread_time;

/// A part of the workload.
#[derive(Debug)]
pub struct Part {
    /// The function's full name.
    pub name: &'static str,
    /// Its share of the time, in percent.
    pub percent: u32,
    run: fn(Duration),
}

macro_rules! parts {
    ($($function:ident $percent:literal $multiplier:literal;)*) => {
        /// The workload's parts; their shares add up to 100 percent.
        pub static PARTS: [Part; [$($percent),*].len()] = [$(Part {
            name: concat!(module_path!(), "::", stringify!($function)),
            percent: $percent,
            run: $function,
        }),*];

        // The multipliers differ so that no function is merged with another.
        $(#[inline(never)]
        fn $function(until: Duration) {
            let mut value = black_box($multiplier);
            while thread_time() < until {
                let mut left = STEPS;
                while left != 0 {
                    value = (value ^ (value >> 7)).wrapping_mul($multiplier);
                    left -= 1;
                }
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

/// The number of steps between two looks at the clock: so many that the looks take no share of the
/// time that is worth mentioning, and so few that a turn ends on time.
const STEPS: u32 = 1 << 16;

/// The length of a round. A turn is then several interrupts long, so that how often it is
/// interrupted is nearly its share, and not left to chance; and no number of rounds is soon a number
/// of the kernel's ticks, which would interrupt each round at the same places.
const ROUND: Duration = Duration::from_micros(103_300);

/// Runs in whole rounds, until `enough` says so of the calling thread's processor time that it took.
pub fn run(enough: impl Fn(Duration) -> bool) {
    let start = thread_time();
    let mut until = start;
    while !enough(until - start) {
        for part in &PARTS {
            until += ROUND * part.percent / 100;
            (part.run)(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_add_up() {
        assert_eq!(PARTS.iter().map(|part| part.percent).sum::<u32>(), 100);
    }
}
