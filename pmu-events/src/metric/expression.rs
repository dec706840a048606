//! A metric in events of a core type, and its value.

use core::fmt;

use pmu_core::Event;

use crate::event::PmuEvent;
use crate::format::core_type::CoreType;
use crate::metric::error::MetricError;
use crate::metric::evaluation::Evaluation;
use crate::metric::formula_text::{Word, Words, is_keyword};
use crate::metric::kinds::Metric;
use crate::metric::ratio::Ratio;
use crate::tables::FORMULAS;

/// Metrics within each other's formulas, at most.
const DEPTH: usize = 6;

impl CoreType {
    /// Returns the formula of a metric for this core type. The formula names the events to count, and computes the
    /// ratio from their counts.
    ///
    /// ```
    /// use pmu_events::metric::{Metric, MetricError};
    /// use pmu_events::{NEHALEMEP, SKYLAKE};
    /// let speculation = SKYLAKE.metric(Metric::BadSpeculation)?;
    /// println!("count {} events for {speculation}", speculation.events().count());
    /// let missing = NEHALEMEP.metric(Metric::FrontendBound).err();
    /// assert_eq!(missing, Some(MetricError::NotHere(Metric::FrontendBound)));
    /// # Ok::<(), MetricError>(())
    /// ```
    ///
    /// # Errors
    /// [`NotHere`](MetricError::NotHere): this crate has no formula of the metric for this core type.
    pub fn metric(&'static self, metric: Metric) -> Result<Expression, MetricError> {
        let mut formulas = FORMULAS.iter();
        let formula = formulas.find(|formula| formula.is_of(metric.name(), self.name));
        let formula = formula.ok_or(MetricError::NotHere(metric))?;
        Ok(Expression { core_type: self, metric, text: formula.text })
    }
}

/// Formula of a [`Metric`] for a core type. The formula computes the metric from event counts.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Expression {
    core_type: &'static CoreType,
    metric: Metric,
    text: &'static str,
}

impl Expression {
    /// Returns the events of the formula. If the formula uses other metrics, the result also has the events of these
    /// metrics. Each event is returned once. Count these events together, as a group.
    ///
    /// A [metric](Metric) of level 3 may have more events than a processor has counters. In this case, count the events
    /// in turns and scale the counts, as `perf stat` does. Or count groups of the events in several runs of the same
    /// work.
    pub fn events(&self) -> impl Iterator<Item = MetricEvent> {
        let (core_type, own) = (self.core_type, self.names());
        self.names().enumerate().filter_map(move |(place, name)| {
            let is_first = !own.clone().take(place).any(|before| before == name);
            is_first.then(|| MetricEvent::find(core_type, name)).flatten()
        })
    }

    /// Computes the value of the metric from the counts of the events.
    ///
    /// `counted` takes the name of an event, spelled as [`MetricEvent::name`] spells it, and returns the count of this
    /// event. If `counted` returns `None`, the result is an error. The function calls `counted` once for each place
    /// where the formula names an event.
    ///
    /// ```
    /// use pmu_events::ZEN4;
    /// use pmu_events::metric::Metric;
    /// let ipc = ZEN4.metric(Metric::InstructionsPerCycle)?;
    /// let counts = [("ex_ret_instr", 5_000), ("ls_not_halted_cyc", 4_000)];
    /// let counted = |name: &str| Some(counts.iter().find(|(of, _)| *of == name)?.1);
    /// assert_eq!(ipc.ratio(counted)?.times(100), Some(125)); // 1.25
    /// # Ok::<(), pmu_events::metric::MetricError>(())
    /// ```
    ///
    /// # Context
    /// Task: for a metric of level 3, the function may evaluate the formulas of many other metrics.
    ///
    /// # Errors
    /// - [`NotCounted`](MetricError::NotCounted): `counted` returned `None` for an event of the formula.
    /// - [`NothingToShare`](MetricError::NothingToShare): a denominator in the formula is 0.
    pub fn ratio(&self, counted: impl Fn(&str) -> Option<u64>) -> Result<Ratio, MetricError> {
        self.value(&counted, DEPTH)
    }

