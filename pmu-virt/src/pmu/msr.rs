//! RDMSR and WRMSR of the guest, and register writes of the host.

use crate::configuration::features::{FIXED_RDPMC_USER_DISABLE, SELECT_RDPMC_USER_DISABLE};
use crate::model::Model;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::EventPolicy;
use crate::registers::table::{Family, Located, MAX_PER_KIND, ReadAs, Row, WriteAs};

impl<P: EventPolicy> VirtualPmu<P> {
    /// Answers the guest's RDMSR of a register. The caller has checked that the guest runs at CPL 0.
    ///
    /// ```
    /// use pmu_virt::{FedEvents, Read, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let pmu = VirtualPmu::new(Configuration::Intel(IntelConfiguration::new(2, 4, 3)), FedEvents::NONE)?;
    /// assert_eq!(pmu.read(0x38F), Read::Value(0b1111)); // after reset, as the SDM has it
    /// assert_eq!(pmu.read(0x38A), Read::Unhandled); // no register of a PMU
    /// assert_eq!(pmu.read(0x391), Read::GeneralProtection); // of version 4 on
    /// // IA32_MISC_ENABLE is shared: three bits are the PMU's.
    /// assert_eq!(pmu.read(0x1A0), Read::Shared { value: 0x1880, mask: 0x1880 });
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    #[inline]
    pub fn read(&self, address: u32) -> Read {
        let model = &self.model;
        let Some(located) = model.layout.table.find(address) else { return Read::Unhandled };
        let Located { row, index, .. } = located;
        if !model.layout.exists(&located) {
            return self.read_absent(row, address);
        }
        let value = match row.read {
            ReadAs::Held => model.registers.get(index),
            ReadAs::Zero => 0,
            ReadAs::InUse => model.in_use(),
        };
        match row.owned {
            u64::MAX => Read::Value(value),
            mask => Read::Shared { value, mask },
        }
    }

    /// Answers the guest's WRMSR of a register. The caller has checked that the guest runs at CPL 0.
    ///
    /// ```
    /// use pmu_virt::{FedEvents, Read, VirtualPmu, Write};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// // AnyThread, bit 21, is reserved without its feature: #GP, and nothing changes.
    /// let written = pmu.write(0x186, 0x73_003C);
    /// assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << 21));
    /// assert_eq!(pmu.read(0x186), Read::Value(0));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    #[inline]
    pub fn write(&mut self, address: u32, value: u64) -> Written {
        let Some(located) = self.model.layout.table.find(address) else {
            return Written::UNHANDLED;
        };
        self.write_as(&located, located.row.write, address, value)
    }

