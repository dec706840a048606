//! Top-down metrics as bytes.
//!
//! | top-down metrics, 160 bytes | at |
//! |---|---|
//! | `vTDM` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | level 2; width of the slots' counter; bit 48 of the control, and of the status | 6–9 |
//! | slots since the metrics were written; the metrics that were written | 16, 8 bytes each |
//! | parts, in 255ths of slots | 32, 16 bytes each |

use crate::bytes::{BytesError, body, header, joined, words};
use crate::topdown::{PARTS, VirtualTopDown};

const MAGIC: [u8; 4] = *b"vTDM";
const HEADER: usize = 16;

impl VirtualTopDown {
    /// Number of bytes that [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = HEADER + 8 * 2 + 16 * PARTS;
    /// Version of the layout that [`to_bytes`](Self::to_bytes) writes.
    pub const BYTES_VERSION: u16 = 1;

    /// Encodes the state of the guest's top-down metrics as bytes, without loss of precision. Every later release can
    /// decode these bytes.
    ///
    /// ```
    /// use pmu_virt::{GuestFacility, Writer};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::topdown::VirtualTopDown;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let mut here = VirtualTopDown::new(&configuration, true)?;
    /// let _ = here.write(Writer::Guest, 0x329, 0x1122_3344);
    /// let mut there = VirtualTopDown::new(&configuration, true)?;
    /// there.restore(&here.to_bytes())?;
    /// assert_eq!(there, here);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let words = [self.slots, self.written].into_iter().flat_map(u64::to_le_bytes);
        // Not the register's bytes: they are rounded, and what is counted later adds to the exact sums.
        let parts = self.parts.into_iter().flat_map(u128::to_le_bytes);
        joined(self.header(), words.chain(parts))
    }

    /// Sets the state of the guest's top-down metrics from bytes that [`to_bytes`](Self::to_bytes) returned. The bytes
    /// may come from an earlier release, but the configuration must be the same. Untrusted bytes are safe to decode.
    ///
    /// # Errors
    /// [`Length`](BytesError::Length), [`Version`](BytesError::Version) and [`Malformed`](BytesError::Malformed). Each
    /// of them leaves the state unchanged.
    ///
    /// ```
    /// use pmu_virt::BytesError;
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::topdown::VirtualTopDown;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let level_2 = VirtualTopDown::new(&configuration, true)?;
    /// let mut level_1 = VirtualTopDown::new(&configuration, false)?;
    /// assert_eq!(level_1.restore(&level_2.to_bytes()), Err(BytesError::Malformed { at: 6 }));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), BytesError> {
        let is_set = |at: usize| bytes.get(at).is_some_and(|byte| *byte != 0);
        let mut new = Self { control: is_set(8), status: is_set(9), ..*self };
        let body = body(bytes, new.header(), Self::BYTES)?;
        let (singles, parts) = body.split_at(16);
        let mut next = words(singles);
        (new.slots, new.written) = (next(), next());
        for (part, word) in new.parts.iter_mut().zip(parts.chunks_exact(16)) {
            *part = word.try_into().map_or(0, u128::from_le_bytes);
        }
        // A part is at most all slots, and without level 2 there are four.
        let most = u128::from(new.slots) * 255;
        let absent = if new.level_2 { 0 } else { PARTS / 2 };
        let possible = new.parts.iter().all(|part| *part <= most)
            && new.parts.iter().rev().take(absent).all(|part| *part == 0)
            && new.written & !new.legal() == 0;
        if !possible {
            return Err(BytesError::Malformed { at: HEADER });
        }
        *self = new;
        Ok(())
    }

    fn header(&self) -> [u8; HEADER] {
        let [level_2, control, status] = [self.level_2, self.control, self.status].map(u8::from);
        header(MAGIC, Self::BYTES_VERSION, [level_2, self.width, control, status])
    }
}
