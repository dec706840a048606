//! Reports: what is in them, what is not, and what is made of any bytes.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod machines;

use std::path::Path;

use machines::{Folder, claim, intel};
use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_hwcheck::machine::software::{Plan, Software};
use pmu_hwcheck::machine::workload::{Memory, Workload};
use pmu_hwcheck::machine::{Machine, Msr};
use pmu_hwcheck::report::summary::summary;
use pmu_hwcheck::report::table::{escape, table};
use pmu_hwcheck::report::{
    Access, Answer, Disagreement, Evidence, Hex, MAX_BYTES, MAX_ENTRIES, MachineKind, Outcome,
    Report, ReportError,
};
use pmu_hwcheck::run::check::{Options, check};
use pmu_hwcheck::run::run_lock::RunLock;
use pmu_virt::configuration::CpuidRegisters;

const MARK: &str = "pLaNtEd";
const NUMBER: u64 = 0x00C0_FFEE_D00D;

/// A machine with marks in all places that a report must keep private.
struct Marked(Software);

impl RegisterBackend for Marked {
    type Error = AccessErrorKind;
    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.update(RegisterUpdate::read(address.get()))
    }
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.0.msr().write(address, value)
    }
    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.0.msr().read_counter(index)
    }
    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        match update.register() {
            // IA32_MISC_ENABLE, IA32_DEBUGCTL, IA32_DS_AREA, the LBR stack, LSTAR, the platform's id and PPIN.
            0x1A0 => self.0.msr().update(update).map(|value| value | NUMBER << 16),
            0x1D9 | 0x600 | 0x680..=0x6DF | 0xC000_0082 | 0x17 | 0x4F => Ok(NUMBER),
            _ => self.0.msr().update(update),
        }
    }
}

impl Machine for Marked {
    fn msr(&self) -> &Msr {
        self
    }
    fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegisters {
        let signature = |text: &[u8; 12]| {
            let word =
                |place: usize| u32::from_le_bytes(text[place..place + 4].try_into().unwrap());
            [0x4000_0001, word(0), word(4), word(8)]
        };
        match (leaf, self.0.cpuid(leaf, subleaf)) {
            (1, [a, b, c, d]) => [a, b | 0xD00D_0000, c | 1 << 31, d],
            // The processor's serial number.
            (3, _) => [0xC0, 0xFFEE_D00D, 0xFFEE_D00D, 0xC0FF],
            (0x4000_0000, _) => signature(b"KVMKVMKVM\0\0\0"),
            (_, answer) => answer,
        }
    }
    fn run(&self, workload: Workload, memory: &Memory, iterations: u64) {
        self.0.run(workload, memory, iterations);
    }
    fn processor(&self) -> u32 {
        0
    }
    fn root(&self) -> &Path {
        self.0.root()
    }
    fn is_software(&self) -> bool {
        false
    }
    fn occupy(&self) -> std::io::Result<()> {
        Ok(())
    }
}

fn plant(folder: &Folder) {
    for path in [
        "proc/sys/kernel/hostname",
        "proc/cmdline",
        "proc/version",
        "proc/sys/kernel/random/boot_id",
        "proc/uptime",
        "proc/driver/rtc",
        "proc/kallsyms",
        "proc/iomem",
        "proc/modules",
        "etc/hostname",
        "etc/machine-id",
        "sys/class/dmi/id/product_serial",
        "sys/class/dmi/id/product_uuid",
    ] {
        folder.set_file(path, &format!("{MARK} 2026-11-22 13:37:42\n"));
    }
    folder.set_file("proc/sys/kernel/osrelease", &format!("6.1.0-{MARK}-amd64\n"));
    let cpuinfo =
        format!("processor\t: 0\nserial\t: {MARK}\nmicrocode\t: 0xa20\nbogomips\t: {MARK}\n");
    folder.set_file("proc/cpuinfo", &cpuinfo);
    folder.set_file("proc/interrupts", &format!("     CPU0\n 42:  17  {MARK}-device\n"));
    folder.set_file("proc/meminfo", &format!("{MARK}: 1 kB\nMemAvailable: 2048 kB\n"));
}

