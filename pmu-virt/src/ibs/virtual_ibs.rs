//! Instruction-based sampling of one virtual processor: creation, reset and interrupt.

use crate::ibs::configuration::IbsConfiguration;
use crate::ibs::registers::{
    CTL, DISABLE, FETCH_CTL, FETCH_CTL2, FETCH_ENABLE, OP_CTL, OP_CTL2, OP_ENABLE, REGISTERS,
};
use crate::pmu::pmi::{PerformanceEntry, PmiOutcome};

/// Instruction-based sampling (IBS) of one virtual AMD processor. The processor also has a
/// [`VirtualPmu`](crate::VirtualPmu). This type is a [`GuestFacility`](crate::GuestFacility), and answers RDMSR and
/// WRMSR of the IBS registers. The embedder passes fetches to [`fetch`](Self::fetch), and ops to
/// [`execute`](Self::execute). This type counts fetches and ops, and writes a sampled fetch or op to the IBS registers.
///
/// No method allocates or panics. A copy of the value is a snapshot of the complete state, and `==` compares two
/// states.
///
/// ```
/// use pmu_virt::ibs::{FedOp, IbsConfiguration, VirtualIbs};
/// use pmu_virt::{GuestFacility, Read, Writer};
/// let mut ibs = VirtualIbs::new(IbsConfiguration::ZEN_4);
/// // The guest enables op sampling: one op (bit 19) in 160.
/// let _ = ibs.write(Writer::Guest, 0xC001_1033, 1 << 19 | 1 << 17 | 160 >> 4);
/// for instruction in 1..=160 {
///     ibs.execute(&FedOp::new(4 * instruction));
/// }
/// // The last one was tagged. The interrupt comes through the extended entry of IBS_CTL.
/// assert_eq!(ibs.read(0xC001_1034), Read::Value(640));
/// assert!(ibs.interrupt_pending());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualIbs {
    pub(crate) configuration: IbsConfiguration,
    /// The registers, in the order of their addresses.
    pub(crate) registers: [u64; REGISTERS],
    /// The low four bits of the count of fetches, which no register shows.
    pub(crate) fetch_low: u64,
    /// State of the random bits.
    pub(crate) random: u32,
    pub(crate) pending: bool,
}

const _: () = assert!(size_of::<VirtualIbs>() <= 192);

const SEED: u32 = 0x2545_F491;

impl VirtualIbs {
    /// Creates the state that a guest's instruction-based sampling has after reset.
    pub fn new(configuration: IbsConfiguration) -> Self {
        let mut registers = [0; REGISTERS];
        registers[CTL] = configuration.entry();
        Self { configuration, registers, fetch_low: 0, random: SEED, pending: false }
    }

    /// Returns the configuration of the instruction-based sampling that the guest sees.
    pub fn configuration(&self) -> IbsConfiguration {
        self.configuration
    }

    /// Returns whether the interrupt of a sample is pending. The interrupt stays pending until
    /// [`deliver`](Self::deliver) is called.
    pub fn interrupt_pending(&self) -> bool {
        self.pending
    }

    /// Sets whether the interrupt of a sample is pending. No register tells whether the interrupt is pending. So an
    /// embedder that saves the registers one by one must also save [`interrupt_pending`](Self::interrupt_pending).
    pub fn set_interrupt_pending(&mut self, pending: bool) {
        self.pending = pending;
    }

    /// Delivers a pending interrupt through an extended LVT entry. `entry` gives access to the extended LVT entry with
    /// the number [`IbsConfiguration::lvt_entry`]. If this number is `None`, the interrupt is lost.
    ///
    /// If the interrupt controller has no extended entries, do not call this method. Instead, inject an NMI when
    /// [`interrupt_pending`](Self::interrupt_pending) returns `true`, and [clear](Self::set_interrupt_pending) the
    /// pending interrupt.
    ///
    /// ```
    /// use pmu_virt::ibs::{IbsConfiguration, VirtualIbs};
    /// use pmu_virt::{Delivery, PerformanceEntry, PmiOutcome};
    /// struct Entry { value: u32, nmi: bool }
    /// impl PerformanceEntry for Entry {
    ///     fn entry(&self) -> u32 { self.value }
    ///     fn set_entry(&mut self, value: u32) { self.value = value; }
    ///     fn raise(&mut self, delivery: Delivery) { self.nmi |= delivery == Delivery::NonMaskable; }
    /// }
    /// let mut ibs = VirtualIbs::new(IbsConfiguration::ZEN_4);
    /// ibs.set_interrupt_pending(true);
    /// let mut entry = Entry { value: 0x400, nmi: false };
    /// assert_eq!(ibs.deliver(&mut entry), PmiOutcome::Raised(Delivery::NonMaskable));
    /// assert!(entry.nmi && !ibs.interrupt_pending());
    /// ```
    pub fn deliver(&mut self, entry: &mut impl PerformanceEntry) -> PmiOutcome {
        if !core::mem::take(&mut self.pending) {
            return PmiOutcome::NotPending;
        }
        if self.configuration.lvt_entry.is_none() {
            return PmiOutcome::Masked;
        }
        PmiOutcome::through(entry)
    }

    /// Returns whether the guest has enabled fetch sampling or op sampling.
    pub fn is_enabled(&self) -> bool {
        let enabled = |control: usize, enable, second: usize| {
            self.registers[control] & enable != 0 && self.registers[second] & DISABLE == 0
        };
        enabled(FETCH_CTL, FETCH_ENABLE, FETCH_CTL2) || enabled(OP_CTL, OP_ENABLE, OP_CTL2)
    }

    /// Returns the next random bits.
    pub(crate) fn random(&mut self, mask: u64) -> u64 {
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        u64::from(self.random >> 8) & mask
    }
}
