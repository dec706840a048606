//! `trace` from the outside, on a small trace whose bytes and sums `traces/small.py` made without the crates; and on
//! damaged ones.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pmu_examples::trace::sum::Summary;
use pmu_examples::trace::{Records, text};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(file(name)).expect(name)
}

fn trace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trace")).args(arguments).output().expect("the program runs")
}

fn printed(arguments: &[&str]) -> String {
    let output = trace(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaint.is_empty(), "{arguments:?}: {complaint}");
    String::from_utf8(output.stdout).expect("text")
}

/// Writes a file that is gone at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, bytes).expect("a temporary file");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn small() -> [String; 2] {
    [file("small.trace"), file("small.elf")].map(|path| path.to_str().unwrap().to_owned())
}

#[test]
fn the_sums_are_those_of_the_script() {
    let [trace, elf] = small();
    let csv = printed(&[&trace, "--symbols", &elf, "--format", "csv"]);
    assert_eq!(csv, String::from_utf8(bytes("small.csv")).unwrap());
}

#[test]
fn the_table_has_the_kinds_and_each_source_s_threads_and_functions() {
    let [trace, elf] = small();
    let table = printed(&[&trace, "--symbols", &elf]);
    // 190,000 + 40,000 … units of 100 ns; alpha has (1 + 3 + 5) · 10,000 of 220,000.
    for line in [
        "        5  SampledProfile",
        "        1  SampledProfileCache",
        "        5  PmcInterrupt",
        "        1  hook 0x0f47",
        "Timer: 19 samples, 0.0220 s",
        "  40.9%         9  alpha",
        "  27.3%         6  0x3000",
        "Cyclesé: 2 samples, 131072 events",
        "profile source 0x1A: 1 samples, of an interval that the trace does not tell",
    ] {
        assert!(table.lines().any(|found| found == line), "{line:?} is not in\n{table}");
    }
    // If fewer are asked for, the others are one line: beta's 20,000, gamma's 40,000 + 10,000.
    let short = printed(&[&trace, "--symbols", &elf, "--top", "2"]);
    assert!(short.contains("  31.8%         4  [2 more]\n"), "{short}");
    let of_timer = short.split("Cyclesé").next().unwrap();
    assert!(!of_timer.contains("beta"), "{short}");
    // Without symbols, addresses.
    let plain = printed(&[&trace]);
    assert!(plain.contains("  0x1000\n") && !plain.contains("alpha"), "{plain}");
}

#[test]
fn each_record_is_a_line() {
    let [trace, elf] = small();
    let text = printed(&[&trace, "--symbols", &elf, "--records"]);
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 20);
    for (number, line) in [
        (0, "                   0 CollectionStart     source 0x0 from 10000 to 10000 Timer"),
        (2, "                   0 PmcConfig           TotalCycles CacheMisses"),
        (3, "                 100 SampledProfile      thread 1 count 1 alpha+0x0"),
        (10, "                 200 PmcInterrupt        thread 2 source 0x19 gamma+0xff"),
        (16, "                 100 StackWalk           thread 1 process 0x4: alpha+0x0 gamma+0x10"),
        (17, "                 600 CSwitch             from 1 to 2 pebs 0x60 values [111, 222]"),
        (18, "                 650 hook 0x0f47         3 bytes"),
    ] {
        assert_eq!(lines[number], line);
    }
}

/// The whole way, as the program goes it.
fn read(bytes: &[u8]) -> (usize, Option<usize>) {
    let (mut records, mut damage) = (Vec::new(), None);
    for record in Records::new(bytes) {
        match record {
            Ok(record) => records.push(record),
            Err(found) => {
                assert!(damage.is_none(), "the damage is the last item");
                assert!(found.to_string().contains("at offset 0x"));
                damage = Some(found.offset);
            }
        }
    }
    let summary = Summary::of(&records, None);
    assert_eq!(summary.records.values().sum::<u64>(), records.len() as u64);
    for sums in summary.sources.values() {
        let threads: u128 = sums.threads.values().map(|sum| sum.amount).sum();
        let functions: u128 = sums.functions.values().map(|sum| sum.amount).sum();
        assert_eq!((threads, functions), (sums.total.amount, sums.total.amount));
    }
    assert!(!text::table(&summary, 3).is_empty() && text::csv(&summary).is_ok());
    records.iter().for_each(|record| assert!(text::line(record, None).ends_with('\n')));
    (records.len(), damage)
}

