//! Numbers from a target's bytes.

/// Takes little-endian numbers from the front of a target's bytes; zeros when they are used up.
#[derive(Clone, Copy, Debug)]
pub struct Input<'b>(&'b [u8]);

impl<'b> Input<'b> {
    /// Creates the input of all bytes.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// Returns whether the bytes are used up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes up to `count` bytes.
    pub fn bytes(&mut self, count: usize) -> &'b [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Takes the remainder.
    pub fn rest(&mut self) -> &'b [u8] {
        core::mem::take(&mut self.0)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// Takes 8 bits.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Takes 16 bits.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Takes 32 bits.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Takes 64 bits.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Takes a byte, and returns its lowest bit.
    pub fn bool(&mut self) -> bool {
        self.u8() & 1 != 0
    }
}

/// Returns the little-endian number in `bytes` at an offset; missing bytes are zeros.
pub fn number(bytes: &[u8], offset: usize, size: usize) -> u64 {
    let byte = |place: usize| u64::from(bytes.get(offset + place).copied().unwrap_or(0));
    (0..size).map(|place| byte(place) << (8 * place)).sum()
}
