//! The sources 0x20 to 0x24, which later versions of Windows have in addition to the documented table.
//!
//! Source: published listings of `wpr -pmcsources` on Intel machines, from Windows versions 1903 and later. Listings
//! from February 2019 end at 0x1F. So 1903 is assumed to be the first version with the sources 0x20 to 0x24.

// To add a source: an `AddedSource`; its versions in `Rules::has_source` (`pmu-core/src/profile/source.rs`) and in
// `tests/tests/machine/versions.rs`; its row of `LATER`, and the sources that the tests there expect of a machine, in
// `tests/tests/sources/added.rs`.

use core::num::NonZeroU64;

use pmu_core::CounterSet;
use pmu_core::profile::{AddedSource, AddedSources, InterfaceError, ProfileSource};
use pmu_core::registers::EventSelect;
use pmu_core::windows::{HalInterface, Rules};
use pmu_core::x86::Snapshot;

use crate::cpuid::ArchitecturalPerfmon;

/// Branches inserted into the last-branch record: `ROB_MISC_EVENTS.LBR_INSERTS` of Sandy Bridge to Cascade Lake,
/// `MISC_RETIRED.LBR_INSERTS` of Ice Lake to Granite Rapids (Intel's event files, intel/perfmon).
static LBR_INSERTS: AddedSource = lbr_inserts(0x20CC);

/// `LBR_INSERTS.ANY` of Gracemont and later Atoms.
static LBR_INSERTS_ATOM: AddedSource = lbr_inserts(0x01E4);

static INSTRUCTIONS: AddedSource = fixed(0x21, "ProfileInstructionsRetiredFixed", 0xC0, 0);
static CORE_CYCLES: AddedSource = fixed(0x22, "ProfileUnhaltedCoreCyclesFixed", 0x3C, 1);
static REFERENCE_CYCLES: AddedSource = fixed(0x23, "ProfileUnhaltedReferenceCyclesFixed", 0x300, 2);
static TIMER: AddedSource = fixed(0x24, "ProfileTimerFixed", 0x300, 2);

const USER_AND_KERNEL: u64 = 0x3_0000;

const fn lbr_inserts(event: u64) -> AddedSource {
    let select = EventSelect::from_bits(USER_AND_KERNEL | event);
    AddedSource::new(ProfileSource::new(0x20, "ProfileLbrInserts", select), CounterSet::GENERAL)
}

/// Returns a source of one fixed counter, with the event by which pmu-core identifies that counter.
const fn fixed(value: u32, name: &'static str, event: u64, counter: u8) -> AddedSource {
    let select = EventSelect::from_bits(USER_AND_KERNEL | event);
    AddedSource::new(ProfileSource::new(value, name, select), CounterSet::fixed(1 << counter))
}

/// Adds profile sources 0x20 to 0x24 to `added`: each source that both the machine and the Windows version in `rules`
/// have.
///
/// `boot` describes the machine's boot processor. The sources are:
/// - 0x20, `LbrInserts`, if this crate knows the event for the processor's model. On a hybrid machine the source is not
///   added, because the core types have different events.
/// - 0x21 to 0x23, `InstructionsRetiredFixed`, `UnhaltedCoreCyclesFixed` and `UnhaltedReferenceCyclesFixed`, each on a
///   fixed counter.
/// - 0x24, `TimerFixed`: the time in which the core is not halted, in units of 100 ns. Fixed counter 2 measures the
///   time. Fixed counter 2 counts at the TSC's frequency. Pass this frequency as `hertz`: the result of
///   [`tsc_hertz`](pmu_core::x86::clocks::tsc_hertz), or a frequency that the kernel measured. If `hertz` is `None`,
///   the source is not added.
///
/// Sources 0x23 and 0x24 use the same counter, so only one of the two can run at a time.
///
/// # Context
/// Task. Only one caller at a time may add or remove sources.
///
/// # Errors
/// See [`InterfaceError`]. If the call fails, it adds none of the sources.
///
/// # Examples
/// ```
/// use core::num::NonZeroU64;
/// use pmu_core::{EventSource, Events};
/// use pmu_core::x86::Snapshot;
/// use pmu_core::x86::clocks::tsc_hertz;
/// use pmu_core::memory::EventTable;
/// use pmu_core::profile::{AddedSlot, AddedSources, InterfaceError};
/// use pmu_core::windows::Rules;
/// use pmu_intel::{Emon, add_later_sources};
///
/// static ADDED: AddedSources<[AddedSlot; 8]> = AddedSources::new();
///
/// fn prepare(boot: &Snapshot) -> Result<(), InterfaceError> {
///     let hertz = tsc_hertz(boot).and_then(NonZeroU64::new);
///     add_later_sources(&ADDED, boot, Rules::LATEST, hertz)
/// }
///
/// /// What a processor's counters count, with the sources that were added.
/// fn events<'a>(emon: &'a Emon, opened: &'a EventTable) -> impl EventSource + 'a {
///     Events::new(emon, opened).adding(&ADDED)
/// }
/// # let _ = (prepare, events);
/// ```
pub fn add_later_sources(
    added: &AddedSources,
    boot: &Snapshot,
    rules: Rules,
    hertz: Option<NonZeroU64>,
) -> Result<(), InterfaceError> {
    let there = CounterSet::fixed(ArchitecturalPerfmon::from_snapshot(boot).fixed_counters() as u8);
    let has = |source: &AddedSource| {
        let is_there = !(source.counters() & (there | CounterSet::GENERAL)).is_empty();
        let (source, none) = (source.row().source(), AddedSources::none());
        is_there && rules.has_source(HalInterface::Emon, source, none)
    };
    let counted =
        [lbr_inserts_of(boot), Some(&INSTRUCTIONS), Some(&CORE_CYCLES), Some(&REFERENCE_CYCLES)];
    let counted = counted.into_iter().flatten().map(|source| (source, None));
    let timer = hertz.map(|hertz| (&TIMER, Some(hertz)));
    let wanted = || counted.clone().chain(timer).filter(|(source, _)| has(source));
    for (done, (source, hertz)) in wanted().enumerate() {
        let outcome = match hertz {
            None => added.add(source),
            Some(hertz) => added.add_timer(source, hertz),
        };
        if outcome.is_err() {
            for (source, _) in wanted().take(done) {
                added.remove(source.row().source());
            }
            return outcome;
        }
    }
    Ok(())
}

/// Returns the boot processor's event, for the models in Intel's event files; none on a hybrid machine (leaf 7, EDX bit
/// 15).
fn lbr_inserts_of(boot: &Snapshot) -> Option<&'static AddedSource> {
    if boot.vendor() != *b"GenuineIntel" || boot.family() != 6 || boot.leaf(7, 0).edx >> 15 & 1 != 0
    {
        return None;
    }
    match boot.model() {
        0x2A | 0x2D | 0x3A | 0x3E | 0x3C | 0x45 | 0x46 | 0x3F | 0x3D | 0x47 | 0x4F | 0x56 => {
            Some(&LBR_INSERTS)
        }
        0x4E | 0x5E | 0x8E | 0x9E | 0xA5 | 0xA6 | 0x55 => Some(&LBR_INSERTS),
        0x7D | 0x7E | 0x6A | 0x6C | 0x8C | 0x8D | 0xA7 | 0x8F | 0xCF | 0xAD | 0xAE => {
            Some(&LBR_INSERTS)
        }
        0xBE | 0xAF | 0xB6 | 0xDD => Some(&LBR_INSERTS_ATOM),
        _ => None,
    }
}
