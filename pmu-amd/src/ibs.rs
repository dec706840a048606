//! Instruction-based sampling (IBS): the processor periodically tags one instruction fetch or one op. For the tagged
//! fetch or op, the processor records the exact address, the latencies, and the hits and misses in caches and TLBs.
//!
//! Read first: AMD APM vol. 2, "Instruction-Based Sampling".

pub(crate) mod capabilities;
pub(crate) mod control;
pub(crate) mod counter;
pub(crate) mod erratum;
pub(crate) mod facility;
pub(crate) mod fetch;
pub(crate) mod memory;
pub(crate) mod op;
pub(crate) mod record;
pub mod registers;
pub(crate) mod sampling;
pub(crate) mod unit;

pub use capabilities::IbsCapabilities;
pub use erratum::{IbsErrata, IbsErratum};
pub use facility::Ibs;
pub use fetch::IbsFetchRecord;
pub use memory::IbsMemory;
pub use op::IbsOpRecord;
pub use record::IbsRecord;
pub use sampling::{IbsSampling, IbsSamplingError};
pub use unit::{IbsKind, IbsUnit, IbsUnits};