fn assert_unmarked(text: &str) {
    let text = text.to_lowercase();
    for mark in [MARK.to_lowercase().as_str(), "ffeed00d", "0c0ff", "d00d", "13:37", "2026"] {
        assert!(!text.contains(mark), "{mark} in {text}");
    }
}

#[test]
fn none_of_what_was_planted_is_in_the_report_of_a_hypervisors_machine() {
    let folder = Folder::new();
    let machine = Marked(folder.machine(Plan::new(intel())));
    plant(&folder);
    let options = Options { seed: 1, programs: 1, runs: 1, read_only: true };
    let lock = RunLock::take(&machine).unwrap();
    let report = check(&machine, &lock, options).unwrap();
    assert_unmarked(&report.to_json());
    assert_unmarked(&summary(&report));
    // Permitted data is in the report.
    assert_eq!((report.machine, report.kernel.as_str()), (MachineKind::Hypervisor, "6.1.0"));
    assert_eq!(report.hypervisor.as_deref(), Some("KVMKVMKVM"));
    assert_eq!(report.processor.microcode, Some(Hex(0xA20)));
    assert_eq!((report.processor.vendor.as_str(), report.processor.stepping), ("GenuineIntel", 8));
    assert!(summary(&report).contains("is the hypervisor's"));
}

#[test]
fn none_of_what_was_planted_is_in_the_report_of_a_whole_run() {
    let folder = Folder::new();
    folder.machine(Plan::new(intel()));
    plant(&folder);
    let path = folder.0.join("report.json");
    let mut command = machines::command(&folder.0, &["--yes"]);
    for name in ["USER", "LOGNAME", "SUDO_USER", "HOSTNAME", "HOME", "SUDO_COMMAND"] {
        command.env(name, MARK);
    }
    let output = command.arg("--report").arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let json = std::fs::read_to_string(path).unwrap();
    assert_unmarked(&json);
    // It is shown whole.
    assert!(String::from_utf8(output.stdout).unwrap().contains(&json));
}

fn report() -> Report {
    let folder = Folder::new();
    let machine = folder.machine(Plan::new(intel()).with(|plan| plan.inverted = Some((0x1A0, 7))));
    let lock = RunLock::take(&machine).unwrap();
    check(&machine, &lock, Options { seed: 5, programs: 1, runs: 1, read_only: true }).unwrap()
}

#[test]
fn a_report_is_read_as_it_was_written() {
    let report = report();
    assert_eq!(Report::parse(report.to_json().as_bytes()), Ok(report));
}

#[test]
fn a_report_beyond_its_bounds_is_refused() {
    assert_eq!(Report::parse(&vec![b' '; MAX_BYTES + 1]), Err(ReportError::TooLong));
    let mut many = report();
    many.claims = vec![many.claims[0].clone(); MAX_ENTRIES + 1];
    assert!(matches!(
        Report::parse(many.to_json().as_bytes()),
        Err(ReportError::TooMuch | ReportError::TooLong)
    ));
    let mut long = report();
    long.processor.brand = "x".repeat(129);
    assert_eq!(Report::parse(long.to_json().as_bytes()), Err(ReportError::TooMuch));
    let other = report().to_json().replace("\"schema\": 1", "\"schema\": 2");
    assert_eq!(Report::parse(other.as_bytes()), Err(ReportError::Schema(2)));
    // Text that violates the schema is not a report, wherever the violation is.
    for (field, with) in [
        ("\"seed\":", "\"hostname\": \"me\", \"seed\":"),
        ("\"vendor\":", "\"serial\": 7, \"vendor\":"),
    ] {
        let more = report().to_json().replace(field, with);
        assert!(matches!(Report::parse(more.as_bytes()), Err(ReportError::Json(_))), "{with}");
    }
    // Its words do not act on the terminal.
    let named = report().to_json().replace("\"seed\":", "\"\\u001b[31m\": 1, \"seed\":");
    let error = Report::parse(named.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("[31m") && !error.contains('\x1b'), "{error}");
    for text in ["", "{}", "[]", "null", "{\"schema\": -1}", "{\"schema\": 1}"] {
        assert!(matches!(Report::parse(text.as_bytes()), Err(ReportError::Json(_))), "{text}");
    }
}

