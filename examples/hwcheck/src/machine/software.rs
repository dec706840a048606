//! A software machine: `pmu-virt` in the place of a processor, kept in a folder, so that a killed process leaves it as
//! it would leave a processor. Its faults are planned.

use core::cell::RefCell;
use core::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_virt::configuration::{Configuration, CpuidRegisters, Vendor};
use pmu_virt::{EventKey, FedEvents, Feed, Mode, PmuState, Privilege, Read, VirtualPmu, Write};
use serde::{Deserialize, Serialize};

use crate::machine::interface::{Machine, Msr};
use crate::machine::workload::{Memory, Workload};

/// The properties of such a machine, and its faults. Accesses are counted from 1, over all processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Its PMU.
    pub configuration: Configuration,
    /// A bit of a register that every RDMSR shows inverted.
    pub inverted: Option<(u32, u8)>,
    /// A bit of a register that WRMSR takes though it is illegal, and drops.
    pub tolerated: Option<(u32, u8)>,
    /// A register of which every WRMSR faults.
    pub faulting: Option<u32>,
    /// A register of which every RDMSR faults.
    pub unreadable: Option<u32>,
    /// The kernel refuses every write.
    pub refuses_writes: bool,
    /// The accesses of the `msr` file that fail.
    pub failing: Option<Range<u64>>,
    /// The process is killed just before this access.
    pub killed_at: Option<u64>,
    /// Writes of another owner, each before an access: number of the access, register, and value.
    pub others: Vec<(u64, u32, u64)>,
    /// User mode may execute RDPMC.
    pub rdpmc: bool,
    /// Each run of a workload retires so many instructions more, in user mode.
    pub more_instructions: u64,
    /// Between two accesses so many of each event happen, at each privilege.
    pub between_accesses: u64,
}

impl Plan {
    /// A PMU with which nothing is wrong.
    pub const fn new(configuration: Configuration) -> Self {
        Self {
            configuration,
            inverted: None,
            tolerated: None,
            faulting: None,
            unreadable: None,
            refuses_writes: false,
            failing: None,
            killed_at: None,
            others: Vec::new(),
            rdpmc: true,
            more_instructions: 0,
            between_accesses: 0,
        }
    }

