//! The virtual machine: its creation, its run on one thread per processor, and its end.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use kvm_bindings::{
    CpuId, KVM_CAP_PMU_CAPABILITY, KVM_CAP_X86_USER_SPACE_MSR, KVM_MAX_CPUID_ENTRIES,
    KVM_MSR_EXIT_REASON_FILTER, KVM_MSR_EXIT_REASON_INVAL, KVM_MSR_EXIT_REASON_UNKNOWN,
    KVM_PIT_SPEAKER_DUMMY, KVM_PMU_CAP_DISABLE, kvm_enable_cap, kvm_pit_config, kvm_regs,
    kvm_segment, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use pmu_virt::{Configuration, VirtualPmu};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::boot::{Image, Request, Start, low};
use crate::cli::{self, Count, Options, StatsFormat, say};
use crate::count::perf::{Perf, PerfEvents};
use crate::count::step::Step;
use crate::count::time::Time;
use crate::count::{self, Fed, Quantity, Source};
use crate::deviating::{Deviating, Observable};
use crate::error::Error;
use crate::inverted::Inverted;
use crate::ports::Ports;
use crate::processor::{Debugging, Processor, Report};
use crate::rendezvous::Rendezvous;
use crate::stats::Stats;
use crate::{guest, guest_cpuid, kick, mptable, msr, offered, pvm};

/// The guest's way of ending the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By writing this to isa-debug-exit.
    DebugExit(u8),
    /// By this other action.
    Orderly(&'static str),
}

/// State that the processors share.
pub(crate) struct Machine {
    pub(crate) vm: VmFd,
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) ports: Ports,
    /// The guest has a PMU.
    pub(crate) has_pmu: bool,
    /// The host's KVM is kvm-pvm.
    pub(crate) kvm_pvm: bool,
    /// The numbers of KVM's model-specific registers.
    pub(crate) registers: Vec<u32>,
    /// The processors that are in the guest.
    pub(crate) rendezvous: Rendezvous,
    stopping: AtomicBool,
    reports: Vec<Report>,
}

impl Machine {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn processors(&self) -> usize {
        self.reports.len()
    }

    /// Records whether a processor is parked.
    pub(crate) fn report(&self, number: u8, parked: bool) {
        if let Some(report) = self.reports.get(usize::from(number)) {
            report.answer(parked);
        }
    }
}

/// A thread that runs a processor, and returns its statistics.
type ProcessorThread = JoinHandle<Stats>;

/// A processor's result when it ends the machine.
type Verdict = Result<End, Error>;

/// Interval at which the processors report whether they are parked. If all are parked twice in a row, the guest is
/// over.
const QUESTION: Duration = Duration::from_millis(100);

/// Limit of `--count step` on KVM with hardware virtualization, which is untried.
const NOT_EXACT: &str = "not exact where handlers of interrupts and exceptions run";

