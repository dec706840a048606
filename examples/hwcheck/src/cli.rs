//! The command line.

use std::env;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, fchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use pmu_virt::configuration::{
    AmdConfiguration, Configuration, CpuidRegisters, IntelConfiguration,
};

use crate::machine::cpuid::{KernelCpuid, native_cpuid};
use crate::machine::host::{Host, stay_on};
use crate::machine::interface::Machine;
use crate::machine::software::{Plan, Software};
use crate::registers::access::read;
use crate::report::bounds::MAX_BYTES;
use crate::report::claim::Outcome;
use crate::report::decode::decode;
use crate::report::summary::summary;
use crate::report::table;
use crate::report::whole::Report;
use crate::run::check::{CheckError, Options, at_most, check, configuration};
use crate::run::consent;
use crate::run::refusal::{Refusal, check_counters, check_kernel};
use crate::run::run_lock::{LockError, RunLock};

/// Exit statuses.
const REFUSED: u8 = 3;
const DISAGREES: u8 = 4;
const NOT_RESTORED: u8 = 5;

/// Compares this machine's performance-monitoring unit with what the pmu crates claim of it.
#[derive(Debug, Parser)]
#[command(
    name = "hwcheck",
    version,
    after_help = "Exit status: 0 all claims hold; 1 an error; 2 usage; 3 refused, nothing was written; 4 something disagrees; 5 a register, or sysfs' rdpmc, could not be put back."
)]
struct Arguments {
    /// Writes the report to FILE, which must not be there yet
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The processor to check: on hybrid machines, one of each core type in turn (/sys/devices/cpu_core/cpus and
    /// cpu_atom/cpus list them)
    #[arg(long, value_name = "N", default_value_t = 0)]
    cpu: u32,
    /// Does what needs no write
    #[arg(long)]
    read_only: bool,
    /// Agrees to what is written, without being asked
    #[arg(long)]
    yes: bool,
    /// The seed of the programs
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// The number of programs
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    programs: u32,
    /// Runs of each workload
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Checks the software PMU in place of this machine: a trial of the tool
    #[arg(long, value_name = "VENDOR", value_enum)]
    software: Option<SoftwareVendor>,
    /// Checks the software machine that is kept in a folder
    #[arg(long, value_name = "FOLDER", hide = true, conflicts_with = "software")]
    machine: Option<PathBuf>,
    /// Brings the table of a folder of reports up to date, and does nothing else
    #[arg(long, value_name = "FOLDER", exclusive = true)]
    table: Option<PathBuf>,
    /// Prints the report of the stick, of a file with the texts of its codes, one on each line, or of its serial line;
    /// -: standard input
    #[arg(long, value_name = "FILE", exclusive = true)]
    decode: Option<PathBuf>,
}

/// Vendor of the software machine's PMU.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SoftwareVendor {
    /// Version 5, eight general and four fixed counters
    Intel,
    /// PerfMonV2, six counters
    Amd,
}

/// Runs the program.
pub fn run() -> ExitCode {
    match run_with(&Arguments::parse()) {
        Ok(status) => status,
        Err(Failure::Refused(refusal)) => {
            eprintln!("hwcheck: refused: {refusal}\nhwcheck: remedy: {}", refusal.remedy());
            ExitCode::from(REFUSED)
        }
        Err(Failure::Other(error)) => {
            // A decoded file's text may be in it.
            let error = error.replace(|c: char| c.is_control() && c != '\n', "\u{FFFD}");
            eprintln!("hwcheck: {error}");
            ExitCode::FAILURE
        }
    }
}

enum Failure {
    Refused(Refusal),
    Other(String),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<CheckError> for Failure {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Refused(refusal) => Self::Refused(refusal),
            CheckError::System(error) => Self::Other(error.to_string()),
        }
    }
}

fn other(what: &str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Other(format!("{what}: {error}"))
}

