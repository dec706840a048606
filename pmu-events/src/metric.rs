//! Metrics: common ratios of events.

use core::fmt;

use crate::event::PmuEvent;
use crate::format::core_type::CoreType;

/// A ratio of events, by its usual name: instructions per cycle, or the top-down shares.
///
/// Four metrics are top-down level 1 (A. Yasin, "A Top-Down Method for Performance Analysis and Counters Architecture",
/// ISPASS 2014): each issue slot of a thread is in one of them. Up to Cascade Lake, and on Zen, the slots are computed
/// from the thread's cycles, which is right while the core's other thread is idle.
///
/// ```
/// use pmu_events::{Metric, SKYLAKE};
/// let ipc = SKYLAKE.metric(Metric::InstructionsPerCycle)?;
/// let needs: Vec<_> = ipc.events().map(|event| event.name().to_string()).collect();
/// assert_eq!(needs, ["INST_RETIRED.ANY", "CPU_CLK_UNHALTED.THREAD"]);
/// let counted = |name: &str| if name == "INST_RETIRED.ANY" { Some(3_000) } else { Some(2_000) };
/// assert_eq!(ipc.ratio(counted)?.times(100), Some(150));
/// # Ok::<(), pmu_events::MetricError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Metric {
    /// Instructions retired per cycle in which the thread is not halted.
    InstructionsPerCycle,
    /// Mispredicted branches per thousand instructions: retired ones; on Nehalem and Westmere, executed ones.
    BranchMissesPerThousand,
    /// Share of slots whose operations retired.
    Retiring,
    /// Share of slots lost to operations that did not retire, and to recovering from them.
    BadSpeculation,
    /// Share of slots in which the front end delivered nothing.
    FrontendBound,
    /// Share of slots in which the back end took nothing.
    BackendBound,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Self; 6] = [
        Self::InstructionsPerCycle,
        Self::BranchMissesPerThousand,
        Self::Retiring,
        Self::BadSpeculation,
        Self::FrontendBound,
        Self::BackendBound,
    ];

    /// Returns the formulas to try, in this order.
    const fn formulas(self) -> &'static [&'static [Term]] {
        match self {
            Self::InstructionsPerCycle => INSTRUCTIONS_PER_CYCLE,
            Self::BranchMissesPerThousand => BRANCH_MISSES_PER_THOUSAND,
            Self::Retiring => RETIRING_SHARE,
            Self::BadSpeculation => BAD_SPECULATION,
            Self::FrontendBound => FRONTEND_BOUND,
            Self::BackendBound => BACKEND_BOUND,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InstructionsPerCycle => "instructions per cycle",
            Self::BranchMissesPerThousand => "branch misses per thousand instructions",
            Self::Retiring => "top-down: retiring",
            Self::BadSpeculation => "top-down: bad speculation",
            Self::FrontendBound => "top-down: front-end bound",
            Self::BackendBound => "top-down: back-end bound",
        })
    }
}

const INSTRUCTIONS: &str = "INST_RETIRED.ANY";
const THREAD: &str = "CPU_CLK_UNHALTED.THREAD";
const CORE: &str = "CPU_CLK_UNHALTED.CORE";
const SLOTS: &str = "TOPDOWN.SLOTS";
// Each slot is in one of four; together they are all slots.
const RETIRING: &str = "TOPDOWN_RETIRING.ALL";
const BAD: &str = "TOPDOWN_BAD_SPECULATION.ALL";
const FRONT: &str = "TOPDOWN_FE_BOUND.ALL";
const BACK: &str = "TOPDOWN_BE_BOUND.ALL";
const RETIRING_P: &str = "TOPDOWN_RETIRING.ALL_P";
const BAD_P: &str = "TOPDOWN_BAD_SPECULATION.ALL_P";
const FRONT_P: &str = "TOPDOWN_FE_BOUND.ALL_P";
const BACK_P: &str = "TOPDOWN_BE_BOUND.ALL_P";

const INSTRUCTIONS_PER_CYCLE: &[&[Term]] = &[
    &[over(INSTRUCTIONS), under(THREAD)],
    &[over(INSTRUCTIONS), under(CORE)],
    &[over("ex_ret_instr"), under("ls_not_halted_cyc")],
];

const BRANCH_MISSES_PER_THOUSAND: &[&[Term]] = &[
    &[thousand("BR_MISP_RETIRED.ALL_BRANCHES"), under(INSTRUCTIONS)],
    &[thousand("BR_INST_RETIRED.MISPRED"), under(INSTRUCTIONS)],
    &[thousand("BR_MISP_EXEC.ANY"), under(INSTRUCTIONS)],
    &[thousand("ex_ret_brn_misp"), under("ex_ret_instr")],
];

