//! The formulas of metrics: a core type uses the first formula of which it has all events.

use crate::metric::kinds::Metric;

impl Metric {
    /// Returns the formulas to try, in this order.
    pub(crate) const fn formulas(self) -> &'static [&'static [Term]] {
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

const INSTRUCTIONS: &str = "INST_RETIRED.ANY";
const THREAD: &str = "CPU_CLK_UNHALTED.THREAD";
const CORE: &str = "CPU_CLK_UNHALTED.CORE";
const SLOTS: &str = "TOPDOWN.SLOTS";
// Each slot is counted by one of these four events.
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
    pub(crate) event: &'static str,
    pub(crate) over: i16,
    pub(crate) under: i16,
    /// Set if both factors are multiplied by the core type's issue slots per cycle.
    pub(crate) by_width: bool,
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
