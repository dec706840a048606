//! A report for a terminal.

use core::fmt::{self, Write as _};

use super::Report;

/// The number of functions that are shown.
const FUNCTIONS: usize = 20;

/// The number of callers, and of callees, that are shown.
const NEIGHBORS: usize = 8;

/// The number of threads that are shown.
const THREADS: usize = 12;

/// The number of buckets that are shown.
const BUCKETS: usize = 32;

/// The longest name, in characters, where the terminal's width is not known; and the shortest that says anything.
const NAME: usize = 100;
const SHORTEST: usize = 16;

/// The longest bar, in characters.
const BAR: f64 = 24.0;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (run, statistics) = (&self.run, &self.statistics);
        writeln!(f, "processor   {}", run.processor)?;
        writeln!(f, "interface   {}", run.interface)?;
        writeln!(f, "source      {}, an interrupt every {}", run.source, run.interval)?;
        writeln!(f, "profiled    {}", run.subject)?;
        writeln!(
            f,
            "interrupts  {} seen, {} hit, {} missed",
            statistics.seen, statistics.hit, statistics.missed
        )?;
        writeln!(f, "consumed    {}", self.describe_consumed())?;
        for note in &self.notes {
            let room =
                self.width.map_or(usize::MAX, |width| width.saturating_sub(12).max(SHORTEST));
            let lines = wrapped(note, room).join("\n            ");
            writeln!(f, "note        {lines}")?;
        }
        self.functions(f)?;
        self.neighbors(f)?;
        self.threads(f)?;
        self.buckets(f)
    }
}

impl Report {
    fn functions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.functions.iter().any(|function| function.expected.is_some());
        let greatest = self.functions.iter().map(|function| function.share).fold(0.0, f64::max);
        let expected_column = if known { " expected" } else { "" };
        let total_column = if self.has_callers { "    total" } else { "" };
        writeln!(f, "\n  share{expected_column}  samples{total_column}  {:24}  function", "")?;
        for function in self.functions.iter().take(FUNCTIONS) {
            let expected = match function.expected {
                Some(expected) => format!("{:8.1}%", expected * 100.0),
                None if known => format!("{:9}", ""),
                None => String::new(),
            };
            let bar = bar(function.share, greatest);
            let total = match self.has_callers {
                true => format!(" {:8}", function.total),
                false => String::new(),
            };
            let share = function.share * 100.0;
            let row = format!("{share:6.1}%{expected} {:8}{total}  {bar}  ", function.samples);
            // A name in brackets is the module's.
            let module = match function.name.starts_with('[') {
                true => String::new(),
                false => format!("  ({})", function.module),
            };
            let taken = row.chars().count() + module.chars().count();
            let room = self.width.map_or(NAME, |width| width.saturating_sub(taken).max(SHORTEST));
            writeln!(f, "{row}{}{module}", shorten_to(&function.name, room))?;
        }
        if let Some(more @ 1..) = self.functions.len().checked_sub(FUNCTIONS) {
            writeln!(f, "          and {more} more; --json or --csv has them all")?;
        }
        Ok(())
    }

    fn neighbors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(hottest) = self.hottest().filter(|_| self.has_callers) else { return Ok(()) };
        let (callers, callees) = self.graph.neighbors((&*hottest.name, &*hottest.module));
        for (what, functions) in [("called by", callers), ("that calls", callees)] {
            if functions.is_empty() {
                continue;
            }
            writeln!(f, "\n{}, {what}:\n\n  samples  function", shorten(&hottest.name))?;
            for (name, samples) in functions.iter().take(NEIGHBORS) {
                writeln!(f, "{samples:9}  {}", shorten(name))?;
            }
            if let Some(more @ 1..) = functions.len().checked_sub(NEIGHBORS) {
                writeln!(f, "           and {more} more")?;
            }
        }
        Ok(())
    }

    fn threads(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.graph.by_thread();
        if threads.len() < 2 {
            return Ok(());
        }
        writeln!(f, "\n  samples  process   thread  name")?;
        for (thread, samples) in threads.iter().take(THREADS) {
            let name = match thread.name == thread.process_name {
                true => thread.name.clone(),
                false => format!("{}: {}", thread.process_name, thread.name),
            };
            let (process, thread) = (thread.process, thread.thread);
            writeln!(f, "{samples:9} {process:8} {thread:8}  {}", shorten(&name))?;
        }
        if let Some(more @ 1..) = threads.len().checked_sub(THREADS) {
            writeln!(f, "          and {more} more; --json has them all")?;
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
        // If the function is not known, an offset may be a whole address.
        let offsets = shown.iter().map(|bucket| format!("{:+#x}", bucket.offset).len());
        let width = offsets.max().unwrap_or(0).max(9);
        writeln!(f, ":\n\n{:>width$}  samples  {:24}  line", "offset", "")?;
        for bucket in shown {
            let bar = bar(bucket.samples as f64, greatest as f64);
            let line = bucket.line.as_deref().unwrap_or("");
            let offset = format!("{:+#x}", bucket.offset);
            let row = format!("{offset:>width$} {:8}  {bar}  {line}", bucket.samples);
            writeln!(f, "{}", row.trim_end())?;
        }
        Ok(())
    }
}

