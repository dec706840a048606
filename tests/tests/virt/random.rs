//! Random programs, the same everywhere.

/// Random numbers by Marsaglia's xorshift64*.
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }
}

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// The steps of a program, of which any is valid.
    pub(crate) fn steps(&mut self, length: u32) -> impl Iterator<Item = (u8, u8, u32, u64)> {
        (0..length).map(|_| {
            let bits = self.next().to_le_bytes();
            let choice = u32::from_le_bytes([bits[2], bits[3], bits[4], bits[5]]);
            (bits[0], bits[1], choice, self.next())
        })
    }
}

/// Returns the number of programs to run: `PMU_TEST_PROGRAMS`, or `otherwise`.
pub(crate) fn programs(otherwise: u32) -> u32 {
    std::env::var("PMU_TEST_PROGRAMS").map_or(otherwise, |number| number.parse().unwrap())
}
