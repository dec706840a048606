//! Tracing: callback objects write a record of each interrupt into the processor's ring, and the way from thread to
//! thread one of each switch, stamped with the index of the Debug Store. Task context drains the rings.

use core::sync::atomic::Ordering;

use pmu::core::EventSource;
use pmu::core::frame::ProcessorNumber;
use pmu::core::profile::KProfileSource;
use pmu::core::x86::Snapshot;
use pmu::intel::debug_store::DebugStoreSupport;
use pmu::intel::registers::MiscEnable;
use pmu_kprofile::trace::{
    CONTEXT_SWITCH_HOOK, ContextSwitch, Event, Extended, GroupMask, Hook, IntervalHook,
    PERF_CONTEXT_SWITCH, PERF_PMC_PROFILE, PERF_PROFILE, Record, SourceInterval, SwitchRing,
    SwitchTrace, TraceCallback, TraceControl, TraceObjects, TraceRing, Utf16,
};
use pmu_kprofile::{PointerWidth, Rules};

use crate::demos::failure::Failure;
use crate::demos::profile::Plan;
use crate::demos::workload;
use crate::embedding::memory::{DEBUG_STORE, PMU};
use crate::embedding::msr::control_msr;
use crate::embedding::sessions::Sessions;
use crate::line;
use crate::machine::processor::{self, MAX_PROCESSORS};
use crate::machine::serial::send_to_debug_console;
use crate::machine::{clock, thread};

const WIDTH: PointerWidth = PointerWidth::Bits64;
/// Room for a processor's samples, and for its switches.
const SAMPLES: usize = 2_048;
const SWITCHED: usize = 1_024;

static RINGS: [TraceRing<SAMPLES>; MAX_PROCESSORS] = [const { TraceRing::new() }; MAX_PROCESSORS];
static SAMPLED: TraceCallback<SAMPLES> = TraceCallback::new(Hook::SampledProfile, WIDTH, &RINGS);
static PMC: TraceCallback<SAMPLES> = TraceCallback::new(Hook::PmcInterrupt, WIDTH, &RINGS);
static SWITCH_RINGS: [SwitchRing<SWITCHED>; MAX_PROCESSORS] =
    [const { SwitchRing::new() }; MAX_PROCESSORS];
/// The trace of context switches.
static SWITCHES: SwitchTrace<SWITCHED> = SwitchTrace::new(WIDTH, &SWITCH_RINGS);
static OBJECTS: TraceObjects =
    TraceObjects::new(Rules::LATEST, &SAMPLED, &PMC).with_switches(&SWITCHES);

/// Number of interrupts to wait for, if no file is wanted, and the longest wait.
const RECORDS: u64 = 20;
const PATIENCE_MS: u64 = 20_000;
/// Step by which the index advances.
const RECORD_SIZE: u64 = 0x20;
/// The threads that take turns at the workload, and how long a turn is.
const THREADS: [u32; 2] = [1, 2];
const TURN_MS: u64 = 40;

