//! Texts as `/proc/kallsyms` and, after a zero byte, as `/proc/modules`, against a look at every line for every
//! address.

use core::ops::Range;
use std::path::{Path, PathBuf};

use pmu_examples::profiler::kallsyms::{KERNEL, Kallsyms};

/// Address, kind, name, and the module in brackets.
type Line<'t> = (u64, &'t str, &'t str, Option<&'t str>);

fn columns(line: &str) -> Option<Line<'_>> {
    let mut columns = line.split_ascii_whitespace();
    let address = u64::from_str_radix(columns.next()?, 16).ok()?;
    let (kind, name) = (columns.next()?, columns.next()?);
    Some((address, kind, name, columns.next()))
}

/// Returns the name in a line of `/proc/modules`, and the module's addresses.
fn module(line: &str) -> Option<(&str, Range<u64>)> {
    let columns: Vec<_> = line.split_ascii_whitespace().collect();
    let [name, size, _, _, _, address, ..] = *columns else { return None };
    let start = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
    let end = start.checked_add(size.parse().ok()?)?;
    (start != 0).then_some((name, start..end))
}

/// Runs one input: the texts.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (symbols, modules) = text.split_once('\0').unwrap_or((&text, ""));
    let lines: Option<Vec<Line<'_>>> = symbols.lines().map(columns).collect();
    let kernel = Kallsyms::parse(symbols, modules);
    let Some(lines) = lines else { return assert_eq!(kernel, None, "a line is none of its kind") };
    let is_edge = |line: &&Line<'_>| matches!(line, (_, _, "_stext" | "_etext" | "_text", None));
    let edge = |wanted| {
        let last = lines.iter().filter(is_edge).rfind(|(_, _, name, _)| *name == wanted);
        last.map_or(0, |(address, ..)| *address)
    };
    // The path, the column of the symbols, and the addresses before they are cut off at the next part's.
    let of_module = |(name, text): (&str, Range<u64>)| {
        (Path::new(KERNEL).join(name), Some(format!("[{name}]")), text)
    };
    let mut parts: Vec<(PathBuf, Option<String>, Range<u64>)> =
        modules.lines().filter_map(module).map(of_module).collect();
    parts.push((KERNEL.into(), None, edge("_stext")..edge("_etext")));

    // Of parts with the same first address, only the first is one.
    let is_first = |index: usize| {
        parts[..index].iter().all(|(_, _, before)| before.start != parts[index].2.start)
    };
    let mut expected = Vec::new();
    for (index, (path, column, text)) in parts.iter().enumerate().filter(|(i, _)| is_first(*i)) {
        let next =
            parts.iter().map(|(_, _, other)| other.start).filter(|start| *start > text.start);
        let text = text.start..next.min().map_or(text.end, |next| next.min(text.end));
        // A module that is told twice has its functions the first time only.
        let told = |(other, _, before): &(PathBuf, _, Range<u64>)| {
            other == path && before.start < text.start
        };
        let again = parts.iter().enumerate().any(|(other, part)| is_first(other) && told(part));
        let is_function = |line: &&Line<'_>| {
            matches!(line.1, "t" | "T" | "w" | "W")
                && !is_edge(line)
                && line.3 == column.as_deref()
                && text.contains(&line.0)
        };
        let functions: Vec<&Line<'_>> = lines.iter().filter(is_function).collect();
        if !again && !functions.is_empty() {
            expected.push((index, path.clone(), text, functions));
        }
    }
    expected.sort_by_key(|(_, _, text, _)| text.start);
    let Some(kernel) = kernel else { return assert!(expected.is_empty()) };
    let texts: Vec<_> =
        kernel.texts().map(|text| (text.path.clone(), text.start..text.end())).collect();
    let paths: Vec<_> =
        expected.iter().map(|(_, path, text, _)| (path.clone(), text.clone())).collect();
    assert_eq!(texts, paths);
    for (_, path, text, functions) in &expected {
        let edges = [0, text.start.wrapping_sub(1), text.start, text.end - 1, text.end, u64::MAX];
        let at_functions = functions.iter().take(64).map(|line| line.0);
        for address in
            at_functions.flat_map(|at| [at.wrapping_sub(1), at, at.wrapping_add(1)]).chain(edges)
        {
            let before = functions.iter().filter(|line| line.0 <= address);
            // The nearest below; of several names of one address, the first by spelling.
            let nearest =
                before.max_by(|a, b| (a.0, b.2).cmp(&(b.0, a.2))).map(|line| (line.0, line.2));
            let expected = nearest.filter(|_| text.contains(&address));
            assert_eq!(kernel.function(path, address), expected, "{address:#x}");
        }
    }
}