    /// Returns the answer that [`write`](Self::write) would return, but writes nothing. Use this call for a register
    /// that the PMU and the embedder share. If the PMU refuses the value, the embedder must not change the embedder's
    /// bits of the register.
    ///
    /// ```
    /// use pmu_virt::{FedEvents, VirtualPmu, Write};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// // IA32_DEBUGCTL: BTS, which this PMU lacks, is #GP; single-stepping on branches is the embedder's.
    /// assert_eq!(pmu.check_write(0x1D9, 1 << 7).answer, Write::GeneralProtection);
    /// assert!(matches!(pmu.check_write(0x1D9, 1 << 1).answer, Write::Shared { .. }));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn check_write(&self, address: u32, value: u64) -> Written {
        match self.model.layout.table.find(address) {
            None => Written::UNHANDLED,
            Some(located) if !self.model.layout.exists(&located) => {
                self.write_absent(located.row, address)
            }
            Some(Located { row, index, .. }) => self.judge(row, index, row.write, value).0,
        }
    }

    /// Writes a register on behalf of the host, to restore a virtual processor from a list of registers.
    ///
    /// The guest's [`write`](Self::write) cannot restore every value that [`read`](Self::read) returns. `host_write`
    /// differs from `write` as follows:
    ///
    /// - `host_write` to a status register stores `value`, including set status bits.
    /// - `host_write` writes a counter in full width at each of the counter's addresses.
    /// - `host_write` refuses every value of `IA32_PERF_CAPABILITIES` except the present value, because another value
    ///   describes a different PMU.
    ///
    /// Save each [register](crate::configuration::Configuration::registers) with
    /// [`is_state`](crate::registers::RegisterInfo::is_state) set. Restore the registers in the same order. No register
    /// says whether an interrupt is pending. So also save the result of [`pmi_pending`](Self::pmi_pending), and restore
    /// it by [`set_pmi_pending`](Self::set_pmi_pending).
    ///
    /// ```
    /// use pmu_virt::{FedEvents, Read, VirtualPmu, Write};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut old = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let _ = old.write(0x1D9, 1 << 12);
    /// let mut new = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// for register in configuration.registers().filter(|register| register.is_state) {
    ///     if let Read::Value(value) | Read::Shared { value, .. } = old.read(register.address) {
    ///         let written = new.host_write(register.address, value).answer;
    ///         assert!(matches!(written, Write::Done | Write::Shared { .. }));
    ///     }
    /// }
    /// assert_eq!(new.state(), old.state());
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn host_write(&mut self, address: u32, value: u64) -> Written {
        match self.model.layout.table.find(address) {
            Some(located) => self.write_as(&located, located.row.host_write, address, value),
            None => Written::UNHANDLED,
        }
    }

    #[inline(always)]
    fn write_as(&mut self, located: &Located, write: WriteAs, address: u32, value: u64) -> Written {
        let Located { row, index, .. } = *located;
        if !self.model.layout.exists(located) {
            return self.write_absent(row, address);
        }
        match row.family {
            // The registers that a guest writes most are always stored, and never shared.
            Family::EventSelect => {
                let written = self.store(row, index, value);
                // Only the third select has IN_TXCP, which `store` refuses as a bit that its family lacks.
                if written.answer != Write::Done {
                    return self.write_select_of_its_own(row, index, value);
                }
                self.model.derive_general(&self.policy, index, value & !written.illegal);
                written
            }
            Family::FixedControl => {
                let written = self.store(row, index, value);
                if written.answer == Write::Done {
                    self.model.derive_fixed();
                }
                written
            }
            _ => self.write_other(row, index, write, value),
        }
    }

    /// Writes a register that does not affect which counters run.
    #[inline(never)] // With the next, 6 instructions of a select's write (`.ci/run bench`), not of a counter's.
    fn write_other(&mut self, row: &Row, index: usize, write: WriteAs, value: u64) -> Written {
        let (written, stored) = self.judge(row, index, write, value);
        if written.answer != Write::GeneralProtection {
            self.model.registers.set(index, stored);
            self.model.budget_is_stale = true;
        }
        written
    }

    /// Stores into a register that is not shared: the short form of [`judge`](Self::judge).
    #[inline(always)]
    fn store(&mut self, row: &Row, index: usize, value: u64) -> Written {
        let legal = self.model.layout.legal(row.family);
        let illegal = value & !legal;
        if illegal & row.faults != 0 {
            return Written { answer: Write::GeneralProtection, illegal };
        }
        self.model.registers.set(index, value & legal);
        Written { answer: Write::Done, illegal }
    }

    /// Writes an event select with bits that only some selects have.
    #[cold]
    #[inline(never)] // With the previous, 6 instructions of a select's write.
    fn write_select_of_its_own(&mut self, row: &Row, index: usize, value: u64) -> Written {
        let (written, stored) = self.judge(row, index, WriteAs::Stored, value);
        if written.answer == Write::Done {
            self.model.registers.set(index, stored);
            self.model.derive_general(&self.policy, index, stored);
        }
        written
    }

    /// Returns the answer to a write of an existing register, and its new value.
    #[inline(always)]
    fn judge(&self, row: &Row, index: usize, write: WriteAs, value: u64) -> (Written, u64) {
        let bits = Bits {
            held: self.model.registers.get(index),
            legal: self.model.layout.legal_of(row.family, index) | row.also_legal,
            owned: row.owned,
            faults: row.faults,
        };
        bits.judge(write, value)
    }

    #[cold]
    fn read_absent(&self, row: &Row, address: u32) -> Read {
        if self.model.layout.hidden_as_zero && row.is_hidden_as_zero(address) {
            Read::Value(0)
        } else {
            Read::GeneralProtection
        }
    }

    #[cold]
    fn write_absent(&self, row: &Row, address: u32) -> Written {
        if self.model.layout.hidden_as_zero && row.is_hidden_as_zero(address) {
            Written::IGNORED
        } else {
            Written::REFUSED
        }
    }

    /// Answers the guest's RDPMC with the index `ecx`, executed in this mode. The answer is a value or #GP.
    ///
    /// On Intel (SDM vol. 2B), ECX bits 31:16 are the type, and bits 15:0 are the counter's number within the type. As
    /// in KVM, type 0 selects general counters, and type 0x4000 selects fixed counters. RDPMC with any other type
    /// raises #GP, for instance a fast read (bit 31) or a read of `PERF_METRICS`. On AMD (APM vol. 3), ECX is the
    /// counter's number, without a type.
    ///
    /// The guest's kernel can disable RDPMC of a counter in user mode. RDPMC at CPL 1–3 then reads 0. (Intel
    /// Architecture Instruction Set Extensions Programming Reference, chapter "RDPMC User Disable"; Linux' commit
    /// 59af95e028d4.)
    ///
    /// ```
    /// use pmu_virt::{FedEvents, Mode, Read, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// assert_eq!(pmu.read_counter(3, Mode::KERNEL), Read::Value(0));
    /// assert_eq!(pmu.read_counter(4, Mode::KERNEL), Read::GeneralProtection);
    /// let user = Mode { cpl: 3, pce: false, protected: true };
    /// assert_eq!(pmu.read_counter(3, user), Read::GeneralProtection);
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    #[inline]
    pub fn read_counter(&self, ecx: u32, mode: Mode) -> Read {
        match self.locate_pmc(ecx, mode) {
            Pmc::Absent => Read::GeneralProtection,
            Pmc::Zero => Read::Value(0),
            Pmc::Counter(counter) => Read::Value(self.model.registers.counter(counter)),
        }
    }

    /// Returns the counter that RDPMC reads.
    #[inline(always)]
    pub(crate) fn locate_pmc(&self, ecx: u32, mode: Mode) -> Pmc {
        if !mode.allows_rdpmc() {
            return Pmc::Absent;
        }
        let Model { layout, registers, .. } = &self.model;
        let index = (ecx & 0xFFFF) as usize;
        // The bits are read without a look at the feature: where it is absent, they are reserved, and therefore 0.
        let (counter, disabled) = match ecx >> 16 {
            0 if index < MAX_PER_KIND => {
                (index, registers.select(index) & SELECT_RDPMC_USER_DISABLE)
            }
            0x4000 if index < MAX_PER_KIND => {
                let control = registers.of(Family::FixedControl);
                (MAX_PER_KIND + index, control & FIXED_RDPMC_USER_DISABLE << (4 * index))
            }
            _ => return Pmc::Absent,
        };
        if !layout.has(counter) {
            let zero = layout.absent_counters_read_zero && ecx < 4;
            return if zero { Pmc::Zero } else { Pmc::Absent };
        }
        let hidden = disabled != 0 && !mode.is_privileged();
        if hidden { Pmc::Zero } else { Pmc::Counter(counter) }
    }
}

