//! Precise records (PEBS): the processor itself writes a record of each sampled instruction to memory.
//!
//! Read first: Intel SDM vol. 3B, "Processor Event Based Sampling (PEBS) Facility" and "PEBS and the Debug Store";
//! Intel's Architecture Instruction Set Extensions reference, "Architectural PEBS".

pub(crate) mod decode;

pub use decode::branches::RecordBranches;
pub use decode::format::PreciseFormat;
pub use decode::memory::{MemoryInfo, PreciseTransaction};
pub use decode::record::PreciseRecord;
pub use decode::records::PreciseRecords;
pub use decode::registers::{GeneralRegister, GeneralRegisters};
pub use decode::values::CounterValues;
pub use decode::vectors::VectorRegisters;
