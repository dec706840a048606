//! The registers that control all counters of a processor together.

use crate::msr::address::MsrAddress;
use crate::msr::register_bits::RegisterBits;

/// The registers that control all counters of a processor together.
///
/// A session owns the bits of its own counters in these registers. While the session lives, other owners must not write
/// the control register: they set their bits by
/// [`CounterSession::set_others_control`](crate::CounterSession::set_others_control). In the status register, each
/// owner acknowledges its own bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GlobalRegisters {
    /// The control register, with one bit per counter. A counter counts only while its bit in this register and the
    /// enable bits in its own control register are set.
    pub control: MsrAddress,
    /// The overflow status register, with one bit per counter. The bit is set if the counter has overflowed.
    pub status: MsrAddress,
    /// The acknowledgement register: writing 1 to a bit clears the same bit of the [status](Self::status) register.
    pub acknowledge: MsrAddress,
    /// If set, the driver stops the counters while it services their interrupt. This costs two more writes per
    /// interrupt. Events that the interrupt handler itself causes are then not counted.
    pub stop_while_serviced: bool,
    /// If set, VM entry and VM exit can load the control register, as with Intel's VMX. The hypervisor then has to load
    /// the values that [`guest_control`](crate::lending::guest_control) returns. These values confine events to guests,
    /// or to the host.
    pub loaded_for_guests: bool,
    /// Mask of the bit that the processor sets in the overflow status when it freezes the counters. Acknowledging this
    /// bit lets the counters run again. This field is 0 if the processor has no such bit. Such a processor freezes its
    /// counters by clearing the control register.
    pub frozen: u64,
    /// The register bit that enables freezing, if the processor has such a bit. While this bit is set, the processor
    /// stops all its counters when it raises the performance interrupt.
    pub freeze: Option<RegisterBits>,
}