/// Answer to the guest's RDMSR or RDPMC: a value or a fault. For [`Shared`](Self::Shared), the embedder adds the bits
/// that do not belong to the PMU. For [`Unhandled`](Self::Unhandled), the embedder answers the whole access.
///
/// ```
/// use pmu_virt::Read;
/// /// Returns what the guest gets; `None` is #GP. `own` answers for the embedder's registers and bits.
/// fn answer(read: Read, own: impl Fn() -> Option<u64>) -> Option<u64> {
///     match read {
///         Read::Value(value) => Some(value),
///         Read::Shared { value, mask } => own().map(|own| own & !mask | value),
///         Read::GeneralProtection => None,
///         Read::Unhandled => own(),
///     }
/// }
/// assert_eq!(answer(Read::Shared { value: 0x80, mask: 0x1880 }, || Some(0x1801)), Some(0x81));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub enum Read {
    /// The register's value.
    Value(u64),
    /// The PMU and the embedder share the register. `value` has the PMU's bits, and the embedder adds the other bits.
    Shared {
        /// Value of the bits that belong to the PMU.
        value: u64,
        /// Bits that belong to the PMU.
        mask: u64,
    },
    /// The guest gets #GP(0).
    GeneralProtection,
    /// No PMU of this vendor has the register. The embedder emulates the access.
    Unhandled,
}

