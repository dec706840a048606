//! Addresses in branch records.

use pmu_core::Snapshot;

/// Returns the number of bits of a virtual address: CPUID 0x80000008, EAX 15:8 (APM vol. 3, appendix E).
pub(crate) fn address_bits(processor: &Snapshot) -> u8 {
    match (processor.leaf(0x8000_0008, 0).eax >> 8) as u8 {
        bits @ 32..=57 => bits,
        _ => 48,
    }
}

/// Returns an address of so many bits, with the sign above them.
pub(crate) const fn extended(word: u64, bits: u8) -> u64 {
    let above = 64 - bits as u32;
    ((word << above) as i64 >> above) as u64
}
