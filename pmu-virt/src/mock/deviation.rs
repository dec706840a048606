//! Deviations of real platforms from the manuals.

use core::fmt;

use crate::configuration::amd::AmdCounters;
use crate::configuration::any_vendor::Configuration;
use crate::configuration::cpuid::CpuidRegisters;

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
    /// not tell which of the counters overflowed.
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
    /// use pmu_virt::mock::{Deviation, Deviations};
    /// use pmu_virt::{AmdConfiguration, Configuration};
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
