//! Costs in register accesses: exact, and equal to the tables in tests/data/accesses.md.

mod asked_branches;
mod branch_sampling;
mod branches;
mod events;
mod groups;
mod ibs;
mod perf;
mod precise;
mod reload;
mod sources;
mod topdown;

/// Each row of register accesses in the guide is a row of the measured tables.
#[test]
fn the_guides_rows_are_among_those_that_are_measured() {
    let (guide, measured) =
        (include_str!("../../../docs/costs.md"), include_str!("../../data/accesses.md"));
    let cell = |cell: &str| {
        let counts =
            cell.trim().trim_matches('*').split(' ').map(|count| count.split_at(count.len() - 1));
        let is_count = |(count, kind): (&str, &str)| {
            count.parse::<u32>().is_ok() && ["R", "W", "P", "A"].contains(&kind)
        };
        !cell.trim().is_empty() && cell.is_ascii() && counts.into_iter().all(is_count)
    };
    let is_of_accesses =
        |line: &&str| line.starts_with('|') && line.trim_matches('|').split('|').any(cell);
    let rows: Vec<_> = guide.lines().filter(is_of_accesses).collect();
    assert!(rows.len() > 10, "{rows:#?}");
    let missing: Vec<_> = rows.iter().filter(|row| !measured.contains(*row)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The README's table has sums of the first table, and of the turns in that of groups.
#[test]
fn the_readmes_numbers_are_sums_of_the_rows_that_are_measured() {
    let (readme, measured) =
        (include_str!("../../../README.md"), include_str!("../../data/accesses.md"));
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim);
    let sum = |cell: &str| {
        let counts = cell.trim_matches('*').split(' ');
        counts.map(|count| count[..count.len() - 1].parse::<u32>().unwrap()).sum::<u32>()
    };
    // The first table of accesses, and that of groups, begin with these rows.
    let tables = measured.split("| Intel, version 2 on |").map(|table| table.split("\n\n").next());
    let tables: Vec<_> = tables.skip(1).flatten().collect();
    let sums = |table: usize, name: &str, column: usize| {
        let row = tables[table].lines().find(|line| cells(line).next() == Some(name));
        sum(cells(row.unwrap_or_else(|| panic!("{name}"))).nth(column).unwrap())
    };
    let rows = [
        ("an interrupt", 0, 1),
        ("a switch of four events out and in", 0, 2),
        ("one event more", 0, 3),
        ("two groups of two take turns", 1, 6),
    ];
    for (name, table, column) in rows {
        let of = |processors: [&str; 2]| processors.map(|of| sums(table, of, column));
        let [intel, amd] = of(["Intel, version 4 on, freezing", "AMD, PerfMonV2"]);
        let [linux_intel, linux_amd] = of(["*Linux, Intel version 2 on*", "*Linux, PerfMonV2*"]);
        let row = format!("| {name} | {intel}, {amd} | {linux_intel}, {linux_amd} |");
        assert!(readme.contains(&row), "README.md lacks: {row}");
    }
}
