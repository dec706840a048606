//! A processor's branch records, as data.

use core::fmt;

use crate::access::address::{RegisterAddress, RegisterBits};
use crate::branches::filter::BranchFilter;
use crate::branches::record::{Branch, RawBranch};

/// Description of a processor's branch records: their registers, their format and their number.
///
/// `pmu_intel::branches` and `pmu_amd::branches` detect a processor's branch records, and return their description.
/// This one type describes the records of every vendor, so an interrupt handler needs no type parameter for the vendor.
///
/// ```
/// # use pmu_core::branches::{BranchFilter, BranchUnit};
/// fn report(unit: &BranchUnit) {
///     println!("{} branch records", unit.depth());
///     if let Some(recorded) = unit.recorded(BranchFilter::USER) && recorded.kernel() {
///         println!("branches of the kernel are recorded, too: the processor does not filter by level");
///     }
/// }
/// ```
#[derive(Clone, Copy)]
pub struct BranchUnit {
    registers: BranchRegisters,
    format: &'static BranchFormat,
    offers: BranchOffers,
    depth: u8,
}

/// Registers of a processor's branch records.
#[derive(Clone, Copy)]
pub struct BranchRegisters {
    /// The register that starts and stops the recording.
    pub enable: BranchEnable,
    /// The register that selects the branches to record. `None` if the register in `enable` also contains this
    /// selection.
    pub filter: Option<RegisterAddress>,
    /// Returns the filter register's value for the given filter. If this register also contains the enable bit, the
    /// enable bit is set in the value. The second result is the filter that the processor applies with this value. This
    /// filter selects at least the branches of the given filter.
    pub select: fn(&BranchOffers, BranchFilter) -> (u64, BranchFilter),
    /// The register with the number of records, if there is one. Each write to this register clears all records.
    pub depth: Option<RegisterAddress>,
    /// Registers that freeze the records; `None` if the processor cannot freeze the records.
    pub freeze: Option<BranchFreeze>,
    /// Order in which the registers hold the records.
    pub order: BranchOrder,
    /// MSR address of the first record's FROM register, which holds the address of the branch instruction.
    pub from: u32,
    /// MSR address of the first record's TO register, which holds the address of the target. `None` if there is no such
    /// register.
    pub to: Option<u32>,
    /// MSR address of the first record's INFO register, which holds further information. `None` if there is no such
    /// register.
    pub info: Option<u32>,
    /// Difference between the register addresses of adjacent records.
    pub step: u32,
}

/// The register that starts and stops the recording of branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum BranchEnable {
    /// A register that only the branch records use, and that also contains the filter. Writing 0 to the register stops
    /// the recording.
    Register(RegisterAddress),
    /// A register of which only some bits belong to the recorder.
    Bits {
        /// The register, and those of its bits that belong to the recorder.
        bits: RegisterBits,
        /// Values of `bits` while the processor records branches.
        on: u64,
        /// Values of `bits` while the recording is stopped.
        off: u64,
    },
}

/// Registers by which a processor freezes its branch records when it raises the performance interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchFreeze {
    /// The bit that enables freezing.
    pub bit: RegisterBits,
    /// The status bit of the freeze, and the register that ends the freeze. When the processor freezes the records, it
    /// sets this bit in the overflow status register. Software ends the freeze by writing the bit to the given
    /// register. `None` if the processor has no such bit, and freezes the records by clearing the enable bit of the
    /// recording.
    pub status: Option<(u64, RegisterAddress)>,
}

/// Order in which the registers hold the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum BranchOrder {
    /// The first register always has the newest record.
    NewestFirst,
    /// The registers are a ring. The number of records is a power of two. The register at this address holds the index
    /// of the newest record.
    Ring(RegisterAddress),
    /// The processor samples branches for one event: from an overflow of the event's counter on, it fills the records
    /// in order, and raises the counter's interrupt when all records are filled. The register in
    /// [`BranchRegisters::enable`] says how many records are filled. It is one with [`Bits`](BranchEnable::Bits).
    Filled {
        /// Number of the bit at which a field begins, in the register of [`BranchRegisters::enable`]. The field holds
        /// the index of the record that the processor fills next. The index returns to 0 when all records are filled;
        /// the number of records is a power of two.
        next: u8,
        /// Mask of a bit in the register of [`BranchRegisters::enable`]. The bit is set if at least one record is
        /// filled.
        valid: u64,
        /// Bits 15:0 of the select of the event whose overflows start the sampling: event and unit mask.
        event: u16,
        /// Mask of the general counters whose overflows start the sampling: bits 0 to 7 stand for counters 0 to 7.
        counters: u8,
    },
}

