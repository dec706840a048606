//! The interrupt path: finds the overflowed counters and re-arms them.
//!
//! The interrupt path needs only the processor's [`CounterMemory`](crate::memory::CounterMemory) and the registers. An
//! interrupt may come between any two instructions of the control path. An interrupt may also come within the interrupt
//! path: the nested call of `service` then only asks the outer call for another pass.
//!
//! Order of the accesses, so that no overflow is lost on any platform:
//! - If counters run during the service, the overflow status is acknowledged before a counter is loaded again. An
//!   overflow after the acknowledgement sets the status again, and interrupts again. If the status says that the
//!   processor froze the counters, the acknowledgement releases the counters, and comes last.
//! - The interrupt is unmasked before counters can overflow again: an overflow while the interrupt is masked is lost.
//!   Running counters are read after unmasking. If the counters are stopped, unmasking comes after the acknowledgement,
//!   because from Intel's version 3 on, unmasking raises an interrupt while a bit of the status is set. Only for frozen
//!   counters does unmasking come first; the interrupt that it raises is claimed as spurious.

pub(crate) mod pass;
pub(crate) mod reload;
pub(crate) mod sample;
pub(crate) mod service;
pub(crate) mod software;
