//! RDPMC of the guest.

use crate::model::state::Model;
use crate::pmu::access::{Mode, Read};
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::registers::counters::MAX_PER_KIND;
use crate::registers::family::Family;

/// Target of an RDPMC: what the instruction reads.
pub(crate) enum Pmc {
    /// #GP.
    Absent,
    /// 0.
    Zero,
    /// The counter with this place.
    Counter(usize),
}

impl<P: EventPolicy> VirtualPmu<P> {
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
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Mode, Read, VirtualPmu};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// assert_eq!(pmu.read_pmc(3, Mode::KERNEL), Read::Value(0));
    /// assert_eq!(pmu.read_pmc(4, Mode::KERNEL), Read::GeneralProtection);
    /// let user = Mode { cpl: 3, pce: false, protected: true };
    /// assert_eq!(pmu.read_pmc(3, user), Read::GeneralProtection);
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    #[inline]
    pub fn read_pmc(&self, ecx: u32, mode: Mode) -> Read {
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
        let (counter, disabled) = match ecx >> 16 {
            0 if index < MAX_PER_KIND => (index, registers.select(index) >> 37 & 1),
            0x4000 if index < MAX_PER_KIND => {
                let control = registers.of(Family::FixedControl);
                (MAX_PER_KIND + index, control >> (33 + 4 * index) & 1)
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