/// Time that the processors' threads have to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Creates the machine, runs it, and prints the statistics that the options request.
pub(crate) fn run(
    options: &Options,
    configuration: Configuration,
    image: &Image<'_>,
    request: &Request<'_>,
    timeout: Option<Duration>,
) -> Verdict {
    let quantities = count::quantities(options.count)?;
    let pmu = with_events_of(configuration, &quantities);
    announce(options, &pmu, &quantities, image);
    kick::install().map_err(Error::system("sigaction"))?;
    let kvm = Kvm::new().map_err(|error| Error::NoKvm(error.into()))?;
    let machine = Arc::new(machine(&kvm, options, &pmu)?);
    let start = image.load(&machine.memory, request).map_err(Error::Memory)?;
    mptable::write(&machine.memory, options.cpus).map_err(|_| Error::Kvm {
        operation: "the MP table",
        error: std::io::ErrorKind::StorageFull.into(),
    })?;

    let supported = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(Error::kvm("KVM_GET_SUPPORTED_CPUID"))?;
    let mut vcpus = Vec::new();
    for number in 0..options.cpus {
        let pmu = options.deviation.map_or(pmu, |one| one.configuration(pmu, number));
        vcpus.push(vcpu(&machine.vm, options, &pmu, &supported, number)?);
    }
    set_start(&vcpus[0], start, options.x2apic)?;
    // As the guest sees it: kvm-pvm adds bits of the host's.
    let seen = vcpus[0].get_cpuid2(KVM_MAX_CPUID_ENTRIES).map_err(Error::kvm("KVM_GET_CPUID2"))?;
    let pmu = with_qualifiers_of(pmu, &seen);

    let (sender, receiver) = channel();
    let threads: Vec<_> = (0..)
        .zip(vcpus)
        .map(|(number, vcpu)| {
            let plan = Plan {
                number,
                pmu: options.deviation.map_or(pmu, |one| one.configuration(pmu, number)),
                seen: seen.clone(),
                count: options.count,
                quantities: quantities.clone(),
                frequency: options.frequency,
                rate: options.rate,
                inverted: options.invert,
                deviation: options.deviation,
            };
            spawn(Arc::clone(&machine), vcpu, plan, sender.clone())
        })
        .collect::<Result<_, _>>()?;
    drop(sender);
    if options.input {
        receive(&machine)?;
    }
    let verdict = wait(&machine, &threads, &receiver, timeout);
    machine.stopping.store(true, Ordering::Relaxed);
    threads.iter().map(JoinHandleExt::as_pthread_t).for_each(kick::kick);
    let (stats, all) = join(threads);
    if all {
        machine.ports.flush();
    }
    if let stops @ 1.. = stats.all_unreconciled() {
        let (plural, are) = if stops == 1 { ("", "is") } else { ("s", "are") };
        say(&format_args!(
            "--count step is not exact: {stops} stop{plural} of the guest {are} not where its \
             instructions lead, and what it executed before is not counted"
        ));
    }
    match options.stats {
        Some(StatsFormat::Table) => cli::print(&stats),
        Some(StatsFormat::Json) => cli::print(&serde_json::to_string(&stats).unwrap_or_default()),
        None => {}
    }
    verdict
}

/// Returns the guest's PMU without the events that are not fed, where CPUID can express that.
fn with_events_of(configuration: Configuration, fed: &[Quantity]) -> Configuration {
    let available = fed.iter().fold(0, |bits, what| bits | what.architectural());
    match configuration {
        Configuration::Intel(pmu) => {
            Configuration::Intel(pmu.with(|intel| intel.events = pmu.events & available))
        }
        other => other,
    }
}

/// Returns the guest's PMU with the qualifiers of event selects that its CPUID announces, by TSX or SVM, though the
/// monitor hides it: a driver that goes by CPUID would have #GP, or count without the qualifier.
fn with_qualifiers_of(configuration: Configuration, seen: &CpuId) -> Configuration {
    // Leaf 7, EBX: 4 HLE, 11 RTM. Leaf 0x8000_0001, ECX: 2 SVM.
    let sees_tsx = offered::leaf(seen, 7, 0)[1] & (1 << 4 | 1 << 11) != 0;
    let sees_svm = offered::leaf(seen, 0x8000_0001, 0)[2] & 1 << 2 != 0;
    let (feature, bits) = match configuration {
        Configuration::Intel(intel) if sees_tsx && !intel.transactional => {
            ("TSX", "IN_TX and IN_TXCP")
        }
        Configuration::Amd(amd) if sees_svm && !amd.guest_host => ("SVM", "GuestOnly and HostOnly"),
        _ => return configuration,
    };
    say(&format_args!(
        "this KVM shows the guest {feature}: event selects have {bits}, and count nothing with them"
    ));
    match configuration {
        Configuration::Intel(intel) => {
            Configuration::Intel(intel.with(|intel| intel.transactional = true))
        }
        Configuration::Amd(amd) => Configuration::Amd(amd.with(|amd| amd.guest_host = true)),
        hidden => hidden,
    }
}

