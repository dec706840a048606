//! A report as a drawing: bars of the functions, and below them the buckets of the hottest one.

use core::fmt::Write as _;

use super::Report;

/// The number of functions that are drawn.
const FUNCTIONS: usize = 20;

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 20.0;
const ROW: f64 = 22.0;
const HISTOGRAM: f64 = 200.0;

/// The first bar's position: right of the shares, below the headings.
const BARS: f64 = MARGIN + 60.0;
const BARS_TOP: f64 = MARGIN * 3.0;

/// The drawing, a whole SVG file.
pub fn draw(report: &Report) -> String {
    let rows = report.functions.len().min(FUNCTIONS);
    let histogram_top = BARS_TOP + MARGIN * 2.0 + rows as f64 * ROW;
    let height = histogram_top + HISTOGRAM + MARGIN * 4.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    let run = &report.run;
    text(
        &mut svg,
        (MARGIN, MARGIN + 8.0),
        &format!(
            "{}: {} samples of {}, an interrupt every {}",
            run.subject, report.statistics.seen, run.source, run.interval
        ),
    );
    let consumed = report.describe_consumed();
    text(&mut svg, (MARGIN, MARGIN + 24.0), &format!("consumed: {consumed}"));
    functions(&mut svg, report);
    buckets(&mut svg, report, histogram_top);
    svg.push_str("</svg>\n");
    svg
}

fn functions(svg: &mut String, report: &Report) {
    let greatest = report.functions.iter().map(|function| function.share).fold(0.0, f64::max);
    for (row, function) in (0..FUNCTIONS).zip(&report.functions) {
        let top = BARS_TOP + row as f64 * ROW;
        let width = (WIDTH - BARS - MARGIN) * function.share / greatest.max(f64::MIN_POSITIVE);
        let title = format!("{}: {} samples", function.name, function.samples);
        bar(svg, (BARS, top), (width, ROW - 4.0), "#9ecae1", &title);
        text(svg, (MARGIN, top + 14.0), &format!("{:.1}%", function.share * 100.0));
        text(svg, (BARS + 6.0, top + 14.0), &function.name);
    }
}

fn buckets(svg: &mut String, report: &Report, top: f64) {
    let Some(hottest) = report.hottest() else { return };
    let greatest = report.buckets.iter().map(|bucket| bucket.samples).max().unwrap_or(1) as f64;
    let first = report.buckets.first().map_or(0, |bucket| bucket.offset);
    let last = report.buckets.last().map_or(0, |bucket| bucket.offset);
    let (inner, bytes) = (WIDTH - 2.0 * MARGIN, report.bucket_bytes as f64);
    let scale = inner / ((last - first) as f64 + bytes);
    let base = top + MARGIN + HISTOGRAM;
    text(
        svg,
        (MARGIN, top + 8.0),
        &format!("{}, in buckets of {} bytes", hottest.name, report.bucket_bytes),
    );
    for bucket in &report.buckets {
        let height = HISTOGRAM * bucket.samples as f64 / greatest;
        let left = MARGIN + (bucket.offset - first) as f64 * scale;
        let line = bucket.line.as_deref().unwrap_or("");
        let title = format!("{:+#x}: {} samples {line}", bucket.offset, bucket.samples);
        let width = (bytes * scale - 1.0).max(0.5);
        bar(svg, (left, base - height), (width, height), "#fdae6b", &title);
    }
    text(svg, (MARGIN, base + 16.0), &format!("{first:+#x}"));
    if last != first {
        text(svg, (WIDTH - MARGIN - 60.0, base + 16.0), &format!("{last:+#x}"));
    }
}

fn bar(svg: &mut String, at: (f64, f64), size: (f64, f64), color: &str, title: &str) {
    let ((x, y), (width, height), title) = (at, size, escape(title));
    // A String takes whatever is written.
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
         fill=\"{color}\"><title>{title}</title></rect>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), text: &str) {
    let text = escape(text);
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
}

/// The form of a text within the text and the attributes of XML; control characters may not at all.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.push('\u{FFFD}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_drawing() {
        assert_eq!(escape("<T as \"A&B\">\u{1b}"), "&lt;T as &quot;A&amp;B&quot;&gt;\u{FFFD}");
    }
}
