//! Deviations of real platforms from the manuals.

// To add a deviation: its line of the list, with the platforms that have it; and what the mock does then: here if an
// access is answered differently, in `interrupts.rs` or `backend.rs` if an interrupt is. The tests `nmi` and `drivers`
// run under it, and under its pairs, without further changes.

use core::fmt;

use pmu_core::access::AccessErrorKind;

use crate::configuration::cpuid::CpuidRegisters;
use crate::configuration::{AmdCounters, Configuration, Vendor};
use crate::mock::processor::{FROZEN, MockMsr};
use crate::pmu::facility::{GuestFacility, Writer};
use crate::pmu::msr::Read;
use crate::policy::AllowAll;
use crate::precise::virtual_precise::ENABLE;
use crate::registers::layout::Freeze;
use crate::registers::table::{Family, MAX_PER_KIND};

macro_rules! deviations {
    ($($(#[doc = $meaning:literal])+ $variant:ident)*) => {
        /// Deviation of real platforms from Intel's and AMD's manuals. A mock can imitate each deviation. On these
        /// platforms, a driver that relies on the manuals can lose overflows.
        ///
        /// ```
        /// use pmu_virt::mock::{Deviation, Deviations};
        /// let deviations = Deviations::of(&[Deviation::DeadCounter, Deviation::NestsInterrupts]);
        /// assert!(deviations.contains(Deviation::DeadCounter));
        /// assert_eq!(deviations.to_string(), "NestsInterrupts + DeadCounter");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[non_exhaustive]
        pub enum Deviation {
            $($(#[doc = $meaning])+ $variant,)*
        }

        impl Deviation {
            /// Every deviation.
            pub const ALL: [Self; [$(Self::$variant),*].len()] = [$(Self::$variant),*];

            /// Returns the name of the variant.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)*
                }
            }
        }
    };
}

deviations! {
    /// A counter overflows again while the driver's callback handles the counter's overflow. This happens if the
    /// callback takes longer than the interval between two overflows. A test passes the events that happen during the
    /// callback to [`MockMsr::pass_while_serviced`](super::MockMsr::pass_while_serviced). The mock counts these events
    /// when the callback calls [`MockMsr::reported`](super::MockMsr::reported).
    OverflowsWhileServiced
    /// An AMD processor masks the LVT entry when it delivers an interrupt. KVM 6.6 to 6.9 does this for its guests.
    /// [`Deviations::cpuid`] declares a hypervisor.
    MasksOnDelivery
    /// Writes of `IA32_DEBUGCTL` are ignored, as under some hypervisors.
    IgnoresDebugControl
    /// If several counters overflow together, a second interrupt follows the first one. The driver finds no overflow
    /// when it services the second interrupt. Processors of AMD and Intel behave in this way.
    LatchesSecondInterrupt
    /// An interrupt can nest in the handler or the callback of another interrupt, at any access. The reason is that
    /// every IRET unblocks NMIs, even the IRET from a page fault or from a fixed-up #GP.
    NestsInterrupts
    /// A WRMSR that sets bit 59 of `IA32_PERF_GLOBAL_STATUS_RESET` raises #GP, although version 4 of architectural
    /// performance monitoring defines this bit. FREEZE_PERFMON_ON_PMI, bit 12 of `IA32_DEBUGCTL`, can be set, but the
    /// counters never freeze. Some hypervisors behave in this way.
    NarrowAcknowledge
    /// Firmware or the previous kernel did not stop the counters, and their interrupts are enabled.
    LeftRunning
    /// Firmware or the previous kernel did not acknowledge overflows.
    LeftOverflowed
    /// Firmware or the previous kernel left the counters frozen.
    LeftFrozen
    /// Firmware or the previous kernel did not disable PEBS. While PEBS is enabled for a counter, an overflow of the
    /// counter writes a record and raises no interrupt. [`Deviations::cpuid`] declares the Debug Store.
    LeftPrecise
    /// The second counter reads 0 and ignores writes. PMC3 under TSX force-abort behaves in this way, and so does a
    /// counter that the BIOS reserves.
    DeadCounter
    /// This processor has one counter fewer than the boot processor. [`Deviations::configuration`] returns the PMU
    /// configuration of this processor.
    FewerCounters
    /// Registers lose their contents, as in suspend and hibernation, or on a processor that was offline. The deviation
    /// alone has no effect on the mock: a test must call [`MockMsr::lose_registers`](super::MockMsr::lose_registers).
    LosesRegisters
    /// An overflow's interrupt comes only after [`MockMsr::advance`](super::MockMsr::advance) has counted all events of
    /// the feed, perhaps several periods late. On a real processor, the interrupt can be this late if it is not an NMI
    /// and the kernel has disabled interrupts.
    ServicesLate
    /// If a bit of the global status is set when the driver unmasks the LVT entry, the processor raises an interrupt.
    /// Intel's processors behave in this way from version 3 of architectural performance monitoring on.
    RaisesOnUnmask
    /// While the global control enables no counter, a write to `IA32_PERF_GLOBAL_STATUS_RESET` clears no status bit.
    /// According to Linux, Zhaoxin's ZX-C behaves in this way. A test of this deviation must itself select the driver
    /// of Zhaoxin's counters, because the mock's CPUID does not declare a Zhaoxin processor.
    AcknowledgesWhileEnabled
    /// The branch records never freeze, as under some hypervisors. FREEZE_LBRS_ON_PMI, bit 11 of `IA32_DEBUGCTL`, can
    /// be set, but an interrupt does not set bit 58 of the global status. Therefore the branches of the interrupt
    /// handler are recorded too.
    NeverFreezesBranches
    /// A deep sleep (C-state) clears the branch records. For architectural records, leaf 0x1C, EAX bit 30, declares
    /// that a deep sleep clears the records. For all legacy records, Linux assumes that a deep sleep clears the
    /// records. A test starts the sleep by [`MockMsr::sleep`](super::MockMsr::sleep).
    BranchesLostInDeepSleep
    /// Every fourth branch is recorded with the error of a real processor. On AMD, the record has a reserved bit set,
    /// as in erratum 1452 of family 19h. On Intel, the abort of a transaction is recorded twice, as on Haswell.
    ErroneousBranches
    /// The interrupt of an instruction-based sample comes only after the driver has disabled the sampling. The driver's
    /// write may also have cleared the valid bit of the sample.
    LateIbs
    /// The processor sets the status bits of counters that write precise records. The processor sets these bits
    /// together with the status bit of the buffer for precise records. Linux reports this behavior.
    PreciseStatusBeside
    /// The processor uses only half of a Debug Store buffer that has 4 KiB or more. The interrupt can come before the
    /// buffer is filled up to the threshold that the driver has set.
    ShortDebugStore
    /// Every fourth index that the processor writes to the Debug Store is wrong: the index is beyond the buffer, before
    /// the buffer, or between two records.
    ScribbledIndex
    /// If several counters overflow together, the processor writes only one record. In formats 1 and 2, the record does
    /// not say which of the counters overflowed.
    CollidedRecords
}

/// Set of the deviations of a mock's platform from the manuals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Deviations(u32);

impl Deviations {
    /// No deviation: the platform behaves as in the manuals.
    pub const NONE: Self = Self(0);

    /// Creates the set of these deviations.
    pub fn of(deviations: &[Deviation]) -> Self {
        Self(deviations.iter().fold(0, |set, deviation| set | 1 << *deviation as u32))
    }

    /// Returns whether the set has this deviation.
    pub const fn contains(self, deviation: Deviation) -> bool {
        self.0 >> deviation as u32 & 1 != 0
    }

    /// Returns one leaf of CPUID, as a processor with these deviations has it. `given` is the value of the leaf on a
    /// processor without a PMU. The call adds the bits that declare the PMU, as [`Configuration::cpuid`] does. The call
    /// also adds the bits that declare the deviations.
    ///
    /// ```
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// use pmu_virt::mock::{Deviation, Deviations};
    /// let guest_on_kvm = Deviations::of(&[Deviation::MasksOnDelivery]);
    /// let configuration = Configuration::Amd(AmdConfiguration::CORE_EXTENSION);
    /// let [_, _, features, _] = guest_on_kvm.cpuid(&configuration, 1, 0, [0; 4]);
    /// assert_eq!(features >> 31, 1); // the processor is a hypervisor's
    /// ```
    pub fn cpuid(
        self,
        configuration: &Configuration,
        leaf: u32,
        subleaf: u32,
        given: CpuidRegisters,
    ) -> CpuidRegisters {
        self.declared(leaf, configuration.cpuid(leaf, subleaf, given))
    }

    /// Returns an answer to CPUID with the bits that the deviations add.
    pub(super) fn declared(self, leaf: u32, answer: CpuidRegisters) -> CpuidRegisters {
        let [mut a, b, mut c, mut d] = answer;
        if leaf == 0 {
            // The deviations add bits of leaf 1.
            a = a.max(1);
        }
        if leaf == 1 {
            c |= u32::from(self.contains(Deviation::MasksOnDelivery)) << 31;
            d |= u32::from(self.contains(Deviation::LeftPrecise)) << 21;
        }
        if leaf == 0x1C && a != 0 {
            a |= u32::from(self.contains(Deviation::BranchesLostInDeepSleep)) << 30;
        }
        [a, b, c, d]
    }

    /// Returns the PMU configuration of a processor with these deviations. `configuration` is the PMU configuration of
    /// the machine's boot processor. The result can differ from `configuration` only if the set has
    /// [`FewerCounters`](Deviation::FewerCounters).
    pub fn configuration(self, configuration: Configuration) -> Configuration {
        let fewer = self.contains(Deviation::FewerCounters);
        match configuration {
            Configuration::Intel(mut intel) if fewer && intel.general.count_ones() > 1 => {
                // The last counter goes, so that the others keep their numbers.
                intel.general &= !(0x80 >> intel.general.leading_zeros());
                Configuration::Intel(intel)
            }
            Configuration::Amd(mut amd) if fewer => {
                if let AmdCounters::PerfMonV2 { counters: counters @ 2.. } = &mut amd.counters {
                    *counters -= 1;
                }
                Configuration::Amd(amd)
            }
            other => other,
        }
    }
}

impl fmt::Display for Deviations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names =
            Deviation::ALL.into_iter().filter(|d| self.contains(*d)).map(Deviation::name);
        f.write_str(names.next().unwrap_or("none"))?;
        names.try_for_each(|name| write!(f, " + {name}"))
    }
}

