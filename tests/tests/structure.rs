//! The structure of crates: no files use each other in a circle, whatever the crate's root re-exports.

mod source_tree;

use std::path::{Path, PathBuf};

use source_tree::{SourceTree, circles};

/// The crates of which that holds. The others have circles still.
const WITHOUT_CIRCLES: [&str; 4] = ["pmu-intel", "pmu-amd", "pmu", "examples/kernel"];

fn root(of: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of).join("src");
    let library = source.join("lib.rs");
    if library.is_file() { library } else { source.join("main.rs") }
}

/// Returns each circle's uses, a line each.
fn described(tree: &SourceTree) -> Vec<String> {
    let uses = tree.uses();
    let mut lines = vec![];
    for circle in circles(&uses, tree.files.len()) {
        for file in &circle {
            for (used, names) in uses.get(file).into_iter().flatten() {
                if circle.contains(used) {
                    let [file, used] = [file, used].map(|n| &tree.files[*n]);
                    lines.push(format!("{file} -> {used}: {names:?}"));
                }
            }
        }
    }
    lines
}

#[test]
fn no_files_of_a_crate_use_each_other_in_a_circle() {
    for of in WITHOUT_CIRCLES {
        let tree = SourceTree::read(&root(of));
        assert!(tree.files.len() > 1, "{of}");
        let found = described(&tree);
        assert!(found.is_empty(), "{of}: {found:#?}");
    }
}

/// Writes a crate, and returns its circles.
fn circles_of(name: &str, files: &[(&str, &str)]) -> Vec<String> {
    let folder = std::env::temp_dir().join(format!("pmu-structure-{}-{name}", std::process::id()));
    for (file, text) in files {
        let file = folder.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let mut found = described(&SourceTree::read(&folder.join("lib.rs")));
    std::fs::remove_dir_all(folder).unwrap();
    found.sort();
    found
}

#[test]
fn a_circle_that_the_root_s_re_exports_hide_is_found() {
    let lib = "mod a; mod b; pub use a::A; pub use b::B;";
    let found = circles_of(
        "imports",
        &[
            ("lib.rs", lib),
            ("a.rs", "use crate::B; pub struct A(B);"),
            ("b.rs", "pub struct B; impl B { fn a() -> crate::A { todo!() } }"),
        ],
    );
    assert_eq!(found, ["a.rs -> b.rs: {\"B\"}", "b.rs -> a.rs: {\"A\"}"]);
    // One direction alone is none, nor is a test's.
    let tests = "pub struct B; #[cfg(test)] mod tests { use crate::A; }";
    let files = [("lib.rs", lib), ("a.rs", "use crate::B; pub struct A(B);"), ("b.rs", tests)];
    assert_eq!(circles_of("no-circle", &files), [""; 0]);
}

#[test]
fn a_method_of_a_higher_file_that_a_lower_one_calls_makes_a_circle() {
    let lower = "pub struct Type; impl Type { fn low(&self) { self.high() } }";
    let higher = "use crate::low::Type; impl Type { pub fn high(&self) {} }";
    let files = [("lib.rs", "mod low; mod high;"), ("low.rs", lower), ("high.rs", higher)];
    let found = circles_of("methods", &files);
    assert_eq!(found, ["high.rs -> low.rs: {\"Type\"}", "low.rs -> high.rs: {\"high()\"}"]);
}

#[test]
fn a_face_that_hands_on_what_its_rooms_define_makes_no_circle() {
    let files = [
        ("lib.rs", "mod face;"),
        ("face.rs", "mod room; pub use room::Thing; pub fn open() {}"),
        ("face/room.rs", "pub struct Thing; fn enter() { super::open() }"),
    ];
    assert_eq!(circles_of("face", &files), [""; 0]);
}
