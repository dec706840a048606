//! The access to memory in a record.

use bitfield_struct::bitfield;

use crate::precise::decode::shown::Shown;
use crate::precise::decode::words::Words;

/// The sampled instruction's access to memory: one of the groups in a precise record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MemoryInfo {
    /// Linear address of the data. If the sampled event does not count level 0, the field is `None` for a kernel
    /// address. If the event does not count the levels above 0, the field is `None` for a user address.
    pub address: Option<u64>,
    /// Source of the data, such as a cache level. Each processor model has its own encoding.
    pub source: u64,
    /// Latency of the access in core cycles. From Alder Lake on, the field has two latencies: bits 15:0 are the
    /// instruction's latency, and bits 47:32 are the latency of the access to the caches.
    pub latency: u64,
    /// The sampled instruction's transaction (TSX). `None` in PEBS formats before 2.
    pub transaction: Option<PreciseTransaction>,
}

impl MemoryInfo {
    /// Reads the words of address, source and latency: the place of the first, and the distances of the others.
    pub(crate) fn of_words(
        words: Words<'_>,
        [address, source, latency]: [usize; 3],
        transaction: Option<usize>,
    ) -> Option<Self> {
        let transaction = match transaction {
            Some(place) => Some(PreciseTransaction::from_bits(words.get(place)?)),
            None => None,
        };
        Some(Self {
            address: Some(words.get(address)?),
            source: words.get(address + source)?,
            latency: words.get(address + latency)?,
            transaction,
        })
    }

    pub(crate) fn showing(self, shown: Shown) -> Self {
        Self { address: self.address.filter(|address| shown.shows(*address)), ..self }
    }
}

/// Description of a transaction in a precise record (SDM vol. 3B, "TX Abort Information" of PEBS records).
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct PreciseTransaction {
    /// Number of cycles in the last transactional region, aborted or committed.
    pub cycles: u32,
    /// The instruction aborted a transaction of hardware lock elision (HLE).
    pub lock_elision: bool,
    /// The instruction aborted a restricted transaction (RTM).
    pub restricted: bool,
    /// The sampled instruction itself caused the abort.
    pub by_instruction: bool,
    /// Something other than the sampled instruction caused the abort.
    pub by_other_event: bool,
    /// The transaction may succeed if it is tried again.
    pub retry: bool,
    /// Another processor's access conflicted with the transaction's data.
    pub conflict: bool,
    /// The transaction writes more data than the caches can hold.
    pub write_capacity: bool,
    /// The transaction reads more data than the caches can hold.
    pub read_capacity: bool,
    __: u8,
    /// Operand of the `XABORT` instruction that aborted the transaction: bits 31:24 of the abort status in EAX.
    pub code: u8,
    __: u8,
}
