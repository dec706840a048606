//! The registers of the Performance Monitors Extension, by name, and their fields.
//!
//! Read first: Arm Architecture Reference Manual (DDI 0487), "The Performance Monitors Extension" and "Performance
//! Monitors registers".

use bitfield_struct::bitfield;

/// Number of event counters that these crates use, of the 31 that a processor can have.
pub const EVENT_COUNTERS: usize = 16;

/// Number of the cycle counter's bit in the registers with a bit per counter, `PMCNTENSET_EL0` for instance.
pub const CYCLE_COUNTER: u32 = 31;

/// Number of the event by which an odd event counter counts the overflows of the one before it (DDI 0487, "Common event
/// numbers").
pub(crate) const CHAIN: u16 = 0x1E;

/// Calls a macro with all registers that the driver accesses: variant, name, op1, CRn, CRm, op2, and documentation. Op0
/// is 3.
macro_rules! for_each_register {
    ($call:ident) => {
        $call! {
            Pmcr "PMCR_EL0" 3 9 12 0 "`PMCR_EL0`, the control register: see [`Pmcr`].";
            Pmcntenset "PMCNTENSET_EL0" 3 9 12 1 "`PMCNTENSET_EL0`: a bit that is written as 1 enables its counter. A read returns the counters that are enabled.";
            Pmcntenclr "PMCNTENCLR_EL0" 3 9 12 2 "`PMCNTENCLR_EL0`: a bit that is written as 1 disables its counter.";
            Pmovsclr "PMOVSCLR_EL0" 3 9 12 3 "`PMOVSCLR_EL0`: a bit that is written as 1 clears the overflow status of its counter. A read returns the status.";
            Pmccntr "PMCCNTR_EL0" 3 9 13 0 "`PMCCNTR_EL0`, the cycle counter.";
            Pmuserenr "PMUSERENR_EL0" 3 9 14 0 "`PMUSERENR_EL0`, which opens the counters to EL0: see [`UserEnable`]. The driver does not access it.";
            Pmintenset "PMINTENSET_EL1" 0 9 14 1 "`PMINTENSET_EL1`: a bit that is written as 1 lets the overflow of its counter interrupt. A read returns the counters that do.";
            Pmintenclr "PMINTENCLR_EL1" 0 9 14 2 "`PMINTENCLR_EL1`: a bit that is written as 1 keeps the overflow of its counter from interrupting.";
            Pmovsset "PMOVSSET_EL0" 3 9 14 3 "`PMOVSSET_EL0`: a bit that is written as 1 sets the overflow status of its counter. The driver does not access it.";
            Pmccfiltr "PMCCFILTR_EL0" 3 14 15 7 "`PMCCFILTR_EL0`, the filter of the cycle counter, which has the filter bits of [`EventType`].";
            Pmevcntr0 "PMEVCNTR0_EL0" 3 14 8 0 "`PMEVCNTR0_EL0`, event counter 0.";
            Pmevcntr1 "PMEVCNTR1_EL0" 3 14 8 1 "Event counter 1.";
            Pmevcntr2 "PMEVCNTR2_EL0" 3 14 8 2 "Event counter 2.";
            Pmevcntr3 "PMEVCNTR3_EL0" 3 14 8 3 "Event counter 3.";
            Pmevcntr4 "PMEVCNTR4_EL0" 3 14 8 4 "Event counter 4.";
            Pmevcntr5 "PMEVCNTR5_EL0" 3 14 8 5 "Event counter 5.";
            Pmevcntr6 "PMEVCNTR6_EL0" 3 14 8 6 "Event counter 6.";
            Pmevcntr7 "PMEVCNTR7_EL0" 3 14 8 7 "Event counter 7.";
            Pmevcntr8 "PMEVCNTR8_EL0" 3 14 9 0 "Event counter 8.";
            Pmevcntr9 "PMEVCNTR9_EL0" 3 14 9 1 "Event counter 9.";
            Pmevcntr10 "PMEVCNTR10_EL0" 3 14 9 2 "Event counter 10.";
            Pmevcntr11 "PMEVCNTR11_EL0" 3 14 9 3 "Event counter 11.";
            Pmevcntr12 "PMEVCNTR12_EL0" 3 14 9 4 "Event counter 12.";
            Pmevcntr13 "PMEVCNTR13_EL0" 3 14 9 5 "Event counter 13.";
            Pmevcntr14 "PMEVCNTR14_EL0" 3 14 9 6 "Event counter 14.";
            Pmevcntr15 "PMEVCNTR15_EL0" 3 14 9 7 "Event counter 15.";
            Pmevtyper0 "PMEVTYPER0_EL0" 3 14 12 0 "`PMEVTYPER0_EL0`, the event type of event counter 0: see [`EventType`].";
            Pmevtyper1 "PMEVTYPER1_EL0" 3 14 12 1 "Event type of event counter 1.";
            Pmevtyper2 "PMEVTYPER2_EL0" 3 14 12 2 "Event type of event counter 2.";
            Pmevtyper3 "PMEVTYPER3_EL0" 3 14 12 3 "Event type of event counter 3.";
            Pmevtyper4 "PMEVTYPER4_EL0" 3 14 12 4 "Event type of event counter 4.";
            Pmevtyper5 "PMEVTYPER5_EL0" 3 14 12 5 "Event type of event counter 5.";
            Pmevtyper6 "PMEVTYPER6_EL0" 3 14 12 6 "Event type of event counter 6.";
            Pmevtyper7 "PMEVTYPER7_EL0" 3 14 12 7 "Event type of event counter 7.";
            Pmevtyper8 "PMEVTYPER8_EL0" 3 14 13 0 "Event type of event counter 8.";
            Pmevtyper9 "PMEVTYPER9_EL0" 3 14 13 1 "Event type of event counter 9.";
            Pmevtyper10 "PMEVTYPER10_EL0" 3 14 13 2 "Event type of event counter 10.";
            Pmevtyper11 "PMEVTYPER11_EL0" 3 14 13 3 "Event type of event counter 11.";
            Pmevtyper12 "PMEVTYPER12_EL0" 3 14 13 4 "Event type of event counter 12.";
            Pmevtyper13 "PMEVTYPER13_EL0" 3 14 13 5 "Event type of event counter 13.";
            Pmevtyper14 "PMEVTYPER14_EL0" 3 14 13 6 "Event type of event counter 14.";
            Pmevtyper15 "PMEVTYPER15_EL0" 3 14 13 7 "Event type of event counter 15.";
        }
    };
}
#[cfg(all(feature = "native", target_arch = "aarch64"))]
pub(crate) use for_each_register;