/// Prints the source of each event, so that none is mistaken for another.
fn announce(options: &Options, pmu: &Configuration, fed: &[Quantity], image: &Image<'_>) {
    say(&format_args!("{} by {}", options.kernel.display(), image.protocol()));
    if let Configuration::Hidden(_) = pmu {
        say(&"no PMU");
        return;
    }
    let source = match options.count {
        Count::Time => format!(
            "the time the guest ran, at nominally {} MHz, {} instructions in 1000 cycles",
            options.frequency, options.rate
        ),
        Count::Step => format!(
            "single steps: instructions and branches are {}, a cycle is an instruction",
            if pvm::is_there() { "exact" } else { NOT_EXACT }
        ),
        Count::Perf => "the host's counters".into(),
    };
    let known = |what: &&Quantity| !what.keys(pmu.vendor()).is_empty();
    let names = |quantities: &mut dyn Iterator<Item = &Quantity>| {
        quantities.filter(known).map(|what| what.name()).collect::<Vec<_>>().join(", ")
    };
    say(&format_args!("PMU {}, counting {source}", options.pmu));
    say(&format_args!(
        "fed: {}; not fed: {}, and everything else",
        names(&mut fed.iter()),
        names(&mut Quantity::ALL.iter().filter(|what| !fed.contains(what)))
    ));
}

/// Creates a machine without processors and with empty memory.
fn machine(kvm: &Kvm, options: &Options, pmu: &Configuration) -> Result<Machine, Error> {
    let vm = kvm.create_vm().map_err(Error::kvm("KVM_CREATE_VM"))?;
    // Three pages for Intel's processors without real mode, and one more, below the local APIC.
    vm.set_identity_map_address(0xFFFB_C000).map_err(Error::kvm("KVM_SET_IDENTITY_MAP_ADDR"))?;
    vm.set_tss_address(0xFFFB_D000).map_err(Error::kvm("KVM_SET_TSS_ADDR"))?;
    // KVM's own PMU would answer in place of this one.
    if vm.check_extension_raw(KVM_CAP_PMU_CAPABILITY.into()) & KVM_PMU_CAP_DISABLE as i32 != 0 {
        enable(&vm, KVM_CAP_PMU_CAPABILITY, KVM_PMU_CAP_DISABLE, "KVM_CAP_PMU_CAPABILITY")?;
    }
    let reasons =
        KVM_MSR_EXIT_REASON_FILTER | KVM_MSR_EXIT_REASON_INVAL | KVM_MSR_EXIT_REASON_UNKNOWN;
    enable(&vm, KVM_CAP_X86_USER_SPACE_MSR, reasons, "KVM_CAP_X86_USER_SPACE_MSR")?;
    msr::intercept(&vm)?;
    vm.create_irq_chip().map_err(Error::kvm("KVM_CREATE_IRQCHIP"))?;
    let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
    vm.create_pit2(pit).map_err(Error::kvm("KVM_CREATE_PIT2"))?;
    let ports = Ports::new(&vm, options.debugcon.as_deref(), options.cpus)?;
    let memory = memory(&vm, options.memory << 20)?;
    let registers =
        kvm.get_msr_index_list().map_err(Error::kvm("KVM_GET_MSR_INDEX_LIST"))?.as_slice().to_vec();
    Ok(Machine {
        vm,
        memory,
        ports,
        has_pmu: !matches!(pmu, Configuration::Hidden(_)),
        kvm_pvm: pvm::is_there(),
        registers,
        rendezvous: Rendezvous::default(),
        stopping: AtomicBool::new(false),
        reports: (0..options.cpus).map(|_| Report::default()).collect(),
    })
}

fn enable(vm: &VmFd, cap: u32, argument: u32, name: &'static str) -> Result<(), Error> {
    let mut enable = kvm_enable_cap { cap, ..Default::default() };
    enable.args[0] = argument.into();
    vm.enable_cap(&enable).map_err(Error::kvm(name))
}