impl Read {
    /// Returns this answer; if it leaves bits of the register to another part of the processor, with that part's answer
    /// to them.
    pub(crate) fn above(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Unhandled => other(),
            Self::Shared { value: own, mask } => match other() {
                Self::Value(value) => Self::Value(value & !mask | own),
                Self::Shared { value, mask: others } => {
                    Self::Shared { value: value & !mask | own, mask: others | mask }
                }
                Self::GeneralProtection => Self::GeneralProtection,
                Self::Unhandled => self,
            },
            answer => answer,
        }
    }
}

/// Answer to the guest's WRMSR: a completed write or a fault. For [`Shared`](Self::Shared), the embedder writes the
/// bits that do not belong to the PMU. For [`Unhandled`](Self::Unhandled), the embedder answers the whole access.
///
/// ```
/// use pmu_virt::Write;
/// /// Returns `false` for #GP. `own` writes the embedder's registers and bits.
/// fn finish(write: Write, value: u64, own: impl FnOnce(u64) -> bool) -> bool {
///     match write {
///         Write::Done => true,
///         Write::Shared { mask } => own(value & !mask),
///         Write::GeneralProtection => false,
///         Write::Unhandled => own(value),
///     }
/// }
/// assert!(finish(Write::Shared { mask: 0x7FC1 }, 0x1002, |own| own == 0x0002));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub enum Write {
    /// The PMU has written the register.
    Done,
    /// The PMU and the embedder share the register. The PMU has written the bits in `mask`. The embedder writes the
    /// other bits.
    Shared {
        /// Bits that belong to the PMU.
        mask: u64,
    },
    /// The guest gets #GP(0). The write has changed no register.
    GeneralProtection,
    /// No PMU of this vendor has the register. The embedder emulates the access.
    Unhandled,
}

/// Answer to the guest's WRMSR, together with the bits of the value that the manual does not allow.
///
/// ```
/// use pmu_virt::{FedEvents, VirtualPmu, Write};
/// use pmu_virt::configuration::{AmdConfiguration, Configuration};
/// let configuration = Configuration::Amd(AmdConfiguration::LEGACY);
/// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
/// // AMD's processors drop a reserved bit; a test of a driver wants to know.
/// let written = pmu.write(0xC001_0000, 1 << 63 | 0x53_0076);
/// assert_eq!((written.answer, written.illegal), (Write::Done, 1 << 63));
/// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub struct Written {
    /// Answer to the guest. The answer is the same as on hardware.
    pub answer: Write,
    /// Bits of the written value that the manual does not allow to be set in this register. The field includes bits
    /// that hardware ignores. If the register cannot be written, the field is `u64::MAX`.
    pub illegal: u64,
}

impl Written {
    /// Returns this answer; if it leaves bits of the register to another part of the processor, with that part's answer
    /// to them.
    pub(crate) fn above(self, other: impl FnOnce() -> Self) -> Self {
        match self.answer {
            Write::Unhandled => other(),
            Write::Shared { mask } => {
                let other = other();
                let answer = match other.answer {
                    Write::Shared { mask: others } => Write::Shared { mask: mask | others },
                    Write::Unhandled => self.answer,
                    answer => answer,
                };
                Self { answer, illegal: self.illegal | other.illegal }
            }
            _ => self,
        }
    }

