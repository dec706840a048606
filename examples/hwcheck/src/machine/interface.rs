//! One processor, and what its kernel tells of it.

use std::io;
use std::path::Path;

use pmu_amd::ibs::IbsOpRecord;
use pmu_core::access::{AccessErrorKind, RegisterBackend};
use pmu_core::x86::raw_cpuid::{CpuIdReader, CpuIdResult};
use pmu_virt::configuration::CpuidRegisters;

use crate::machine::workload::{Memory, Workload};

/// Registers of one processor.
pub type Msr = dyn RegisterBackend<Error = AccessErrorKind>;

/// One processor, and what its kernel tells of it.
pub trait Machine {
    /// Its registers.
    fn msr(&self) -> &Msr;

    /// CPUID.
    fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegisters;

    /// Executes a workload's body so many times.
    fn run(&self, workload: Workload, memory: &Memory, iterations: u64);

    /// Samples one op in `period` dispatched ops of this thread while `work` runs, by the kernel's driver. `None`,
    /// without running `work`, if the kernel cannot.
    fn sample_ops(&self, _period: u32, _work: &mut dyn FnMut()) -> Option<Vec<IbsOpRecord>> {
        None
    }

    /// The processor's number.
    fn processor(&self) -> u32;

    /// The folder that has `proc` and `sys`.
    fn root(&self) -> &Path;

    /// Returns whether the machine is a software PMU.
    fn is_software(&self) -> bool;

    /// Stays on the processor from here on, before others.
    ///
    /// # Errors
    /// There is no such processor, or the caller may not: it says what is lacking.
    fn occupy(&self) -> io::Result<()>;
}

/// Reads a file of the kernel's, by its path without the leading slash.
pub fn kernel_file(machine: &dyn Machine, path: &str) -> Option<String> {
    kernel_file_in(machine.root(), path)
}

/// As [`kernel_file`], in a machine's folder that has `proc` and `sys`.
pub(crate) fn kernel_file_in(root: &Path, path: &str) -> Option<String> {
    let text = std::fs::read(root.join(path)).ok()?;
    Some(String::from_utf8_lossy(&text).trim_end().to_owned())
}

/// CPUID of a machine, for [`pmu_core::x86::Snapshot`].
#[derive(Clone, Copy)]
pub struct Cpuid<'m>(pub &'m dyn Machine);

impl CpuIdReader for Cpuid<'_> {
    fn cpuid2(&self, eax: u32, ecx: u32) -> CpuIdResult {
        let [eax, ebx, ecx, edx] = self.0.cpuid(eax, ecx);
        CpuIdResult { eax, ebx, ecx, edx }
    }
}
