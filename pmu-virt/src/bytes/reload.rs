//! Counter reload as bytes.
//!
//! | counter reload, 208 bytes | at |
//! |---|---|
//! | `vACR` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | counters that can be reloaded, general and fixed; that reload others | 6–9 |
//! | counters whose CFG_C the precise records answer | 10, 2 bytes |
//! | CFG_B of eight general and eight fixed counters | 16, 8 bytes each |
//! | CFG_C 31:0 of these | 144, 4 bytes each |

use crate::bytes::{BytesError, body, header, joined, words};
use crate::pmu::rows::Rows;
use crate::registers::table::MAX_COUNTERS;
use crate::reload::VirtualReload;

const MAGIC: [u8; 4] = *b"vACR";
const HEADER: usize = 16;

/// Length of a counter's CFG_B and reload value.
const COUNTER: usize = 12;

impl VirtualReload {
    /// Number of bytes that [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = HEADER + COUNTER * MAX_COUNTERS;
    /// Version of the layout that [`to_bytes`](Self::to_bytes) writes.
    pub const BYTES_VERSION: u16 = 1;

    /// Encodes the state of the guest's auto counter reload as bytes. Every later release can decode these bytes.
    ///
    /// ```
    /// use pmu_virt::{GuestFacility, Writer};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(6, 8, 4));
    /// let new = || VirtualReload::new(&configuration, ReloadConfiguration::of(0xFF, 0xF));
    /// let (mut here, mut there) = (new()?, new()?);
    /// let _ = here.write(Writer::Guest, 0x1902, 0b11);
    /// there.restore(&here.to_bytes())?;
    /// assert_eq!(there, here);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let causes = self.causes.into_iter().flat_map(u64::to_le_bytes);
        joined(self.header(), causes.chain(self.values.into_iter().flat_map(u32::to_le_bytes)))
    }

    /// Sets the state of the guest's auto counter reload from bytes that [`to_bytes`](Self::to_bytes) returned. The
    /// bytes may come from an earlier release, but the configuration must be the same. Untrusted bytes are safe to
    /// decode.
    ///
    /// # Errors
    /// [`Length`](BytesError::Length), [`Version`](BytesError::Version) and [`Malformed`](BytesError::Malformed). Each
    /// of them leaves the state unchanged.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), BytesError> {
        let body = body(bytes, self.header(), Self::BYTES)?;
        let mut new = *self;
        let (causes, values) = body.split_at(8 * MAX_COUNTERS);
        let mut next = words(causes);
        new.causes = new.causes.map(|_| next());
        for (of, word) in new.values.iter_mut().zip(values.chunks_exact(4)) {
            *of = word.try_into().map_or(0, u32::from_le_bytes);
        }
        let reset = Self { causes: [0; MAX_COUNTERS], values: [0; MAX_COUNTERS], ..new };
        let reached = new.restored_from(reset);
        let of = |own: Self| own.causes.into_iter().zip(own.values);
        if let Some(counter) = of(reached).zip(of(new)).position(|(can, has)| can != has) {
            // The wrong byte may also be the counter's CFG_C, which is behind this place.
            return Err(BytesError::Malformed { at: HEADER + 8 * counter });
        }
        *self = new;
        Ok(())
    }

    fn header(&self) -> [u8; HEADER] {
        let of = self.configuration;
        // Beside precise records of other counters, other registers would answer: this is of the configuration, too.
        let [e, f] = self.shared.to_le_bytes();
        let fields = [of.general, of.fixed, of.causing_general, of.causing_fixed, e, f];
        header(MAGIC, Self::BYTES_VERSION, fields)
    }
}
