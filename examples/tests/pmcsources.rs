//! `pmcsources` from the outside: its lists against the tables and the recorded processors that are
//! the library's test data too, and what it says of what it cannot read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn pmcsources(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_pmcsources");
    Command::new(program).args(arguments).output().expect("the program runs")
}

/// Standard output of a run that succeeds and has no complaint.
fn printed(arguments: &[&str]) -> String {
    let output = pmcsources(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaint.is_empty(), "{arguments:?}: {complaint}");
    String::from_utf8(output.stdout).expect("text")
}

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(file)
}

/// The rows of comma-separated values by column name; lines with `#` are remarks.
fn rows(text: &str) -> Vec<HashMap<String, String>> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
    reader.deserialize().collect::<Result<_, _>>().expect("comma-separated values")
}

fn rows_of_file(file: &str) -> Vec<HashMap<String, String>> {
    rows(&std::fs::read_to_string(data(file)).expect(file))
}

/// The data's `0x…` of any width as a number.
fn number(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").expect(text), 16).expect(text)
}

#[test]
fn the_csv_of_an_interface_is_the_documents_table() {
    for (interface, table) in [("emon", "emon_sources.csv"), ("amd64", "amd64_sources.csv")] {
        let text = printed(&["--interface", interface, "--format", "csv"]);
        let header = text.lines().next().unwrap();
        assert_eq!(header, "id,name,windows_name,select,interval,min,max,supported,meaning");
        let (listed, expected) = (rows(&text), rows_of_file(table));
        assert_eq!(listed.len(), expected.len());
        for (row, expected) in listed.iter().zip(&expected) {
            let id = number(&expected["value"]);
            assert_eq!(row["id"], format!("0x{id:02X}"));
            assert_eq!(row["name"], expected["name"]);
            assert_eq!(row["windows_name"], expected["windows_name"]);
            assert_eq!(row["select"], format!("0x{:08X}", number(&expected["select"])));
            assert_eq!(row["supported"], "declared");
            let limits = [&row["interval"], &row["min"], &row["max"]];
            if id == 0 {
                assert_eq!(limits, ["10000", "1221", "1000000"]);
            } else {
                assert_eq!(limits, ["65536", "4096", "2147483647"]);
            }
        }
    }
}

