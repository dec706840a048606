//! Arm's common events, which have the same number on every processor with PMUv3.
//!
//! Read first: Arm Architecture Reference Manual (DDI 0487), "Common event numbers". A processor's own events are in
//! the manual of the processor. They are not listed here.

use core::fmt;

use pmu_core::Event;
use pmu_core::registers::EventSelect;

/// A common event.
///
/// ```
/// use pmu_core::Event;
/// use pmu_events::arm;
///
/// let misses = arm::event("ll_cache_miss_rd").unwrap();
/// assert_eq!((misses.name(), misses.number()), ("LL_CACHE_MISS_RD", 0x37));
/// // Whether a processor has it, `pmu_arm::Identification::has_event` tells by the number.
/// let misses = Event::from(misses).user_only().every(100_000);
/// # let _ = misses;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CommonEvent {
    name: &'static str,
    number: u16,
}

impl CommonEvent {
    /// Returns the name in the manual.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the event's number.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Returns the event's select, without mode bits.
    pub const fn select(&self) -> EventSelect {
        EventSelect::from_bits(self.number as u64)
    }
}

impl fmt::Debug for CommonEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#06X})", self.name, self.number)
    }
}

impl From<CommonEvent> for Event {
    fn from(event: CommonEvent) -> Self {
        Self::raw(event.select())
    }
}

/// Finds a common event by its name. Uppercase and lowercase letters are equal.
///
/// ```
/// assert_eq!(pmu_events::arm::event("l1d_cache_refill").map(|event| event.number()), Some(0x03));
/// assert_eq!(pmu_events::arm::event("l1d_cache_refil"), None);
/// ```
pub fn event(name: &str) -> Option<CommonEvent> {
    COMMON_EVENTS.iter().find(|event| event.name.eq_ignore_ascii_case(name)).copied()
}

macro_rules! events {
    ($($name:ident $number:literal;)*) => {
        /// The common events that `PMCEID0_EL0` and `PMCEID1_EL0` have bits for, ascending by number.
        ///
        /// ```
        /// /// Prints the common events that a processor declares.
        /// fn print(is_declared: impl Fn(u16) -> bool) {
        ///     for event in pmu_events::arm::COMMON_EVENTS.iter().filter(|event| is_declared(event.number())) {
        ///         println!("{:#06x} {}", event.number(), event.name());
        ///     }
        /// }
        /// # print(|_| true);
        /// ```
        pub static COMMON_EVENTS: [CommonEvent; [$($number),*].len()] =
            [$(CommonEvent { name: stringify!($name), number: $number }),*];
    };
}

events! {
    SW_INCR 0x0000;
    L1I_CACHE_REFILL 0x0001;
    L1I_TLB_REFILL 0x0002;
    L1D_CACHE_REFILL 0x0003;
    L1D_CACHE 0x0004;
    L1D_TLB_REFILL 0x0005;
    LD_RETIRED 0x0006;
    ST_RETIRED 0x0007;
    INST_RETIRED 0x0008;
    EXC_TAKEN 0x0009;
    EXC_RETURN 0x000A;
    CID_WRITE_RETIRED 0x000B;
    PC_WRITE_RETIRED 0x000C;
    BR_IMMED_RETIRED 0x000D;
    BR_RETURN_RETIRED 0x000E;
    UNALIGNED_LDST_RETIRED 0x000F;
    BR_MIS_PRED 0x0010;
    CPU_CYCLES 0x0011;
    BR_PRED 0x0012;
    MEM_ACCESS 0x0013;
    L1I_CACHE 0x0014;
    L1D_CACHE_WB 0x0015;
    L2D_CACHE 0x0016;
    L2D_CACHE_REFILL 0x0017;
    L2D_CACHE_WB 0x0018;
    BUS_ACCESS 0x0019;
    MEMORY_ERROR 0x001A;
    INST_SPEC 0x001B;
    TTBR_WRITE_RETIRED 0x001C;
    BUS_CYCLES 0x001D;
    CHAIN 0x001E;
    L1D_CACHE_ALLOCATE 0x001F;
    L2D_CACHE_ALLOCATE 0x0020;
    BR_RETIRED 0x0021;
    BR_MIS_PRED_RETIRED 0x0022;
    STALL_FRONTEND 0x0023;
    STALL_BACKEND 0x0024;
    L1D_TLB 0x0025;
    L1I_TLB 0x0026;
    L2I_CACHE 0x0027;
    L2I_CACHE_REFILL 0x0028;
    L3D_CACHE_ALLOCATE 0x0029;
    L3D_CACHE_REFILL 0x002A;
    L3D_CACHE 0x002B;
    L3D_CACHE_WB 0x002C;
    L2D_TLB_REFILL 0x002D;
    L2I_TLB_REFILL 0x002E;
    L2D_TLB 0x002F;
    L2I_TLB 0x0030;
    REMOTE_ACCESS 0x0031;
    LL_CACHE 0x0032;
    LL_CACHE_MISS 0x0033;
    DTLB_WALK 0x0034;
    ITLB_WALK 0x0035;
    LL_CACHE_RD 0x0036;
    LL_CACHE_MISS_RD 0x0037;
    REMOTE_ACCESS_RD 0x0038;
    L1D_CACHE_LMISS_RD 0x0039;
    OP_RETIRED 0x003A;
    OP_SPEC 0x003B;
    STALL 0x003C;
    STALL_SLOT_BACKEND 0x003D;
    STALL_SLOT_FRONTEND 0x003E;
    STALL_SLOT 0x003F;
    SAMPLE_POP 0x4000;
    SAMPLE_FEED 0x4001;
    SAMPLE_FILTRATE 0x4002;
    SAMPLE_COLLISION 0x4003;
    CNT_CYCLES 0x4004;
    STALL_BACKEND_MEM 0x4005;
    L1I_CACHE_LMISS 0x4006;
    L2D_CACHE_LMISS_RD 0x4009;
    L2I_CACHE_LMISS 0x400A;
    L3D_CACHE_LMISS_RD 0x400B;
    TRB_WRAP 0x400C;
    TRB_TRIG 0x400E;
    TRCEXTOUT0 0x4010;
    TRCEXTOUT1 0x4011;
    TRCEXTOUT2 0x4012;
    TRCEXTOUT3 0x4013;
    CTI_TRIGOUT4 0x4018;
    CTI_TRIGOUT5 0x4019;
    CTI_TRIGOUT6 0x401A;
    CTI_TRIGOUT7 0x401B;
    LDST_ALIGN_LAT 0x4020;
    LD_ALIGN_LAT 0x4021;
    ST_ALIGN_LAT 0x4022;
    MEM_ACCESS_CHECKED 0x4024;
    MEM_ACCESS_CHECKED_RD 0x4025;
    MEM_ACCESS_CHECKED_WR 0x4026;
}
