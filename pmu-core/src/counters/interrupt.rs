//! The interrupt path: finds the overflowed counters and re-arms them.
//!
//! It finds everything in the processor's [`CounterMemory`](crate::CounterMemory) and in the registers. It may come
//! between any two instructions of the control path, and between any two of its own: then it leaves a note for the
//! service under way.
//!
//! Order of the accesses, so that no overflow is lost on any platform:
//! - The overflow status is acknowledged before a counter is loaded again, wherever counters run
//!   meanwhile: an overflow after the acknowledgement sets the status, and interrupts, anew. Where the
//!   status says that the processor froze the counters, its acknowledgement releases them, and comes last.
//! - The LVT entry is unmasked before counters can overflow again: an overflow while it is masked is lost.
//!   Running counters are read after it. Where the counters stand still, unmasking comes after the acknowledgement,
//!   because from Intel's version 3 on unmasking raises an interrupt while a bit of the status is set; only frozen
//!   counters leave no choice, and that interrupt is claimed.

pub(crate) mod by_status;
pub(crate) mod by_value;
pub(crate) mod claim;
pub(crate) mod overflow;
pub(crate) mod pass;
pub(crate) mod reload;
pub(crate) mod service;