#[test]
fn the_forms_agree_but_the_table_leaves_the_unsupported_out_and_has_windows_names() {
    // An Intel processor whose hypervisor hides the counters: only time is left.
    let dump = data("cpuid/vm-hyperv-icelake.txt");
    let arguments = |format| vec!["--cpuid", dump.to_str().unwrap(), "--format", format];
    let listed = rows(&printed(&arguments("csv")));
    assert_eq!(listed.len(), 13);
    let supported: Vec<_> = listed.iter().filter(|row| row["supported"] == "declared").collect();
    assert_eq!(supported.len(), 1);
    assert_eq!(supported[0]["name"], "ProfileTime");
    assert!(listed.iter().all(|row| ["declared", "no"].contains(&row["supported"].as_str())));

    let json: serde_json::Value = serde_json::from_str(&printed(&arguments("json"))).unwrap();
    assert_eq!(json["reason"], "the hypervisor does not offer performance monitors");
    let of_json = json["sources"].as_array().unwrap();
    assert_eq!(of_json.len(), listed.len());
    for (row, object) in listed.iter().zip(of_json) {
        for (column, value) in row {
            let value_of_json = match &object[column] {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(value, &value_of_json, "{column}");
        }
    }

    let table = printed(&arguments("table"));
    assert!(table.contains("Platinum 8370C"), "{table}");
    assert!(table.contains("the hypervisor does not offer performance monitors"), "{table}");
    let below_rule = table.lines().skip_while(|line| !line.starts_with("---")).skip(1);
    let below_rule: Vec<&str> = below_rule.collect();
    assert_eq!(below_rule, ["  0 Timer                          10000  1221    1000000"]);
}

#[test]
fn every_recorded_processor_gets_the_interface_and_the_sources_that_windows_gives_it() {
    let processors = rows_of_file("cpuid/expected.csv");
    assert!(processors.len() >= 39, "{}", processors.len());
    let events: HashMap<String, String> = rows_of_file("emon_sources.csv")
        .into_iter()
        .map(|row| (row["value"].clone(), row["ebx_bit"].clone()))
        .collect();
    for processor in processors {
        let file = data("cpuid").join(&processor["file"]);
        let file = file.to_str().unwrap();
        let json = printed(&["--cpuid", file, "--format", "json"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect(file);
        let interface = json["interface"].as_str().unwrap().to_lowercase();
        let reason = json["reason"].as_str();
        let words = match processor["reason"].as_str() {
            "" => None,
            "no-perfmon" => Some("no performance monitoring"),
            "long-mode" => Some("no long mode"),
            "vendor" => Some("no profile interface for processors of"),
            "hypervisor" => Some("hypervisor"),
            other => panic!("the test does not know the reason {other}"),
        };
        match words {
            None => assert_eq!((interface.as_str(), reason), (&*processor["interface"], None)),
            Some(words) => {
                assert_eq!(interface, "default", "{file}");
                assert!(reason.is_some_and(|reason| reason.contains(words)), "{file}: {reason:?}");
            }
        }
        let supported = |id: &str| match processor["interface"].as_str() {
            _ if id == "0x00" => true,
            "amd64" => true,
            "emon" => {
                let bit: u64 = events[id].parse().unwrap();
                let (ebx, length) = (number(&processor["ebx"]), &processor["ebx_length"]);
                bit < length.parse().unwrap() && ebx >> bit & 1 == 0
            }
            _ => false,
        };
        let sources = json["sources"].as_array().unwrap();
        assert!(!sources.is_empty(), "{file}");
        for source in sources {
            let id = source["id"].as_str().unwrap();
            let expected = if supported(id) { "declared" } else { "no" };
            assert_eq!(source["supported"], expected, "{file}: {id}");
        }
    }
}

#[test]
fn this_machine_is_listed() {
    if cfg!(any(target_arch = "x86", target_arch = "x86_64")) {
        let table = printed(&[]);
        assert!(table.starts_with("Processor: "), "{table}");
        // The columns are as wide as the machine's longest name.
        let of_timer = table.lines().find_map(|line| line.strip_prefix("  0 Timer "));
        assert!(of_timer.is_some_and(|line| line.trim_start().starts_with("10000 ")), "{table}");
    }
}

#[test]
fn what_is_no_dump_is_an_error_with_the_file_and_the_reason() {
    let own = PathBuf::from(env!("CARGO_BIN_EXE_pmcsources"));
    let directory = data("cpuid");
    for (file, reason) in [
        (data("no-such-file.txt"), None),
        (directory, None),
        (own, Some("not a text in UTF-8")),
        (data("emon_sources.csv"), Some("line 3 is not a CPUID leaf")),
        (data("../Cargo.toml"), Some("leaf 0 is missing")),
    ] {
        let file = file.to_str().unwrap();
        let output = pmcsources(&["--cpuid", file]);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(output.stdout.is_empty());
        assert!(complaint.contains(file) && !complaint.contains("panicked"), "{complaint}");
        assert!(reason.is_none_or(|reason| complaint.contains(reason)), "{complaint}");
    }
}

#[test]
fn wrong_arguments_are_an_error() {
    for arguments in [&["--interface", "mips"][..], &["--format", "xml"], &["--cpuid"], &["more"]] {
        let output = pmcsources(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_pmcsources"))
        .args(["--interface", "amd64"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaint.is_empty(), "{complaint}");
}

#[test]
fn on_zen_the_list_says_which_sources_do_not_count_what_their_names_say() {
    let dump = data("cpuid/amd-zen4.txt");
    let text = printed(&["--cpuid", dump.to_str().unwrap(), "--format", "csv"]);
    let listed = rows(&text);
    // PPR of family 19h, models 11h and 61h: PMCx0C0 is retired instructions; PMCx041 has unit masks, and the
    // select names none; PMCx0D1 is retired conditional branches; PMCx020 is not described.
    for (id, meaning) in
        [("0x02", "same"), ("0x32", "nothing"), ("0x80", "other"), ("0x22", "unknown")]
    {
        let row = listed.iter().find(|row| row["id"] == id).unwrap();
        assert_eq!(row["meaning"], meaning, "{id}");
    }
    let table = printed(&["--cpuid", dump.to_str().unwrap()]);
    assert!(table.contains("count nothing on it: 8 "), "{table}");
    let intel = printed(&["--interface", "emon", "--format", "csv"]);
    assert!(rows(&intel).iter().all(|row| row["meaning"].is_empty()));
}

#[test]
fn a_dump_is_read_from_standard_input() {
    let dump = data("cpuid/intel-skylake.txt");
    let output = Command::new(env!("CARGO_BIN_EXE_pmcsources"))
        .args(["--cpuid", "-"])
        .stdin(std::fs::File::open(&dump).unwrap())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        printed(&["--cpuid", dump.to_str().unwrap()])
    );
}

/// Passes a text to `pmcsources --cpuid -`, and returns the complaint.
fn complaint_on(input: &[u8]) -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("input");
    std::fs::write(&file, input).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pmcsources"))
        .args(["--cpuid", "-"])
        .stdin(std::fs::File::open(&file).unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_is_no_dump_on_standard_input_is_told_with_the_formats_that_are_read() {
    for input in [&b""[..], b"hello\n", b"\xFF\xFE", b"CPUID 00000000: nonsense\n"] {
        let complaint = complaint_on(input);
        for part in ["standard input: ", "`cpuid -r`", "AIDA64", "InstLatx64"] {
            assert!(complaint.contains(part), "{part:?} is missing in {complaint}");
        }
    }
}

/// The machine at hand is not spoken of where another is asked about, and the advice is a command that lists.
#[test]
fn a_source_that_is_not_there_is_told_with_whose_sources_were_searched() {
    let dump = data("cpuid/amd-zen4.txt");
    let dump = dump.to_str().unwrap();
    let of_dump = ["--cpuid", dump];
    let whose = format!("the processor of {dump} has no");
    for (arguments, wanted, whose, other) in [
        (&of_dump[..], "zzz", &*whose, None),
        // Intel's total cycles, and below AMD's cycles with interrupts masked.
        (&of_dump, "0x13", &whose, Some("emon")),
        (&["--interface", "amd64"], "TOTALCYCLES", "the interface amd64 has no", Some("emon")),
        (&["--interface", "emon"], "0x7C", "the interface emon has no", Some("amd64")),
        (&[], "zzz", "this machine has no", None),
    ] {
        let output = pmcsources(&[arguments, &["--explain", wanted]].concat());
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(whose) && complaint.contains(wanted), "{complaint}");
        let command = [&["pmcsources"], arguments].concat().join(" ");
        assert!(complaint.contains(&format!("`{command}` lists them")), "{complaint}");
        _ = printed(arguments);
        match other {
            None => assert!(!complaint.contains("--explain"), "{complaint}"),
            Some(other) => {
                let next = ["--interface", other, "--explain", wanted];
                assert!(complaint.contains(&next.join(" ")), "{complaint}");
                _ = printed(&next);
            }
        }
    }
}

#[test]
fn the_table_says_that_nothing_is_proven_and_its_columns_stay_in_line() {
    let table = printed(&["--interface", "amd64"]);
    let mut lines = table.lines();
    assert!(lines.by_ref().take(3).any(|line| line.starts_with("Verified:  nothing")), "{table}");
    let lines: Vec<_> = lines.skip_while(|line| !line.starts_with("---")).collect();
    let width = lines[1].len();
    assert!(
        lines[0].len() >= width && lines[1..].iter().all(|line| line.len() == width),
        "{table}"
    );
}

/// SDM vol. 3B, "Pre-defined Architectural Performance Events": LLC Misses are event 2EH, unit mask 41H. PPR of
/// family 19h: PMCx0C0 is retired instructions.
#[test]
fn a_source_is_explained_with_its_event_and_with_what_processors_count_under_it() {
    let text = printed(&["--interface", "emon", "--explain", "llcmisses"]);
    for part in [
        "ProfileLLCMisses (LLCMisses)",
        "event      0x02E",
        "unit mask  0x41",
        "LONGEST_LAT_CACHE.MISS",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    let text = printed(&["--interface", "amd64", "--explain", "0x02"]);
    for part in ["event      0x0C0", "Zen4       the same as the name says", "ex_ret_instr\n"] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}
