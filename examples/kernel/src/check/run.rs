//! The run through all claims.

use core::sync::atomic::Ordering::Relaxed;

use pmu::Machine;
use pmu::core::EventSource;
use pmu::core::x86::Snapshot;
use pmu::core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative;

use crate::check::bench::Bench;
use crate::check::claim::{Outcome, Reason};
use crate::check::list::CLAIMS;
use crate::check::report::{Outcomes, Processor};
use crate::check::{handler, page, report};
use crate::demos::command_line::CommandLine;
use crate::embedding::memory::MACHINE;
use crate::line;
use crate::machine::serial::Serial;
use crate::machine::{apic, clock, smp};

/// Processors that claims use; others are parked. One number more is left for a processor that is started again.
pub const PROCESSORS: usize = 2;

/// Tries every claim that the command line does not skip, and shows the outcomes.
pub fn run(words: &CommandLine) {
    let snapshot = Snapshot::capture(CpuIdReaderNative);
    let machine = MACHINE.call_once(|| Machine::detect(&snapshot));
    if let Some(why) = machine.why_time_only() {
        line!("pmu none: {}", why);
    }
    let bench = Bench::new(machine);
    if let Some(bench) = &bench {
        line!("pmu {} counters {}", machine.name(), bench.general());
    }
    let bench = bench.filter(Bench::answers);
    if bench.is_none() {
        line!("pmu none: no counter answers");
    }
    others_survive_nmi();

    let mut outcomes: Outcomes = [Outcome::ABSENT; CLAIMS.len()];
    try_each(&mut outcomes, bench.as_ref(), words);
    let processor = Processor::of_this();
    // Writing to the serial line does not fail.
    let _ = report::json(&processor, &outcomes, &mut Serial);
    page::show(&processor, &outcomes);
}

fn try_each(outcomes: &mut Outcomes, bench: Option<&Bench>, words: &CommandLine) {
    for ((id, claim), outcome) in CLAIMS.iter().zip(outcomes) {
        line!("try {}", id);
        *outcome = match bench {
            _ if words.skips(id) => Outcome::not_tried(Reason::Skipped),
            Some(bench) => claim(bench),
            None => Outcome::ABSENT,
        };
        handler::leave();
        let [(a, x), (b, y), (c, z)] = outcome.evidence;
        let word = outcome.verdict.word();
        match (a, b, c) {
            ("", ..) => line!("claim {} {}", id, word),
            (_, "", _) => line!("claim {} {} {} {}", id, word, a, x),
            (.., "") => line!("claim {} {} {} {} {} {}", id, word, a, x, b, y),
            _ => line!("claim {} {} {} {} {} {} {} {}", id, word, a, x, b, y, c, z),
        }
    }
}

/// Sends an NMI to all other processors, those that are parked too: if one did not survive it, the machine would start
/// anew here.
fn others_survive_nmi() {
    let others = smp::processors() as u64 - 1;
    if !smp::wait_for_all() {
        // One that has no table of interrupts yet would not survive it.
        line!("nmi none: a processor is missing");
        return;
    }
    apic::interrupt_others();
    clock::wait(10);
    line!("nmi processors {} answered {}", others, handler::ELSEWHERE.load(Relaxed));
}