/// Capabilities of a processor's branch records.
///
/// ```
/// # use pmu_core::branches::{BranchFilter, BranchUnit};
/// /// A call stack where the processor has one; else the branches of user mode.
/// fn filter(unit: &BranchUnit) -> BranchFilter {
///     let user = BranchFilter::USER;
///     if unit.offers().call_stack { user.call_stack() } else { user }
/// }
/// # let _ = filter;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchOffers {
    /// Branches can be selected by privilege level.
    pub levels: bool,
    /// Branches can be selected by kind.
    pub kinds: bool,
    /// The records can be a [call stack](BranchFilter::call_stack).
    pub call_stack: bool,
    /// Records say whether the branch was mispredicted.
    pub mispredicted: bool,
    /// Records have the cycles since the previous record.
    pub cycles: bool,
    /// Records have the kind of the branch.
    pub kind: bool,
    /// Records have the branch's relation to a transaction.
    pub transaction: bool,
    /// Mask of the general counters whose event counts are in the records: bits 0 to 3 stand for counters 0 to 3.
    pub events: u8,
    /// Number of address bits in a record. If this number is below 64, the bits above the address contain other
    /// information.
    pub address_bits: u8,
}

/// Functions of a vendor crate that decode and restore branch records of one format.
#[derive(Clone, Copy)]
pub struct BranchFormat {
    /// Name of the format, for display.
    pub name: &'static str,
    /// Decodes a record. Returns `None` if the record is empty or erroneous.
    pub decode: fn(&BranchOffers, RawBranch) -> Option<Branch>,
    /// Returns whether the given record is empty. No record is older than an empty record. Only `from` and `to` of the
    /// given record are valid, because `info` was not read yet.
    pub is_end: fn(RawBranch) -> bool,
    /// Returns the register values that restore a saved record.
    pub writable: fn(RawBranch) -> RawBranch,
    /// Set if the processor records the abort of a transaction twice.
    pub doubles_aborts: bool,
}

impl fmt::Debug for BranchFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl BranchUnit {
    /// Greatest number of branch records that a processor can have.
    pub const MAX_DEPTH: u8 = 64;

    /// Creates the description of a processor that has `depth` branch records.
    ///
    /// Returns `None` if `depth` is 0 or above [`MAX_DEPTH`](Self::MAX_DEPTH), or if the records are a
    /// [ring](BranchOrder::Ring) or [filled](BranchOrder::Filled) and `depth` is not a power of two.
    ///
    /// # Safety
    /// - Writing any value to the registers of the records does not break memory safety. The fields `from`, `to` and
    ///   `info` of `registers` are the addresses of the first record's registers. From one record to the next, the
    ///   addresses increase by `step`. The processor does not use the addresses in these registers to jump or to read
    ///   memory. No value in these registers makes the processor write to memory.
    ///
    /// ```
    /// # use pmu_core::branches::{BranchFormat, BranchOffers, BranchRegisters, BranchUnit};
    /// # fn of(registers: BranchRegisters, format: &'static BranchFormat, offers: BranchOffers) {
    /// // SAFETY: `registers.from` is 0x1500, `to` 0x1600, `info` 0x1200: records of branches, which the processor
    /// // writes, and never follows.
    /// let unit = unsafe { BranchUnit::new(registers, 32, format, offers) };
    /// # let _ = unit; }
    /// ```
    ///
    /// Wrong: `from: 0xC000_0082`, the address to which SYSCALL jumps.
    pub const unsafe fn new(
        registers: BranchRegisters,
        depth: u8,
        format: &'static BranchFormat,
        offers: BranchOffers,
    ) -> Option<Self> {
        let is_ring = !matches!(registers.order, BranchOrder::NewestFirst);
        if depth == 0 || depth > Self::MAX_DEPTH || is_ring && !depth.is_power_of_two() {
            return None;
        }
        Some(Self { registers, format, offers, depth })
    }

