//! Traces as text.

use core::fmt::Write;

use pmu_core::profile::KProfileSource;
use pmu_kprofile::trace::{Detail, Event, Record, Sample};

use super::sum::{OfSource, Sum, Summary, kind};
use crate::elf::File;
use crate::untrusted::visible;

/// A record as a line: time, event, and what it tells.
pub fn line(record: &Record<'_>, symbols: Option<&File>) -> String {
    let mut line = format!("{:>20} {:<19}", record.timestamp, kind(&record.event));
    describe(&mut line, record, symbols).unwrap_or_default();
    let extended = &record.extended;
    if let Some(index) = extended.pebs_index {
        let _ = write!(line, " pebs {index:#x}");
    }
    if !extended.pmc_values.is_empty() {
        let _ = write!(line, " values {:?}", &extended.pmc_values[..]);
    }
    line.push('\n');
    line
}

fn describe(
    line: &mut String,
    record: &Record<'_>,
    symbols: Option<&File>,
) -> Result<(), core::fmt::Error> {
    match &record.event {
        Event::Sample(sample) => write!(line, " {}", of_sample(sample, symbols)),
        Event::SampleCache(cache) => cache
            .samples()
            .try_for_each(|sample| write!(line, " ({})", of_sample(&sample, symbols))),
        Event::StackWalk(walk) => {
            write!(line, " thread {} process {:#x}:", walk.thread, walk.process)?;
            walk.addresses().try_for_each(|address| write!(line, " {}", place(address, symbols)))
        }
        Event::ContextSwitch(switch) => {
            write!(line, " from {} to {}", switch.old_thread, switch.new_thread)
        }
        Event::SourceInterval(interval) => {
            write!(
                line,
                " source {:#x} from {} to {}",
                interval.source, interval.old, interval.new
            )?;
            interval.name.map_or(Ok(()), |name| write!(line, " {}", visible(&name.to_string())))
        }
        Event::CounterNames(names) => {
            names.names().try_for_each(|name| write!(line, " {}", visible(&name.to_string())))
        }
        Event::Other { payload, .. } => write!(line, " {} bytes", payload.len()),
        _ => Ok(()),
    }
}

fn of_sample(sample: &Sample, symbols: Option<&File>) -> String {
    let detail = match sample.detail {
        Detail::SampledProfile { count, .. } => format!("count {count}"),
        Detail::PmcInterrupt { source, .. } => format!("source {source:#x}"),
    };
    format!("thread {} {detail} {}", sample.thread, place(sample.pc, symbols))
}

/// An address, with the function that it is in.
fn place(address: u64, symbols: Option<&File>) -> String {
    match symbols.and_then(|file| file.function(address)) {
        Some(found) => format!("{}+{:#x}", visible(&found.name), address - found.start),
        None => format!("{address:#x}"),
    }
}

/// The sums as a table: for each source its threads, and its `top` functions.
pub fn table(summary: &Summary, top: usize) -> String {
    let mut text = String::from("records\n");
    for (kind, count) in &summary.records {
        let _ = writeln!(text, "{count:>9}  {kind}");
    }
    for (source, sums) in &summary.sources {
        let total = sums.total;
        let _ = writeln!(
            text,
            "\n{}: {} samples, {}",
            name(*source, sums),
            total.samples,
            amount(*source, sums)
        );
        let mut section = |title: &str, rows: Vec<(String, Sum)>| {
            let _ = writeln!(text, "\n  share   samples  {title}");
            for (name, sum) in &rows {
                let _ = writeln!(
                    text,
                    "{:>6.1}% {:>9}  {}",
                    100.0 * share(*sum, total),
                    sum.samples,
                    visible(name)
                );
            }
        };
        if total.samples != 0 {
            section("thread", descending(&sums.threads));
            let mut functions = descending(&sums.functions);
            let rest = functions.split_off(top.min(functions.len()));
            if !rest.is_empty() {
                let mut others = Sum::default();
                for (_, sum) in &rest {
                    others.samples = others.samples.saturating_add(sum.samples);
                    others.amount = others.amount.saturating_add(sum.amount);
                }
                functions.push((format!("[{} more]", rest.len()), others));
            }
            section("function", functions);
        }
    }
    text
}

/// The sums as comma-separated values, under a line of column names.
///
/// # Errors
/// None that the values could cause.
pub fn csv(summary: &Summary) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["source", "name", "by", "item", "samples", "amount"])?;
    for (source, sums) in &summary.sources {
        let mut row = |by: &str, item: &str, sum: &Sum| {
            let (samples, amount) = (sum.samples.to_string(), sum.amount.to_string());
            let number = format!("{source:#04x}");
            let item = visible(item);
            writer.write_record([&number, &name(*source, sums), by, &item, &samples, &amount])
        };
        row("source", "", &sums.total)?;
        for (thread, sum) in descending(&sums.threads) {
            row("thread", &thread, &sum)?;
        }
        for (function, sum) in descending(&sums.functions) {
            row("function", &function, &sum)?;
        }
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A source's name: the trace's, or that of the number where it means the same for every processor.
fn name(source: u32, sums: &OfSource) -> String {
    match (&sums.name, KProfileSource::new(source)) {
        (Some(name), _) => visible(name).into_owned(),
        (None, Some(source)) => {
            source.general_name().map_or_else(|| source.to_string(), str::to_owned)
        }
        (None, None) => format!("{source:#x}"),
    }
}

/// The amount that the samples of a source stand for.
fn amount(source: u32, sums: &OfSource) -> String {
    let amount = sums.total.amount;
    if !sums.is_weighed {
        "of an interval that the trace does not tell".into()
    } else if source == KProfileSource::TIME.value() {
        // In units of 100 ns.
        format!("{}.{:04} s", amount / 10_000_000, amount % 10_000_000 / 1_000)
    } else {
        format!("{amount} events")
    }
}

/// The part of the whole; of nothing, nothing.
fn share(part: Sum, whole: Sum) -> f64 {
    if whole.amount == 0 { 0.0 } else { part.amount as f64 / whole.amount as f64 }
}

/// Largest first.
fn descending<K: ToString>(sums: &std::collections::BTreeMap<K, Sum>) -> Vec<(String, Sum)> {
    let mut rows: Vec<_> = sums.iter().map(|(name, sum)| (name.to_string(), *sum)).collect();
    rows.sort_by_key(|(_, sum)| core::cmp::Reverse((sum.amount, sum.samples)));
    rows
}
