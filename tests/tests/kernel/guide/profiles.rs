//! Profiles of a source of Windows, and of events for which a profile object outlives a call.

use core::cell::Cell;
use core::sync::atomic::AtomicU32;

use pmu::frame::{InterruptFrame, PlainFrame};
use pmu::kprofile::{BasicProfile, CreateError, ProfileError, ProfileObject, Rules};
use pmu::{Event, GenericEvent, Interrupted, KProfileSource, PmuError};
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use super::{PMU, printed, println, up};
use crate::world::{Happens, machine};

/// Start of the profiled code.
const KERNEL: u64 = 0xFFFF_FFFF_8000_0000;

static BUCKETS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

// ANCHOR: source
/// Profiles where instructions retire, by Windows' source and its interval.
fn issues(workload: fn()) -> Result<(), PmuError> {
    let source = KProfileSource::TOTAL_ISSUES;
    let profile = PMU.profile(source, KERNEL..KERNEL + 0x1000, &BUCKETS, workload)?;
    for (bucket, hits) in profile.hits() {
        println!("{:#x}: {hits}", bucket.start);
    }
    Ok(())
}
// ANCHOR_END: source

// ANCHOR: callback
/// Calls a function at each sample, in the interrupt, on every processor.
fn every_sample(workload: fn()) -> Result<(), PmuError> {
    let cycles = Event::generic(GenericEvent::Cycles).every(10_007);
    let sampled = |frame: &dyn InterruptFrame, _: KProfileSource| {
        println!("processor {} at {:#x}", frame.processor().index(), frame.pc());
    };
    PMU.sample(cycles, &sampled, workload)
}
// ANCHOR_END: callback

#[derive(Debug)]
#[expect(dead_code, reason = "a test prints it")]
enum Failed {
    Source(PmuError),
    Object(CreateError),
    Start(ProfileError),
}

// ANCHOR: object
/// Starts a profile that outlives the call: an object as Windows has it, in memory of the kernel's.
fn start(
    buffer: &'static [AtomicU32],
    keep: fn(ProfileObject<'static>) -> &'static ProfileObject<'static>,
) -> Result<(), Failed> {
    let cycles = Event::generic(GenericEvent::Cycles).every(10_007);
    let request = BasicProfile {
        process: None, // all of them
        base: KERNEL,
        size: 0x1000,
        bucket_log2: 4, // 16 bytes of code per bucket
        buffer,
        source: PMU.source(cycles).map_err(Failed::Source)?,
        affinity: None, // every processor
    };
    let mut hardware = PMU.hardware();
    let object = ProfileObject::basic(Rules::LATEST, request, &hardware).map_err(Failed::Object)?;
    PMU.profiles().try_start(keep(object), &mut hardware).map_err(Failed::Start)?;
    Ok(())
}
// ANCHOR_END: object

fn interrupt(frame: &PlainFrame) -> Interrupted {
    PMU.interrupt(frame)
}

fn work() {
    machine().pc[1].set(KERNEL + 0x20);
    machine().happen(1, Happens::Instructions, 0x1_0001);
    machine().happen(1, Happens::Cycles, 10_008);
}

#[test]
fn a_profile_is_of_a_source_or_an_event_and_may_outlive_a_call() {
    let machine = up(Configuration::Intel(IntelConfiguration::new(4, 4, 3)), interrupt);
    issues(work).unwrap();
    assert_eq!(printed(), ["0xffffffff80000020: 1"]);
    every_sample(work).unwrap();
    assert_eq!(printed(), ["processor 1 at 0xffffffff80000020"]);
    static OF_OBJECT: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];
    type Kept = Cell<Option<&'static ProfileObject<'static>>>;
    thread_local! {
        static KEPT: Kept = const { Cell::new(None) };
    }
    start(&OF_OBJECT, |object| {
        KEPT.set(Some(Box::leak(Box::new(object))));
        KEPT.get().unwrap()
    })
    .unwrap();
    work();
    let object = KEPT.get().unwrap();
    assert!(PMU.profiles().try_stop(object, &mut PMU.hardware()).unwrap().is_over());
    let hits: Vec<_> = object.hits().map(|(bucket, count)| (bucket.start, count)).collect();
    assert_eq!(hits, [(KERNEL + 0x20, 1)]);
    machine.down();
}
