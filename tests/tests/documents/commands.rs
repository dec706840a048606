//! The commands in the documents at the root: a newcomer needs nothing else, and the checks run the same.

use std::fs;
use std::path::Path;

const README: &str = include_str!("../../../README.md");
const CI: &str = include_str!("../../../.ci/run");

const GUIDE: &str = include_str!("../../../docs/kernel.md");

/// The commands of a document's first block, without their comments.
fn first_block_of(document: &'static str) -> Vec<&'static str> {
    let block = document.split("```").nth(1).unwrap().strip_prefix("sh\n").unwrap();
    block.lines().map(|line| line.split("  #").next().unwrap().trim()).collect()
}

fn first_block() -> Vec<&'static str> {
    first_block_of(README)
}

fn place(commands: &[&str], word: &str) -> usize {
    commands.iter().position(|command| command.contains(word)).unwrap()
}

#[test]
fn the_readme_begins_with_the_two_commands_that_a_newcomer_needs() {
    let commands = first_block();
    assert_eq!(commands[..2], ["cargo run --release --bin profile", "cargo test --workspace"]);
}

#[test]
fn the_checks_run_the_readmes_test_command_by_its_very_line() {
    let test = first_block()[1];
    let lines: Vec<&str> = CI.lines().map(str::trim).collect();
    let step = lines.iter().position(|line| *line == "step_test() {").unwrap();
    assert_eq!(lines[step + 1], test);
    for document in
        [include_str!("../../../docs/testing.md"), include_str!("../../../CONTRIBUTING.md")]
    {
        assert!(document.contains(&format!("`{test}`")));
    }
}

#[test]
fn what_a_command_needs_first_stands_before_it() {
    for (document, words) in [
        (README, &["run.sh qemu", "run.sh monitor"][..]),
        (GUIDE, &["--target x86_64-unknown-none"]),
    ] {
        let commands = first_block_of(document);
        let target = place(&commands, "rustup target add");
        for word in words {
            assert!(place(&commands, word) > target, "{word}");
        }
    }
}

/// Tests are built without optimization, and alone are.
#[test]
fn commands_share_one_profile_and_none_builds_the_workspace_again() {
    let documents = [README, GUIDE, include_str!("../../../examples/README.md")];
    for line in documents.iter().flat_map(|document| document.lines()) {
        let line = line.trim_start_matches("$ ");
        if line.starts_with("cargo run") || line.starts_with("cargo build") {
            assert!(line.contains(" --release "), "{line}");
        }
    }
}

#[test]
fn the_dependency_that_is_not_released_yet_says_how_it_is_had() {
    let readme = include_str!("../../../pmu/README.md");
    let line = readme.lines().find(|line| line.starts_with("pmu = {")).unwrap();
    assert!(line.contains("until then") && line.contains("path ="), "{line}");
}

#[test]
fn each_test_that_a_document_or_a_check_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut named = 0;
    let folders = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.map(|path| if path.is_dir() { path.join("README.md") } else { path });
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|of| of == "md"));
    for file in files.chain(pages).chain([root.join(".ci/run")]) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let paths = text.split('`').filter(|word| word.starts_with("tests/"));
        for path in paths.filter(|path| !path.contains([' ', '*', '\n'])) {
            let in_package = file.with_file_name(path);
            assert!(root.join(path).exists() || in_package.exists(), "{}: {path}", file.display());
        }
        for line in text.lines().filter(|line| line.contains("-p pmu-tests")) {
            for test in line.split("--test ").skip(1) {
                let test = test.split([' ', '`']).next().unwrap();
                let there = root.join("tests/tests").join(test).join("main.rs").exists();
                assert!(there, "{test}: {line}");
                named += 1;
            }
        }
    }
    assert!(named > 15, "{named}");
}