/// Maps memory from address 0 on.
fn memory(vm: &VmFd, size: u64) -> Result<GuestMemoryMmap, Error> {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), size as usize)])
        .map_err(|error| Error::Kvm { operation: "mmap", error: std::io::Error::other(error) })?;
    for (slot, region) in (0..).zip(memory.iter()) {
        let region = kvm_userspace_memory_region {
            slot,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
            flags: 0,
        };
        // SAFETY: the region is mapped until the machine is dropped, which drops the VM first.
        unsafe { vm.set_user_memory_region(region) }
            .map_err(Error::kvm("KVM_SET_USER_MEMORY_REGION"))?;
    }
    Ok(memory)
}

fn vcpu(
    vm: &VmFd,
    options: &Options,
    pmu: &Configuration,
    supported: &CpuId,
    number: u8,
) -> Result<VcpuFd, Error> {
    let vcpu = vm.create_vcpu(number.into()).map_err(Error::kvm("KVM_CREATE_VCPU"))?;
    let frequency = (options.count == Count::Time).then_some(options.frequency);
    let time_stamp = vcpu.get_tsc_khz().ok();
    let answers =
        guest_cpuid::answers(supported, pmu, frequency, time_stamp, number, options.cpus)?;
    vcpu.set_cpuid2(&answers).map_err(Error::kvm("KVM_SET_CPUID2"))?;
    Ok(vcpu)
}

/// Sets the first processor's registers as the boot protocol requires.
fn set_start(vcpu: &VcpuFd, start: Start, x2apic: bool) -> Result<(), Error> {
    /// IA32_APIC_BASE: enabled, and in x2APIC mode.
    const X2APIC: u64 = 1 << 11 | 1 << 10;
    const CR0_PE: u64 = 1;
    const CR0_ET: u64 = 1 << 4;
    const CR0_PG: u64 = 1 << 31;
    const CR4_PAE: u64 = 1 << 5;
    const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;
    // Flat segments of 4 GiB, in ring 0, accessed: code and data of 32 bits, code of 64, a busy TSS.
    let flat = |selector, descriptor| guest::segment(selector, descriptor);
    let data = flat(0x18, 0x00CF_9300_0000_FFFF);
    let task = kvm_segment { limit: 0x67, ..flat(0, 0x0000_8B00_0000_0067) };

    let mut system = vcpu.get_sregs().map_err(Error::kvm("KVM_GET_SREGS"))?;
    if x2apic {
        system.apic_base |= X2APIC;
    }
    system.cr0 = CR0_PE | CR0_ET;
    system.cs = flat(0x10, 0x00CF_9B00_0000_FFFF);
    (system.ds, system.es, system.fs, system.gs, system.ss) = (data, data, data, data, data);
    system.tr = task;
    let mut registers = kvm_regs { rflags: 0b10, ..Default::default() };
    match start {
        Start::Protected { eip, eax, ebx } => {
            (registers.rip, registers.rax, registers.rbx) = (eip.into(), eax.into(), ebx.into());
        }
        Start::Long { rip, rsi } => {
            system.cs = flat(0x10, 0x00AF_9B00_0000_FFFF);
            system.gdt.base = low::GDT;
            system.gdt.limit = 4 * 8 - 1;
            system.cr3 = low::PAGE_TABLES;
            system.cr4 |= CR4_PAE;
            system.cr0 |= CR0_PG;
            system.efer = EFER_LME_LMA;
            (registers.rip, registers.rsi) = (rip, rsi);
        }
    }
    vcpu.set_sregs(&system).map_err(Error::kvm("KVM_SET_SREGS"))?;
    vcpu.set_regs(&registers).map_err(Error::kvm("KVM_SET_REGS"))
}

