//! The structure of crates, whatever a crate's root re-exports: no files use each other in a circle, and none uses a
//! file of a higher floor.

use std::path::{Path, PathBuf};

use super::source_tree::{SourceTree, circles};

/// The crates.
const WITHOUT_CIRCLES: &[&str] = &[
    "pmu-core",
    "pmu-intel",
    "pmu-amd",
    "pmu-events",
    "pmu-events/generator",
    "pmu",
    "pmu-kprofile",
    "pmu-virt",
    "examples",
    "examples/kernel",
    "examples/hwcheck",
    "examples/vmm",
    "fuzz",
    "tests",
    "tests/embedding",
    "tests/evening",
    "tests/glue",
    "tests/nmi",
];

/// Floors from the highest to the lowest, of a crate, or within one module of a crate. A floor is the names of modules,
/// of which each stands for its file and those in its folder, unless a longer name stands for these. Modules of one
/// floor do not use each other.
struct Floors {
    /// A crate; or a crate and the module, `crate: module`.
    of: &'static str,
    floors: &'static [&'static str],
}

/// The crates that have floors.
const FLOORS: &[Floors] = &[
    Floors {
        of: "pmu-core",
        floors: &[
            "lib, testing",
            "branches, profile",
            "counters/control",
            "counters/interrupt",
            "counters/hooks",
            "counters/shared",
            "counters/events",
            "counters/registers, counters/error",
            "counters/names",
            "detection, frame, dump, platform, clocks",
            "msr, precise, snapshot, interval, windows, write_once",
        ],
    },
    Floors {
        of: "pmu-core: branches",
        floors: &[
            "call_stack_frame, lend, switch, switch_area",
            "recorder",
            "interrupt",
            "access",
            "error, memory, saved",
            "unit",
            "area, filter, record",
            "kind",
        ],
    },
    Floors {
        of: "pmu-intel",
        floors: &[
            "lib",
            "branch_trace",
            "branches, interface, later_sources, precise, reload, sibling_erratum, topdown, unused",
            "counters, debug_store, sources",
            "cpuid, registers",
        ],
    },
    Floors {
        of: "pmu-intel: topdown",
        floors: &[
            "lend, switch",
            "counter",
            "interrupt, view",
            "harvest",
            "access, memory",
            "counts, unit",
            "error, filter, part",
        ],
    },
    Floors {
        of: "pmu-amd",
        floors: &[
            "lib",
            "branches, ibs, interface, meaning, zen",
            "counters, generation, sources",
            "cpuid",
            "registers",
        ],
    },
    Floors {
        of: "pmu-events",
        floors: &[
            "lib",
            "processor, metric",
            "core_type",
            "event, uncore",
            "tables",
            "format",
            "name",
        ],
    },
    Floors {
        of: "examples/hwcheck",
        floors: &[
            "lib",
            "cli",
            "run",
            "programs, counts, samples",
            "registers",
            "machine",
            "report, random",
        ],
    },
    Floors {
        of: "examples/vmm",
        floors: &[
            "main",
            "cli",
            "machine",
            "processor",
            "count, shared",
            "emulation",
            "vcpu",
            "instruction",
            "guest",
            "error, messages, options, stats",
            "boot, guest_pmu",
        ],
    },
    Floors {
        of: "pmu-virt",
        floors: &[
            "lib",
            "bytes, mediated, mock",
            "reload",
            "precise",
            "branches, ibs, topdown",
            "pmu",
            "model",
            "registers, events",
            "configuration, policy",
        ],
    },
    Floors {
        of: "pmu-virt: mediated",
        floors: &[
            "access, load, put",
            "disarm, selects",
            "loaded",
            "interrupts",
            "host_counters",
            "registers",
            "error",
        ],
    },
    Floors {
        of: "pmu-virt: mock",
        floors: &[
            "backend",
            "access, time",
            "branches, cpuid, deviate, due, machine, precise, sampling, top_down",
            "interrupts",
            "processor",
            "deviation, plan, trace",
        ],
    },
    Floors {
        of: "pmu-virt: branches",
        floors: &[
            "cpuid, msr, record",
            "registers",
            "virtual_branches",
            "format",
            "configuration, fed",
            "error",
        ],
    },
    Floors {
        of: "pmu-virt: precise",
        floors: &[
            "msr, trace",
            "cpuid, record",
            "architectural, registers",
            "adaptive, fixed, virtual_precise",
            "area, configuration, fed",
            "store",
            "error, memory",
        ],
    },
    Floors {
        of: "pmu-virt: pmu",
        floors: &[
            "facility",
            "advance, msr, next_overflow, pmi, rdpmc, running, state",
            "virtual_pmu",
            "access, load_number, state_error",
        ],
    },
    Floors {
        of: "pmu-virt: model",
        floors: &["count, next_overflow", "state", "advanced, budget, register_file"],
    },
    Floors {
        of: "pmu-virt: registers",
        floors: &["list", "resolve", "vendors", "layout", "table", "row", "family", "counters"],
    },
    Floors { of: "pmu-virt: events", floors: &["feed", "fed", "error", "key, slot"] },
    Floors {
        of: "pmu-virt: configuration",
        floors: &[
            "from_cpuid",
            "cpuid, intersect",
            "any_vendor",
            "amd, hidden, host_error, intel",
            "bitmap, error, vendor",
        ],
    },
    Floors {
        of: "pmu",
        floors: &[
            "lib",
            "kernel, native_apic",
            "facilities",
            "current_frame, local_apic, machine, per_processor, perf, user, watchdog",
        ],
    },
    Floors {
        of: "pmu: kernel",
        floors: &[
            "branches, count, interrupt, processors, profile, top_down, watch",
            "reach",
            "pmu",
            "of_processor",
            "duties, sources",
            "required, error",
        ],
    },
    Floors {
        of: "pmu: perf",
        floors: &[
            "event_text",
            "attr_bytes, branch_samples, hardware_names, modifiers",
            "event_attr, encodings",
            "attributes, attr_flags, cache_event, frequency, throttle",
            "raw_config",
            "error",
            "facility",
        ],
    },
    Floors {
        of: "pmu-kprofile",
        floors: &[
            "lib",
            "trace, compat",
            "registry",
            "index",
            "object",
            "hardware",
            "affinity, sync",
        ],
    },
    Floors {
        of: "pmu-kprofile: trace",
        floors: &[
            "control",
            "trace_error",
            "trace_objects",
            "switches, trace_callback, interval_services, traced_pmc, drain",
            "cache_errata, counter_sets, once_list, ring",
            "ring_slot",
            "record_bytes",
            "record",
            "event/table",
            "event",
            "bytes, header, extended, group_mask",
            "record_error",
        ],
    },
    Floors {
        of: "pmu-kprofile: compat",
        floors: &["export, walk, source_list", "kprofile", "layout", "error, object_type"],
    },
    Floors {
        of: "pmu-kprofile: registry",
        floors: &[
            "owned",
            "blocking",
            "control, dispatch, listing",
            "processors",
            "write",
            "write_lock",
            "guard",
            "profiles",
            "writer_state",
            "srcu, error",
        ],
    },
    Floors {
        of: "pmu-kprofile: index",
        floors: &["build", "lookup, sweep", "groups", "hit_lists, intervals", "entry"],
    },
    Floors {
        of: "pmu-kprofile: object",
        floors: &[
            "request",
            "profile_object, service",
            "action, caller, error, key, state",
            "basic, callback",
            "bucket, object_ptr",
        ],
    },
    Floors {
        of: "pmu-kprofile: hardware",
        floors: &[
            "remote, this_processor, as_of_version, interval",
            "mailbox, profile_hardware",
            "slot",
            "processors",
            "request",
        ],
    },
];

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

