//! The structure of crates, whatever a crate's root re-exports: no modules use each other in a circle, and none uses a
//! module of a higher floor. The files of one module may use each other.

use std::path::{Path, PathBuf};

use super::source_tree::{SourceTree, Uses, circles};

/// The crates.
const WITHOUT_CIRCLES: &[&str] = &[
    "pmu-core",
    "pmu-intel",
    "pmu-amd",
    "pmu-arm",
    "pmu-events",
    "pmu-events/generator",
    "pmu",
    "pmu-kprofile",
    "pmu-virt",
    "examples",
    "examples/kernel",
    "examples/kernel-arm",
    "examples/hwcheck",
    "examples/vmm",
    "fuzz",
    "tests",
    "tests/embedding",
    "tests/evening",
    "tests/glue",
    "tests/glue-hermit",
    "tests/nmi",
];

/// The crates that have floors in ARCHITECTURE.md.
const CRATES_WITH_FLOORS: &[&str] = &[
    "pmu-core",
    "pmu-intel",
    "pmu-amd",
    "pmu-arm",
    "pmu-events",
    "pmu",
    "pmu-kprofile",
    "pmu-virt",
    "examples/hwcheck",
    "examples/vmm",
];

/// Floors of a crate from the highest to the lowest. A floor is the names of modules, of which each stands for its file
/// and those in its folder, unless a longer name stands for these. Modules of one floor do not use each other.
struct Floors {
    of: String,
    floors: Vec<Vec<String>>,
}

impl Floors {
    /// Returns the number of the floor of a file.
    fn of_file(&self, file: &str) -> Option<usize> {
        let module = module(file, &self.modules());
        self.floors.iter().position(|floor| floor.contains(&module))
    }

    /// Returns the names of all modules.
    fn modules(&self) -> Vec<String> {
        self.floors.concat()
    }
}

/// Reads the floors of all crates in ARCHITECTURE.md, where they stand in the block `floors`: `crate: a, b ► c`, on as
/// many lines as it takes.
fn all_floors() -> Vec<Floors> {
    let architecture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let architecture = std::fs::read_to_string(architecture).unwrap();
    let (_, block) = architecture.split_once("```floors\n").expect("a block of floors");
    let (block, _) = block.split_once("```").unwrap();
    floors_in(block)
}

fn floors_in(block: &str) -> Vec<Floors> {
    let mut all: Vec<(String, String)> = vec![];
    for line in block.lines().filter(|line| !line.is_empty()) {
        match line.split_once(": ").filter(|_| !line.starts_with(' ')) {
            Some((of, floors)) => all.push((of.to_owned(), floors.to_owned())),
            None => all.last_mut().expect("a crate's name").1.push_str(line),
        }
    }
    let names = |floor: &str| floor.split(',').map(|name| name.trim().to_owned()).collect();
    let read = |(of, floors): (String, String)| Floors {
        of,
        floors: floors.split('►').map(names).collect(),
    };
    all.into_iter().map(read).collect()
}

/// Returns the module of a file: the longest of these names that stands for it, or else the file or folder at the
/// crate's root.
fn module(file: &str, named: &[String]) -> String {
    let file = file.strip_suffix(".rs").unwrap();
    let stands_for = |name: &&String| {
        file.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let longest = named.iter().filter(stands_for).max_by_key(|name| name.len());
    longest.cloned().unwrap_or_else(|| file.split('/').next().unwrap().to_owned())
}

fn root(of: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of).join("src");
    let library = source.join("lib.rs");
    if library.is_file() { library } else { source.join("main.rs") }
}