const RETIRING_SHARE: &[&[Term]] = &[
    &[over("UOPS_RETIRED.SLOTS"), under(SLOTS)],
    &[Term { over: 1, ..under(RETIRING) }, under(BAD), under(FRONT), under(BACK)],
    &[Term { over: 1, ..under(RETIRING_P) }, under(BAD_P), under(FRONT_P), under(BACK_P)],
    &[over("UOPS_RETIRED.RETIRE_SLOTS"), slots(0, THREAD)],
    &[over("ex_ret_ops"), slots(0, "ls_not_halted_cyc")],
];

const BAD_SPECULATION: &[&[Term]] = &[
    &[over("TOPDOWN.BAD_SPEC_SLOTS"), under(SLOTS)],
    // The remainder of the slots.
    &[
        Term { over: 1, ..under(SLOTS) },
        minus("UOPS_RETIRED.SLOTS"),
        minus("IDQ_UOPS_NOT_DELIVERED.CORE"),
        minus("TOPDOWN.BACKEND_BOUND_SLOTS"),
    ],
    &[Term { over: 1, ..under(BAD) }, under(RETIRING), under(FRONT), under(BACK)],
    &[Term { over: 1, ..under(BAD_P) }, under(RETIRING_P), under(FRONT_P), under(BACK_P)],
    &[
        over("UOPS_ISSUED.ANY"),
        minus("UOPS_RETIRED.RETIRE_SLOTS"),
        Term { event: "INT_MISC.RECOVERY_CYCLES", over: 1, under: 0, by_width: true },
        slots(0, THREAD),
    ],
    &[over("de_src_op_disp.all"), minus("ex_ret_ops"), slots(0, "ls_not_halted_cyc")],
];

const FRONTEND_BOUND: &[&[Term]] = &[
    &[over("IDQ_BUBBLES.CORE"), under(SLOTS)],
    &[over("IDQ_UOPS_NOT_DELIVERED.CORE"), under(SLOTS)],
    &[Term { over: 1, ..under(FRONT) }, under(RETIRING), under(BAD), under(BACK)],
    &[Term { over: 1, ..under(FRONT_P) }, under(RETIRING_P), under(BAD_P), under(BACK_P)],
    &[over("IDQ_UOPS_NOT_DELIVERED.CORE"), slots(0, THREAD)],
    &[over("de_no_dispatch_per_slot.no_ops_from_frontend"), slots(0, "ls_not_halted_cyc")],
];

const BACKEND_BOUND: &[&[Term]] = &[
    &[over("TOPDOWN.BACKEND_BOUND_SLOTS"), under(SLOTS)],
    &[Term { over: 1, ..under(BACK) }, under(RETIRING), under(BAD), under(FRONT)],
    &[Term { over: 1, ..under(BACK_P) }, under(RETIRING_P), under(BAD_P), under(FRONT_P)],
    // The remainder of the three others: operations that retired cancel out.
    &[
        slots(1, THREAD),
        minus("IDQ_UOPS_NOT_DELIVERED.CORE"),
        minus("UOPS_ISSUED.ANY"),
        Term { event: "INT_MISC.RECOVERY_CYCLES", over: -1, under: 0, by_width: true },
    ],
    &[over("de_no_dispatch_per_slot.backend_stalls"), slots(0, "ls_not_halted_cyc")],
];

/// An event of a metric, with its factors in the ratio's numerator and denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Term {
    event: &'static str,
    over: i16,
    under: i16,
    /// Set if both factors are multiplied by the core type's issue slots per cycle.
    by_width: bool,
}

const fn over(event: &'static str) -> Term {
    Term { event, over: 1, under: 0, by_width: false }
}

const fn minus(event: &'static str) -> Term {
    Term { event, over: -1, under: 0, by_width: false }
}

const fn thousand(event: &'static str) -> Term {
    Term { event, over: 1000, under: 0, by_width: false }
}

const fn under(event: &'static str) -> Term {
    Term { event, over: 0, under: 1, by_width: false }
}

const fn slots(over: i16, cycles: &'static str) -> Term {
    Term { event: cycles, over, under: 1, by_width: true }
}