#[test]
fn no_files_of_a_test_program_use_each_other_in_a_circle() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let entries = std::fs::read_dir(folder).unwrap();
    let mains = entries.map(|entry| entry.unwrap().path().join("main.rs"));
    let mains: Vec<PathBuf> = mains.filter(|main| main.is_file()).collect();
    assert!(mains.len() > 10, "{mains:?}");
    let found: Vec<String> =
        mains.iter().flat_map(|main| described(&SourceTree::read(main))).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// Returns the number of a file's floor, and the module that names it there.
fn floor_of<'f>(floors: &[&'f str], file: &str) -> Option<(usize, &'f str)> {
    let module = file.strip_suffix(".rs").unwrap();
    let named = floors
        .iter()
        .enumerate()
        .flat_map(|(number, floor)| floor.split(", ").map(move |name| (number, name)));
    let is_within = |name: &str| {
        module.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    named.filter(|(_, name)| is_within(name)).max_by_key(|(_, name)| name.len())
}

/// Returns each use of a file that is not on a lower floor, a line each; with a module, of the files in its folder.
fn uses_upwards(tree: &SourceTree, within: Option<&str>, floors: &[&str]) -> Vec<String> {
    let mut lines = vec![];
    let named = |file: &str| match within {
        None => Some(file.to_owned()),
        Some(module) => file.strip_prefix(module)?.strip_prefix('/').map(str::to_owned),
    };
    for (file, used) in tree.uses() {
        for (used, names) in used {
            let [Some(file), Some(used)] = [file, used].map(|n| named(&tree.files[n])) else {
                continue;
            };
            let (file, used) = (file.as_str(), used.as_str());
            match (floor_of(floors, file), floor_of(floors, used)) {
                (Some((from, module)), Some((to, other))) if from < to || module == other => {}
                (None, _) => lines.push(format!("{file} is on no floor")),
                (_, None) => lines.push(format!("{used} is on no floor")),
                _ => lines.push(format!("{file} -> {used}: {names:?}")),
            }
        }
    }
    lines
}

#[test]
fn no_file_uses_one_of_a_higher_floor() {
    let architecture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let architecture = std::fs::read_to_string(architecture).unwrap();
    let architecture = architecture.split_whitespace().collect::<Vec<_>>().join(" ");
    for Floors { of, floors } in FLOORS {
        let (name, within) =
            of.split_once(": ").map_or((*of, None), |(name, module)| (name, Some(module)));
        let found = uses_upwards(&SourceTree::read(&root(name)), within, floors);
        assert!(found.is_empty(), "{of}: {found:#?}");
        let drawn = floors.join(" ► ");
        assert!(architecture.contains(&drawn), "ARCHITECTURE.md does not draw {of} as {drawn}");
    }
}

/// Returns the crates that have floors.
fn crates_with_floors() -> impl Iterator<Item = &'static str> {
    FLOORS.iter().map(|floors| floors.of).filter(|of| !of.contains(": "))
}

