//! The table of claims by processor, of reports that may come from anywhere.

use core::fmt;
use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use crate::report::bounds::{MAX_BYTES, ReportError};
use crate::report::claim::Outcome;
use crate::report::claims::{CLAIMS, Tried, find};
use crate::report::whole::{MachineKind, Report};

/// Marks around the table in `hardware/README.md`.
const BEGIN: &str = "<!-- The table: cargo run --bin hwcheck -- --table hardware -->\n";
const END: &str = "<!-- The end of the table. -->\n";

/// Reason for which a folder has no table.
#[derive(Debug)]
pub enum TableError {
    /// A file or folder cannot be read: its name.
    Io(String, io::Error),
    /// A file is not a report: its name.
    Report(String, ReportError),
    /// The README has no place for the table.
    NoSlot,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(name, error) => write!(f, "{}: {error}", name.escape_debug()),
            Self::Report(name, error) => write!(f, "{}: {error}", name.escape_debug()),
            Self::NoSlot => write!(f, "README.md lacks the lines {BEGIN:?} and {END:?}"),
        }
    }
}

impl core::error::Error for TableError {}

fn io(path: &Path) -> impl Fn(io::Error) -> TableError {
    move |error| TableError::Io(path.display().to_string(), error)
}

/// The README of a folder of reports, with its table brought up to date.
///
/// # Errors
/// A file cannot be read, or is not a report.
pub fn readme(folder: &Path) -> Result<String, TableError> {
    let path = folder.join("README.md");
    let readme = fs::read_to_string(&path).map_err(io(&path))?;
    let table = table(&reports(folder)?);
    let (before, rest) = readme.split_once(BEGIN).ok_or(TableError::NoSlot)?;
    let (_, after) = rest.split_once(END).ok_or(TableError::NoSlot)?;
    Ok(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

/// The reports of a folder, by the names of their files.
fn reports(folder: &Path) -> Result<Vec<Report>, TableError> {
    let mut named = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(io(folder))? {
        let path = entry.map_err(io(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.ends_with(".json") {
            continue;
        }
        let error = |error| TableError::Report(name.clone(), error);
        // Neither a device, which has no length, nor a link to one.
        if !fs::symlink_metadata(&path).map_err(io(&path))?.is_file() {
            return Err(error(ReportError::NoFile));
        }
        let mut bytes = Vec::new();
        let file = fs::File::open(&path).map_err(io(&path))?;
        file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(io(&path))?;
        let report = Report::parse(&bytes).map_err(error)?;
        named.insert(name.clone(), report);
    }
    Ok(named.into_values().collect())
}

/// The table, in Markdown: a row for each claim, a column for each report; then the disagreements.
pub fn table(reports: &[Report]) -> String {
    let mut text = String::new();
    if reports.is_empty() {
        return "There is no report yet.\n".to_owned();
    }
    text.push_str("| claim |");
    for report in reports {
        let _ = write!(text, " {} |", title(report));
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(reports.len()));
    text.push('\n');
    let known = CLAIMS.iter().filter(|known| known.tried != Tried::BareMetal);
    let rows = known.map(|known| (format!("`{}`", known.id), Row::Known(known.id)));
    let all = reports.iter().flat_map(|report| &report.claims);
    let mut unknown: Vec<_> =
        all.filter(|claim| find(&claim.id).is_none()).map(|claim| &claim.id).collect();
    unknown.sort();
    unknown.dedup();
    let of_others =
        unknown.into_iter().map(|id| (format!("{} (unknown)", escape(id)), Row::Other(id)));
    for (name, row) in rows.chain(of_others) {
        let _ = write!(text, "| {name} |");
        for report in reports {
            let _ = write!(text, " {} |", row.of(report));
        }
        text.push('\n');
    }
    disagreements(&mut text, reports);
    text
}

enum Row<'r> {
    /// A claim, or a list of claims, that this version knows.
    Known(&'static str),
    Other(&'r str),
}

impl Row<'_> {
    /// Returns the outcome of the claim, or the numbers of outcomes in a list of claims.
    fn of(&self, report: &Report) -> String {
        let is_row = |id: &str| match self {
            Self::Known(known) => find(id).is_some_and(|found| found.id == *known),
            Self::Other(other) => id == *other,
        };
        let mut outcomes: BTreeMap<Outcome, u32> = BTreeMap::new();
        for claim in report.claims.iter().filter(|claim| is_row(&claim.id)) {
            *outcomes.entry(claim.outcome).or_default() += 1;
        }
        let is_list = matches!(self, Self::Known(id) if id.ends_with('.'));
        let cell = |(outcome, number): (Outcome, u32)| match is_list {
            true => format!("{number} {}", outcome.name()),
            false => outcome.name().to_owned(),
        };
        let cells: Vec<_> = outcomes.into_iter().map(cell).collect();
        cells.join(", ")
    }
}

/// The subject of a report; one that is no processor's is labeled.
fn title(report: &Report) -> String {
    let processor = &report.processor;
    let name = match processor.brand.is_empty() {
        true => &processor.vendor,
        false => &processor.brand,
    };
    let numbers = format!("{:#x}/{:#x}/{}", processor.family, processor.model, processor.stepping);
    let core = processor.core_type.map(|core| format!(", core type {core:#x}")).unwrap_or_default();
    let label = match report.machine {
        MachineKind::Hardware => String::new(),
        MachineKind::Software => "**software, no processor:** ".to_owned(),
        kind => format!("**{}:** ", kind.name()),
    };
    format!("{label}{} ({numbers}{core})", escape(name))
}

fn disagreements(text: &mut String, reports: &[Report]) {
    let rows = reports.iter().flat_map(|report| {
        let all = report.claims.iter().flat_map(|claim| &claim.evidence.disagreements);
        all.map(move |one| (report, one))
    });
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    text.push_str(
        "\n| disagreement | of | access | model | found | manual |\n|---|---|---|---|---|---|\n",
    );
    for (report, one) in rows {
        let written = one.value.map(|value| format!(" of {value}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "| {} {} | {} | {}{written} | {} | {} | {} |",
            one.register,
            escape(&one.name),
            title(report),
            one.access.name(),
            one.model,
            one.processor,
            escape(&one.manual)
        );
    }
    for report in reports {
        for claim in report.claims.iter().filter(|claim| claim.evidence.unlisted != 0) {
            let (more, id) = (claim.evidence.unlisted, escape(&claim.id));
            let _ = writeln!(text, "| {more} more of {id} | {} | | | | |", title(report));
        }
    }
}

/// A text in which Markdown and HTML find nothing to act on.
pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for one in text.chars() {
        match one {
            // It would begin an address.
            '.' if escaped.to_ascii_lowercase().ends_with("www") => escaped.push_str("&#46;"),
            'a'..='z' | 'A'..='Z' | '0'..='9' | ' ' | '.' | ',' | '(' | ')' | '-' | '/' => {
                escaped.push(one);
            }
            other if other.is_control() => escaped.push('?'),
            other => {
                let _ = write!(escaped, "&#{};", u32::from(other));
            }
        }
    }
    escaped
}
