//! `examples/kernel` in the monitor: exact counts, shares of samples, register accesses, events, no PMU.
//!
//! PMU_KERNEL names the image (`examples/kernel/run.sh build` prints its path). The expected values are not those
//! that the kernel prints as expected.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use core::fmt;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Once;

use guest::{kvm, messages, skipped};
use serde_json::Value;

const INTEL: &str = "intel:version=4,gp=8,fixed=3,width=48,full-width";
const AMD: &str = "amd:v2,counters=6";

/// Returns the kernel's image, if these tests can run; prints once if not.
fn kernel() -> Option<OsString> {
    static SAID: Once = Once::new();
    if !kvm() {
        return None;
    }
    let kernel = std::env::var_os("PMU_KERNEL");
    if kernel.is_none() {
        let why = "PMU_KERNEL names no kernel image (examples/kernel/run.sh build)";
        SAID.call_once(|| skipped("every test of `kernel`", why));
    }
    kernel
}

/// A run's output, and the monitor's statistics.
struct Run {
    lines: String,
    stats: Value,
}

impl Run {
    /// Runs the kernel with this PMU and these arguments, and asserts that it ended well.
    fn new(kernel: &OsString, pmu: &str, arguments: &[&str]) -> Self {
        Self::of(Self::output(kernel, pmu, arguments), pmu, arguments)
    }

    /// Runs the kernel one instruction at a time; `None`: the monitor says that this KVM does not stop at each.
    fn exact(kernel: &OsString, pmu: &str, words: &str) -> Option<Self> {
        Self::stepped(kernel, pmu, &["--count", "step", "--append", words])
    }

    /// As [`exact`](Self::exact), with arguments of which one asks for it.
    fn stepped(kernel: &OsString, pmu: &str, arguments: &[&str]) -> Option<Self> {
        let output = Self::output(kernel, pmu, arguments);
        if messages(&output).contains("not exact") && !Path::new("/sys/module/kvm_pvm").exists() {
            skipped("exact counts", "the monitor says that on this KVM they are not exact");
            return None;
        }
        Some(Self::of(output, pmu, arguments))
    }

    fn output(kernel: &OsString, pmu: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmm"));
        command.arg("--kernel").arg(kernel).args(["--timeout", "900", "--stats=json"]);
        command.args(["--pmu", pmu]).args(arguments).output().unwrap()
    }

    fn of(output: Output, pmu: &str, arguments: &[&str]) -> Self {
        let (messages, lines) = (messages(&output), String::from_utf8(output.stdout).unwrap());
        assert_eq!(output.status.code(), Some(33), "{pmu} {arguments:?}:\n{lines}{messages}");
        let json = messages.lines().find(|line| line.starts_with('{')).unwrap();
        Self { lines, stats: serde_json::from_str(json).unwrap() }
    }

    /// Returns the fields of each line that starts with this word.
    fn fields(&self, word: &str) -> Vec<Vec<&str>> {
        let fields = self.lines.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        fields.filter(|fields| fields[0] == word).map(|fields| fields[1..].to_vec()).collect()
    }

    /// Returns the rest of each line that starts with this word.
    fn lines_of(&self, word: &str) -> Vec<String> {
        self.fields(word).iter().map(|fields| fields.join(" ")).collect()
    }

    /// Returns the next field of the only line that starts with these words.
    fn number(&self, words: &str) -> f64 {
        let prefix = format!("{words} ");
        let found: Vec<_> = self.lines.lines().filter_map(|l| l.strip_prefix(&prefix)).collect();
        assert_eq!(found.len(), 1, "{words}:\n{}", self.lines);
        found[0].split(' ').next().unwrap().parse().unwrap()
    }

    /// Returns this number of the statistics, over all phases.
    fn total(&self, what: &str) -> u64 {
        let phases = self.stats["phases"].as_object().unwrap();
        phases.values().map(|phase| phase[what].as_u64().unwrap()).sum()
    }
}

/// The loops of `examples/kernel/src/demos/loops.rs`: name, instructions, branches, counted by hand. The call and the
/// RET, which an empty function also executes, are not counted.
const LOOPS: [(&str, u32, u32); 4] = [
    // MOV; 1000 times DEC, JNZ. Branches: each JNZ, the last one too, which is not taken.
    ("count_down", 1 + 1000 * 2, 1000),
    // 100 times NOP.
    ("straight", 100, 0),
    // MOV; 100 times CALL, RET, DEC, JNZ. Branches: all of these but DEC.
    ("calls", 1 + 100 * 4, 100 * 3),
    // MOV; 100 times TEST, JZ, DEC, JNZ; and NOP for the 50 odd numbers from 100 to 1, where JZ is not
    // taken. Branches: each JZ and each JNZ.
    ("alternating", 1 + 100 * 4 + 50, 100 * 2),
];