/// Traces the interrupts of `plan`'s source: of a counter's, PMC interrupts; of time, the sampled profile. On all
/// processors. With `file`, as many as `plan` has samples, to the debug console.
///
/// # Errors
/// Those of the interface and of tracing; records that did not come, or a stamp that is not as it should be.
pub fn run(
    snapshot: &Snapshot,
    sessions: &Sessions,
    plan: &Plan,
    file: bool,
) -> Result<(), Failure> {
    let mut support = DebugStoreSupport::detect(snapshot, &control_msr())?;
    let origin = if support.has_pebs() { "area" } else { "stand-in" };
    if !support.has_pebs() {
        // Without a Debug Store there is no area. This one is handed to no processor in any case; the
        // kernel advances its index below. The way of a stamp is the same.
        support.debug_store = true;
        support.misc_enable = MiscEnable::new().with_performance_monitoring(true);
    }
    let index = &DEBUG_STORE.create(&support)?.pebs_ds_save_area.pebs_index;

    let mut trace = TraceControl::new(PMU.profiles(), &OBJECTS);
    let interval = sessions.machine().set_interval_clamped(plan.source, plan.interval)?;
    let (name, mask) = if plan.source == KProfileSource::TIME {
        ("SampledProfile", GroupMask::EMPTY.with(PERF_PROFILE))
    } else {
        trace.set_pmc_sources(&[plan.source], &sessions.hardware())?;
        ("PmcInterrupt", GroupMask::EMPTY.with(PERF_PMC_PROFILE))
    };
    trace.set_pebs_hooks(&[CONTEXT_SWITCH_HOOK])?;
    trace.set_group_mask(mask.with(PERF_CONTEXT_SWITCH), &mut sessions.hardware())?;
    let wanted = if file { plan.samples.min(SAMPLES as u64) } else { RECORDS };
    let (before, begin) = (PMU.profiles().statistics().hit, clock::now());
    let patience = clock::milliseconds(PATIENCE_MS + wanted * 100);
    while PMU.profiles().statistics().hit - before < wanted && clock::now() - begin < patience {
        for number in THREADS {
            switch_to(number);
            index.fetch_add(RECORD_SIZE, Ordering::Relaxed);
            let turn = clock::now();
            while clock::now() - turn < clock::milliseconds(TURN_MS) {
                workload::turn();
            }
        }
    }
    switch_to(0);
    trace.set_group_mask(GroupMask::EMPTY, &mut sessions.hardware())?;
    DEBUG_STORE.destroy()?;

    let told = |hook, timestamp| {
        if file {
            send_interval(hook, timestamp, plan, interval.get());
        }
    };
    told(IntervalHook::CollectionStart, begin);
    let (mut records, mut switches, mut right) = (0u64, 0u64, true);
    for bytes in RINGS.iter().flat_map(TraceRing::drain) {
        records += 1;
        // Samples have no index: Windows' are without.
        right &= bytes.decode().is_ok_and(|record| record.extended.pebs_index.is_none());
        if file {
            send_to_debug_console(bytes.as_slice());
        }
    }
    let mut last = 0;
    for bytes in SWITCH_RINGS.iter().flat_map(SwitchRing::drain) {
        switches += 1;
        // Each has the index, which advances after a switch, and goes on from the thread of the one before.
        right &= bytes.decode().is_ok_and(|record| match record.event {
            Event::ContextSwitch(switch) => {
                let follows = switch.old_thread == last;
                last = switch.new_thread;
                follows && record.extended.pebs_index == Some((switches - 1) * RECORD_SIZE)
            }
            _ => false,
        });
        if file {
            send_to_debug_console(bytes.as_slice());
        }
    }
    told(IntervalHook::CollectionEnd, clock::now());
    line!("trace {} records {} switches {} {}", name, records, switches, origin);
    if records < wanted || switches < 3 || !right {
        return Err(Failure::Wrong(
            "a trace record is missing, or an index is not as it should be",
        ));
    }
    Ok(())
}

/// Switches this processor to another thread, and tells the trace, where switches are traced.
fn switch_to(new: u32) {
    let number = processor::number();
    let old = thread::set_current(new);
    if SWITCHES.is_traced() {
        let pebs_index = DEBUG_STORE.pebs_index().filter(|_| number == 0);
        let switch = ContextSwitch { old_thread: old, new_thread: new, ..ContextSwitch::default() };
        SWITCHES.record(
            ProcessorNumber::from_index(number as u16),
            clock::now(),
            Extended { pebs_index, ..Extended::default() },
            switch,
        );
    }
}

/// Sends the record of the source's interval, by which a reader weighs samples.
fn send_interval(hook: IntervalHook, timestamp: u64, plan: &Plan, interval: u32) {
    let (mut name, mut bytes) = ([0; 128], [0; 160]);
    let name = Utf16::new(plan.name, &mut name).ok();
    let source = plan.source.value();
    let event = SourceInterval { hook, source, new: interval, old: interval, name };
    // Version 3 has names.
    let record = Record { version: 3, ..Record::new(WIDTH, timestamp, event) };
    if let Some(bytes) = record.encode(&mut bytes).ok().and_then(|length| bytes.get(..length)) {
        send_to_debug_console(bytes);
    }
}