/// `IA32_MISC_ENABLE`, its bit "PEBS unavailable", and `IA32_PEBS_ENABLE`.
const MISC_ENABLE: u32 = 0x1A0;
const PEBS_UNAVAILABLE: u64 = 1 << 12;
const PEBS_ENABLE: u32 = 0x3F1;
/// `IA32_DEBUGCTL`, and its bit that freezes the counters.
const DEBUGCTL: u32 = 0x1D9;
const FREEZE_COUNTERS: u64 = 1 << 12;
/// Registers that acknowledge overflows, of each vendor.
const ACKNOWLEDGE: [u32; 2] = [0x390, 0xC000_0302];

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Makes the processor deviate from the manuals in the given ways. Before this call, create the PMU with the
    /// configuration that [`Deviations::configuration`] returns. [`snapshot`](Self::snapshot) returns CPUID with these
    /// deviations.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::{Deviation, Deviations, MockMsr};
    /// let platform = Deviations::of(&[Deviation::DeadCounter, Deviation::FewerCounters]);
    /// let boot = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let pmu = VirtualPmu::new(platform.configuration(boot), FedEvents::NONE)?;
    /// let mock = MockMsr::<8>::new(pmu).deviating(platform);
    /// # // SAFETY: counters.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// // The second counter does not answer, and the boot processor's fourth is not there.
    /// mock.write(msr(0x4C2), 7).unwrap();
    /// assert_eq!(mock.read(msr(0x4C2)), Ok(0));
    /// assert!(mock.read(msr(0x4C4)).is_err());
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn deviating(mut self, deviations: Deviations) -> Self {
        self.deviations = deviations;
        let left = |deviation| deviations.contains(deviation);
        let pmu = self.pmu.get_mut();
        let amd = pmu.vendor() == Vendor::Amd;
        let layout = pmu.model.layout;
        let own = layout.global() & 0xFF;
        if left(Deviation::LeftRunning) {
            // Ten cycles short of an overflow, at every privilege: a driver that does not stop the counter soon has an
            // interrupt that is not its own.
            let event = if amd { 0x76 } else { 0x3C };
            for counter in (0..MAX_PER_KIND).filter(|counter| layout.has(*counter)) {
                let select = Family::EventSelect.first() + counter;
                pmu.model.registers.set(select, 0x53_0000 | event);
                *pmu.model.registers.counter_mut(counter) = layout.mask(counter) - 10;
            }
            *pmu.model.registers.of_mut(Family::GlobalControl) |= own;
        }
        let registers = &mut pmu.model.registers;
        if left(Deviation::LeftOverflowed) {
            *registers.of_mut(Family::GlobalStatus) |= own;
        }
        if left(Deviation::LeftFrozen) && layout.global() != 0 {
            // Counters freeze only where DEBUGCTL asks for it. On that platform, `deviate` answers DEBUGCTL in place of
            // the PMU.
            if !amd && !left(Deviation::NarrowAcknowledge) {
                *registers.of_mut(Family::DebugControl) |= FREEZE_COUNTERS;
            }
            if amd || layout.freeze == Freeze::SetsStatus {
                *registers.of_mut(Family::GlobalStatus) |= FROZEN;
            } else {
                *registers.of_mut(Family::GlobalControl) = 0;
            }
        }
        pmu.model.derive(&AllowAll);
        if left(Deviation::LeftPrecise) && !amd {
            match self.beside.get_mut().0.1.1.as_mut().filter(|own| own.debug_store().is_some()) {
                Some(own) => {
                    own.words[ENABLE] = own.counters();
                    pmu.attach(own);
                }
                None => self.precise.set(0xFF),
            }
        }
        self
    }

    /// Returns whether PEBS was left enabled on a processor whose [precise records](Self::with_precise) the test does
    /// not play.
    fn has_bare_precise(&self) -> bool {
        let (_, (_, precise)) = &self.beside.borrow().0;
        let played = precise.as_ref().is_some_and(|own| own.debug_store().is_some());
        !played && self.deviations.contains(Deviation::LeftPrecise)
    }

    /// Returns the platform's answer to an access where it differs from the manual's. `value` is what WRMSR writes;
    /// RDMSR has none.
    pub(super) fn deviate(
        &self,
        register: u32,
        value: Option<u64>,
    ) -> Option<Result<u64, AccessErrorKind>> {
        let deviates = |deviation| self.deviations.contains(deviation);
        let refused = Some(Err(AccessErrorKind::Fault));
        match (register, value) {
            // The second counter is dead by each of its addresses, whichever one a driver chooses for its version.
            (0xC2 | 0x4C2 | 0x1904 | 0xC001_0005 | 0xC001_0203, _)
                if deviates(Deviation::DeadCounter) =>
            {
                Some(Ok(value.unwrap_or(0)))
            }
            (DEBUGCTL, Some(value)) if deviates(Deviation::IgnoresDebugControl) => Some(Ok(value)),
            (DEBUGCTL, _) if deviates(Deviation::NarrowAcknowledge) => {
                // The PMU never sees the bit, so its counters never freeze. The branch records still get their own
                // bits.
                let [_, kept] = self.shared.get();
                if let Some(value) = value {
                    self.set_other_bits(register, value);
                    let _ = self.beside.borrow_mut().write(Writer::Guest, register, value);
                }
                Some(Ok(value.unwrap_or(kept)))
            }
            (MISC_ENABLE, None) if self.has_bare_precise() => {
                match self.pmu.borrow().read(register) {
                    // A driver disables PEBS only where it seems to exist.
                    Read::Shared { value, .. } => Some(Ok(value & !PEBS_UNAVAILABLE)),
                    _ => None,
                }
            }
            (PEBS_ENABLE, _) if self.has_bare_precise() => {
                if let Some(value) = value {
                    self.precise.set(value);
                }
                Some(Ok(value.unwrap_or(self.precise.get())))
            }
            (register, Some(value)) if ACKNOWLEDGE.contains(&register) => {
                let control = self.pmu.borrow().model.registers.of(Family::GlobalControl);
                if control == 0 && deviates(Deviation::AcknowledgesWhileEnabled) {
                    return Some(Ok(value));
                }
                if value & FROZEN != 0 && deviates(Deviation::NarrowAcknowledge) {
                    return refused;
                }
                let mut pmu = self.pmu.borrow_mut();
                if matches!(pmu.configuration(), Configuration::Amd(_)) && value & FROZEN != 0 {
                    // The model does not freeze AMD's counters: they were left frozen.
                    *pmu.model.registers.of_mut(Family::GlobalStatus) &= !value;
                    let _ = self.beside.borrow_mut().0.0.write(Writer::Guest, register, value);
                    return Some(Ok(value));
                }
                None
            }
            _ => None,
        }
    }
}