    pub(crate) const UNHANDLED: Self = Self { answer: Write::Unhandled, illegal: 0 };
    /// The register is absent, or read-only.
    pub(crate) const REFUSED: Self = Self { answer: Write::GeneralProtection, illegal: u64::MAX };
    /// The register ignores every write.
    pub(crate) const IGNORED: Self = Self { answer: Write::Done, illegal: u64::MAX };
}

/// State of the virtual processor that determines whether the guest's RDPMC faults.
///
/// ```
/// use pmu_virt::Mode;
/// let (cr0, cr4, cs) = (0x8005_0033u64, 0x3626F0u64, 0x33u16);
/// let mode = Mode { cpl: (cs & 3) as u8, pce: cr4 >> 8 & 1 != 0, protected: cr0 & 1 != 0 };
/// assert_eq!(mode, Mode { cpl: 3, pce: false, protected: true });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Mode {
    /// The current privilege level, 0–3.
    pub cpl: u8,
    /// CR4.PCE, which allows RDPMC at any privilege level.
    pub pce: bool,
    /// CR0.PE. Outside protected mode, RDPMC is always allowed.
    pub protected: bool,
}

impl Mode {
    /// Mode of a kernel: CPL 0, in protected mode.
    pub const KERNEL: Self = Self { cpl: 0, pce: false, protected: true };

    /// Returns whether the mode is CPL 0, or has no privilege levels.
    #[inline]
    pub(crate) const fn is_privileged(self) -> bool {
        self.cpl == 0 || !self.protected
    }

    /// Returns whether RDPMC is allowed. SDM vol. 2B and APM vol. 3, RDPMC.
    #[inline]
    pub(crate) const fn allows_rdpmc(self) -> bool {
        self.is_privileged() || self.pce
    }
}

/// Bits of a register: those that it holds, that a write may set, that belong to the PMU or facility, and that fault
/// (#GP) if they are illegal.
#[derive(Clone, Copy)]
pub(crate) struct Bits {
    pub(crate) held: u64,
    pub(crate) legal: u64,
    pub(crate) owned: u64,
    pub(crate) faults: u64,
}

impl Bits {
    /// Returns the answer to a write of an existing register, and what the register then holds.
    #[inline(always)]
    pub(crate) const fn judge(self, write: WriteAs, value: u64) -> (Written, u64) {
        let Self { held, legal, owned, faults } = self;
        let (illegal, stored) = match write {
            WriteAs::Stored => (value & !legal, value & legal),
            WriteAs::SignExtended => {
                // SDM vol. 3B, "Full-Width Writes to Performance Counter Registers": a legacy write stores 32 bits,
                // sign-extended.
                let extended = value as u32 as i32 as i64 as u64;
                let high = value >> 32;
                // Software writes a negative number in 64 bits, or in the counter's width: neither is a mistake that a
                // driver's test should report.
                let plausible =
                    high == 0 || high == extended >> 32 || high == (extended & legal) >> 32;
                let illegal = if plausible { 0 } else { (value ^ extended) & !0xFFFF_FFFF };
                (illegal, extended & legal)
            }
            WriteAs::StoredWhole => (value & !legal, value),
            WriteAs::Cleared => (value & !legal, held & !value),
            WriteAs::Set => (value & !legal, held | value & legal),
            WriteAs::Kept => (value ^ held, held),
            WriteAs::Ignored => return (Written::IGNORED, held),
            WriteAs::Refused => return (Written::REFUSED, held),
        };
        // The other bits are their owner's to judge.
        let illegal = illegal & owned;
        let answer = match owned {
            _ if illegal & faults != 0 => Write::GeneralProtection,
            0 => Write::Unhandled,
            u64::MAX => Write::Done,
            mask => Write::Shared { mask },
        };
        (Written { answer, illegal }, stored)
    }
}

/// Target of an RDPMC: what the instruction reads.
pub(crate) enum Pmc {
    /// #GP.
    Absent,
    /// 0.
    Zero,
    /// The counter with this place.
    Counter(usize),
}