/// Returns each use within a circle of modules, a line each. The files of one module may use each other as they like.
fn described(tree: &SourceTree, named: &[String]) -> Vec<String> {
    let of_file: Vec<String> = tree.files.iter().map(|file| module(file, named)).collect();
    let mut modules = of_file.clone();
    modules.sort();
    modules.dedup();
    let number = |file: usize| modules.binary_search(&of_file[file]).unwrap();
    let mut between = Uses::new();
    for (file, used) in tree.uses() {
        for (used, names) in used {
            if number(file) != number(used) {
                let line = format!("{} -> {}: {names:?}", tree.files[file], tree.files[used]);
                let uses = between.entry(number(file)).or_default();
                uses.entry(number(used)).or_default().insert(line);
            }
        }
    }
    let mut lines = vec![];
    for circle in circles(&between, modules.len()) {
        for module in &circle {
            let used = between.get(module).into_iter().flatten();
            lines.extend(
                used.filter(|(used, _)| circle.contains(used)).flat_map(|(_, l)| l.clone()),
            );
        }
    }
    lines
}

/// The remedy, for a test that fails.
const REMEDY: &str = "Move what is used to a lower module, or what uses it to a higher one; where a module has come to \
    stand elsewhere, move its name in the block `floors` of ARCHITECTURE.md.";

#[test]
fn no_modules_of_a_crate_use_each_other_in_a_circle() {
    let floors = all_floors();
    for of in WITHOUT_CIRCLES {
        let tree = SourceTree::read(&root(of));
        assert!(tree.files.len() > 1, "{of}");
        let named = floors.iter().find(|floors| floors.of == *of).map(Floors::modules);
        let found = described(&tree, &named.unwrap_or_default());
        assert!(found.is_empty(), "a circle in {of}: {found:#?}\n{REMEDY}");
    }
}

#[test]
fn no_modules_of_a_test_program_use_each_other_in_a_circle() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let entries = std::fs::read_dir(folder).unwrap();
    let mains = entries.map(|entry| entry.unwrap().path().join("main.rs"));
    let mains: Vec<PathBuf> = mains.filter(|main| main.is_file()).collect();
    assert!(mains.len() > 10, "{mains:?}");
    let found: Vec<String> =
        mains.iter().flat_map(|main| described(&SourceTree::read(main), &[])).collect();
    assert!(found.is_empty(), "a circle: {found:#?}\n{REMEDY}");
}

/// Returns each use of another module that is not on a lower floor, a line each.
fn uses_upwards(tree: &SourceTree, floors: &Floors) -> Vec<String> {
    let named = floors.modules();
    let mut lines = vec![];
    for (file, used) in tree.uses() {
        for (used, names) in used {
            let [file, used] = [file, used].map(|n| tree.files[n].as_str());
            match (floors.of_file(file), floors.of_file(used)) {
                (None, _) => lines.push(format!("{file} is on no floor")),
                (_, None) => lines.push(format!("{used} is on no floor")),
                (Some(from), Some(to)) if from < to => {}
                _ if module(file, &named) == module(used, &named) => {}
                _ => lines.push(format!("{file} -> {used}: {names:?}")),
            }
        }
    }
    lines
}

#[test]
fn no_module_uses_one_of_a_higher_floor() {
    let all = all_floors();
    assert!(all.len() >= CRATES_WITH_FLOORS.len());
    for of in CRATES_WITH_FLOORS {
        let floors = all.iter().find(|floors| floors.of == *of);
        let floors = floors.unwrap_or_else(|| panic!("ARCHITECTURE.md has no floors of {of}"));
        let found = uses_upwards(&SourceTree::read(&root(of)), floors);
        assert!(found.is_empty(), "upwards in {of}: {found:#?}\n{REMEDY}");
    }
}

#[test]
fn each_module_of_the_floors_is_there() {
    for floors in all_floors() {
        let tree = SourceTree::read(&root(&floors.of));
        for name in floors.modules() {
            let is_there = tree.files.iter().any(|file| module(file, &floors.modules()) == name);
            assert!(is_there, "{}: no module {name}, which ARCHITECTURE.md has", floors.of);
        }
    }
}

/// The greatest number of a file's lines, without its tests.
const MOST_LINES: usize = 600;

/// Files that are longer: generated.
const LONGER: &[&str] = &["pmu-events/src/tables.rs"];

