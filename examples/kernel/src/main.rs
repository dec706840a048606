//! A kernel that finds its PMU, counts with it, and profiles itself: what a kernel of your own does to
//! embed the pmu crates. Read [`embedding`], then [`use_machine`] here and what it calls in `demos`.
#![no_std]
#![no_main]

mod check;
mod demos;
mod embedding;
mod machine;

use core::panic::PanicInfo;
use core::sync::atomic::Ordering;

use pmu::Machine;
use pmu::core::x86::Snapshot;
use pmu::core::{CounterSet, EventSource};

use check::handler;
use demos::command_line::CommandLine;
use demos::failure::Failure;
use demos::{branches, costs, events, ops, precise, sources, workload};
use embedding::memory::{MACHINE, PMU, TIME_ONLY};
use embedding::msr::UNDEFINED_OPCODES;
use embedding::sessions::Sessions;
use embedding::{cpuid, interrupt, msr};
use machine::boot::{self, Door};
use machine::clock::Reference;
use machine::interrupts::{self, Handlers, UNDEFINED};
use machine::serial::{End, Serial, exit};
use machine::{acpi, apic, clock, processor, report, ring3, screen, serial, smp};

/// Begins on the boot processor, called from `boot.s` with interrupts off.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(door: u32, information: u32) -> ! {
    serial::detect();
    Serial::initialize();
    let door = Door::from_number(door);
    // SAFETY: nothing was written to memory yet but the kernel's own, and the page for other processors, which is
    // written last, is not the loader's information.
    let found = unsafe { boot::read(door, information) };
    let words = CommandLine::parse(found.command_line);
    register_handlers(words.check);
    processor::initialize(0);
    interrupts::initialize();
    if let Some(framebuffer) = found.framebuffer {
        screen::initialize(framebuffer);
    }
    apic::detect();
    apic::initialize();
    // SAFETY: the loader left ACPI's root pointer there.
    let reference = found.root_pointer.and_then(|pointer| unsafe { acpi::reference(pointer) });
    // A machine of today may have no interval timer; a loader that knows nothing of ACPI is a hypervisor's.
    let reference = reference.or((door != Door::Multiboot2).then_some(Reference::IntervalTimer));
    if let Some(reference) = reference {
        clock::measure(reference);
    }
    let most = if words.check { check::run::PROCESSORS } else { processor::MAX_PROCESSORS };
    smp::start(workload::turn, most, found.low_page);
    x86_64::instructions::interrupts::enable();
    line!("boot {} processors {}", door.name(), smp::processors());
    if words.check {
        let clock = reference.map_or("none", Reference::name);
        line!("clock {} hertz {} apic {}", clock, clock::speeds().tsc, apic::mode());
    }
    if words.check {
        check::run::run(&words);
        line!("end good");
        exit(End::Good)
    }

    match run(&words) {
        Ok(()) => {
            line!("end good");
            exit(End::Good)
        }
        Err(failure) => {
            line!("failed {}", failure);
            exit(failure.end())
        }
    }
}

/// Connects the interrupts with what they call.
fn register_handlers(check: bool) {
    interrupts::register(Handlers {
        performance: match check {
            true => handler::performance_interrupt,
            false => |frame| costs::marked(|| interrupt::performance_interrupt(frame)),
        },
        timer: interrupt::timer_interrupt,
        call: || {
            smp::serve();
            PMU.serve_call();
        },
        exception: |frame| {
            msr::resume(frame) || frame.vector as u8 == UNDEFINED && ring3::leave(frame)
        },
    });
    interrupt::on_branches(branches::sampled);
    interrupt::on_op(ops::sampled);
    interrupt::on_record(precise::recorded);
}

/// Decides which machine this is, once, for every processor, and uses it.
fn run(words: &CommandLine) -> Result<(), Failure> {
    let snapshot = cpuid::snapshot();
    let machine = MACHINE.call_once(|| Machine::detect(&snapshot));
    if let Some(why) = machine.why_time_only() {
        line!("pmu none: {}", why);
    }
    if !use_machine(machine, &snapshot, words)? {
        use_machine(&TIME_ONLY, &snapshot, words)?;
    }
    match UNDEFINED_OPCODES.load(Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(Failure::Wrong("RDPMC was executed where it is an undefined opcode")),
    }
}

/// Runs everything that this kernel does with a machine; `false` if its counters do not answer.
fn use_machine(
    machine: &'static Machine,
    snapshot: &Snapshot,
    words: &CommandLine,
) -> Result<bool, Failure> {
    let sessions = match Sessions::open(machine, words.freeze) {
        Ok(sessions) => sessions,
        Err(error) => {
            line!("pmu none: {}: {}", machine.name(), error);
            return Ok(false);
        }
    };
    let unit = machine.unit();
    let general = unit.counters() & CounterSet::GENERAL;
    let width = unit.iter().next().map_or(0, |(_, counter)| counter.width());
    line!("pmu {} counters {} width {}", machine.name(), general.len(), width);

    if words.events {
        sessions.shut_down()?;
    } else {
        sources::run(snapshot, sessions, words)?;
    }
    events::run(machine, snapshot, words)?;
    Ok(true)
}

#[panic_handler]
fn panic(information: &PanicInfo<'_>) -> ! {
    line!("failed panic {}", report::text(information));
    exit(End::Panic)
}