    /// Returns a number that tells records of other formats, of other depths, and that freeze otherwise, apart.
    #[inline]
    pub(crate) fn fingerprint(&self) -> u32 {
        let freeze = match self.registers.freeze {
            None => 0,
            Some(BranchFreeze { status: None, .. }) => 1,
            Some(BranchFreeze { status: Some(_), .. }) => 2,
        };
        // The format is a static, whose address tells it apart without a number of its own.
        let format = core::ptr::from_ref(self.format).addr() as u32;
        format ^ freeze << 30 ^ u32::from(self.depth) << 22
    }

    /// Returns the number of branch records that the processor keeps.
    pub const fn depth(&self) -> u8 {
        self.depth
    }

    /// Returns the capabilities of the branch records.
    pub const fn offers(&self) -> &BranchOffers {
        &self.offers
    }

    /// Returns the registers of the branch records.
    pub const fn registers(&self) -> &BranchRegisters {
        &self.registers
    }

    /// Returns whether the processor can freeze the records when it raises the performance interrupt.
    pub const fn can_freeze(&self) -> bool {
        self.registers.freeze.is_some()
    }

    /// Returns whether the processor delays the interrupts of counters until all branch records are filled (Zen 3's
    /// branch sampling). The processor then records branches only for one event, on one counter:
    /// [`with_branches`](crate::Event::with_branches) of other events is refused, and so is a
    /// [`BranchRecorder`](crate::branch_recording::BranchRecorder). The session stops the sampling before it stops the
    /// counter. The kernel stops the sampling before the processor goes idle, by
    /// [`Branches::before_idle`](crate::branches::Branches::before_idle): otherwise a delayed interrupt may come late,
    /// or never.
    pub const fn holds_interrupt(&self) -> bool {
        matches!(self.registers.order, BranchOrder::Filled { .. })
    }

    /// Returns the number of branches that the processor takes between a counter's overflow and the interrupt.
    pub(crate) const fn delay(&self) -> u8 {
        if self.holds_interrupt() { self.depth } else { 0 }
    }

    /// Returns the filter that the processor applies when `filter` is requested. The result selects more branches than
    /// `filter` if the processor cannot select exactly the branches of `filter`. Returns `None` if `filter` is empty.
    /// If the processor cannot record call stacks, the call also returns `None` for the filter of a call stack.
    pub fn recorded(&self, filter: BranchFilter) -> Option<BranchFilter> {
        self.selection(filter).map(|(_, recorded)| recorded)
    }

    /// Returns the format of the branch records.
    pub const fn format(&self) -> &'static BranchFormat {
        self.format
    }

    /// Decodes a record. Returns `None` if the record is empty, or erroneous because of an erratum.
    pub fn decode(&self, record: RawBranch) -> Option<Branch> {
        (self.format.decode)(&self.offers, record)
    }

    /// Returns the value of the filter, and what the processor then records.
    // Linked once: as events are opened, settled and sampled.
    #[inline(never)] // 144 bytes of the Hermit-like glue.
    pub(crate) fn selection(&self, filter: BranchFilter) -> Option<(u64, BranchFilter)> {
        if filter.is_empty() || filter.is_call_stack() && !self.offers.call_stack {
            return None;
        }
        Some((self.registers.select)(&self.offers, filter))
    }
}

impl fmt::Debug for BranchUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registers: _, format, offers, depth } = self;
        let mut fields = f.debug_struct("BranchUnit");
        fields.field("format", format).field("depth", depth).field("offers", offers);
        fields.finish_non_exhaustive()
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for BranchUnit {
    fn format(&self, f: defmt::Formatter<'_>) {
        let Self { registers: _, format, offers, depth } = self;
        defmt::write!(f, "{=str}, {=u8} records, {}", format.name, *depth, offers);
    }
}