    /// The same with what `change` changes.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// A software machine in a folder: `plan.json`, `pmu` (the number of accesses, and the PMU's state), and the kernel's
/// `proc` and `sys`.
#[derive(Debug)]
pub struct Software {
    msr: SoftwareMsr,
}

#[derive(Debug)]
struct SoftwareMsr {
    folder: PathBuf,
    plan: Plan,
    events: FedEvents,
    kept: RefCell<Kept>,
    writes: RefCell<Vec<(u32, u64)>>,
}

/// The contents of the file.
#[derive(Clone, Debug)]
struct Kept {
    accesses: u64,
    pmu: VirtualPmu,
    /// The PMU's state, as it is in the file.
    state: PmuState,
    bytes: Vec<u8>,
}

impl Kept {
    fn new(pmu: VirtualPmu) -> Self {
        let state = pmu.state();
        Self { accesses: 0, pmu, state, bytes: state.to_bytes().to_vec() }
    }
}

/// The events that are fed, and how many of each a workload's body has.
struct Fed {
    key: EventKey,
    of: fn(Workload) -> u64,
}

/// Returns the events by vendor: SDM vol. 3B, table "Pre-Defined Architectural Performance Events"; AMD's PPR, "Core
/// Performance Monitor Counters".
fn fed(vendor: Vendor) -> Vec<Fed> {
    use Workload::{Chase, Loop, Misaligned, Mixed, Random};
    let instructions = |workload| match workload {
        Loop => 6,
        Random => 14,
        Chase => 5,
        Misaligned => 3,
        Mixed => 40,
    };
    let branches = |workload| if matches!(workload, Loop | Random) { 2 } else { 1 };
    let taken = |_| 1;
    let missed = |workload| u64::from(workload == Random);
    let chased = |workload| u64::from(workload == Chase);
    let cycles = |workload| if workload == Chase { 100 } else { 3 };
    let misaligned = |workload| u64::from(workload == Misaligned);
    let fed = |event, unit_mask, of| Fed { key: EventKey::general(event, unit_mask), of };
    match vendor {
        Vendor::Intel => vec![
            fed(0x3C, 0, cycles),
            fed(0xC0, 0, instructions),
            fed(0xC4, 0, branches),
            fed(0xC5, 0, missed),
            fed(0x2E, 0x41, chased),
            fed(0xC4, 0x20, taken),
        ],
        Vendor::Amd => vec![
            fed(0x76, 0, cycles),
            fed(0xC0, 0, instructions),
            fed(0xC2, 0, branches),
            fed(0xC3, 0, missed),
            fed(0xC4, 0, taken),
            fed(0x41, 0, chased),
            fed(0x47, 0, misaligned),
        ],
    }
}

impl Software {
    /// Makes a machine in a folder, which is made too.
    ///
    /// # Errors
    /// Files cannot be written, or there is no such PMU.
    pub fn create(folder: &Path, plan: Plan) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let files = [
            ("proc/sys/kernel/osrelease", "6.12.0-software\n"),
            ("proc/sys/kernel/nmi_watchdog", "0\n"),
            ("proc/cpuinfo", "processor\t: 0\nmicrocode\t: 0x1\n"),
            ("proc/interrupts", "            CPU0\nLOC:        100   Local timer interrupts\n"),
            ("proc/meminfo", "MemAvailable:    1024 kB\n"),
            ("sys/module/msr/parameters/allow_writes", "default\n"),
            ("sys/kernel/security/lockdown", "[none] integrity confidentiality\n"),
            ("sys/bus/event_source/devices/cpu/rdpmc", "1\n"),
        ];
        for (path, text) in files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(path, text)?;
        }
        fs::write(folder.join("plan.json"), serde_json::to_vec(&plan).map_err(content_error)?)?;
        let pmu = VirtualPmu::new(plan.configuration, FedEvents::NONE).map_err(io::Error::other)?;
        fs::write(folder.join("pmu"), bytes(&Kept::new(pmu)))?;
        Self::open(folder)
    }

    /// Opens the machine in a folder.
    ///
    /// # Errors
    /// There is none.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let plan = fs::read(folder.join("plan.json"))?;
        let plan: Plan = serde_json::from_slice(&plan).map_err(content_error)?;
        let keys: Vec<_> = fed(plan.configuration.vendor()).iter().map(|fed| fed.key).collect();
        let events = FedEvents::new(&keys).map_err(io::Error::other)?;
        let pmu = VirtualPmu::new(plan.configuration, events).map_err(io::Error::other)?;
        let msr = SoftwareMsr {
            folder: folder.to_owned(),
            plan,
            events,
            kept: RefCell::new(Kept::new(pmu)),
            writes: RefCell::new(Vec::new()),
        };
        msr.load()?;
        Ok(Self { msr })
    }

    /// Every write that this process made, in order: the register and the value.
    pub fn writes(&self) -> Vec<(u32, u64)> {
        self.msr.writes.borrow().clone()
    }

    /// The number of accesses.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn accesses(&self) -> io::Result<u64> {
        self.msr.load()?;
        Ok(self.msr.kept.borrow().accesses)
    }

    /// The PMU's registers.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn state(&self) -> io::Result<PmuState> {
        self.msr.load()?;
        Ok(self.msr.kept.borrow().pmu.state())
    }

    /// Sets a register, as a predecessor left it.
    ///
    /// # Errors
    /// The folder cannot be written, or the register cannot hold the value.
    pub fn set(&self, register: u32, value: u64) -> io::Result<()> {
        self.msr.load()?;
        let answer = self.msr.kept.borrow_mut().pmu.host_write(register, value).answer;
        match answer {
            Write::Done | Write::Shared { .. } => self.msr.store(),
            refused => Err(io::Error::other(format!("{register:#x}: {refused:?}"))),
        }
    }
}

fn bytes(kept: &Kept) -> Vec<u8> {
    [&kept.accesses.to_le_bytes()[..], &kept.bytes].concat()
}

impl SoftwareMsr {
    /// Reads what another process may have changed.
    fn load(&self) -> io::Result<()> {
        let bytes = fs::read(self.folder.join("pmu"))?;
        let (accesses, state) = bytes.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
        let mut kept = self.kept.borrow_mut();
        kept.accesses = u64::from_le_bytes(*accesses);
        if kept.bytes != state {
            let read = PmuState::from_bytes(state).map_err(io::Error::other)?;
            kept.pmu = VirtualPmu::restore(&read, self.plan.configuration, self.events)
                .map_err(io::Error::other)?;
            (kept.state, kept.bytes) = (read, state.to_owned());
        }
        Ok(())
    }

    /// Writes the file by one call, so that a process that is killed leaves it whole.
    fn store(&self) -> io::Result<()> {
        let kept = &mut *self.kept.borrow_mut();
        let state = kept.pmu.state();
        if state != kept.state {
            (kept.state, kept.bytes) = (state, state.to_bytes().to_vec());
        }
        let file = fs::OpenOptions::new().write(true).open(self.folder.join("pmu"))?;
        file.write_all_at(&bytes(kept), 0)
    }

    /// An access of the `msr` file.
    fn access<T>(
        &self,
        access: impl FnOnce(&mut VirtualPmu) -> Result<T, AccessErrorKind>,
    ) -> Result<T, AccessErrorKind> {
        self.load().map_err(|_| AccessErrorKind::Other)?;
        let answer = {
            let kept = &mut *self.kept.borrow_mut();
            kept.accesses += 1;
            if self.plan.killed_at == Some(kept.accesses) {
                self.store_killed(kept);
            }
            for (at, register, value) in &self.plan.others {
                if *at == kept.accesses {
                    let _ = kept.pmu.write(*register, *value);
                }
            }
            if self.plan.between_accesses != 0 {
                let both = [Privilege::User, Privilege::Kernel];
                self.happen(&mut kept.pmu, &both, |_| self.plan.between_accesses);
            }
            match &self.plan.failing {
                Some(failing) if failing.contains(&kept.accesses) => {
                    Err(AccessErrorKind::Unreachable)
                }
                _ => access(&mut kept.pmu),
            }
        };
        self.store().map_err(|_| AccessErrorKind::Other)?;
        answer
    }