macro_rules! define {
    ($($variant:ident $name:literal $op1:literal $crn:literal $crm:literal $op2:literal $doc:literal;)*) => {
        /// A register that can be read and written. No value of any of these registers makes the processor access
        /// memory.
        ///
        /// There is no `PMSELR_EL0` here: an interrupt between the write of this register and the access of the counter
        /// that it selects would have to restore it. `PMEVCNTR0_EL0` and its like need no selection.
        ///
        /// ```
        /// use pmu_arm::registers::Register;
        /// assert_eq!(Register::Pmccntr.name(), "PMCCNTR_EL0");
        /// assert_eq!(Register::Pmccntr.encoding(), 0b11_011_1001_1101_000);
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[repr(u16)]
        pub enum Register {
            $(#[doc = $doc] $variant = encoding($op1, $crn, $crm, $op2),)*
        }

        impl Register {
            /// All of them.
            pub const ALL: [Self; [$($op2),*].len()] = [$(Self::$variant),*];

            /// Returns the name in the manual.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}
for_each_register!(define);

/// Returns op0 to op2 as MRS and MSR encode them, from the highest bit down. Op0 is 3.
const fn encoding(op1: u16, crn: u16, crm: u16, op2: u16) -> u16 {
    3 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2
}

impl Register {
    /// Returns op0 (bits 15:14), op1 (13:11), CRn (10:7), CRm (6:3) and op2 (2:0) of the register.
    #[inline]
    pub const fn encoding(self) -> u16 {
        self as u16
    }

    /// Returns the value register of an event counter.
    ///
    /// ```
    /// use pmu_arm::registers::Register;
    /// assert_eq!(Register::event_counter(9).map(Register::name), Some("PMEVCNTR9_EL0"));
    /// assert_eq!(Register::event_counter(16), None);
    /// ```
    #[inline]
    pub const fn event_counter(number: usize) -> Option<Self> {
        in_row(Self::Pmevcntr0, number)
    }

    /// Returns the event type register of an event counter.
    #[inline]
    pub const fn event_type(number: usize) -> Option<Self> {
        in_row(Self::Pmevtyper0, number)
    }
}

/// Returns the register of an event counter in one of the rows of `Register::ALL`.
const fn in_row(first: Register, number: usize) -> Option<Register> {
    const FIRST_COUNTER: usize = Register::ALL.len() - 2 * EVENT_COUNTERS;
    let row = match first {
        Register::Pmevcntr0 => FIRST_COUNTER,
        _ => FIRST_COUNTER + EVENT_COUNTERS,
    };
    if number < EVENT_COUNTERS { Some(Register::ALL[row + number]) } else { None }
}

/// `PMCR_EL0`, the Performance Monitors Control Register.
///
/// ```
/// use pmu_arm::registers::Pmcr;
/// let cortex_a72 = Pmcr::from_bits(0x4102_3000); // in QEMU
/// assert_eq!(cortex_a72.event_counters(), 6);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct Pmcr {
    /// E: the counters count if they are enabled each by itself.
    pub enable: bool,
    /// P, written as 1: sets all event counters to 0. Reads as 0.
    pub reset_event_counters: bool,
    /// C, written as 1: sets the cycle counter to 0. Reads as 0.
    pub reset_cycle_counter: bool,
    /// D: the cycle counter counts every 64th cycle, unless `long_cycle_counter` is set.
    pub divide: bool,
    /// X: exports events to the trace unit.
    pub export: bool,
    /// DP: the cycle counter does not count where event counting is prohibited.
    pub disable_prohibited: bool,
    /// LC: the cycle counter overflows after bit 63, not after bit 31.
    pub long_cycle_counter: bool,
    /// LP: the event counters overflow after bit 63, not after bit 31 (FEAT_PMUv3p5).
    pub long_event_counters: bool,
    __: bool,
    /// FZO: an overflow stops all event counters (FEAT_PMUv3p7).
    pub freeze_on_overflow: bool,
    __: bool,
    /// N: number of event counters that this exception level can access.
    #[bits(5)]
    pub event_counters: u8,
    /// IDCODE.
    pub id_code: u8,
    /// IMP: the implementer.
    pub implementer: u8,
    /// FZS: statistical profiling stops the event counters (FEAT_SPEv1p2).
    pub freeze_on_spe: bool,
    #[bits(31)]
    __: u32,
}

/// `PMEVTYPER<n>_EL0`, the event type of a counter, and the filter bits of `PMCCFILTR_EL0`.
///
/// Non-secure EL1 is counted if NSK equals P, and Non-secure EL0 if NSU equals U: with NSK and NSU 0, P and U apply to
/// every Security state.
///
/// ```
/// use pmu_arm::registers::EventType;
/// // Retired instructions at EL1 alone.
/// let kernel = EventType::new().with_event(0x08).with_not_el0(true);
/// assert_eq!(kernel.into_bits(), 0x4000_0008);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct EventType {
    /// evtCount: the event's number. It has ten bits before FEAT_PMUv3p1.
    pub event: u16,
    #[bits(4)]
    __: u8,
    /// RLH: Realm EL2 is counted if this differs from NSH (FEAT_RME).
    pub realm_el2: bool,
    /// RLU: Realm EL0 is counted if this equals U (FEAT_RME).
    pub realm_el0: bool,
    /// RLK: Realm EL1 is counted if this equals P (FEAT_RME).
    pub realm_el1: bool,
    __: bool,
    /// SH: Secure EL2 is counted if this differs from NSH (FEAT_SEL2).
    pub secure_el2: bool,
    /// MT: counts the events of all threads of the core (FEAT_MTPMU).
    pub multithreaded: bool,
    /// M: EL3 is counted if this equals P.
    pub el3: bool,
    /// NSH: counts at Non-secure EL2.
    pub el2: bool,
    /// NSU: Non-secure EL0 is counted if this equals U.
    pub non_secure_el0: bool,
    /// NSK: Non-secure EL1 is counted if this equals P.
    pub non_secure_el1: bool,
    /// U: does not count at EL0, as far as NSU and RLU do not say otherwise.
    pub not_el0: bool,
    /// P: does not count at EL1, as far as NSK and RLK do not say otherwise.
    pub not_el1: bool,
    /// TH: the threshold (FEAT_PMUv3_TH). `PMMIR_EL1` declares how many bits it has.
    #[bits(12)]
    pub threshold: u16,
    #[bits(17)]
    __: u32,
    /// TC: the comparison with the threshold. With threshold and comparison 0, there is none.
    #[bits(3)]
    pub threshold_control: u8,
}

impl EventType {
    /// TC: a cycle counts once if the event happens at least as often in it as the threshold says.
    pub const AT_LEAST: u8 = 0b101;

    /// TC: a cycle counts once if the event happens less often in it than the threshold says.
    pub const BELOW: u8 = 0b111;
}

/// `PMUSERENR_EL0`, the Performance Monitors User Enable Register. A kernel whose threads read counters writes it. The
/// bits open the counters of all events, also those of other threads: a kernel that sets one publishes them.
///
/// ```
/// use pmu_arm::SystemRegisters;
/// use pmu_arm::registers::{Register, UserEnable};
/// /// Lets EL0 read the cycle counter, and nothing else.
/// fn open_cycles<R: SystemRegisters>(registers: &R) -> Result<(), R::Error> {
///     let open = UserEnable::new().with_cycle_counter(true);
///     registers.write(Register::Pmuserenr, open.into_bits())
/// }
/// # let _ = open_cycles::<&'static dyn SystemRegisters<Error = core::convert::Infallible>>;
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct UserEnable {
    /// EN: EL0 can read and write all registers of the extension.
    pub all: bool,
    /// SW: EL0 can write `PMSWINC_EL0`.
    pub software_increment: bool,
    /// CR: EL0 can read the cycle counter.
    pub cycle_counter: bool,
    /// ER: EL0 can read the event counters.
    pub event_counters: bool,
    #[bits(60)]
    __: u64,
}

/// `ID_AA64DFR0_EL1`, AArch64 Debug Feature Register 0: the field of this extension.
///
/// ```
/// use pmu_arm::registers::DebugFeatures;
/// assert_eq!(DebugFeatures::from_bits(0x1_1030_5408).pmu_version(), 4); // Neoverse N1: FEAT_PMUv3p1
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct DebugFeatures {
    __: u8,
    /// PMUVer: the version of the extension.
    #[bits(4)]
    pub pmu_version: u8,
    #[bits(52)]
    __: u64,
}

/// `PMMIR_EL1`, the Performance Monitors Machine Identification Register (FEAT_PMUv3p4): the field of thresholds.
///
/// ```
/// use pmu_arm::registers::Pmmir;
/// assert_eq!(Pmmir::from_bits(0x0040_0008).threshold_width(), 4);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct Pmmir {
    #[bits(20)]
    __: u32,
    /// THWIDTH: number of bits of [`EventType::threshold`].
    #[bits(4)]
    pub threshold_width: u8,
    #[bits(40)]
    __: u64,
}

/// `MDCR_EL2`, the Monitor Debug Configuration Register: the field that divides the event counters.
///
/// ```
/// use pmu_arm::registers::Mdcr;
/// // A hypervisor keeps two of six event counters from its guests.
/// let mdcr = Mdcr::from_bits(0x6).with_guest_counters(4);
/// assert_eq!(mdcr.into_bits(), 0x4);
/// ```
#[bitfield(u64, defmt = cfg(feature = "defmt"))]
#[derive(PartialEq, Eq)]
pub struct Mdcr {
    /// HPMN: number of event counters that EL1 and EL0 can access. `PMCR_EL0.E` enables these, and bit 7, HPME, the
    /// others.
    #[bits(5)]
    pub guest_counters: u8,
    #[bits(59)]
    __: u64,
}
