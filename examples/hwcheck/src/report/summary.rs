//! A report, for a person at a terminal.

use core::fmt::Write as _;

use crate::report::claim::{Claim, Evidence, Outcome};
use crate::report::claims::find;
use crate::report::disagreement::Disagreement;
use crate::report::whole::{MachineKind, Report};

/// The report in words.
pub fn summary(report: &Report) -> String {
    let mut text = String::new();
    let processor = &report.processor;
    let _ = writeln!(
        text,
        "processor   {} (family {:#x}, model {:#x}, stepping {})",
        plain(&processor.brand),
        processor.family,
        processor.model,
        processor.stepping
    );
    if let Some(core) = processor.core_type {
        let _ = writeln!(
            text,
            "core type   {core:#x}, of a hybrid machine: run it again with --cpu for each other type"
        );
    }
    match (report.machine, report.hypervisor.as_deref()) {
        (MachineKind::Software, _) => {
            text.push_str("machine     the software PMU: this says nothing of any processor\n");
        }
        (_, Some(hypervisor)) => {
            let _ = writeln!(
                text,
                "hypervisor  {}: a disagreement below is the hypervisor's, not the processor's",
                plain(hypervisor)
            );
        }
        _ => {}
    }
    let _ = writeln!(text, "kernel      Linux {}", plain(&report.kernel));
    let _ = writeln!(text, "seed        {}\n", report.seed);
    for claim in report.claims.iter().filter(|claim| !is_source(claim)) {
        line(&mut text, claim, report.machine);
    }
    sources(&mut text, report);
    restored(&mut text, report);
    text
}

fn is_source(claim: &Claim) -> bool {
    claim.id.starts_with("source.")
}

fn line(text: &mut String, claim: &Claim, machine: MachineKind) {
    let Evidence { compared, disagreements, unlisted, unrepeated, counts, reason } =
        &claim.evidence;
    let what = find(&claim.id).map_or("", |known| known.claim);
    let _ = write!(text, "{:<16}{:<28}{what}", claim.outcome.name(), plain(&claim.id));
    if let Some(compared) = compared {
        let _ = write!(text, " ({compared} answers)");
    }
    if let Some(reason) = reason {
        let _ = write!(text, ": {}", reason.name());
    }
    text.push('\n');
    let whose = if machine == MachineKind::Hypervisor { "hypervisor" } else { "processor" };
    for Disagreement { register, name, access, value, model, processor, manual } in disagreements {
        let written = value.map(|value| format!(" of {value}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "                  {} {register} ({}){written}: the model {model}, the {whose} {processor}; {}",
            access.name(),
            plain(name),
            plain(manual)
        );
    }
    if *unlisted != 0 {
        let _ = writeln!(text, "                  and {unlisted} more");
    }
    if *unrepeated != 0 {
        let _ = writeln!(
            text,
            "                  {unrepeated} answers disagreed once, and not when they were asked again"
        );
    }
    for count in counts {
        let known = count.known.map(|[known, _]| format!(" of {known}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "                  {}{known} in {} times of {}; {} of {} runs had more, at most {}; {} interrupts",
            count.least,
            count.iterations,
            count.workload.name(),
            count.runs_with_more,
            count.runs,
            count.greatest,
            count.interrupts
        );
    }
}

fn sources(text: &mut String, report: &Report) {
    let outcomes = [Outcome::Counts, Outcome::Silent, Outcome::SomethingElse, Outcome::NotTried];
    for outcome in outcomes {
        let of: Vec<_> = report
            .claims
            .iter()
            .filter(|claim| is_source(claim) && claim.outcome == outcome)
            .map(|claim| plain(claim.id.rsplit('.').next().unwrap_or_default()))
            .collect();
        if !of.is_empty() {
            let _ = writeln!(text, "{} sources: {}: {}", of.len(), outcome.name(), of.join(" "));
        }
        let something_else = |claim: &&Claim| {
            is_source(claim) && outcome == claim.outcome && outcome == Outcome::SomethingElse
        };
        report.claims.iter().filter(something_else).for_each(|one| line(text, one, report.machine));
    }
}

fn restored(text: &mut String, report: &Report) {
    let restored = &report.restored;
    let list = |registers: &[crate::report::hex::Hex]| {
        registers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let _ = match restored.restored {
        0 => writeln!(text, "\nNo register was changed and restored."),
        restored => writeln!(text, "\n{restored} registers that were changed are as they were."),
    };
    if !restored.disturbed.is_empty() {
        let _ = writeln!(
            text,
            "Another owner wrote these, which ended the run: {}",
            list(&restored.disturbed)
        );
    }
    if !restored.left_alone.is_empty() {
        let _ = writeln!(
            text,
            "Another owner wrote these meanwhile, and they were left alone: {}",
            list(&restored.left_alone)
        );
    }
    if !restored.failed.is_empty() {
        let _ = writeln!(text, "These could NOT be put back: {}", list(&restored.failed));
    }
    if restored.rdpmc_failed {
        text.push_str("Sysfs' rdpmc could NOT be put back: every process may execute RDPMC.\n");
    }
    if !restored.worker_ended_well {
        text.push_str("The worker ended before its end; what it had found is above.\n");
    }
}

/// A text without what a terminal would act on.
fn plain(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '?' } else { one }).collect()
}
