//! The records' layouts, each field at its offset from the manuals' tables.

use super::registers::{Kind, Naive, bits};
use pmu_virt::precise::{FedRecord, FedVectors};

/// Bytes of a record. A field is put at its offset, behind which the record grows.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn put(&mut self, offset: usize, word: u64) {
        if self.0.len() < offset + 8 {
            self.0.resize(offset + 8, 0);
        }
        self.0[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn wide(&mut self, offset: usize, value: u128) {
        self.put(offset, value as u64);
        self.put(offset + 8, (value >> 64) as u64);
    }
}

/// Numbers of the registers RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI in instructions.
const AX: usize = 0;
const CX: usize = 1;
const DX: usize = 2;
const BX: usize = 3;
const SP: usize = 4;
const BP: usize = 5;
const SI: usize = 6;
const DI: usize = 7;

impl Naive {
    pub(super) fn record_bytes(&self, counters: &[u32], fed: &FedRecord<'_>) -> Vec<u8> {
        let applicable = counters.iter().map(|bit| 1u64 << bit).sum();
        match self.kind {
            Kind::None => unreachable!(),
            Kind::Store { format: format @ 0..=3, .. } => {
                self.fixed_layout(format, applicable, fed)
            }
            Kind::Store { features, .. } => {
                let asked = counters.iter().any(|bit| match bit {
                    ..32 => self.get(0x186 + bit) >> 34 & 1 == 1,
                    _ => self.get(0x38D) >> (32 + 4 * (bit - 32)) & 1 == 1,
                });
                let groups = if asked { self.get(0x3F2) } else { 0 };
                self.adaptive_layout(groups, features, applicable, fed)
            }
            Kind::Architectural { fragments, .. } => {
                let asked = counters.iter().fold(0, |asked, bit| asked | self.control(*bit));
                self.architectural_layout(asked, fragments, applicable, fed)
            }
        }
    }

    /// SDM vol. 3B, tables "PEBS Record Format for 64-bit Processors".
    fn fixed_layout(&self, format: u8, applicable: u64, fed: &FedRecord<'_>) -> Vec<u8> {
        let mut record = Bytes::default();
        let of = |number: usize| fed.registers.general[number];
        record.put(0x00, fed.registers.flags);
        record.put(0x08, fed.registers.ip);
        for (offset, number) in [
            (0x10, AX),
            (0x18, BX),
            (0x20, CX),
            (0x28, DX),
            (0x30, SI),
            (0x38, DI),
            (0x40, BP),
            (0x48, SP),
        ] {
            record.put(offset, of(number));
        }
        for number in 8..16 {
            record.put(0x50 + 8 * (number - 8), of(number));
        }
        if format >= 1 {
            let status = self.get(0x38E) | applicable;
            record.put(0x90, if format == 3 { applicable } else { status });
            record.put(0x98, fed.data_address);
            record.put(0xA0, fed.data_source);
            record.put(0xA8, u64::from(fed.latency));
        }
        if format >= 2 {
            record.put(0xB0, fed.ip);
            record.put(0xB8, fed.transaction);
        }
        if format >= 3 {
            record.put(0xC0, fed.tsc);
        }
        let size = [0x90, 0xB0, 0xC0, 0xC8][usize::from(format)];
        assert_eq!(record.0.len(), size);
        record.0
    }

    /// SDM vol. 3B, "Adaptive PEBS".
    fn adaptive_layout(
        &self,
        groups: u64,
        timing: bool,
        applicable: u64,
        fed: &FedRecord<'_>,
    ) -> Vec<u8> {
        let mut record = Bytes::default();
        record.put(0x08, fed.ip);
        record.put(0x10, applicable);
        record.put(0x18, fed.tsc);
        let mut at = 0x20;
        if groups & 1 == 1 {
            record.put(at, fed.data_address);
            record.put(at + 0x08, fed.data_source);
            record.put(at + 0x10, u64::from(fed.latency) + (u64::from(fed.cache_latency) << 32));
            record.put(at + 0x18, fed.transaction);
            at += 32;
        }
        if groups >> 1 & 1 == 1 {
            general(&mut record, at, fed);
            at += 144;
        }
        if groups >> 2 & 1 == 1 {
            for register in 0..16 {
                record.wide(at + 16 * register, fed.vectors.map_or(0, |all| all.xmm[register]));
            }
            at += 256;
        }
        if groups >> 3 & 1 == 1 {
            // There are no branch records: their words are 0.
            let entries = (groups >> 24 & 0xFF) as usize + 1;
            record.put(at + 24 * entries - 8, 0);
            at += 24 * entries;
        }
        if groups >> 4 & 3 != 0 {
            let metrics = groups >> 5 & 1 == 1;
            let counters = groups >> 4 & 1 == 1;
            let [low, fixed] =
                [groups >> 32 & 0xFFFF, groups >> 48].map(|mask| if counters { mask } else { 0 });
            at = self.counters(&mut record, at, [low, fixed], metrics, fed);
        }
        let retired = if timing { u64::from(fed.retire_latency) << 32 } else { 0 };
        assert_eq!(record.0.len(), at);
        record.put(0, groups & 0xFFFF_FFFF | retired | (at as u64) << 48);
        record.0
    }

