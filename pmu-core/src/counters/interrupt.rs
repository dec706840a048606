//! The interrupt path: finds the overflowed counters and re-arms them.
//!
//! It finds everything in the processor's [`CounterMemory`](crate::CounterMemory) and in the registers. An interrupt
//! may come between any two instructions of the control path. It may also come between any two of the interrupt path:
//! then it leaves a note for the service under way.
//!
//! Order of the accesses, so that no overflow is lost on any platform:
//! - Wherever counters run meanwhile, the overflow status is acknowledged before a counter is loaded again: an
//!   overflow after the acknowledgement sets the status, and interrupts, anew. Where the status says that the
//!   processor froze the counters, its acknowledgement releases them, and comes last.
//! - The LVT entry is unmasked before counters can overflow again: an overflow while the entry is masked is lost.
//!   Running counters are read after unmasking. Where the counters are stopped, unmasking comes after the
//!   acknowledgement: from Intel's version 3 on, unmasking raises an interrupt while a bit of the status is set. Only
//!   frozen counters leave no choice, and that interrupt is claimed as a spurious one.

pub(crate) mod by_status;
pub(crate) mod by_value;
pub(crate) mod claim;
pub(crate) mod overflow;
pub(crate) mod pass;
pub(crate) mod reload;
pub(crate) mod sample_read;
pub(crate) mod service;
