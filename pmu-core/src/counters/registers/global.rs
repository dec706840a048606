//! The registers that control all counters of a processor together.

use crate::msr::{MsrAddress, MsrUpdate};

/// The registers that control all counters of a processor together.
///
/// A session owns the bits of its counters in them, and no others. Other owners do not write the control register
/// while a session lives, but set their bits through it
/// ([`Counters::set_others_control`](crate::Counters::set_others_control)); in the status they acknowledge their own
/// bits.
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
    /// The control by which the processor freezes the counters itself, where it can.
    pub freeze: Option<Freeze>,
}

/// The bit that makes a processor stop all its counters as it raises the performance interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Freeze {
    register: u32,
    pub(crate) bit: u64,
}

impl Freeze {
    /// Describes the freeze bit of a register.
    ///
    /// # Safety
    /// - Setting and clearing `bit` of `register`, with its other bits as they are, does not break
    ///   memory safety.
    ///
    /// ```
    /// use pmu_core::Freeze;
    /// // SAFETY: bit 12 of IA32_DEBUGCTL, FREEZE_PERFMON_ON_PMI, stops counters, and no more.
    /// let freeze = unsafe { Freeze::new(0x1D9, 1 << 12) };
    /// # let _ = freeze;
    /// ```
    ///
    /// Wrong: a bit next to it, which makes the processor store branches.
    ///
    /// ```
    /// # use pmu_core::Freeze;
    /// // SAFETY: not given. Bit 7 is BTS.
    /// let freeze = unsafe { Freeze::new(0x1D9, 1 << 7) };
    /// # let _ = freeze;
    /// ```
    pub const unsafe fn new(register: u32, bit: u64) -> Self {
        Self { register, bit }
    }

    /// Sets the bit or clears it.
    pub(crate) const fn set(&self, freezes: bool) -> MsrUpdate {
        let (clear, set) = if freezes { (0, self.bit) } else { (self.bit, 0) };
        // SAFETY: by the promise of `new`.
        unsafe { MsrUpdate::new(self.register, clear, set) }
    }

    /// Reads the register.
    pub(crate) const fn read(&self) -> MsrUpdate {
        MsrUpdate::read(self.register)
    }
}
