//! The kernel's information on interrupts and memory: <https://docs.kernel.org/filesystems/proc.html>.

use crate::machine::interface::{Machine, kernel_file};

/// Interrupts that the kernel counted on this processor until now.
pub fn counted(machine: &dyn Machine) -> u64 {
    let text = kernel_file(machine, "proc/interrupts").unwrap_or_default();
    let name = format!("CPU{}", machine.processor());
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let Some(column) = header.split_whitespace().position(|one| one == name) else { return 0 };
    let of_line = |line: &str| line.split_whitespace().nth(1 + column)?.parse::<u64>().ok();
    lines.filter_map(of_line).fold(0, u64::saturating_add)
}

/// Bytes of memory that programs can have.
pub fn available_memory(machine: &dyn Machine) -> u64 {
    let text = kernel_file(machine, "proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::software::{Plan, Software};
    use pmu_virt::configuration::{AmdConfiguration, Configuration};

    #[test]
    fn the_column_of_the_processor_is_summed() {
        let folder =
            std::env::temp_dir().join(format!("hwcheck-interrupts-{}", std::process::id()));
        let plan = Plan::new(Configuration::Amd(AmdConfiguration::LEGACY));
        let machine = Software::create(&folder, plan).unwrap();
        let text =
            "      CPU1  CPU0\n  0:  7  40  IO-APIC  timer\nNMI:  9  2  Non-maskable\nERR:  5\n";
        std::fs::write(folder.join("proc/interrupts"), text).unwrap();
        assert_eq!(counted(&machine), 42);
        assert_eq!(available_memory(&machine), 1024 * 1024);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