fn run_with(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(folder) = &arguments.table {
        let readme = table::readme(folder).map_err(|error| Failure::Other(error.to_string()))?;
        std::fs::write(folder.join("README.md"), readme).map_err(other("README.md"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = &arguments.decode {
        let text = text(file).map_err(other(&file.display().to_string()))?;
        let report = decode(&text).map_err(|error| Failure::Other(error.to_string()))?;
        print!("{}", report.to_json());
        return Ok(ExitCode::SUCCESS);
    }
    let file = arguments.report.as_deref();
    if let Some(file) = file {
        check_place(file)?;
    }
    let machine = machine(arguments)?;
    let lock = lock(&*machine)?;
    let Arguments { seed, programs, runs, read_only, .. } = *arguments;
    // Before anything is done for it.
    let made = file.map(|file| {
        let made = OpenOptions::new().write(true).create_new(true).open(file);
        made.map_err(other(&file.display().to_string()))
    });
    let made = made.transpose()?;
    let report = check(&*machine, &lock, Options { seed, programs, runs, read_only });
    if arguments.software.is_some() {
        let _ = std::fs::remove_dir_all(machine.root());
    }
    if let (Err(_), Some(file)) = (&report, file) {
        let _ = std::fs::remove_file(file);
    }
    let report = report?;
    let written = made.map_or(Ok(()), |made| write(&report, made));
    // The report is kept, and the status right, also where nothing reads this.
    let _ = show(&report, file, &mut io::stdout());
    let status = status(&report);
    match written.map_err(other("the report cannot be written")) {
        Err(failure) if status == ExitCode::SUCCESS => return Err(failure),
        Err(Failure::Other(error)) => eprintln!("hwcheck: {error}"),
        _ => {}
    }
    Ok(status)
}

/// Reads a text of bounded length, of a file or standard input. A serial line may have bytes that are no text.
fn text(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let most = MAX_BYTES as u64 + 1;
    match file.to_str() {
        Some("-") => io::stdin().lock().take(most).read_to_end(&mut bytes)?,
        _ => File::open(file)?.take(most).read_to_end(&mut bytes)?,
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Takes the machine's lock, and names what an interrupted run left behind.
fn lock(machine: &dyn Machine) -> Result<RunLock, Failure> {
    let lock = RunLock::take(machine).map_err(|error| match error {
        LockError::AnotherRun => Refusal::AnotherRun.into(),
        LockError::System(error) => other("the lock of a run")(error),
    })?;
    if let Some(found) = lock.left_behind() {
        let configuration = configuration(machine).ok();
        let holds = |address| read(machine, configuration.as_ref()?, address).ok();
        let changes = found.changes(machine, holds);
        if !changes.is_empty() {
            let processor = found.processor;
            eprint!(
                "hwcheck: an interrupted run left changes of processor {processor}:\n{changes}"
            );
        }
    }
    Ok(lock)
}

/// Returns the machine; if the run is to write registers, the user agreed.
fn machine(arguments: &Arguments) -> Result<Box<dyn Machine>, Failure> {
    let folder = |folder: &Path| Software::open(folder).map_err(other("the software machine"));
    if let Some(path) = &arguments.machine {
        let machine = folder(path)?;
        check_machine(arguments, &machine)?;
        agree(arguments, |leaf, subleaf| machine.cpuid(leaf, subleaf))?;
        return Ok(Box::new(machine));
    }
    if let Some(vendor) = arguments.software {
        let configuration = match vendor {
            SoftwareVendor::Intel => Configuration::Intel(IntelConfiguration::new(5, 8, 4)),
            SoftwareVendor::Amd => Configuration::Amd(AmdConfiguration::perf_mon_v2(6)),
        };
        let path = env::temp_dir().join(format!("hwcheck-{}", std::process::id()));
        // A folder of its own: one that is there may lead to another's files.
        DirBuilder::new().mode(0o700).create(&path).map_err(other(&path.display().to_string()))?;
        let made = Software::create(&path, Plan::new(configuration));
        return Ok(Box::new(made.map_err(other("the software machine"))?));
    }
    let what = format!("--cpu {}: not a processor of this machine, or not allowed", arguments.cpu);
    stay_on(arguments.cpu).map_err(other(&what))?;
    let what = format!(
        "{}: {}",
        Host::msr_path(arguments.cpu).display(),
        "it needs root, CAP_SYS_RAWIO and the module msr (sudo modprobe msr; CONFIG_X86_MSR)"
    );
    // All that forbids a run and shows by itself comes before the question.
    let cpuid = KernelCpuid::of(arguments.cpu);
    if let Some(warning) = cpuid.warning(native_cpuid) {
        eprintln!("hwcheck: {warning}");
    }
    at_most(|leaf, subleaf| cpuid.read(leaf, subleaf))?;
    if !arguments.read_only {
        check_kernel(Path::new("/"))?;
    }
    if !Host::may_open(arguments.cpu) {
        return Err(other(&what)(io::ErrorKind::NotFound.into()));
    }
    // SAFETY: geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Err(by_sudo(arguments));
    }
    let open = || Host::open(arguments.cpu, !arguments.read_only).map_err(other(&what));
    if Host::msr_path(arguments.cpu).exists() {
        let host = open()?;
        check_machine(arguments, &host)?;
        agree(arguments, |leaf, subleaf| cpuid.read(leaf, subleaf))?;
        return Ok(Box::new(host));
    }
    // Before the module is loaded.
    agree(arguments, |leaf, subleaf| cpuid.read(leaf, subleaf))?;
    Ok(Box::new(open()?))
}

/// Checks that nothing forbids a run that writes, by the kernel's files and by reading registers, where the user is to
/// be asked; the run itself checks it in any case.
fn check_machine(arguments: &Arguments, machine: &dyn Machine) -> Result<(), Failure> {
    if !arguments.read_only && !arguments.yes {
        check_kernel(machine.root())?;
        check_counters(machine, &configuration(machine)?)?;
    }
    Ok(())
}

/// Asks, and runs the program again by sudo. Returns where that cannot be done.
fn by_sudo(arguments: &Arguments) -> Failure {
    let cpuid = KernelCpuid::of(arguments.cpu);
    let configuration = match at_most(|leaf, subleaf| cpuid.read(leaf, subleaf)) {
        Ok(configuration) => configuration,
        Err(refusal) => return refusal.into(),
    };
    let path = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|folder| folder.join("sudo").is_file()) {
        return Failure::Other("it needs root, and there is no sudo: run it as root".to_owned());
    }
    if arguments.read_only {
        println!("Reading registers needs root: hwcheck runs itself by sudo, and writes none.");
    } else {
        println!("{}", consent::text(&configuration, arguments.cpu));
        println!("It needs root, and runs itself by sudo.");
    }
    if !arguments.yes && !consent::ask(&mut io::stdin().lock(), &mut io::stdout()) {
        return Refusal::NotAgreed.into();
    }
    let Ok(program) = env::current_exe() else {
        return Failure::Other("its own path is not known: run it as root".to_owned());
    };
    let error = sudo(&program, env::args_os().skip(1), arguments.yes).exec();
    Failure::Other(format!("sudo: {error}; run it as root"))
}

/// The same command by sudo; the user has agreed.
fn sudo(program: &Path, arguments: impl Iterator<Item = OsString>, says_yes: bool) -> Command {
    let mut command = Command::new("sudo");
    command.arg("--").arg(program).args(arguments).args((!says_yes).then_some("--yes"));
    command
}

/// Asks, where anything is to be written and `--yes` did not agree.
fn agree(arguments: &Arguments, cpuid: impl Fn(u32, u32) -> CpuidRegisters) -> Result<(), Failure> {
    let configuration = at_most(cpuid)?;
    if arguments.read_only || arguments.yes {
        return Ok(());
    }
    println!("{}", consent::text(&configuration, arguments.cpu));
    match consent::ask(&mut io::stdin().lock(), &mut io::stdout()) {
        true => Ok(()),
        false => Err(Refusal::NotAgreed.into()),
    }
}

/// Checks that the report can be written to this file, before the run begins.
fn check_place(file: &Path) -> Result<(), Failure> {
    let failure = |what| Err(Failure::Other(format!("{}: {what}", file.display())));
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if file.symlink_metadata().is_ok() {
        failure("is there already; name another file")
    } else if folder.is_some_and(|folder| !folder.is_dir()) {
        failure("its folder is not there")
    } else {
        Ok(())
    }
}

/// Prints the summary; and all that is in the report's file, if there is one.
fn show(report: &Report, file: Option<&Path>, to: &mut impl Write) -> io::Result<()> {
    write!(to, "{}", summary(report))?;
    let Some(file) = file else { return Ok(()) };
    writeln!(
        to,
        "\nThis is all that {} has; hardware/README.md says where to send it:\n",
        file.display()
    )?;
    write!(to, "{}", report.to_json())
}

fn write(report: &Report, mut file: File) -> io::Result<()> {
    file.write_all(report.to_json().as_bytes())?;
    // By sudo, it is the user's.
    let id = |name| env::var(name).ok().and_then(|id| id.parse().ok());
    if let (Some(user), Some(group)) = (id("SUDO_UID"), id("SUDO_GID")) {
        let _ = fchown(&file, Some(user), Some(group));
    }
    Ok(())
}

fn status(report: &Report) -> ExitCode {
    let bad = [Outcome::Disagrees, Outcome::Inexact, Outcome::SomethingElse, Outcome::Disturbed];
    let disturbed = !report.restored.left_alone.is_empty();
    if !report.restored.failed.is_empty() || report.restored.rdpmc_failed {
        ExitCode::from(NOT_RESTORED)
    } else if !report.restored.worker_ended_well {
        ExitCode::FAILURE
    } else if disturbed || report.claims.iter().any(|claim| bad.contains(&claim.outcome)) {
        ExitCode::from(DISAGREES)
    } else {
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sudo_runs_the_same_command_which_agrees_once() {
        for (given, run) in [
            (
                &["--cpu", "2", "--report", "a b"][..],
                &["--cpu", "2", "--report", "a b", "--yes"][..],
            ),
            (&["--yes", "--runs", "3"], &["--yes", "--runs", "3"]),
            (&[], &["--yes"]),
        ] {
            let says_yes = given.contains(&"--yes");
            let command = sudo("/x/hwcheck".as_ref(), given.iter().map(OsString::from), says_yes);
            assert_eq!(command.get_program(), "sudo");
            let arguments: Vec<_> = command.get_args().collect();
            assert_eq!(arguments, [&["--", "/x/hwcheck"], run].concat());
        }
    }
}
