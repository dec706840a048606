//! Instruction-based sampling as bytes.
//!
//! | instruction-based sampling, 152 bytes | at |
//! |---|---|
//! | `vIBS` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | extended entry of the local vector table; 0xFF: none | 7 |
//! | leaf 0x8000001B, EAX | 8, 4 bytes |
//! | deviations: 0 the count of fetches is kept, 1 the period is 0 before a stop | 12 |
//! | an interrupt is pending | 13 |
//! | low four bits of the count of fetches | 14 |
//! | state of the random bits | 16, 4 bytes |
//! | registers, in the order of their addresses from 0xC0011030 | 24, 8 bytes each |

use crate::bytes::{BytesError, body, flags, header, joined, words};
use crate::ibs::virtual_ibs::{IbsConfiguration, REGISTERS, VirtualIbs};
use crate::pmu::rows::Rows;

const MAGIC: [u8; 4] = *b"vIBS";
const HEADER: usize = 24;

/// Length of what is compared with the configuration: magic, version, entry, capabilities, deviations.
const FIXED: usize = 13;

impl VirtualIbs {
    /// Number of bytes that [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = HEADER + 8 * REGISTERS;
    /// Version of the layout that [`to_bytes`](Self::to_bytes) writes.
    pub const BYTES_VERSION: u16 = 1;

    /// Encodes the state of the guest's instruction-based sampling as bytes. Every later release can decode these
    /// bytes.
    ///
    /// ```
    /// use pmu_virt::ibs::{FedOp, IbsConfiguration, VirtualIbs};
    /// use pmu_virt::{GuestFacility, Writer};
    /// let mut here = VirtualIbs::new(IbsConfiguration::ZEN_4);
    /// let _ = here.write(Writer::Guest, 0xC001_1033, 1 << 19 | 1 << 17 | 160 >> 4);
    /// here.execute(&FedOp::new(0x40_1000));
    /// let mut there = VirtualIbs::new(IbsConfiguration::ZEN_4);
    /// there.restore(&here.to_bytes())?;
    /// assert_eq!(there, here);
    /// # Ok::<(), pmu_virt::BytesError>(())
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        joined(self.header(), self.registers.into_iter().flat_map(u64::to_le_bytes))
    }

    /// Sets the state of the guest's instruction-based sampling from bytes that [`to_bytes`](Self::to_bytes) returned.
    /// The bytes may come from an earlier release, but the configuration must be the same. Untrusted bytes are safe to
    /// decode.
    ///
    /// # Errors
    /// [`Length`](BytesError::Length), [`Version`](BytesError::Version) and [`Malformed`](BytesError::Malformed). Each
    /// of them leaves the state unchanged.
    ///
    /// ```
    /// use pmu_virt::ibs::{IbsConfiguration, VirtualIbs};
    /// use pmu_virt::BytesError;
    /// let zen_4 = VirtualIbs::new(IbsConfiguration::ZEN_4);
    /// let mut zen_3 = VirtualIbs::new(IbsConfiguration::ZEN_3);
    /// assert_eq!(zen_3.restore(&zen_4.to_bytes()), Err(BytesError::Malformed { at: 6 }));
    /// ```
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), BytesError> {
        let found = bytes.first_chunk::<HEADER>().ok_or(BytesError::Length(bytes.len()))?;
        let [.., pending, fetch_low, _, r0, r1, r2, r3, _, _, _, _] = *found;
        let mut new = *self;
        new.pending = pending & 1 != 0;
        new.fetch_low = fetch_low.into();
        new.random = u32::from_le_bytes([r0, r1, r2, r3]);
        let same = found.get(..FIXED) == self.header().get(..FIXED);
        // If the configuration is the same, the byte that cannot be is behind it.
        let body = match body(bytes, new.header(), Self::BYTES) {
            Ok(body) if new.could_be_random() => body,
            Ok(_) | Err(BytesError::Malformed { .. }) if same => {
                return Err(BytesError::Malformed { at: FIXED });
            }
            refused => return refused.and(Err(BytesError::Malformed { at: 6 })),
        };
        let mut next = words(body);
        new.registers = new.registers.map(|_| next());
        let reached = new.restored_from(Self::new(new.configuration)).registers;
        if let Some(place) = reached.iter().zip(&new.registers).position(|(can, has)| can != has) {
            return Err(BytesError::Malformed { at: HEADER + 8 * place });
        }
        *self = new;
        Ok(())
    }

    fn header(&self) -> [u8; HEADER] {
        // Every field by name, so that a new one is not forgotten.
        let IbsConfiguration { capabilities, lvt_entry, fetch_count_kept, period_before_stop } =
            self.configuration;
        let [c0, c1, c2, c3] = capabilities.to_le_bytes();
        let entry = lvt_entry.map_or(0xFF, |entry| entry & 0xF);
        let deviations = flags([fetch_count_kept, period_before_stop]);
        let [r0, r1, r2, r3] = self.random.to_le_bytes();
        let (pending, fetch_low) = (self.pending.into(), self.fetch_low as u8);
        let fields = [0, entry, c0, c1, c2, c3, deviations, pending, fetch_low, 0, r0, r1, r2, r3];
        header(MAGIC, Self::BYTES_VERSION, fields)
    }

    /// Returns whether a guest can have reached this state of the random bits and of the count of fetches.
    fn could_be_random(&self) -> bool {
        // A xorshift generator never reaches 0, and would never leave it.
        self.random != 0 && self.fetch_low <= 0xF
    }
}
