//! Texts as a JIT compiler's map file, against a look at every line.

use pmu_examples::profiler::perf_map::PerfMap;

/// A line: first address, size and name.
fn line(line: &str) -> Option<(u64, u64, &str)> {
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    let number = |mut digits: &str| {
        while let Some(rest) = digits.strip_prefix("0x") {
            digits = rest;
        }
        u64::from_str_radix(digits, 16).ok()
    };
    Some((number(start)?, number(size)?, name.trim()))
}

/// The function at an address: the one that begins last at or before it, and of several there the last in the text.
fn function<'t>(lines: &[(u64, u64, &'t str)], address: u64) -> Option<(u64, &'t str)> {
    let before = lines.iter().filter(|(start, ..)| *start <= address);
    let (start, size, name) = before.max_by_key(|(start, ..)| *start)?;
    (address - start < *size).then_some((*start, *name))
}

/// Runs one input: the text.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let map = PerfMap::parse(text.clone());
    let lines: Vec<_> = text.lines().filter_map(line).collect();
    let places = lines.iter().take(64).flat_map(|(start, size, _)| {
        let end = start.wrapping_add(*size);
        [*start, start.wrapping_sub(1), end.wrapping_sub(1), end, start.wrapping_add(size / 2)]
    });
    for address in places.chain([0, u64::MAX]) {
        assert_eq!(map.function(address), function(&lines, address), "{address:#x}");
    }
}
