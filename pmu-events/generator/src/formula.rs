//! The formulas of metrics, checked: each name in one is an event of every core type, or a metric of a row above.

use crate::csv::rows;

/// The file.
pub(crate) const METRICS: &str = "metrics.csv";

/// A row of the file.
pub(crate) struct Formula {
    pub(crate) metric: String,
    /// Names, separated by spaces.
    pub(crate) core_types: String,
    pub(crate) text: String,
}

/// Reads the rows, in which a semicolon stands for the comma between two arguments.
///
/// `has_event` tells whether a core type has an event, or `None` if there is no such core type.
pub(crate) fn formulas(
    text: &str,
    has_event: impl Fn(&str, &str) -> Option<bool>,
) -> Result<Vec<Formula>, String> {
    let columns = ["metric", "core_types", "source", "formula"];
    let mut formulas = Vec::<Formula>::new();
    for row in rows(METRICS, text, &columns)? {
        let [metric, names, formula] = ["metric", "core_types", "formula"].map(|c| row.text(c));
        if metric.is_empty() || row.text("source").is_empty() || formula.is_empty() {
            return row.error("no metric, no source, or no formula");
        }
        for name in names.split(' ') {
            let is_known = |metric: &str| {
                formulas.iter().any(|above| {
                    above.metric == metric && above.core_types.split(' ').any(|of| of == name)
                })
            };
            if is_known(metric) {
                return row.error(format!("{metric} of {name} is in a line above already"));
            }
            for used in words(formula) {
                let (event, _) = used.split_once(':').unwrap_or((used, ""));
                match has_event(name, event) {
                    None => return row.error(format!("no such core type: {name:?}")),
                    Some(false) if !is_known(used) => {
                        return row.error(format!("{name} has no event {event}, nor is it above"));
                    }
                    Some(_) => {}
                }
            }
        }
        let [metric, core_types] = [metric, names].map(str::to_owned);
        formulas.push(Formula { metric, core_types, text: formula.replace(';', ",") });
    }
    Ok(formulas)
}

/// Returns the names in a formula.
fn words(formula: &str) -> impl Iterator<Item = &str> {
    let parts = formula.split(|c: char| !(c.is_ascii_alphanumeric() || "_.:=".contains(c)));
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_alphabetic());
    parts.filter(is_name).filter(|word| !["max", "min", "d_ratio", "if", "else"].contains(word))
}