#[test]
fn a_face_defines_nothing_and_nothing_is_imported_from_it() {
    for of in crates_with_floors() {
        let tree = SourceTree::read(&root(of));
        let (define, imports) = (tree.faces_that_define(), tree.imports_from_faces());
        assert!(define.is_empty(), "{of}: {define:?}");
        assert!(imports.is_empty(), "{of}: {imports:#?}");
    }
}

/// The greatest number of a file's lines, without its tests.
const MOST_LINES: usize = 500;

/// Files that are longer: generated.
const LONGER: &[&str] = &["pmu-events/src/tables.rs"];

#[test]
fn no_file_is_too_long() {
    for of in crates_with_floors() {
        let source = root(of);
        let source = source.parent().unwrap();
        for file in SourceTree::read(&root(of)).files {
            let path = source.join(file);
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let lines = code.lines().count();
            assert!(
                lines <= MOST_LINES || LONGER.iter().any(|longer| path.ends_with(longer)),
                "{path:?}: {lines} lines"
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
    let mut found = described(&written(name, files));
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
    let (used, using) = ("elsewhere/inner.rs", "near.rs");
    assert_eq!(
        found,
        [format!("{used} -> {using}: {{\"Near\"}}"), format!("{using} -> {used}: {{\"Inner\"}}")]
    );
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
    let found = uses_upwards(&tree, None, &["roof", "hall, yard", "cellar"]);
    assert_eq!(found, ["yard.rs -> hall.rs: {\"Hall\"}", "cellar/store.rs -> roof.rs: {\"Roof\"}"]);
    let split = uses_upwards(&tree, None, &["roof", "yard", "hall", "cellar/wine", "cellar"]);
    let upwards =
        ["cellar/store.rs -> roof.rs: {\"Roof\"}", "cellar/store.rs -> cellar/wine.rs: {\"Wine\"}"];
    assert_eq!(split, upwards);
    let unnamed = uses_upwards(&tree, None, &["roof", "yard", "cellar"]);
    assert!(unnamed.contains(&"hall.rs is on no floor".to_owned()), "{unnamed:?}");
    // Of a module, what its own files use of each other.
    assert_eq!(uses_upwards(&tree, Some("cellar"), &["store", "wine"]), [""; 0]);
    let within = uses_upwards(&tree, Some("cellar"), &["wine", "store"]);
    assert_eq!(within, ["store.rs -> wine.rs: {\"Wine\"}"]);
}

#[test]
fn a_face_that_defines_and_an_import_from_a_face_are_found() {
    let files = [
        ("lib.rs", "mod face; mod room; pub use room::Room; pub fn root() {}"),
        ("face.rs", "pub mod inner; pub use inner::Thing; pub struct Own;"),
        ("face/inner.rs", "pub struct Thing;"),
        (
            "room.rs",
            "use crate::face::Thing; use crate::face::inner::Thing as Right; pub struct Room;",
        ),
    ];
    let tree = written("faces", &files);
    assert_eq!(tree.faces_that_define(), ["face.rs"]);
    assert_eq!(tree.imports_from_faces(), ["room.rs: crate::face::Thing"]);
}
