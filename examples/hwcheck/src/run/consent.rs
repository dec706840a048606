//! The operations that the user agrees to, in plain words.

use core::fmt::Write as _;
use std::io::{BufRead, Write};

use pmu_virt::configuration::Configuration;
use pmu_virt::registers::RegisterKind;

/// The text before the question.
pub fn text(configuration: &Configuration, processor: u32) -> String {
    let mut text = format!(
        "hwcheck is about to write registers of the performance-monitoring unit of processor {processor}:\n\n"
    );
    let kinds = [
        (RegisterKind::EventSelect, "event selects"),
        (RegisterKind::GeneralCounter, "general counters"),
        (RegisterKind::FixedCounter, "fixed counters"),
        (RegisterKind::FixedControl, "the fixed counters' control"),
        (RegisterKind::GlobalControl, "the global control"),
        (RegisterKind::GlobalStatusClear, "the acknowledgement of overflows"),
    ];
    for (kind, name) in kinds {
        let addresses: Vec<_> = configuration
            .registers()
            .filter(|register| register.exists && register.kind == kind)
            .map(|register| format!("{:#x}", register.address))
            .collect();
        if !addresses.is_empty() {
            let _ = writeln!(text, "  {name}: {}", addresses.join(" "));
        }
    }
    text.push_str(concat!(
        "\n",
        "No other register is written, no counter is made to interrupt, and what was changed is put back at the end, also\n",
        "where hwcheck is killed. RDPMC is allowed to every process meanwhile (sysfs' rdpmc), and the processor is kept busy\n",
        "at real-time priority. The kernel's module msr is loaded, and stays.\n",
        "\n",
        "What cannot be undone:\n",
        "  - the first write taints the kernel (S) until the next boot, and leaves lines in its log;\n",
        "  - an overflow bit that hwcheck's own counters set is acknowledged, never set again.\n",
        "What is not put back: anything, where the machine crashes, or both of hwcheck's processes are killed. No program\n",
        "can reserve counters against perf or KVM: do not use them meanwhile. A watchdog or profiler that counts is refused.\n",
    ));
    text
}

/// Asks, and returns whether the answer is yes.
pub fn ask(input: &mut impl BufRead, output: &mut impl Write) -> bool {
    let mut answer = String::new();
    let asked = write!(output, "\nDo you agree? [y/N] ").and_then(|()| output.flush());
    let is_answered = asked.is_ok() && input.read_line(&mut answer).is_ok();
    is_answered && matches!(answer.trim(), "y" | "Y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmu_virt::configuration::IntelConfiguration;

    #[test]
    fn only_yes_is_yes() {
        let answer = |text: &str| ask(&mut text.as_bytes(), &mut Vec::new());
        assert!(answer("y\n") && answer("yes\n") && answer("Y\n"));
        assert!(!answer("") && !answer("\n") && !answer("no\n") && !answer("yesterday\n"));
    }

    #[test]
    fn the_text_says_what_is_written_and_what_cannot_be_undone() {
        let text = text(&Configuration::Intel(IntelConfiguration::new(2, 2, 1)), 3);
        for part in [
            "processor 3",
            "0x186 0x187",
            "0x38d",
            "0x390",
            "taints the kernel (S)",
            "log",
            "crashes",
            "sysfs' rdpmc",
        ] {
            assert!(text.contains(part), "{part}");
        }
        for never in ["0x391", "0x1d9", "0x3f1", "0x600"] {
            assert!(!text.contains(never), "{never}");
        }
    }
}
