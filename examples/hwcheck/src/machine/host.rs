//! This machine.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use pmu_amd::ibs::IbsOpRecord;
use pmu_virt::configuration::CpuidRegisters;

use crate::machine::cpuid::KernelCpuid;
use crate::machine::device::LinuxMsr;
use crate::machine::interface::{Machine, Msr};
use crate::machine::perf_ops::sample_ops;
use crate::machine::workload::{Memory, Workload};

/// This machine.
#[derive(Debug)]
pub struct Host {
    processor: u32,
    cpuid: KernelCpuid,
    msr: LinuxMsr,
}

impl Host {
    /// The path of a processor's registers.
    pub fn msr_path(processor: u32) -> PathBuf {
        format!("/dev/cpu/{processor}/msr").into()
    }

    /// Returns whether the registers of a processor are there, or modprobe(8) would find the module that makes them be.
    /// Nothing is loaded.
    pub fn may_open(processor: u32) -> bool {
        // An ordinary user's PATH may lack the second one's folder.
        let dry_run = |program: &&str| {
            let status = Command::new(program).args(["--dry-run", "--quiet", "msr"]).status();
            status.is_ok_and(|status| status.success())
        };
        Self::msr_path(processor).exists() || ["modprobe", "/sbin/modprobe"].iter().any(dry_run)
    }

    /// Opens the registers of a processor, for writing too if `writes`. Loads the module `msr` if it is not loaded.
    ///
    /// # Errors
    /// The file is not there, also after modprobe(8), or cannot be opened.
    pub fn open(processor: u32, writes: bool) -> io::Result<Self> {
        let path = Self::msr_path(processor);
        if !path.exists() {
            let _ = Command::new("modprobe").arg("msr").status();
        }
        let cpuid = KernelCpuid::of(processor);
        Ok(Self { processor, cpuid, msr: LinuxMsr::open(&path, writes)? })
    }
}

/// Stays on a processor from here on.
///
/// # Errors
/// There is no such processor, or the caller may not.
pub fn stay_on(processor: u32) -> io::Result<()> {
    // SAFETY: a zeroed set is an empty one; CPU_SET checks its bounds.
    let set = unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        if processor >= libc::CPU_SETSIZE as u32 {
            return Err(io::ErrorKind::NotFound.into());
        }
        libc::CPU_SET(processor as usize, &mut set);
        set
    };
    // SAFETY: the set lives during the call.
    checked(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) })
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Machine for Host {
    fn msr(&self) -> &Msr {
        &self.msr
    }

    fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegisters {
        self.cpuid.read(leaf, subleaf)
    }

    fn run(&self, workload: Workload, memory: &Memory, iterations: u64) {
        workload.execute(memory, iterations);
    }

    fn sample_ops(&self, period: u32, work: &mut dyn FnMut()) -> Option<Vec<IbsOpRecord>> {
        sample_ops(self.root(), period, work)
    }

    fn processor(&self) -> u32 {
        self.processor
    }

    fn root(&self) -> &Path {
        Path::new("/")
    }

    fn is_software(&self) -> bool {
        false
    }

    fn occupy(&self) -> io::Result<()> {
        stay_on(self.processor)?;
        // The worker has the one below.
        let first = libc::sched_param { sched_priority: 2 };
        // SAFETY: the parameter lives during the call.
        let set = checked(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &first) });
        set.map_err(|error| {
            let lacks = "it needs CAP_SYS_NICE, which root in a container may lack";
            io::Error::new(error.kind(), format!("real-time priority: {error}; {lacks}"))
        })
    }
}
