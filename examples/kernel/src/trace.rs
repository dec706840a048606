//! Tracing: callback objects write a record of each interrupt into the processor's ring, stamped with the
//! index of its Debug Store; task context drains the ring.

use core::sync::atomic::Ordering;

use pmu_core::{KProfileSource, ProfileInterface, Snapshot};
use pmu_intel::debug_store::DebugStoreSupport;
use pmu_intel::registers::MiscEnable;
use pmu_kprofile::trace::{
    GroupMask, Hook, PERF_PMC_PROFILE, PERF_PROFILE, TraceCallback, TraceControl, TraceObjects,
    TraceRing,
};
use pmu_kprofile::{PointerWidth, Rules};

use crate::failure::Failure;
use crate::pmu::{DEBUG_STORE, PROFILES, control_msr};
use crate::processor::MAX_PROCESSORS;
use crate::profile::Plan;
use crate::sessions::Sessions;
use crate::{clock, line, workload};

static RINGS: [TraceRing<128>; MAX_PROCESSORS] = [const { TraceRing::new() }; MAX_PROCESSORS];
static SAMPLED: TraceCallback<128> =
    TraceCallback::new(Hook::SampledProfile, PointerWidth::Bits64, &RINGS);
static PMC: TraceCallback<128> =
    TraceCallback::new(Hook::PmcInterrupt, PointerWidth::Bits64, &RINGS);
static OBJECTS: TraceObjects = TraceObjects::new(Rules::LATEST, &SAMPLED, &PMC);

/// Number of records to wait for, and the longest wait.
const RECORDS: u64 = 20;
const PATIENCE_MS: u64 = 20_000;
/// Step by which the index advances.
const RECORD_SIZE: u64 = 0x20;

/// Traces the interrupts of `plan`'s source: of a counter's, PMC interrupts; of time, the sampled profile.
/// On all processors.
///
/// # Errors
/// Those of the interface and of tracing; records that did not come, or came without stamp.
pub fn run<I: ProfileInterface + Sync>(
    snapshot: &Snapshot,
    sessions: &Sessions<'_, I>,
    plan: &Plan,
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

    let mut trace = TraceControl::new(&PROFILES, &OBJECTS);
    sessions.interface().set_interval_clamped(plan.source, plan.interval)?;
    let (name, mask) = if plan.source == KProfileSource::TIME {
        ("SampledProfile", GroupMask::EMPTY.with(PERF_PROFILE))
    } else {
        trace.set_pmc_sources(&[plan.source], &mut sessions.hardware())?;
        ("PmcInterrupt", GroupMask::EMPTY.with(PERF_PMC_PROFILE))
    };
    trace.set_group_mask(mask, &mut sessions.hardware())?;
    let (mut records, mut stamped) = (0, 0u32);
    let begin = clock::now();
    while records < RECORDS && clock::now() - begin < clock::milliseconds(PATIENCE_MS) {
        workload::turn();
        // No more than are waited for: more may come as fast as they are drained.
        let drained = RINGS[0].drain().into_iter().flatten().flatten();
        for record in drained.take((RECORDS - records) as usize) {
            records += 1;
            // Samples have no index: Windows' are without.
            stamped += u32::from(record.pebs_index.is_some());
        }
        index.fetch_add(RECORD_SIZE, Ordering::Relaxed);
    }
    trace.set_group_mask(GroupMask::EMPTY, &mut sessions.hardware())?;
    DEBUG_STORE.destroy()?;
    line!("trace {} records {} {}", name, records, origin);
    if records < RECORDS || stamped != 0 {
        return Err(Failure::Wrong("a trace record is missing, or a sample has an index"));
    }
    Ok(())
}
