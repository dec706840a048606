//! The registers that control all counters of a processor together.

use crate::counters::registers::register_bits::RegisterBits;
use crate::msr::address::MsrAddress;

/// The registers that control all counters of a processor together.
///
/// A session owns the bits of its counters in these registers, and no others. While a session lives, other owners do
/// not write the control register, but set their bits through the session
/// ([`CounterSession::set_others_control`](crate::CounterSession::set_others_control)). In the status they acknowledge
/// their own bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GlobalRegisters {
    /// Control: one bit per counter, which counts only while its bit is set (and its event select says so).
    pub control: MsrAddress,
    /// Overflow status: one bit per counter, set when the counter overflowed.
    pub status: MsrAddress,
    /// Acknowledgement: writing 1 clears the bit of the status.
    pub acknowledge: MsrAddress,
    /// The driver stops the counters while it services their interrupt: two more writes, and none of the
    /// events of servicing itself are counted.
    pub stop_while_serviced: bool,
    /// Bit of the status that says that the processor froze the counters; acknowledging it releases them. 0: a
    /// processor that freezes clears the control register instead.
    pub frozen: u64,
    /// The freeze bit, if there is one: with it set, the processor stops all its counters when it raises the
    /// performance interrupt.
    pub freeze: Option<RegisterBits>,
}