#[test]
fn exact_counts_are_those_counted_by_hand() {
    let Some(kernel) = kernel() else { return };
    let of = |source: &str, known: fn(&(&str, u32, u32)) -> u32| {
        LOOPS.map(|counted| format!("{source} {} {}", counted.0, known(&counted)))
    };
    let expected = [
        of("ProfileTotalIssues", |(_, instructions, _)| *instructions),
        of("ProfileBranchInstructions", |(_, _, branches)| *branches),
    ]
    .concat();
    for pmu in [INTEL, AMD] {
        let Some(run) = Run::exact(&kernel, pmu, "exact") else { return };
        let counted: Vec<_> = run.fields("count").iter().map(|line| line[..3].join(" ")).collect();
        assert_eq!(counted, expected, "{pmu}");
    }
}

/// Versions 2 and 5 of Intel's PMU, and the two of AMD's that differ most.
const ONE_OF_EACH: [&str; 4] =
    ["intel:version=2,gp=4", "intel:version=5,gp=8,fixed=4", "amd:legacy", AMD];

/// A raw event and the fixed counter's, over the loop `count_down`; what ring 3 executes, and what it reads by
/// RDPMC itself; and two threads that take turns at ring 3.
#[test]
fn events_are_counted_exactly() {
    let Some(kernel) = kernel() else { return };
    let (_, count_down, _) = LOOPS[0];
    let [raw, fixed] = ["raw", "fixed"].map(|event| format!("{event} count_down {count_down}"));
    // The program `measure` of `examples/kernel/src/demos/programs.rs`, with 1000 turns of DEC, JNZ and with 1.
    let user = format!("user {0} rdpmc {0}", (1000 - 1) * 2);
    // The program `count_down`: MOV; each time DEC, JNZ; and JMP to the next turn.
    let (first, second) = (3 * (1 + 1000 * 2) + 2, 2 * (1 + 300 * 2) + 1);
    let threads =
        [format!("0 turns 3 instructions {first}"), format!("1 turns 2 instructions {second}")];
    for pmu in ONE_OF_EACH {
        let Some(run) = Run::exact(&kernel, pmu, "exact events") else { return };
        let fixed = if pmu.starts_with("intel") { &fixed } else { "fixed none" };
        let events = run.lines_of("event");
        assert_eq!(events[..3], [&raw, fixed, &user], "{pmu}");
        // Two loops, of 1000 turns and of 1, before ring 3 reads from another counter than it was about to.
        let moved = run.number("event moved");
        let read = run.number(&format!("event moved {moved} rdpmc"));
        assert!((2002.0..2502.0).contains(&read), "{pmu}: {}", events[3]);
        assert_eq!(events[4], "hidden none", "{pmu}");
        assert_eq!(run.lines_of("thread"), threads, "{pmu}");
        assert_eq!(run.lines_of("watchdog")[1..], ["processor 0 stuck"], "{pmu}");
    }
}

/// The loop `calls` of `examples/kernel/src/demos/loops.rs`: a call of one return, and a jump back. So before each
/// place of the loop there is one branch, and before each branch one other; none is the handler's.
#[test]
fn the_branches_before_a_sample_are_those_of_the_listing() {
    let Some(kernel) = kernel() else { return };
    let before = |place: &str| match place {
        "call" => "back to call",
        "leaf" => "call to leaf",
        "returned" | "back" | "end" => "leaf to returned",
        other => panic!("{other}"),
    };
    for (pmu, depth) in [("intel:version=4,gp=8,full-width,lbr", 32), ("amd:v2,lbr", 16)] {
        for count in ["step", "time"] {
            let arguments = ["--count", count, "--append", "events"];
            let Some(run) = Run::stepped(&kernel, pmu, &arguments) else { return };
            let sample = run.lines_of("branches");
            let [sample] = &sample[..] else { panic!("{pmu}: {sample:?}") };
            let place = sample.strip_prefix("at ").and_then(|rest| rest.split(' ').next()).unwrap();
            let expected = format!("at {place} records {depth} of {depth} freeze true");
            assert_eq!(*sample, expected, "{pmu} {count}");
            let mut place = place.to_owned();
            let records = run.lines_of("branch");
            assert_eq!(records.len(), depth, "{pmu} {count}");
            for (number, record) in records.iter().enumerate() {
                assert_eq!(record, before(&place), "{pmu} {count} record {number}");
                place = record.split(' ').next().unwrap().into();
            }
        }
    }
    // Without records, the rest of the run is the same.
    let run = Run::new(&kernel, AMD, &["--append", "events"]);
    assert_eq!(run.lines_of("branches"), ["none: not declared by the processor"]);
}

