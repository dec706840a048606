//! RDMSR and WRMSR of the guest, and register writes of the host.

use crate::pmu::access::{Read, Write, Written};
use crate::pmu::judge::Bits;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::registers::family::Family;
use crate::registers::row::{ReadAs, Row, WriteAs};
use crate::registers::table::Located;

impl<P: EventPolicy> VirtualPmu<P> {
    /// Answers the guest's RDMSR of a register. The caller has checked that the guest runs at CPL 0.
    ///
    /// ```
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Read, VirtualPmu};
    /// let pmu = VirtualPmu::new(Configuration::Intel(IntelConfiguration::new(2, 4, 3)), FedEvents::NONE)?;
    /// assert_eq!(pmu.read(0x38F), Read::Value(0b1111)); // after reset, as the SDM has it
    /// assert_eq!(pmu.read(0x38A), Read::Unhandled); // no register of a PMU
    /// assert_eq!(pmu.read(0x391), Read::GeneralProtection); // of version 4 on
    /// // IA32_MISC_ENABLE is shared: three bits are the PMU's.
    /// assert_eq!(pmu.read(0x1A0), Read::Shared { value: 0x1880, mask: 0x1880 });
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
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
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Read, VirtualPmu, Write};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// // AnyThread, bit 21, is reserved without its feature: #GP, and nothing changes.
    /// let written = pmu.write(0x186, 0x73_003C);
    /// assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << 21));
    /// assert_eq!(pmu.read(0x186), Read::Value(0));
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
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
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, VirtualPmu, Write};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// // IA32_DEBUGCTL: BTS, which this PMU lacks, is #GP; single-stepping on branches is the embedder's.
    /// assert_eq!(pmu.check_write(0x1D9, 1 << 7).answer, Write::GeneralProtection);
    /// assert!(matches!(pmu.check_write(0x1D9, 1 << 1).answer, Write::Shared { .. }));
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
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
    /// Save each [register](crate::Configuration::registers) with [`is_state`](crate::RegisterInfo::is_state) set.
    /// Restore the registers in the same order. No register tells whether an interrupt is pending. So also save the
    /// result of [`pmi_pending`](Self::pmi_pending), and restore it by [`set_pmi_pending`](Self::set_pmi_pending).
    ///
    /// ```
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Read, VirtualPmu, Write};
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
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
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
    #[inline(never)]
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
    #[inline(never)]
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
}