    fn value(
        &self,
        counted: &dyn Fn(&str) -> Option<u64>,
        depth: usize,
    ) -> Result<Ratio, MetricError> {
        let malformed = MetricError::NotHere(self.metric);
        let value_of = |name: &'static str| match Metric::named(name) {
            Some(metric) if depth > 0 => self.core_type.metric(metric)?.value(counted, depth - 1),
            Some(_) => Err(malformed),
            None => match counted(name) {
                Some(count) => Ok(Ratio::whole(count.into())),
                None => Err(MetricError::NotCounted(name)),
            },
        };
        Evaluation::evaluate(self.text, &value_of, malformed)
    }

    fn names(&self) -> Names {
        let mut texts = [Words(""); DEPTH + 1];
        texts[0] = Words(self.text);
        Names { core_type: self.core_type, texts, depth: 0 }
    }
}

/// Writes the formula, for instance `(INST_RETIRED.ANY) / (CPU_CLK_UNHALTED.THREAD)`. If the formula uses another
/// metric, the text contains the [name](Metric::name) of this metric.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text)
    }
}

/// The names of events in a formula, and in the formulas of its metrics.
#[derive(Clone)]
struct Names {
    core_type: &'static CoreType,
    /// Rest of each formula that is being read.
    texts: [Words; DEPTH + 1],
    depth: usize,
}

impl Iterator for Names {
    type Item = &'static str;

    fn next(&mut self) -> Option<&'static str> {
        loop {
            match self.texts.get_mut(self.depth)?.next() {
                Some(Word::Name(name)) if !is_keyword(name) => match Metric::named(name) {
                    None => return Some(name),
                    Some(metric) => {
                        let formula = self.core_type.metric(metric).ok()?;
                        *self.texts.get_mut(self.depth + 1)? = Words(formula.text);
                        self.depth += 1;
                    }
                },
                Some(_) => {}
                None => self.depth = self.depth.checked_sub(1)?,
            }
        }
    }
}

/// An event in a metric's formula. The formula may set fields in the event's select.
///
/// ```
/// use pmu_core::Event;
/// use pmu_events::ZEN5;
/// use pmu_events::metric::Metric;
/// // Slots without an operation, and cycles in which all eight slots were without one.
/// let latency = ZEN5.metric(Metric::FetchLatency)?;
/// let starved = latency.events().next().unwrap();
/// assert_eq!(starved.name(), "de_no_dispatch_per_slot.no_ops_from_frontend:cmask=8");
/// assert_eq!(starved.event().select().select_bits() >> 24 & 0xFF, 8);
/// let to_open: Event = starved.into();
/// # let _ = to_open;
/// # Ok::<(), pmu_events::metric::MetricError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MetricEvent {
    name: &'static str,
    event: PmuEvent,
}

impl MetricEvent {
    /// Finds `NAME:field=value:…`.
    fn find(core_type: &'static CoreType, name: &'static str) -> Option<Self> {
        let mut parts = name.split(':');
        let listed = core_type.event(parts.next()?).ok()?;
        let event = parts.try_fold(listed, |event, field| {
            let (field, value) = field.split_once('=')?;
            let value = match value.strip_prefix("0x") {
                Some(digits) => u8::from_str_radix(digits, 16),
                None => value.parse(),
            };
            event.with_field(field, value.ok()?)
        })?;
        Some(Self { name, event })
    }

    /// Returns the name of the event in the formula, such as `ICACHE_16B.IFDATA_STALL:cmask=1:edge=1`. The name
    /// consists of the event's name in the vendor's list, and of the fields that the formula sets.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the event of the core type. The event's select has the fields that the formula sets.
    pub const fn event(&self) -> PmuEvent {
        self.event
    }
}

/// Converts the [`PmuEvent`] of a `MetricEvent` to an event that `pmu-core` can count.
impl From<MetricEvent> for Event {
    fn from(event: MetricEvent) -> Self {
        event.event.into()
    }
}