/// The loop `calls` of `examples/kernel/src/demos/loops.rs`: its call stores the address to which its leaf's return
/// jumps, and its last jump leads back. The end, which is sampled rarely, returns to the caller.
#[test]
fn sampled_ops_of_a_known_loop_are_those_of_the_listing() {
    let Some(kernel) = kernel() else { return };
    let pmu = "amd:v2,ibs";
    for (count, words) in [("step", "exact events"), ("time", "events")] {
        let arguments = ["--x2apic", "--count", count, "--append", words];
        let Some(run) = Run::stepped(&kernel, pmu, &arguments) else { return };
        let samples = run.fields("op");
        assert!(!samples.is_empty(), "{count}: {:?}", run.lines_of("ops"));
        let mut stack = None;
        for sample in &samples {
            let [place, "access", access, "at", address, "to", target] = sample[..] else {
                panic!("{count}: {sample:?}")
            };
            match (place, access, target) {
                ("call", "store", "leaf") | ("leaf", "load", "returned") => {
                    assert_eq!(*stack.get_or_insert(address), address, "{count}: {sample:?}");
                }
                ("returned", "none", "none") | ("back", "none", "call" | "none") => {
                    assert_eq!(address, "0", "{count}: {sample:?}");
                }
                ("end", "load", "elsewhere") => {}
                _ => panic!("{count}: {sample:?}"),
            }
        }
    }
    // KVM's local APIC has no entry through which a sample could interrupt, and the rest of the run is the same.
    let run = Run::new(&kernel, pmu, &["--append", "events"]);
    assert_eq!(run.lines_of("ops"), ["none: the sampling units have no interrupt"]);
    let run = Run::new(&kernel, AMD, &["--append", "events"]);
    assert_eq!(run.lines_of("ops"), ["none"]);
}

/// The branches of the loop `calls` of `examples/kernel/src/demos/loops.rs`: its call and its leaf's return access one
/// place of the stack, and its jump leads back, or passes to the end. A record of the other instruction is wrong.
#[test]
fn precise_records_of_a_known_loop_are_of_its_branches() {
    let Some(kernel) = kernel() else { return };
    let store = "intel:version=5,gp=8,full-width,pebs";
    // The kernel tells the buffer's physical address.
    let architectural = "intel:version=6,gp=8,fixed=3,pebs=architectural";
    for (pmu, count, words) in [
        (store, "step", "exact events"),
        (store, "time", "events"),
        (architectural, "step", "exact events"),
    ] {
        let arguments = ["--count", count, "--append", words];
        let Some(run) = Run::stepped(&kernel, pmu, &arguments) else { return };
        let records = run.fields("record");
        assert!(!records.is_empty(), "{count}: {:?}", run.lines_of("precise"));
        let mut stack = None;
        for record in &records {
            let [place, "at", address, "to", next] = record[..] else {
                panic!("{count}: {record:?}")
            };
            match (place, next) {
                ("call", "leaf") | ("leaf", "returned") => {
                    assert_eq!(*stack.get_or_insert(address), address, "{count}: {record:?}");
                }
                ("back", "call" | "end") => assert_eq!(address, "0", "{count}: {record:?}"),
                ("end", "elsewhere") => {}
                _ => panic!("{count}: {record:?}"),
            }
        }
    }
    // Without records, the rest of the run is the same.
    for (pmu, why) in [
        (INTEL, "none: not declared by the processor"),
        (AMD, "none: the processor is of another vendor"),
    ] {
        let run = Run::new(&kernel, pmu, &["--append", "events"]);
        assert_eq!(run.lines_of("precise"), [why]);
    }
}

/// A counter whose event was not opened for ring 3 reads as 0 there. Leaf 7, sub-leaf 1, declares the control; kvm-pvm
/// does not show it as the monitor sets it.
#[test]
fn ring_3_reads_nothing_of_an_event_that_is_denied_to_it() {
    let Some(kernel) = kernel() else { return };
    let pmu = "intel:version=6,gp=8,fixed=3,rdpmc-user-disable";
    let Some(run) = Run::exact(&kernel, pmu, "exact events") else { return };
    let denied = &run.lines_of("event")[5];
    if denied == "denied unsupported" && Path::new("/sys/module/kvm_pvm").exists() {
        return skipped("RDPMC user disable in the kernel", "kvm-pvm shows it the host's leaf 7");
    }
    let (counted, read) = denied["denied ".len()..].split_once(" rdpmc ").unwrap();
    assert!(counted.parse::<u64>().unwrap() > 2000, "{denied}");
    assert_eq!(read, "0");
}

