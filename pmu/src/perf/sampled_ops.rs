//! Linux' PMUs `ibs_op` and `ibs_fetch`: AMD's sampled ops and fetches.
//!
//! Source: the `format` files of these PMUs in sysfs; AMD APM vol. 2, "Instruction-Based Sampling".

use pmu_amd::ibs::IbsSampling;

use crate::perf::attributes::PerfAttributes;
use crate::perf::error::PerfError;

/// `type` of AMD's sampled fetches, Linux' PMU `ibs_fetch`. Linux gives these two PMUs the next free numbers, and user
/// mode reads the numbers in sysfs. A kernel with these crates writes these numbers there.
pub const PERF_TYPE_IBS_FETCH: u32 = 9;

/// `type` of AMD's sampled ops, Linux' PMU `ibs_op`: see [`PERF_TYPE_IBS_FETCH`].
pub const PERF_TYPE_IBS_OP: u32 = 10;

/// A term of one of the two PMUs: its bit in `config`.
const OPS: u64 = 1 << 19; // `cnt_ctl`
const OP_L3_MISSES: u64 = 1 << 16; // `l3missonly`
const FETCH_L3_MISSES: u64 = 1 << 59; // `l3missonly`
/// `rand_en`: the processor begins each period at a random one of the first sixteen fetches. So it does here always.
const RANDOM: u64 = 1 << 57;
/// `ldlat` and `fetchlat`: a number of cycles in `config1`, of which the units compare multiples of 128.
const LATENCY: u64 = 0xFFF;
/// `strmst`: streaming stores alone.
const STREAMING_STORES: u64 = 1 << 12;

impl PerfAttributes {
    /// Returns whether the event is of one of the two PMUs.
    pub(crate) const fn is_of_ibs(&self) -> bool {
        matches!(self.type_, PERF_TYPE_IBS_FETCH | PERF_TYPE_IBS_OP)
    }

    /// Returns the request for which the attributes of one of the two PMUs stand.
    pub(crate) fn sampling(&self) -> Result<IbsSampling, PerfError> {
        let Self { config, config1, .. } = *self;
        let has = |bit: u64| config & bit != 0;
        let (sampling, known, misses, known_1) = match self.type_ {
            PERF_TYPE_IBS_OP => {
                let by_ops = has(OPS);
                let ops = if by_ops { IbsSampling::ops() } else { IbsSampling::cycles() };
                (ops, OPS | OP_L3_MISSES, has(OP_L3_MISSES), LATENCY | STREAMING_STORES)
            }
            _ => {
                let known = RANDOM | FETCH_L3_MISSES;
                (IbsSampling::fetches(), known, has(FETCH_L3_MISSES), LATENCY)
            }
        };
        if config & !known != 0 {
            return Err(PerfError::Bits(config & !known));
        } else if config1 & !known_1 != 0 {
            return Err(PerfError::Bits(config1 & !known_1));
        }
        let sampling = if misses { sampling.l3_misses_only() } else { sampling };
        let stores = config1 & STREAMING_STORES != 0;
        let sampling = if stores { sampling.streaming_stores_only() } else { sampling };
        match config1 & LATENCY {
            0 => Ok(sampling),
            // Linux refuses what the units cannot compare, and rounds the rest down.
            cycles @ 128..=2048 => Ok(sampling.slower_than(cycles as u16 & !127)),
            cycles => Err(PerfError::Bits(cycles)),
        }
    }
}
