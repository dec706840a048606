//! The ways through the code that ARCHITECTURE.md describes: the files are there, and the way is short.

use std::path::Path;

/// A way: the words that introduce its list, the folder of its files, and the most steps from file to file.
struct Way {
    introduced_by: &'static str,
    folder: &'static str,
    steps: usize,
}

const WAYS: [Way; 2] = [
    Way {
        introduced_by: "From `service` to the report",
        folder: "pmu-core/src/counters/interrupt",
        steps: 6,
    },
    Way { introduced_by: "Below that, in reading order", folder: "pmu-kprofile/src", steps: 8 },
];

/// Returns the items of the numbered list after the words.
fn items(document: &str, introduced_by: &str) -> Vec<String> {
    let (_, after) =
        document.split_once(introduced_by).unwrap_or_else(|| panic!("{introduced_by}"));
    let mut items: Vec<String> = vec![];
    for line in after.split_once("\n\n").unwrap().1.lines().take_while(|line| !line.is_empty()) {
        match line.strip_prefix("   ") {
            Some(rest) => items.last_mut().unwrap().push_str(&format!(" {rest}")),
            None => items.push(line.to_owned()),
        }
    }
    items
}

#[test]
fn the_ways_in_the_architecture_are_short_and_their_files_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let document = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    for Way { introduced_by, folder, steps } in WAYS {
        let items = items(&document, introduced_by);
        assert!((2..=steps + 1).contains(&items.len()), "{introduced_by}: {items:#?}");
        for (number, item) in items.iter().enumerate() {
            let file = item.strip_prefix(&format!("{}. `", number + 1));
            assert!(file.is_some_and(|file| file.contains(".rs`")), "{item}: no file comes first");
            // Quoted words are every other one.
            for file in item.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs")) {
                assert!(root.join(folder).join(file).is_file(), "{item}: no {file} in {folder}");
            }
        }
    }
}