#[test]
fn a_trace_that_is_cut_off_is_read_up_to_there() {
    let whole = bytes("small.trace");
    let (mut ends, mut at) = (vec![0], 0);
    while at < whole.len() {
        at += usize::from(u16::from_le_bytes([whole[at + 4], whole[at + 5]]));
        ends.push(at);
    }
    for length in 0..=whole.len() {
        let (records, damage) = read(&whole[..length]);
        let before = ends.iter().rposition(|end| *end <= length).unwrap();
        assert_eq!(records, before, "{length}");
        assert_eq!(damage, (ends[before] != length).then_some(ends[before]), "{length}");
    }
}

/// Each byte, with several other values; and several at a time.
#[test]
fn a_trace_with_changed_bytes_is_read_to_an_end() {
    let whole = bytes("small.trace");
    for at in 0..whole.len() {
        for change in [0x01, 0x80, 0xFF, 0x55] {
            let mut changed = whole.clone();
            changed[at] ^= change;
            read(&changed);
        }
    }
    let mut random = 1u64;
    let mut next = || {
        // Knuth's MMIX.
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    for _ in 0..5_000 {
        let mut changed = whole.clone();
        for _ in 0..=next() % 6 {
            let at = next() % changed.len();
            changed[at] = next() as u8;
        }
        changed.truncate(next() % (changed.len() + 1));
        read(&changed);
    }
}

#[test]
fn a_damaged_file_is_told_with_the_place_after_what_could_be_read() {
    let whole = bytes("small.trace");
    let cut = Temporary::new("cut.trace", &whole[..whole.len() - 1]);
    let output = trace(&[cut.path()]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let place = format!("cut.trace: at offset {:#x}: the record is cut off", whole.len() - 28);
    assert!(complaint.contains(&place), "{complaint}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("Timer: 19 samples"));

    let empty = Temporary::new("empty.trace", &[]);
    assert_eq!(printed(&[empty.path()]), "records\n");
}

#[test]
fn what_is_no_trace_or_names_no_function_is_an_error_with_the_file() {
    let [small, elf] = small();
    let folder = file("");
    let (folder, script) = (folder.to_str().unwrap(), file("small.py"));
    let script = script.to_str().unwrap();
    for (arguments, words) in [
        (&["nowhere.trace"][..], "nowhere.trace"),
        (&[folder], "not a regular file"),
        (&[script], "small.py: not a trace: at offset 0x0: marker"),
        (&[&elf], "small.elf: not a trace"),
        (&[&small, "--symbols", "nowhere.elf"], "nowhere.elf"),
        (&[&small, "--symbols", folder], "not a regular file"),
        (&[&small, "--symbols", script], "small.py"),
        (&[&small, "--format", "xml"], "xml"),
        (&[&small, "--top", "-1"], "-1"),
        (&[], "Usage"),
    ] {
        let output = trace(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(complaint.contains(words) && !complaint.contains("panicked"), "{complaint}");
    }
    // An ELF file whose symbols are gone.
    let mut stripped = bytes("small.elf");
    let sections = u64::from_le_bytes(stripped[40..48].try_into().unwrap()) as usize;
    stripped[sections + 2 * 64 + 4] = 0;
    let stripped = Temporary::new("stripped.elf", &stripped);
    let output = trace(&[&small, "--symbols", stripped.path()]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("stripped.elf: no function has a name"), "{complaint}");
    assert_eq!(output.status.code(), Some(2));
}