    fn counters(
        &self,
        record: &mut Bytes,
        mut at: usize,
        [general, fixed]: [u64; 2],
        metrics: bool,
        fed: &FedRecord<'_>,
    ) -> usize {
        record.put(at, general + (fixed << 32));
        record.put(at + 8, if metrics { 3 } else { 0 });
        at += 16;
        let mut values: Vec<u64> = bits(general).map(|bit| self.counter(bit)).collect();
        values.extend(bits(fixed).map(|bit| self.counter(32 + bit)));
        if metrics {
            values.extend(fed.metrics);
        }
        for value in values {
            record.put(at, value);
            at += 8;
        }
        at
    }

    /// SDM vol. 3B, "Architectural PEBS": the groups of a record, with one header, or with one each.
    fn architectural_layout(
        &self,
        asked: u64,
        fragments: bool,
        applicable: u64,
        fed: &FedRecord<'_>,
    ) -> Vec<u8> {
        let groups = [1 << 63, 1 << 62, 1 << 61, 0xE6 << 48, 3 << 40, 7 << 36];
        let present: Vec<u64> = groups
            .into_iter()
            .map(|group: u64| if group >> 63 == 1 { group } else { asked & group })
            .filter(|group| *group != 0)
            .collect();
        let parts =
            if fragments { present } else { vec![present.iter().fold(0, |all, one| all | one)] };
        let mut all = Vec::new();
        for (number, groups) in parts.iter().enumerate() {
            let continued = number + 1 != parts.len();
            all.extend(self.fragment(*groups, continued, applicable, fed));
        }
        all
    }

    fn fragment(
        &self,
        groups: u64,
        continued: bool,
        applicable: u64,
        fed: &FedRecord<'_>,
    ) -> Vec<u8> {
        let mut record = Bytes::default();
        record.put(8, 0);
        let mut at = 16;
        let has = |bit: u32| groups >> bit & 1 == 1;
        if has(63) {
            record.put(at, fed.ip);
            record.put(at + 0x08, applicable);
            record.put(at + 0x10, fed.tsc);
            record.put(at + 0x18, u64::from(fed.retire_latency) + (1 << 16));
            record.put(at + 0x28, 0);
            at += 48;
        }
        if has(62) {
            record.put(at, fed.data_address);
            record.put(at + 0x28, fed.data_source);
            record.put(at + 0x30, u64::from(fed.latency) + (u64::from(fed.cache_latency) << 32));
            record.put(at + 0x38, fed.transaction);
            at += 64;
        }
        if has(61) {
            general(&mut record, at, fed);
            record.put(at + 144, fed.registers.ssp);
            record.put(at + 152, 0);
            at += 160;
        }
        if groups >> 48 & 0xE6 != 0 {
            at = self.vectors(&mut record, at, groups, fed);
        }
        match groups >> 40 & 3 {
            0 => {}
            // Without branch records: a depth of 0.
            3 => {
                record.put(at + 40, 0);
                at += 48;
            }
            code => {
                let entries = if code == 1 { 8 } else { 16 };
                at += 48 + 24 * entries;
                record.put(at - 8, 0);
            }
        }
        if groups >> 36 & 7 != 0 {
            // The counters whose own controls allow it.
            let allowed = |bit: &u32| self.control(*bit) >> 35 & 1 == 1;
            let shown = |first: u32, count: u32| -> u64 {
                (0..count).filter(|n| allowed(&(first + n))).map(|n| 1 << n).sum()
            };
            let low = if has(36) { shown(0, 4) } else { 0 };
            let fixed = if has(37) { shown(32, 3) } else { 0 };
            at = self.counters(&mut record, at, [low, fixed], has(38), fed);
        }
        if at % 16 != 0 {
            record.put(at, 0);
            at += 8;
        }
        assert_eq!(record.0.len(), at);
        let mode = u64::from(fed.long_mode) << 30;
        record.put(0, groups | at as u64 | mode | u64::from(continued) << 31);
        record.0
    }

    fn vectors(
        &self,
        record: &mut Bytes,
        mut at: usize,
        groups: u64,
        fed: &FedRecord<'_>,
    ) -> usize {
        let all = fed.vectors.copied().unwrap_or(FedVectors::ZERO);
        let has = |bit: u32| groups >> bit & 1;
        // XSAVE's components.
        let components = has(49) << 1 | has(50) << 2 | has(53) << 5 | has(54) << 6 | has(55) << 7;
        record.put(at, components);
        record.put(at + 8, 0);
        at += 16;
        let mut wide = |present: u64, values: &[u128]| {
            if present == 1 {
                for value in values {
                    record.wide(at, *value);
                    at += 16;
                }
            }
        };
        wide(has(49), &all.xmm);
        wide(has(50), &all.ymm_high);
        let masks: Vec<u128> = all
            .opmask
            .chunks(2)
            .map(|pair| u128::from(pair[0]) + (u128::from(pair[1]) << 64))
            .collect();
        wide(has(53), &masks);
        wide(has(54), all.zmm_high.as_flattened());
        wide(has(55), all.zmm_16_to_31.as_flattened());
        at
    }
}

/// The registers of adaptive records, in the order of their numbers.
fn general(record: &mut Bytes, at: usize, fed: &FedRecord<'_>) {
    record.put(at, fed.registers.flags);
    record.put(at + 8, fed.registers.ip);
    for number in 0..16 {
        record.put(at + 16 + 8 * number, fed.registers.general[number]);
    }
}