/// The other processor is stepped meanwhile: it is profiled, between interrupts of a second profile and of requests,
/// which are far more instructions than it executes between two of them; and the watchdog's events are its own.
#[test]
fn two_processors_are_profiled_and_counted_exactly_one_instruction_at_a_time() {
    let Some(kernel) = kernel() else { return };
    let (_, count_down, _) = LOOPS[0];
    let arguments = ["--count", "step", "--cpus", "2", "--append", "exact quick"];
    let Some(run) = Run::stepped(&kernel, ONE_OF_EACH[0], &arguments) else { return };
    assert!(run.number("samples ProfileUnhaltedCoreCycles NMI 1") > 0.0);
    assert_eq!(run.lines_of("event")[0], format!("raw count_down {count_down}"));
    assert_eq!(run.lines_of("watchdog")[1..], ["processor 1 stuck"]);
}

/// The processor that has interrupts off, and no other; while it touched the watchdog, it was well.
#[test]
fn the_watchdog_names_the_processor_that_is_stuck() {
    let Some(kernel) = kernel() else { return };
    for pmu in ONE_OF_EACH {
        let run = Run::new(&kernel, pmu, &["--cpus", "2", "--append", "events"]);
        let watchdog = run.lines_of("watchdog");
        assert!(run.number("watchdog processor 1 alive") >= 2.0, "{pmu}: {watchdog:?}");
        assert_eq!(watchdog[1..], ["processor 1 stuck"], "{pmu}");
        // By NMI, since the processor takes no vector.
        assert!(run.total("pmis_nmi") >= 3, "{pmu}");
    }
}

/// The name that every Zen has for retired instructions, and one that none has.
#[test]
fn an_event_is_counted_by_its_name_and_an_unknown_name_has_its_nearest() {
    let Some(kernel) = kernel() else { return };
    let (_, count_down, _) = LOOPS[0];
    let by_name = |name: &str| Run::exact(&kernel, AMD, &format!("exact events event={name}"));
    let Some(run) = by_name("EX_RET_INSTR") else { return };
    assert_eq!(run.lines_of("event")[2], format!("ex_ret_instr count_down {count_down}"));
    assert!(run.lines_of("nearest").is_empty());
    let Some(run) = by_name("ex_ret_instrs") else { return };
    let why = &run.lines_of("event")[2];
    assert!(why.starts_with("ex_ret_instrs none: no event has this name; nearest on zen"), "{why}");
    assert_eq!(run.lines_of("nearest")[0], "ex_ret_instr");
}

/// Sources of each meaning on Zen 3 and 4, of which every AMD guest's processor is one.
const MEANINGS: [(&str, &str); 4] = [
    ("ProfileTotalIssues", "same"),
    ("ProfileDCMiss", "nothing"),
    ("ProfileFRDispatchStalls", "other"),
    ("ProfileLSSegmentRegisterLoad", "unknown"),
];

#[test]
fn the_listing_tells_what_amds_sources_count_on_this_generation() {
    let Some(kernel) = kernel() else { return };
    let run = Run::new(&kernel, AMD, &["--append", "quick"]);
    let sources = run.fields("source");
    for (name, meaning) in MEANINGS {
        let row = sources.iter().find(|row| row[0] == name).expect(name);
        assert_eq!(row[2], meaning, "{name}");
    }
}

/// The functions of the workload execute five, three and two times as many iterations of the same loop.
const SHARES: [(&str, f64); 3] =
    [("fifty_percent", 50.0), ("thirty_percent", 30.0), ("twenty_percent", 20.0)];
const POINTS: f64 = 5.0;
const ENOUGH: f64 = 1000.0;

/// Asserts the shares of a kernel that profiles by `sources`, by time, and on the other processor by the first of
/// them.
fn shares_are_known(kernel: &OsString, pmu: &str, sources: &[&str]) {
    let run = Run::new(kernel, pmu, &["--cpus", "2"]);
    let samples = |profile: &str| {
        let samples = run.number(&format!("samples {profile}"));
        assert!(samples >= ENOUGH, "{pmu}, {profile}: {samples} samples");
        samples
    };
    let check = |profile: &str| {
        for (function, known) in SHARES {
            let share = run.number(&format!("share {profile} {function}"));
            assert!((share - known).abs() <= POINTS, "{pmu}, {profile}, {function}: {share} %");
        }
        samples(profile)
    };
    check("ProfileTime timer 0");
    let by = |delivery| sources.iter().map(|s| check(&format!("{s} {delivery} 0"))).sum::<f64>();
    let (nmis, vectors) = (by("NMI"), by("vector"));
    // The interrupts came as the kernel asked for them.
    assert!(run.total("pmis_nmi") as f64 >= nmis, "{pmu}");
    assert!(run.total("pmis_fixed") as f64 >= vectors, "{pmu}");
    // The other processor; meanwhile a second profile was started and stopped on both, which has a share
    // of its own.
    samples(&format!("{} NMI 1", sources[0]));
    assert!(run.number("restarts") > 0.0, "{pmu}");
}

