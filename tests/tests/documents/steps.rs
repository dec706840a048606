//! The README's steps from an empty kernel to a profile: they are those of `tests/evening`, which is compiled, and it
//! has their lines and their `unsafe`.

const README: &str = include_str!("../../../README.md");
const BRANCHES: &str = include_str!("../kernel/guide/branches.rs");
const KERNELS: &str = include_str!("../../../docs/kernels.md");
const EVENING: &str = include_str!("../../evening/src/lib.rs");
const GLUE: &str = include_str!("../../glue/src/lib.rs");

/// Returns the numbered parts of the compiled kernel, with their titles.
fn steps() -> Vec<(&'static str, &'static str)> {
    let parts = EVENING.split("// ANCHOR: step-").skip(1).enumerate().map(|(index, part)| {
        let number = index + 1;
        let part = part.strip_prefix(&format!("{number}, ")).unwrap();
        let (part, _) = part.split_once(&format!("\n// ANCHOR_END: step-{number}\n")).unwrap();
        part.split_once('\n').unwrap()
    });
    parts.collect()
}

/// Returns the lines that are neither blank, nor a comment, nor an import, without their comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(|line| line.split("//").next().unwrap().trim_end());
    // An import of several lines ends with its brace.
    let mut imports = false;
    lines.filter(move |line| {
        let import = imports || line.starts_with("use ");
        imports = import && !line.ends_with(';');
        !import && !line.is_empty()
    })
}

fn unsafes(text: &str) -> usize {
    code(text)
        .filter(|line| line.split(|c: char| !c.is_alphanumeric()).any(|word| word == "unsafe"))
        .count()
}

/// The part of the guide's code between two anchors.
fn part<'t>(text: &'t str, name: &str) -> &'t str {
    let (_, rest) = text.split_once(&format!("// ANCHOR: {name}\n")).unwrap();
    rest.split_once(&format!("// ANCHOR_END: {name}\n")).unwrap().0
}

#[test]
fn the_last_branches_take_five_lines_more_than_the_readmes_count_at_most() {
    let count = code(steps()[1].1).count();
    let branches = code(part(BRANCHES, "moment")).count();
    assert!(branches <= count + 5, "{branches} lines, and {count} without");
}

#[test]
fn the_readmes_steps_are_those_that_are_compiled_and_as_long_as_it_says() {
    let steps = steps();
    assert_eq!(steps.len(), 4);
    // The lines and the `unsafe` that a kernel's author was promised.
    let (mut all, mut unsafe_blocks) = (0, 0);
    for (number, (title, text)) in (1..).zip(steps) {
        let (lines, unsafes) = (code(text).count(), unsafes(text));
        let heading = format!("**{number}. {title}**: {lines} lines, {unsafes} `unsafe`.");
        let (_, section) = README.split_once(&heading).unwrap_or_else(|| panic!("{heading}"));
        let (_, block) = section.split_once("```rust,ignore\n").unwrap();
        let (block, _) = block.split_once("\n```").unwrap();
        assert_eq!(block, text, "{title}");
        (all, unsafe_blocks) = (all + lines, unsafe_blocks + unsafes);
    }
    assert!(all <= 75 && unsafe_blocks <= 1, "{all} lines, {unsafe_blocks} unsafe");
}

#[test]
fn the_glue_of_a_kernel_like_arceos_is_as_long_as_its_page_says() {
    let (lines, unsafes) = (code(GLUE).count(), unsafes(GLUE));
    assert!(lines <= 75 && unsafes <= 2, "{lines} lines, {unsafes} unsafe");
    let told = format!("in {lines} lines with {unsafes} `unsafe`");
    assert!(KERNELS.replace('\n', " ").contains(&told), "{told}");
}
