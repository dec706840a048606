//! Texts as `/proc/kallsyms`, against a look at every line for every address.

use pmu_examples::profiler::kallsyms::Kallsyms;

/// Address, kind, name, and whether a module follows.
type Line<'t> = (u64, &'t str, &'t str, bool);

fn columns(line: &str) -> Option<Line<'_>> {
    let mut columns = line.split_ascii_whitespace();
    let address = u64::from_str_radix(columns.next()?, 16).ok()?;
    let (kind, name) = (columns.next()?, columns.next()?);
    Some((address, kind, name, columns.next().is_some()))
}

/// Runs one input: the text.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines: Option<Vec<Line<'_>>> = text.lines().map(columns).collect();
    let kernel = Kallsyms::parse(&text);
    let Some(lines) = lines else { return assert_eq!(kernel, None, "a line is none of its kind") };
    let last_of = |wanted| lines.iter().rfind(|(_, _, name, _)| *name == wanted);
    let edge = |wanted| last_of(wanted).map_or(0, |(address, ..)| *address);
    let range = edge("_stext")..edge("_etext");
    let is_function = |(address, kind, name, module): &&Line<'_>| {
        matches!(*kind, "t" | "T" | "w" | "W")
            && !module
            && !matches!(*name, "_stext" | "_etext" | "_text")
            && range.contains(address)
    };
    let functions: Vec<&Line<'_>> = lines.iter().filter(is_function).collect();
    let Some(kernel) = kernel else { return assert_eq!(functions.len(), 0) };
    assert!(!functions.is_empty());
    assert_eq!(kernel.text(), range);
    let edges = [0, range.start.wrapping_sub(1), range.start, range.end - 1, range.end, u64::MAX];
    let at_functions = functions.iter().take(64).map(|line| line.0);
    for address in
        at_functions.flat_map(|at| [at.wrapping_sub(1), at, at.wrapping_add(1)]).chain(edges)
    {
        let before = functions.iter().filter(|line| line.0 <= address);
        // The nearest below; of several names of one address, the first by spelling.
        let nearest =
            before.max_by(|a, b| (a.0, b.2).cmp(&(b.0, a.2))).map(|line| (line.0, line.2));
        let expected = nearest.filter(|_| range.contains(&address));
        assert_eq!(kernel.function(address), expected, "{address:#x}");
    }
}
