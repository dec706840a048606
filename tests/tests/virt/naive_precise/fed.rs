//! Instructions of which every value differs.

use pmu_virt::precise::{FedRecord, FedRegisters, FedVectors};

/// Returns an instruction whose values follow from a seed.
pub(crate) fn fed(seed: u64, vectors: Option<&FedVectors>) -> FedRecord<'_> {
    FedRecord {
        registers: registers(seed),
        long_mode: seed & 1 == 0,
        tsc: !seed,
        data_address: seed ^ 0xDA7A,
        data_source: seed >> 3,
        latency: seed as u16,
        cache_latency: (seed >> 16) as u16,
        transaction: seed >> 5,
        retire_latency: (seed >> 32) as u16,
        metrics: [seed >> 7, seed >> 9],
        vectors,
        ..FedRecord::new(seed ^ 0x2222)
    }
}

/// Registers that differ from each other.
pub(crate) fn registers(seed: u64) -> FedRegisters {
    FedRegisters {
        flags: seed ^ 0xF1A6,
        ip: seed ^ 0x1111,
        general: core::array::from_fn(|number| seed.rotate_left(number as u32) ^ number as u64),
        ssp: seed ^ 0x5511,
    }
}

/// Vector registers that differ from each other.
pub(crate) fn vector_registers() -> FedVectors {
    let wide = |register: usize, part: usize| {
        u128::from(register as u64 + 1) << 64 | u128::from(part as u64 + 1)
    };
    FedVectors {
        xmm: core::array::from_fn(|register| wide(register, 0x10)),
        ymm_high: core::array::from_fn(|register| wide(register, 0x20)),
        opmask: core::array::from_fn(|register| register as u64 + 0x30),
        zmm_high: core::array::from_fn(|register| [0x40, 0x41].map(|part| wide(register, part))),
        zmm_16_to_31: core::array::from_fn(|register| {
            [0x50, 0x51, 0x52, 0x53].map(|part| wide(register, part))
        }),
    }
}