impl CoreType {
    /// Returns the formula of a metric in events of this core type.
    ///
    /// ```
    /// use pmu_events::{Metric, MetricError, NEHALEMEP, SKYLAKE};
    /// let speculation = SKYLAKE.metric(Metric::BadSpeculation)?;
    /// println!("count {} events for {speculation}", speculation.events().count());
    /// let missing = NEHALEMEP.metric(Metric::FrontendBound).err();
    /// assert_eq!(missing, Some(MetricError::NotHere(Metric::FrontendBound)));
    /// # Ok::<(), MetricError>(())
    /// ```
    ///
    /// # Errors
    /// [`NotHere`](MetricError::NotHere): the core type lacks an event of the metric.
    pub fn metric(&'static self, metric: Metric) -> Result<Expression, MetricError> {
        let here =
            |term: &Term| (self.width != 0 || !term.by_width) && self.event(term.event).is_ok();
        let mut formulas = metric.formulas().iter();
        let terms = formulas.find(|terms| terms.iter().all(here));
        terms.map(|terms| Expression { core_type: self, terms }).ok_or(MetricError::NotHere(metric))
    }
}

/// The formula of a [`Metric`] in events of a core type.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Expression {
    core_type: &'static CoreType,
    terms: &'static [Term],
}

impl Expression {
    /// Returns the events of the formula, which must be counted together, as a group.
    pub fn events(&self) -> impl Iterator<Item = PmuEvent> {
        let core_type = self.core_type;
        self.terms.iter().filter_map(|term| core_type.event(term.event).ok())
    }

    /// Computes the ratio from the counts of the events.
    ///
    /// `counted` returns the count of an event by its name, spelled as in [`events`](Self::events). A missing count is
    /// an error, not 0: without it the metric has no meaning.
    ///
    /// ```
    /// use pmu_events::{Metric, ZEN4};
    /// let ipc = ZEN4.metric(Metric::InstructionsPerCycle)?;
    /// let counts = [("ex_ret_instr", 5_000), ("ls_not_halted_cyc", 4_000)];
    /// let counted = |name: &str| Some(counts.iter().find(|(of, _)| *of == name)?.1);
    /// assert_eq!(ipc.ratio(counted)?.times(100), Some(125)); // 1.25
    /// # Ok::<(), pmu_events::MetricError>(())
    /// ```
    ///
    /// # Errors
    /// [`NotCounted`](MetricError::NotCounted), [`NothingToShare`](MetricError::NothingToShare).
    pub fn ratio(&self, counted: impl Fn(&str) -> Option<u64>) -> Result<Ratio, MetricError> {
        let mut ratio = Ratio { over: 0, under: 0 };
        for term in self.terms {
            let count = counted(term.event).ok_or(MetricError::NotCounted(term.event))?;
            // At most 1000 × 2^64, of at most four terms.
            let count = i128::from(count) * i128::from(self.width(term));
            ratio.over += count * i128::from(term.over);
            ratio.under += count * i128::from(term.under);
        }
        if ratio.under == 0 { Err(MetricError::NothingToShare) } else { Ok(ratio) }
    }

    fn width(&self, term: &Term) -> u8 {
        if term.by_width { self.core_type.width } else { 1 }
    }
}

/// Writes the formula: `(INST_RETIRED.ANY) / (CPU_CLK_UNHALTED.THREAD)`.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (side, weight) in [|t: &Term| t.over, |t: &Term| t.under].iter().enumerate() {
            f.write_str(if side == 0 { "(" } else { " / (" })?;
            let mut first = true;
            for term in self.terms.iter().filter(|term| weight(term) != 0) {
                let times = i32::from(weight(term)) * i32::from(self.width(term));
                match (first, times < 0) {
                    (true, true) => f.write_str("-")?,
                    (true, false) => {}
                    (false, true) => f.write_str(" - ")?,
                    (false, false) => f.write_str(" + ")?,
                }
                first = false;
                match times.unsigned_abs() {
                    1 => f.write_str(term.event)?,
                    times => write!(f, "{times} * {}", term.event)?,
                }
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// The value of a metric, as an exact fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Ratio {
    over: i128,
    /// Denominator; not 0.
    under: i128,
}

impl Ratio {
    /// Returns the value times a factor, rounded down: 100 gives percent. `None` if the result does not fit.
    ///
    /// A share can be slightly below 0 or above 1, because its counters are not read at the same instant.
    pub fn times(self, factor: u32) -> Option<i64> {
        let product = self.over.checked_mul(i128::from(factor))?;
        product.checked_div_euclid(self.under)?.try_into().ok()
    }
}

/// Reason that a metric has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum MetricError {
    /// The core type lacks an event that the metric needs.
    NotHere(Metric),
    /// No count was given for the event with this name.
    NotCounted(&'static str),
    /// The denominator is 0: nothing happened while the events were counted.
    NothingToShare,
}

impl fmt::Display for MetricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHere(metric) => write!(f, "{metric}: this core type lacks events of it"),
            Self::NotCounted(event) => write!(f, "{event} was not counted"),
            Self::NothingToShare => f.write_str("nothing was counted of what it is a share of"),
        }
    }
}

impl core::error::Error for MetricError {}
