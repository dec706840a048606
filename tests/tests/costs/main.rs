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

/// Rows of accesses in the guide are some of those that are measured.
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
    assert!(rows.len() > 15, "{rows:#?}");
    let missing: Vec<_> = rows.iter().filter(|row| !measured.contains(*row)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}
