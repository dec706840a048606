//! The registers that control all counters of a processor together.

use crate::counters::registers::register_bits::RegisterBits;
use crate::msr::MsrAddress;

/// The registers that control all counters of a processor together.
///
/// A session owns the bits of its counters in them, and no others. Other owners do not write the control register while
/// a session lives, but set their bits through it
/// ([`CounterSession::set_others_control`](crate::CounterSession::set_others_control)); in the status they acknowledge
/// their own bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GlobalRegisters {
    /// One bit per counter: it counts while the bit is set (and its event select says so).
    pub control: MsrAddress,
    /// One bit per counter: it overflowed.
    pub status: MsrAddress,
    /// Writing 1 clears the bit of the status.
    pub acknowledge: MsrAddress,
    /// The driver stops the counters while their interrupt is serviced: two writes more, and none
    /// of the events of servicing itself are counted.
    pub stop_while_serviced: bool,
    /// Bit of the status that says that the processor froze the counters, and whose acknowledgement
    /// releases them. 0: a processor that freezes clears the control register instead.
    pub frozen: u64,
    /// The bit that makes the processor stop all its counters as it raises the performance interrupt, where it has one.
    pub freeze: Option<RegisterBits>,
}
