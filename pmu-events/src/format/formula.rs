//! The formula of a metric, as the generator writes it.

/// Formula of a metric for some core types, as text.
///
/// The text consists of numbers, names of events and of other metrics, `+ - * /`, parentheses, `max(a, b)`,
/// `min(a, b)`, `d_ratio(a, b)`, which is 0 if `b` is 0, and `a if b < c else d`. An event's name may be followed by
/// fields of its select, such as `:cmask=1:edge=1`.
pub(crate) struct Formula {
    /// Name of the metric.
    pub(crate) metric: &'static str,
    /// Names of the core types, separated by spaces.
    pub(crate) core_types: &'static str,
    pub(crate) text: &'static str,
}

impl Formula {
    /// Returns whether the formula is that of a metric for a core type.
    pub(crate) fn is_of(&self, metric: &str, core_type: &str) -> bool {
        self.metric == metric && self.core_types.split(' ').any(|name| name == core_type)
    }
}