/// Cycles, instructions and reference cycles, which `--count time` feeds.
#[test]
fn shares_on_intel_are_the_known_ones() {
    let Some(kernel) = kernel() else { return };
    let sources = [
        "ProfileUnhaltedCoreCycles",
        "ProfileInstructionRetired",
        "ProfileUnhaltedReferenceCycles",
    ];
    shares_are_known(&kernel, INTEL, &sources);
}

/// Instructions: the table of the AMD interface has no source for cycles.
#[test]
fn shares_on_amd_are_the_known_ones() {
    let Some(kernel) = kernel() else { return };
    shares_are_known(&kernel, AMD, &["ProfileFRRetiredx86Instructions"]);
}

/// RDMSR, WRMSR and RDPMC.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cost([u64; 3]);

impl Cost {
    /// Parses a cell of that table, like "1R 4W 1A". The monitor does not see A, an unmask of the LVT
    /// entry.
    fn from_cell(cell: &str) -> Self {
        let mut cost = [0; 3];
        for part in cell.split_whitespace() {
            let (number, kind) = part.split_at(part.len() - 1);
            let place = "RWPA".find(kind).unwrap();
            if let Some(place) = cost.get_mut(place) {
                *place = number.parse().unwrap();
            }
        }
        Self(cost)
    }

    /// Returns the accesses that the monitor counted in a phase.
    fn of_phase(run: &Run, number: &str) -> Self {
        let phase = &run.stats["phases"][number];
        assert_eq!(phase["faults"], 0, "phase {number}");
        Self(["rdmsr", "wrmsr", "rdpmc"].map(|kind| {
            let accesses = phase[kind].as_object().unwrap();
            accesses.values().map(|count| count.as_u64().unwrap()).sum()
        }))
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [r, w, p] = self.0;
        write!(f, "{r}R {w}W {p}P")
    }
}

/// Returns what a row of the table in tests/data/accesses.md has of the kernel: interrupt, switch, start.
fn costs_row(name: &str) -> [Cost; 3] {
    let table = include_str!("../../../tests/data/accesses.md");
    let start = format!("| {name} |");
    let row = table.lines().find_map(|line| line.strip_prefix(&start)).expect(name);
    let cells: Vec<_> = row.split_terminator('|').take(3).map(Cost::from_cell).collect();
    cells.try_into().expect(name)
}

/// The table is for four running counters, and the kernel runs four.
#[test]
fn register_accesses_are_those_of_the_table() {
    let Some(kernel) = kernel() else { return };
    for (pmu, words, row) in [
        ("intel:version=2,gp=4", "quick", "Intel, version 2 on"),
        ("intel:version=4,gp=8,fixed=3", "quick freeze", "Intel, version 4 on, freezing"),
        ("amd:legacy", "quick", "AMD, legacy and core extension"),
        ("amd:core", "quick", "AMD, legacy and core extension"),
        (AMD, "quick", "AMD, PerfMonV2"),
    ] {
        let run = Run::new(&kernel, pmu, &["--append", words]);
        assert_eq!(run.number("switch counters"), 4.0, "{pmu}");
        // Phases are numbered from the start on: start, switch, interrupt.
        let counted = ["3", "2", "1"].map(|phase| Cost::of_phase(&run, phase));
        assert_eq!(counted, costs_row(row), "{pmu}");
    }
}

#[test]
fn without_a_pmu_time_remains() {
    let Some(kernel) = kernel() else { return };
    let run = Run::new(&kernel, "none", &["--append", "quick"]);
    let pmu = run.fields("pmu");
    assert_eq!(pmu[0][0], "none:", "{pmu:?}");
    assert_eq!(pmu[1..], [["Default", "counters", "0", "width", "0"]]);
    assert_eq!(run.fields("source"), [["ProfileTime", "declared", "timer"]]);
    assert_eq!(run.fields("event"), [["none"]]);
    let samples = run.fields("samples");
    assert_eq!(samples.len(), 1, "{samples:?}");
    assert!(run.number("samples ProfileTime timer 0") >= 200.0);
}