#[test]
fn what_a_later_version_says_is_kept_as_unknown() {
    let json = report()
        .to_json()
        .replace("\"model.absent\"", "\"model.quantum\"")
        .replace("\"agrees\"", "\"entangled\"")
        .replace("\"read-only\"", "\"no-mood\"");
    let report = Report::parse(json.as_bytes()).unwrap();
    assert_eq!(claim(&report, "model.quantum").outcome, Outcome::Unknown);
    let text = table(&[report]);
    assert!(text.contains("| model.quantum (unknown) | unknown |"), "{text}");
}

#[test]
fn nothing_in_a_report_acts_in_the_table_or_on_the_terminal() {
    let mut hostile = report();
    hostile.processor.brand = "<script>|\n# [x](javascript:1) `a` **b** \u{202e}\x1b[2J".to_owned();
    hostile.claims[0].id = "x|\n|y".to_owned();
    let disagreement =
        &mut hostile.claims.iter_mut().find(|claim| !claim.evidence.disagreements.is_empty());
    disagreement.as_mut().unwrap().evidence.disagreements[0].manual = "<b>|\n".to_owned();
    let text = table(&[hostile.clone()]);
    for acting in ["<script", "](", "\u{202e}", "\x1b", "<b>", "`a`"] {
        assert!(!text.contains(acting), "{acting} in {text}");
    }
    let columns = |line: &str| line.matches('|').count();
    let first = text.split("\n\n").next().unwrap();
    assert!(first.lines().all(|line| columns(line) == 3), "{first}");
    assert!(!summary(&hostile).contains('\x1b'));
    assert_eq!(escape("a<b"), "a&#60;b");
    assert_eq!(escape("to www.example.org/x"), "to www&#46;example.org/x");
}

#[test]
fn a_software_machine_is_labeled() {
    let text = table(&[report()]);
    assert!(text.contains("**software, no processor:** Software PMU of pmu-virt"), "{text}");
    assert!(text.contains("| 0x1a0 IA32&#95;MISC&#95;ENABLE |"), "{text}");
    let mut hypervisors = Report { machine: MachineKind::Hypervisor, ..report() };
    hypervisors.claims[0].evidence.unlisted = 7;
    let text = table(&[hypervisors]);
    assert!(text.contains("**hypervisor:** Software PMU of pmu-virt"), "{text}");
    assert!(text.contains("| 7 more of "), "{text}");
    assert_eq!(table(&[]), "There is no report yet.\n");
}

#[test]
fn of_many_disagreements_the_first_are_listed_and_the_others_counted() {
    let mut evidence = Evidence::default();
    for register in 0..40 {
        for _ in 0..2 {
            let listed = Disagreement {
                register: Hex(register),
                name: String::new(),
                access: Access::Rdmsr,
                value: None,
                model: Answer::GeneralProtection,
                processor: Answer::Value(0),
                manual: String::new(),
            };
            evidence.list(listed);
        }
    }
    assert_eq!((evidence.disagreements.len(), evidence.unlisted), (16, 48));
}

#[test]
fn a_folder_of_what_is_no_ordinary_file_has_no_table() {
    let folder = Folder::new();
    std::fs::write(folder.0.join("README.md"), "").unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.0.join("endless.json")).unwrap();
    let error = pmu_hwcheck::report::table::readme(&folder.0).unwrap_err().to_string();
    assert!(error.contains("endless.json: not an ordinary file"), "{error}");
}

#[test]
fn where_the_report_cannot_be_made_nothing_is_done() {
    let folder = Folder::new();
    let machine = folder.machine(Plan::new(intel()));
    // No file can be made there, by root neither.
    let mut command = machines::command(&folder.0, &["--yes", "--report", "/proc/hwcheck.json"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/proc/hwcheck.json"));
    assert_eq!(machine.accesses().unwrap(), 0);
}

#[test]
fn a_report_is_written_also_where_nothing_reads_what_is_printed() {
    let folder = Folder::new();
    let _machine = folder.machine(Plan::new(intel()));
    let file = folder.0.join("kept.json");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = machines::command(&folder.0, &["--yes"]);
    let status = command.arg("--report").arg(&file).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(Report::parse(&std::fs::read(&file).unwrap()).is_ok());
}
