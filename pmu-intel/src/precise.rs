//! Precise records (PEBS): for each sampled instruction, the processor itself writes a record to memory.
//!
//! Read first: Intel SDM vol. 3B, "Processor Event Based Sampling (PEBS) Facility" and "PEBS and the Debug Store";
//! Intel's Architecture Instruction Set Extensions reference, "Architectural PEBS".

pub(crate) mod asked;
pub(crate) mod buffer;
pub(crate) mod decode;
pub(crate) mod departed;
pub(crate) mod memory;
pub(crate) mod model;
pub(crate) mod pebs;
pub(crate) mod reading;
pub mod registers;
pub(crate) mod sample;
pub(crate) mod service;
pub(crate) mod settle;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod threshold;
pub(crate) mod unit;

pub use decode::branches::RecordBranches;
pub use decode::format::PreciseFormat;
pub use decode::memory::{MemoryInfo, PreciseTransaction};
pub use decode::record::PreciseRecord;
pub use decode::records::PreciseRecords;
pub use decode::registers::{GeneralRegister, GeneralRegisters};
pub use decode::values::CounterValues;
pub use decode::vectors::VectorRegisters;
pub use memory::{DroppedRecords, PreciseMemory};
pub use pebs::Pebs;
pub use threshold::PreciseThreshold;
pub use unit::PreciseUnit;