#[test]
fn no_file_is_too_long() {
    for of in CRATES_WITH_FLOORS {
        let source = root(of);
        let source = source.parent().unwrap();
        for file in SourceTree::read(&root(of)).files {
            let path = source.join(file);
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let lines = code.lines().count();
            assert!(
                lines <= MOST_LINES || LONGER.iter().any(|longer| path.ends_with(longer)),
                "{path:?}: {lines} lines, more than {MOST_LINES}: split it by concepts"
            );
        }
    }
}

/// Writes a crate, and reads it.
fn written(name: &str, files: &[(&str, &str)]) -> SourceTree {
    let folder = std::env::temp_dir().join(format!("pmu-structure-{}-{name}", std::process::id()));
    for (file, text) in files {
        let file = folder.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let tree = SourceTree::read(&folder.join("lib.rs"));
    std::fs::remove_dir_all(folder).unwrap();
    tree
}

/// Writes a crate, and returns its circles.
fn circles_of(name: &str, files: &[(&str, &str)]) -> Vec<String> {
    let mut found = described(&written(name, files), &[]);
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
fn a_circle_through_a_file_of_another_folder_is_found() {
    let root = r#"#[path = "elsewhere"] mod far { pub mod inner; } mod near;"#;
    let near = r#"#[path = "elsewhere/named.rs"] mod other; pub struct Near(crate::far::inner::Inner, other::Named);"#;
    let files = [
        ("lib.rs", root),
        ("near.rs", near),
        ("elsewhere/inner.rs", "pub struct Inner(crate::near::Near);"),
        ("elsewhere/named.rs", "pub struct Named;"),
    ];
    let found = circles_of("path", &files);
    let mut expected = [
        "elsewhere/inner.rs -> near.rs: {\"Near\"}",
        "near.rs -> elsewhere/inner.rs: {\"Inner\"}",
        "near.rs -> elsewhere/named.rs: {\"Named\"}",
    ];
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn the_files_of_one_module_may_use_each_other_until_they_are_named_apart() {
    let files = [
        ("lib.rs", "mod house; mod garden;"),
        ("house.rs", "pub mod room; pub struct Door(room::Room);"),
        ("house/room.rs", "pub struct Room; fn leave(_: crate::house::Door) {}"),
        ("garden.rs", "pub struct Gate(crate::house::room::Room);"),
    ];
    assert_eq!(circles_of("one-module", &files), [""; 0]);
    let named = ["house".to_owned(), "house/room".to_owned()];
    let mut found = described(&written("named", &files), &named);
    found.sort();
    let both = ["house.rs -> house/room.rs: {\"Room\"}", "house/room.rs -> house.rs: {\"Door\"}"];
    assert_eq!(found, both);
}

#[test]
fn a_use_of_a_higher_floor_is_found_and_one_of_the_floor_s_own_other_module() {
    let files = [
        ("lib.rs", "mod roof; mod hall; mod yard; mod cellar; pub use roof::Roof;"),
        (
            "roof.rs",
            "use crate::cellar::wine::Wine; pub struct Roof; impl Roof { fn of(_: crate::hall::Hall) {} }",
        ),
        ("hall.rs", "pub struct Hall(crate::cellar::wine::Wine);"),
        ("yard.rs", "pub struct Yard(crate::hall::Hall);"),
        ("cellar.rs", "mod store; mod wine;"),
        ("cellar/store.rs", "use super::wine::Wine; fn under(_: crate::Roof, _: Wine) {}"),
        ("cellar/wine.rs", "pub struct Wine;"),
    ];
    let tree = written("floors", &files);
    let found = |floors: &str| uses_upwards(&tree, &floors_in(&format!("a: {floors}"))[0]);
    let upwards = "cellar/store.rs -> roof.rs: {\"Roof\"}";
    let beside = found("roof ► hall, yard\n    ► cellar");
    assert_eq!(beside, ["yard.rs -> hall.rs: {\"Hall\"}", upwards]);
    let split = found("roof ► yard ► hall ► cellar/wine ► cellar");
    assert_eq!(split, [upwards, "cellar/store.rs -> cellar/wine.rs: {\"Wine\"}"]);
    let unnamed = found("roof ► yard ► cellar");
    assert!(unnamed.contains(&"hall.rs is on no floor".to_owned()), "{unnamed:?}");
}
