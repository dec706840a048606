//! Links between documents and into the code: the files that they name are there.

use std::path::{Path, PathBuf};

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

#[test]
fn the_file_of_each_relative_link_is_there() {
    let mut all = vec![];
    documents(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut all);
    assert!(all.len() > 15, "{all:?}");
    let mut missing = vec![];
    let mut links = 0;
    for document in all {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let target = link.0.split('#').next().unwrap();
            // Others are of the web, of the same document, or rustdoc's: names of items.
            let is_file =
                target.contains('/') || [".md", ".rs"].iter().any(|end| target.ends_with(end));
            if target.contains("://") || target.contains("::") || !is_file {
                continue;
            }
            links += 1;
            if !document.parent().unwrap().join(target).exists() {
                missing.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(links > 100, "{links}");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn each_source_file_that_a_document_of_the_root_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
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
