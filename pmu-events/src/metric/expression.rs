//! A metric in events of a core type, and its value.

use core::fmt;

use crate::event::PmuEvent;
use crate::format::core_type::CoreType;
use crate::metric::error::MetricError;
use crate::metric::formulas::Term;
use crate::metric::kinds::Metric;

impl CoreType {
    /// Returns the formula of a metric for this core type: the events to count, and the computation of the ratio from
    /// their counts.
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
    /// [`NotHere`](MetricError::NotHere): the core type lacks an event that the metric needs.
    pub fn metric(&'static self, metric: Metric) -> Result<Expression, MetricError> {
        let here =
            |term: &Term| (self.width != 0 || !term.by_width) && self.event(term.event).is_ok();
        let mut formulas = metric.formulas().iter();
        let terms = formulas.find(|terms| terms.iter().all(here));
        terms.map(|terms| Expression { core_type: self, terms }).ok_or(MetricError::NotHere(metric))
    }
}

/// The formula of a [`Metric`] for a core type: computes the metric from the counts of events of the core type.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Expression {
    core_type: &'static CoreType,
    terms: &'static [Term],
}

impl Expression {
    /// Returns the events of the formula. Count these events together, as a group.
    pub fn events(&self) -> impl Iterator<Item = PmuEvent> {
        let core_type = self.core_type;
        self.terms.iter().filter_map(|term| core_type.event(term.event).ok())
    }

    /// Computes the value of the metric from the counts of the events.
    ///
    /// `counted` takes the name of an event, spelled as in [`events`](Self::events), and returns the count of this
    /// event. If `counted` returns `None`, the result is an error.
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
    /// - [`NotCounted`](MetricError::NotCounted): `counted` returned `None` for an event of the formula.
    /// - [`NothingToShare`](MetricError::NothingToShare): the denominator is 0.
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
    /// Returns the value of the metric times `factor`, rounded down. A factor of 100 gives percent. The result is
    /// `None` if the product does not fit an `i64`.
    ///
    /// A top-down share can be slightly below 0 or above 1, because the counters of a group are not read at the same
    /// instant.
    pub fn times(self, factor: u32) -> Option<i64> {
        let product = self.over.checked_mul(i128::from(factor))?;
        product.checked_div_euclid(self.under)?.try_into().ok()
    }
}
