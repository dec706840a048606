//! A report for a terminal.

use core::fmt::{self, Write as _};

use super::Report;

/// How many functions are shown.
const FUNCTIONS: usize = 20;

/// How many buckets are shown.
const BUCKETS: usize = 32;

/// The longest name, in characters.
const NAME: usize = 100;

/// The longest bar, in characters.
const BAR: f64 = 24.0;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (run, statistics) = (&self.run, &self.statistics);
        writeln!(f, "processor   {}", run.processor)?;
        writeln!(f, "interface   {}", run.interface)?;
        writeln!(f, "source      {}, an interrupt each {}", run.source, run.interval)?;
        writeln!(f, "profiled    {}", run.subject)?;
        writeln!(
            f,
            "interrupts  {} seen, {} hit, {} missed",
            statistics.seen, statistics.hit, statistics.missed
        )?;
        writeln!(f, "consumed    {}", self.describe_consumed())?;
        for note in &self.notes {
            writeln!(f, "note        {note}")?;
        }
        self.functions(f)?;
        self.buckets(f)
    }
}

impl Report {
    fn functions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.functions.iter().any(|function| function.expected.is_some());
        let greatest = self.functions.iter().map(|function| function.share).fold(0.0, f64::max);
        let expected_column = if known { " expected" } else { "" };
        writeln!(f, "\n  share{expected_column}  samples  {:24}  function", "")?;
        for function in self.functions.iter().take(FUNCTIONS) {
            let expected = match function.expected {
                Some(expected) => format!("{:8.1}%", expected * 100.0),
                None if known => format!("{:9}", ""),
                None => String::new(),
            };
            let bar = bar(function.share, greatest);
            write!(
                f,
                "{:6.1}%{expected} {:8}  {bar}  {}",
                function.share * 100.0,
                function.samples,
                shorten(&function.name)
            )?;
            // A name in brackets is the module's.
            if function.name.starts_with('[') {
                writeln!(f)?;
            } else {
                writeln!(f, "  ({})", function.module)?;
            }
        }
        if let Some(more @ 1..) = self.functions.len().checked_sub(FUNCTIONS) {
            writeln!(f, "          and {more} more; --json or --csv has them all")?;
        }
        Ok(())
    }

    fn buckets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(hottest) = self.hottest() else { return Ok(()) };
        let mut shown: Vec<_> = self.buckets.iter().collect();
        shown.sort_by_key(|bucket| core::cmp::Reverse(bucket.samples));
        shown.truncate(BUCKETS);
        let greatest = shown.first().map_or(0, |bucket| bucket.samples);
        shown.sort_by_key(|bucket| bucket.offset);
        write!(f, "\n{}, in buckets of {} bytes", shorten(&hottest.name), self.bucket_bytes)?;
        if shown.len() < self.buckets.len() {
            write!(f, ", the {} hottest of {}", shown.len(), self.buckets.len())?;
        }
        writeln!(f, ":\n\n   offset  samples  {:24}  line", "")?;
        for bucket in shown {
            let bar = bar(bucket.samples as f64, greatest as f64);
            let line = bucket.line.as_deref().unwrap_or("");
            let offset = format!("{:+#x}", bucket.offset);
            let row = format!("{offset:>9} {:8}  {bar}  {line}", bucket.samples);
            writeln!(f, "{}", row.trim_end())?;
        }
        Ok(())
    }
}

/// A name, cut if it is very long.
fn shorten(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.into();
    }
    name.chars().take(NAME - 1).chain(['…']).collect()
}

/// A bar of `value`, where `greatest` fills all characters.
fn bar(value: f64, greatest: f64) -> String {
    let eighths = if greatest > 0.0 { (value / greatest * BAR * 8.0).round() as usize } else { 0 };
    let mut bar = "█".repeat(eighths / 8);
    if let Some(part @ 1..) = Some(eighths % 8) {
        bar.push(['▏', '▎', '▍', '▌', '▋', '▊', '▉'][part - 1]);
    }
    let mut padded = String::new();
    // A String takes whatever is written.
    let _ = write!(padded, "{bar:width$}", width = BAR as usize);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_proportional_and_always_as_wide() {
        assert_eq!(bar(1.0, 1.0), "█".repeat(24));
        assert_eq!(bar(0.5, 1.0), format!("{}{}", "█".repeat(12), " ".repeat(12)));
        assert_eq!(bar(1.0, 192.0), format!("▏{}", " ".repeat(23)));
        assert_eq!(bar(0.0, 0.0), " ".repeat(24));
    }
}