/// The lines of a text that have room for so many characters, but for longer words.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut length = 0;
    for word in text.split(' ') {
        let more = word.chars().count();
        match lines.last_mut() {
            Some(line) if length + 1 + more <= room => {
                line.extend([" ", word]);
                length += 1 + more;
            }
            _ => {
                lines.push(word.into());
                length = more;
            }
        }
    }
    lines
}

/// A name, cut if it is very long.
fn shorten(name: &str) -> String {
    shorten_to(name, NAME)
}

/// A name, cut if it has more characters than there is room for.
fn shorten_to(name: &str, room: usize) -> String {
    if name.chars().count() <= room {
        return name.into();
    }
    name.chars().take(room - 1).chain(['…']).collect()
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
    use pmu_kprofile::Statistics;

    use super::*;
    use crate::profiler::call_stacks::CallStacks;
    use crate::profiler::report::Run;
    use crate::profiler::report::consumed::Unit;
    use crate::profiler::symbols::Symbols;

    #[test]
    fn a_name_takes_no_more_room_than_there_is() {
        assert_eq!(shorten_to("core::ptr::read", 15), "core::ptr::read");
        assert_eq!(shorten_to("core::ptr::read", 14), "core::ptr::re…");
    }

    #[test]
    fn a_note_is_wider_than_the_terminal_only_for_a_long_word() {
        let note = "most samples are in `/a/very/long/path`, so to say";
        assert_eq!(wrapped(note, usize::MAX), [note]);
        let lines = ["most samples", "are in", "`/a/very/long/path`,", "so to say"];
        assert_eq!(wrapped(note, 12), lines);
        assert_eq!(wrapped(note, 11)[..2], ["most", "samples are"]);
        assert_eq!(wrapped("", 12), [""]);
    }

    #[test]
    fn a_report_has_no_line_of_a_note_beyond_the_terminals_width() {
        let run = Run {
            processor: "one".into(),
            interface: "none".into(),
            source: "Timer",
            interval: "1 ms".into(),
            each: 1,
            unit: Unit::Nanoseconds,
            start: 0,
            subject: "a command".into(),
        };
        let (statistics, stacks) = (Statistics::default(), CallStacks::default());
        let symbols = Symbols::default();
        let mut report = Report::new(run, statistics, None, &[], stacks, symbols, |_| None);
        report.notes = vec!["some words ".repeat(20).trim_end().into(); 2];
        for width in [40, 57, 80] {
            report.width = Some(width);
            let text = report.to_string();
            let notes: Vec<_> = text
                .lines()
                .skip_while(|line| !line.starts_with("note"))
                .take_while(|line| !line.is_empty())
                .collect();
            let longest = notes.iter().map(|line| line.chars().count()).max();
            assert!((width - 8..=width).contains(&longest.unwrap()), "{width}: {text}");
            let words =
                notes.iter().flat_map(|line| line.split(' ')).filter(|word| *word == "words");
            assert!(words.count() == 40 && notes.len() > 2, "{width}: {text}");
        }
        report.width = None;
        assert_eq!(report.to_string().lines().filter(|line| line.starts_with("note")).count(), 2);
    }

    #[test]
    fn a_bar_is_proportional_and_always_as_wide() {
        assert_eq!(bar(1.0, 1.0), "█".repeat(24));
        assert_eq!(bar(0.5, 1.0), format!("{}{}", "█".repeat(12), " ".repeat(12)));
        assert_eq!(bar(1.0, 192.0), format!("▏{}", " ".repeat(23)));
        assert_eq!(bar(0.0, 0.0), " ".repeat(24));
    }
}
