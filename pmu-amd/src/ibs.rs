//! Instruction-based sampling (IBS): the processor periodically tags one instruction fetch or one op. For the tagged
//! fetch or op, the processor records the exact address, the latencies, and the hits and misses in caches and TLBs.
//!
//! Read first: AMD APM vol. 2, "Instruction-Based Sampling".

pub(crate) mod counter;
pub(crate) mod facility;
pub(crate) mod memory;
pub(crate) mod record;
pub mod registers;
pub(crate) mod sampling;
pub(crate) mod unit;

pub use facility::Ibs;
pub use memory::IbsMemory;
pub use record::{IbsFetchRecord, IbsOpRecord, IbsRecord};
pub use sampling::{IbsSampling, IbsSamplingError};
pub use unit::{IbsCapabilities, IbsErrata, IbsErratum, IbsKind, IbsUnit, IbsUnits};