    /// So many of each event happen.
    fn happen(&self, pmu: &mut VirtualPmu, privileges: &[Privilege], count: impl Fn(&Fed) -> u64) {
        let mut feed = Feed::new(&self.events);
        for fed in fed(self.plan.configuration.vendor()) {
            if let Some(event) = self.events.find(fed.key) {
                for privilege in privileges {
                    let _ = feed.add(event, *privilege, count(&fed));
                }
            }
        }
        let _ = pmu.advance_through(&mut feed);
    }

    fn store_killed(&self, kept: &Kept) {
        let _ = fs::write(self.folder.join("pmu"), bytes(kept));
        // SAFETY: this process ends here.
        unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
    }

    fn of_register(&self, of: Option<(u32, u8)>, register: u32) -> u64 {
        of.filter(|(of, _)| *of == register).map_or(0, |(_, bit)| 1 << (bit % 64))
    }
}

impl RegisterBackend for SoftwareMsr {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.update(RegisterUpdate::read(address.get()))
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.writes.borrow_mut().push((address.get(), value));
        self.access(|pmu| {
            if self.plan.refuses_writes {
                return Err(AccessErrorKind::Unreachable);
            }
            if self.plan.faulting == Some(address.get()) {
                return Err(AccessErrorKind::Fault);
            }
            let value = value & !self.of_register(self.plan.tolerated, address.get());
            match pmu.write(address.get(), value).answer {
                Write::Done | Write::Shared { .. } => Ok(()),
                Write::GeneralProtection | Write::Unhandled => Err(AccessErrorKind::Fault),
            }
        })
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.load().map_err(|_| AccessErrorKind::Other)?;
        let user = Mode { cpl: 3, pce: self.plan.rdpmc, protected: true };
        value(self.kept.borrow().pmu.read_counter(index.get(), user))
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        if update.apply(0).is_some() || update.apply(u64::MAX).is_some() {
            return Err(AccessErrorKind::Unreachable);
        }
        let inverted = self.of_register(self.plan.inverted, update.register());
        self.access(|pmu| match self.plan.unreadable == Some(update.register()) {
            true => Err(AccessErrorKind::Fault),
            false => value(pmu.read(update.register())).map(|value| value ^ inverted),
        })
    }
}

fn value(read: Read) -> Result<u64, AccessErrorKind> {
    match read {
        Read::Value(value) | Read::Shared { value, .. } => Ok(value),
        Read::GeneralProtection | Read::Unhandled => Err(AccessErrorKind::Fault),
    }
}

impl Machine for Software {
    fn msr(&self) -> &Msr {
        &self.msr
    }

    fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegisters {
        let configuration = self.msr.plan.configuration;
        // Family 6, model 0x8F, stepping 8, with PDCM and long mode; family 19h, model 11h, stepping 1.
        let (vendor, signature): (&[u8; 12], u32) = match configuration.vendor() {
            Vendor::Intel => (b"GenuineIntel", 0x0008_06F8),
            Vendor::Amd => (b"AuthenticAMD", 0x00A1_0F11),
        };
        let word = |bytes: &[u8], place: usize| {
            let bytes = bytes.get(4 * place..4 * place + 4).and_then(|four| four.try_into().ok());
            u32::from_le_bytes(bytes.unwrap_or_default())
        };
        let brand = b"Software PMU of pmu-virt\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        let own = match leaf {
            0 => [0x0A, word(vendor, 0), word(vendor, 2), word(vendor, 1)],
            1 => [signature, 0, 1 << 15, 0],
            0x8000_0000 => [0x8000_0022, 0, 0, 0],
            0x8000_0001 => [0, 0, 0, 1 << 29],
            0x8000_0002..=0x8000_0004 => {
                let first = 4 * (leaf - 0x8000_0002) as usize;
                core::array::from_fn(|place| word(brand, first + place))
            }
            _ => [0; 4],
        };
        configuration.cpuid(leaf, subleaf, own)
    }

    fn run(&self, workload: Workload, _: &Memory, iterations: u64) {
        if self.msr.load().is_err() {
            return;
        }
        let instructions = EventKey::general(0xC0, 0);
        let count = |fed: &Fed| {
            let is_more = fed.key == instructions;
            (fed.of)(workload) * iterations
                + if is_more { self.msr.plan.more_instructions } else { 0 }
        };
        self.msr.happen(&mut self.msr.kept.borrow_mut().pmu, &[Privilege::User], count);
        let _ = self.msr.store();
    }

    fn processor(&self) -> u32 {
        0
    }

    fn root(&self) -> &Path {
        &self.msr.folder
    }

    fn is_software(&self) -> bool {
        true
    }

    fn occupy(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Wraps an error of a file's content.
pub(crate) fn content_error(error: serde_json::Error) -> io::Error {
    io::Error::other(error.to_string())
}
