//! Links between documents and into the code: the files that they name are there, and so are the headings and the parts
//! that the guide includes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The documents in a folder and those below it, without what is built.
fn documents(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && name != ".git" {
            documents(&path, all);
        } else if name.ends_with(".md") {
            all.push(path);
        }
    }
}

/// The lines of a document that are not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// The anchors of a document's headings, as mdBook and GitHub make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then(|| title.strip_prefix(' ')).flatten()
    });
    let anchor = |title: &str| {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
    };
    headings.map(anchor).collect()
}

#[test]
fn the_file_and_the_heading_of_each_relative_link_are_there() {
    let mut all = vec![];
    documents(&root(), &mut all);
    assert!(all.len() > 15, "{all:?}");
    let mut missing = vec![];
    let (mut links, mut headings) = (0, 0);
    for document in all {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let (target, anchor) = link.0.split_once('#').unwrap_or((link.0, ""));
            // Others are of the web, or rustdoc's: names of items.
            let is_file =
                target.contains('/') || [".md", ".rs"].iter().any(|end| target.ends_with(end));
            let is_own = target.is_empty() && !anchor.is_empty();
            if target.contains("://") || target.contains("::") || !is_file && !is_own {
                continue;
            }
            links += 1;
            let file =
                if is_own { document.clone() } else { document.parent().unwrap().join(target) };
            let is_there = file.exists()
                && (anchor.is_empty() || !target.ends_with(".md") && !is_own || {
                    headings += 1;
                    anchors(&std::fs::read_to_string(&file).unwrap()).contains(anchor)
                });
            if !is_there {
                missing.push(format!("{}: {}", document.display(), link.0));
            }
        }
    }
    assert!(links > 150 && headings > 30, "{links}, {headings}");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// mdBook leaves out an anchor that is not there, without a warning.
#[test]
fn each_part_that_the_guide_includes_is_there_and_each_page_is_in_its_summary() {
    let folder = root().join("docs");
    let summary = std::fs::read_to_string(folder.join("SUMMARY.md")).unwrap();
    let (mut included, mut missing) = (0, vec![]);
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(".md") {
            continue;
        }
        if name != "SUMMARY.md" && !summary.contains(&format!("({name})")) {
            missing.push(format!("{name} is not in the summary"));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for part in text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
            let place = part.strip_prefix("#include ").unwrap_or_else(|| panic!("{name}: {part}"));
            let (file, anchor) = place.split_once(':').unwrap_or((place, ""));
            let code = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
            // The first character behind the name is none of a name.
            let has = |mark: &str| {
                let mark = format!("{mark}: {anchor}");
                code.split(&mark)
                    .skip(1)
                    .any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-'))
            };
            included += 1;
            let is_there = anchor.is_empty() || has("ANCHOR") && has("ANCHOR_END");
            if code.is_empty() || !is_there {
                missing.push(format!("{name}: {place}"));
            }
        }
    }
    assert!(included > 20, "{included}");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_readme_is_short_and_the_root_has_few_documents() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 200);
    let files = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    assert!(files.filter(|path| path.extension().is_some_and(|of| of == "md")).count() <= 5);
}

#[test]
fn each_source_file_that_a_document_of_the_root_names_is_there() {
    let root = root();
    let mut named = 0;
    for document in
        ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/testing.md", "docs/limits.md"]
    {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        let words = text.split('`').skip(1).step_by(2);
        for path in words.filter(|word| word.contains("/src/") && word.ends_with(".rs")) {
            assert!(root.join(path).exists(), "{document}: {path}");
            named += 1;
        }
    }
    assert!(named > 10, "{named}");
}
