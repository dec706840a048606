//! Stratified random choice of the samples that become profile interrupts.
//!
//! A sampling period of a whole interval misses threads that end before their first period has passed, and
//! falls into step with what repeats with the interval. So the period is shorter. Of the time that the
//! samples of all threads stand for together, a random point is drawn in each interval, and the sample that
//! covers it becomes an interrupt.

/// Chooses samples, one for each interval.
#[derive(Debug)]
pub struct Thinning {
    period: u64,
    interval: u64,
    /// The time, or events, that the samples so far stand for, without whole intervals.
    passed: u64,
    /// The next random point, from the same origin.
    point: u64,
    random: u64,
}

impl Thinning {
    /// Chooses among samples that stand for `period` each, which is at most `interval`.
    pub fn new(period: u64, interval: u64) -> Self {
        // Any number but 0 will do.
        let random = 0x9E37_79B9_7F4A_7C15;
        let mut thinning = Self { period, interval, passed: 0, point: 0, random };
        thinning.point = thinning.below_interval();
        thinning
    }

    /// Returns how many interrupts the next sample becomes: none, one, or two if it covers two points.
    pub fn interrupts(&mut self) -> u32 {
        self.passed += self.period;
        let mut interrupts = 0;
        while self.point < self.passed {
            interrupts += 1;
            let next = (self.point / self.interval + 1) * self.interval;
            self.point = next + self.below_interval();
        }
        // Neither grows without end, and the point is not before what has passed.
        let over = self.passed / self.interval * self.interval;
        (self.passed, self.point) = (self.passed - over, self.point - over);
        interrupts
    }

    /// Returns a random number below the interval (Marsaglia, "Xorshift RNGs", 2003).
    fn below_interval(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((u128::from(self.random) * u128::from(self.interval)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Periods that divide an interval of 1 ms, that do not, and that are one.
    const PERIODS: [u64; 5] = [62_500, 50_000, 70_001, 618_034, 1_000_000];
    const INTERVAL: u64 = 1_000_000;

    #[test]
    fn no_interval_goes_without_an_interrupt_and_none_has_two() {
        for period in PERIODS {
            let mut thinning = Thinning::new(period, INTERVAL);
            let mut interrupts = 0;
            for sample in 1..=100_000 {
                interrupts += u64::from(thinning.interrupts());
                // All intervals that are over, and perhaps the one under way.
                let over = sample * period / INTERVAL;
                assert!(
                    (over..=over + 1).contains(&interrupts),
                    "{period}: {interrupts} of {over}"
                );
            }
        }
    }

    #[test]
    fn every_sample_is_an_interrupt_where_the_period_is_the_interval() {
        let mut thinning = Thinning::new(INTERVAL, INTERVAL);
        assert!((0..1000).all(|_| thinning.interrupts() == 1));
    }

    /// A pattern that repeats every few samples keeps its share of them.
    #[test]
    fn no_place_of_what_repeats_is_preferred() {
        for period in PERIODS {
            for repeats in [2, 8, 9, 16, 17] {
                let mut thinning = Thinning::new(period, INTERVAL);
                let mut hits = vec![0; repeats];
                for sample in 0..200_000 {
                    hits[sample % repeats] += thinning.interrupts();
                }
                let fair = hits.iter().sum::<u32>() as f64 / repeats as f64;
                // Six standard deviations of as many independent choices.
                let bound = 6.0 * fair.sqrt();
                let even = |hits: &u32| (f64::from(*hits) - fair).abs() <= bound;
                assert!(hits.iter().all(even), "{period}, {repeats}: {hits:?}");
            }
        }
    }
}
