//! The extra register that refines an event beyond its select.

use crate::msr::MsrAddress;

/// Greatest number of encodings of an event: Nova Lake's off-module response has four registers.
pub(crate) const MAX_ENCODINGS: u8 = 4;

/// The extra register of an event, and its value. An event may have further registers, with other selects: one
/// encoding for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Extra {
    pub(crate) value: u64,
    /// Addresses of `MsrAddress`es, 32 bits for each encoding; 0: none.
    pub(crate) registers: [u64; 2],
    /// Bits 15:0 in which an encoding's select differs from the first one's, 16 bits for each encoding.
    pub(crate) differences: u64,
}

impl Extra {
    pub(crate) const NONE: Self = Self { value: 0, registers: [0; 2], differences: 0 };

    pub(crate) const fn new(register: MsrAddress, value: u64) -> Self {
        Self { value, registers: [register.get() as u64, 0], differences: 0 }
    }

    /// The same with one encoding more, if there is room.
    pub(crate) const fn or(mut self, difference: u16, register: MsrAddress) -> Self {
        let mut encoding = 1;
        while encoding < MAX_ENCODINGS {
            if self.register(encoding).is_none() {
                let half = 32 * (encoding as u32 % 2);
                self.registers[encoding as usize / 2] |= (register.get() as u64) << half;
                self.differences |= (difference as u64) << (16 * encoding);
                break;
            }
            encoding += 1;
        }
        self
    }

    pub(crate) const fn is_none(&self) -> bool {
        self.registers[0] == 0
    }

    /// Returns the register of an encoding.
    pub(crate) const fn register(&self, encoding: u8) -> Option<MsrAddress> {
        let [first, second] = self.registers;
        Self::register_of(if encoding < 2 { first } else { second }, encoding)
    }

    /// Returns the register of an encoding from the word that has it.
    pub(crate) const fn register_of(pair: u64, encoding: u8) -> Option<MsrAddress> {
        match (pair >> (32 * (encoding as u32 % 2))) as u32 {
            0 => None,
            // SAFETY: the address is a `MsrAddress`'s.
            address => Some(unsafe { MsrAddress::new(address) }),
        }
    }
}
