//! The extra register that refines an event beyond its select.

use crate::msr::address::MsrAddress;
use crate::msr::optional::OptionalAddress;

/// Greatest number of encodings of an event: Nova Lake's off-module response has four registers.
pub(crate) const MAX_ENCODINGS: u8 = 4;

/// The extra register of an event, and its value. An event may have several encodings, each with another register and
/// another select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Extra {
    /// The value of the register. Of an event with a latency, the latency: the processor's facility names the register.
    pub(crate) value: u64,
    /// The register of each encoding; the first ones are in use.
    pub(crate) registers: [OptionalAddress; MAX_ENCODINGS as usize],
    /// Bits 15:0 in which an encoding's select differs from the first one's, 16 bits for each encoding.
    pub(crate) differences: u64,
}

impl Extra {
    pub(crate) const NONE: Self = Self {
        value: 0,
        registers: [OptionalAddress::NONE; MAX_ENCODINGS as usize],
        differences: 0,
    };

    pub(crate) const fn new(register: MsrAddress, value: u64) -> Self {
        let mut extra = Self { value, ..Self::NONE };
        extra.registers[0] = OptionalAddress::some(register);
        extra
    }

    /// Adds an encoding, if there is room.
    pub(crate) const fn or(mut self, difference: u16, register: MsrAddress) -> Self {
        let mut encoding = 1;
        while encoding < MAX_ENCODINGS as usize {
            if self.registers[encoding].get().is_none() {
                self.registers[encoding] = OptionalAddress::some(register);
                self.differences |= (difference as u64) << (16 * encoding);
                break;
            }
            encoding += 1;
        }
        self
    }

    #[inline]
    pub(crate) const fn is_none(&self) -> bool {
        self.registers[0].get().is_none()
    }
}