/// Parts from which a processor's thread creates its processor.
struct Plan {
    number: u8,
    pmu: Configuration,
    seen: CpuId,
    count: Count,
    quantities: Vec<Quantity>,
    frequency: u16,
    rate: u16,
    inverted: Option<Inverted>,
    deviation: Option<Observable>,
}

fn spawn(
    machine: Arc<Machine>,
    vcpu: VcpuFd,
    plan: Plan,
    sender: Sender<Verdict>,
) -> Result<ProcessorThread, Error> {
    let work = move || {
        let number = plan.number;
        let made = plan.source().and_then(|source| {
            let pmu = VirtualPmu::new(plan.pmu, source.fed().events);
            let mut pmu = pmu.map_err(Error::internal)?;
            let deviating = Deviating::new(plan.deviation, &mut pmu);
            let (stats, debugging) = (Stats::default(), Debugging::default());
            let Plan { seen, inverted, .. } = plan;
            Ok(Processor {
                number,
                machine,
                vcpu,
                seen,
                pmu,
                source,
                debugging,
                stats,
                inverted,
                deviating,
            })
        });
        let (verdict, stats) = match made {
            Ok(mut processor) => (processor.run(), processor.stats),
            Err(error) => (Err(error), Stats::default()),
        };
        // The receiver is gone after the end.
        let _ = verdict.transpose().map(|verdict| sender.send(verdict));
        stats
    };
    thread::Builder::new().spawn(work).map_err(Error::system("a thread"))
}

impl Plan {
    fn source(&self) -> Result<Box<dyn Source>, Error> {
        let vendor = self.pmu.vendor();
        let fed = Fed::new(&self.quantities, vendor).map_err(Error::internal)?;
        Ok(match self.count {
            Count::Time => Box::new(Time::new(fed, self.frequency, self.rate)),
            Count::Step => Box::new(Step::new(fed)),
            Count::Perf => Box::new(Perf::new(fed, PerfEvents)),
        })
    }
}

/// Passes standard input to the serial port, on a thread that ends with the process.
fn receive(machine: &Arc<Machine>) -> Result<(), Error> {
    let machine = Arc::clone(machine);
    let work = move || {
        if let Err(error) = machine.ports.receive(std::io::stdin()) {
            say(&format_args!("standard input: {error}"));
        }
    };
    thread::Builder::new().spawn(work).map(drop).map_err(Error::system("a thread"))
}

/// Returns the statistics of the processors' threads, and whether all of them ended. One may be blocked in a write to
/// standard output: it ends with the process.
fn join(threads: Vec<ProcessorThread>) -> (Stats, bool) {
    let begin = Instant::now();
    let (mut stats, mut all) = (Stats::default(), true);
    for thread in threads {
        while !thread.is_finished() && begin.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        if !thread.is_finished() {
            all = false;
        } else if let Ok(theirs) = thread.join() {
            stats.add(theirs);
        }
    }
    (stats, all)
}

/// Waits for the end of the machine, of any kind.
fn wait(
    machine: &Machine,
    threads: &[ProcessorThread],
    receiver: &Receiver<Verdict>,
    timeout: Option<Duration>,
) -> Verdict {
    // No end, if it is beyond the clock's range.
    let end = timeout.and_then(|timeout| Some((Instant::now().checked_add(timeout)?, timeout)));
    let mut parked_before = false;
    loop {
        match receiver.recv_timeout(QUESTION) {
            Ok(verdict) => return verdict,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::internal("every processor's thread is gone"));
            }
        }
        if let Some((end, timeout)) = end
            && Instant::now() >= end
        {
            return Err(Error::Timeout { seconds: timeout.as_secs() });
        }
        let parked = machine.reports.iter().all(Report::is_parked);
        if parked && parked_before {
            return Ok(End::Orderly("halted all its processors, with interrupts off"));
        }
        parked_before = parked;
        machine.reports.iter().for_each(Report::ask);
        threads.iter().map(JoinHandleExt::as_pthread_t).for_each(kick::kick);
    }
}
