//! A run of the machine, from its creation to its end.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::Kvm;

use crate::boot::image::{Image, Request};
use crate::boot::{acpi, mptable};
use crate::count::choice::Choice;
use crate::error::Error;
use crate::guest_pmu::spec::GuestPmu;
use crate::machine::announced::{
    announce, tell_hidden, with_events_of, with_qualifiers_of, with_records_of,
};
use crate::machine::create::{machine, set_cpuid, vcpu};
use crate::machine::start::set_start;
use crate::machine::thread::{Plan, ProcessorThread, Verdict, spawn};
use crate::messages::{print, say};
use crate::options::{Options, StatsFormat};
use crate::shared::end::End;
use crate::shared::machine::Machine;
use crate::shared::report::Report;
use crate::stats::Stats;
use crate::vcpu::kick;

/// Interval at which the processors report whether they are parked. If all are parked twice in a row, the guest is
/// over.
const QUESTION: Duration = Duration::from_millis(100);

/// Time that the processors' threads have to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Creates the machine, runs it, and prints the statistics that the options request.
pub(crate) fn run(
    options: &Options,
    mut guest_pmu: GuestPmu,
    image: &Image<'_>,
    request: &Request<'_>,
    timeout: Option<Duration>,
) -> Verdict {
    let choice = Choice::of(options, &guest_pmu)?;
    let pmu = with_events_of(guest_pmu.counters, &choice.quantities);
    announce(options, &pmu, &choice.quantities, image);
    kick::install().map_err(Error::system("sigaction"))?;
    let kvm = Kvm::new().map_err(|error| Error::NoKvm(error.into()))?;
    let machine = Arc::new(machine(&kvm, options, &pmu, image)?);
    let start = image.load(&machine.memory, request).map_err(Error::Memory)?;
    mptable::write(&machine.memory, options.cpus).map_err(|_| Error::Kvm {
        operation: "the MP table",
        error: std::io::ErrorKind::StorageFull.into(),
    })?;
    acpi::write(&machine.memory, options.cpus).map_err(|_| Error::Kvm {
        operation: "ACPI's tables",
        error: std::io::ErrorKind::StorageFull.into(),
    })?;

    let supported = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(Error::kvm("KVM_GET_SUPPORTED_CPUID"))?;
    let mut vcpus = Vec::new();
    for number in 0..options.cpus {
        vcpus.push(vcpu(&machine.vm, number)?);
    }
    let show = |guest_pmu: GuestPmu| {
        for (number, vcpu) in (0..).zip(&vcpus) {
            let pmu = options.deviation.map_or(pmu, |one| one.configuration(pmu, number));
            set_cpuid(
                vcpu,
                options,
                (&pmu, &guest_pmu.facilities(&pmu, options.deviation)),
                &supported,
                number,
            )?;
        }
        // As the guest sees it: kvm-pvm adds bits of the host's.
        vcpus[0].get_cpuid2(KVM_MAX_CPUID_ENTRIES).map_err(Error::kvm("KVM_GET_CPUID2"))
    };
    let mut seen = show(guest_pmu)?;
    if let Some(other) = with_records_of(guest_pmu, &seen) {
        guest_pmu = other;
        seen = show(guest_pmu)?;
    }
    tell_hidden(&guest_pmu, &seen);
    // After CPUID, which says whether the local APIC has x2APIC mode.
    set_start(&vcpus[0], start, options.x2apic)?;
    let pmu = with_qualifiers_of(pmu, &seen);

    let (sender, receiver) = channel();
    let threads: Vec<_> = (0..)
        .zip(vcpus)
        .map(|(number, vcpu)| {
            let pmu = options.deviation.map_or(pmu, |one| one.configuration(pmu, number));
            let plan = Plan {
                number,
                pmu,
                facilities: guest_pmu.facilities(&pmu, options.deviation),
                seen: seen.clone(),
                choice: choice.clone(),
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
    if let Some(trace) = &machine.trace {
        trace.flush();
    }
    if let stops @ 1.. = stats.all_unreconciled() {
        let (plural, are) = if stops == 1 { ("", "is") } else { ("s", "are") };
        say(&format_args!(
            "--count step is not exact: {stops} stop{plural} of the guest {are} not where its \
             instructions lead, and what it executed before is not counted"
        ));
    }
    match options.stats {
        Some(StatsFormat::Table) => print(&stats),
        Some(StatsFormat::Json) => print(&serde_json::to_string(&stats).unwrap_or_default()),
        None => {}
    }
    verdict
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
