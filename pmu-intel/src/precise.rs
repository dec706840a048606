//! Precise records (PEBS): for each sampled instruction, the processor itself writes a record to memory.
//!
//! Read first: Intel SDM vol. 3B, "Processor Event Based Sampling (PEBS) Facility" and "PEBS and the Debug Store";
//! Intel's Architecture Instruction Set Extensions reference, "Architectural PEBS".

pub(crate) mod fragment;
pub(crate) mod groups;
pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod model;
pub(crate) mod pebs;
pub(crate) mod reading;
pub(crate) mod record;
pub mod registers;
pub(crate) mod settle;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod unit;

pub use groups::{
    CounterValues, GeneralRegister, GeneralRegisters, MemoryInfo, PreciseTransaction,
    RecordBranches, VectorRegisters,
};
pub use layout::PreciseFormat;
pub use memory::{DroppedRecords, PreciseMemory};
pub use pebs::{Pebs, PreciseThreshold};
pub use record::{PreciseRecord, PreciseRecords};
pub use unit::PreciseUnit;
