//! Faults and interrupts at each access, on each platform.

use super::support::*;
use pmu_core::branches::{Branch, BranchFilter};
use pmu_tests::opened::happened;
use pmu_virt::branches::BranchConfiguration;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Fault};

/// A processor, and what its records tell of the branches that are fed.
pub(crate) struct Scene {
    prepared: Prepared,
    told: [Branch; FED as usize],
}

/// The branches that are fed have lower numbers.
const FED: u64 = 100;

impl Scene {
    pub(crate) fn new(processor: &Processor) -> Self {
        let told = core::array::from_fn(|number| processor.told(&user(number as u64)));
        Self { prepared: Prepared::new(processor), told }
    }

    /// Lets `act` work with a recorder, while the counters' interrupt is served with its branch records.
    pub(crate) fn with_counters(
        &self,
        freezing: bool,
        act: impl FnOnce(&Mock<'_>, &mut Recorder<'_, '_>, &dyn Fn() -> u32),
    ) {
        let name = self.prepared.processor.name;
        self.prepared.with_samples(freezing, |mock, recorder, _, samples| {
            act(mock, recorder, &|| samples.borrow().taken.len() as u32);
            let samples = samples.borrow();
            assert_eq!(samples.others, 0, "{name}");
            // Never a torn one.
            for branch in samples.taken.iter().flat_map(|sample| &sample.branches) {
                assert!(self.told.contains(branch), "{name}: {branch:X?}");
            }
        });
    }
}

/// The deviations of branch records.
const OF_BRANCHES: [Deviation; 3] = [
    Deviation::NeverFreezesBranches,
    Deviation::BranchesLostInDeepSleep,
    Deviation::ErroneousBranches,
];

/// Returns the deviations that drivers of counters meet.
fn of_counters() -> impl Iterator<Item = Deviation> {
    Deviation::ALL.into_iter().filter(|deviation| {
        !OF_BRANCHES.contains(deviation)
            && !matches!(deviation, Deviation::AcknowledgesWhileEnabled | Deviation::LateIbs)
    })
}

/// Disturbs the records of a processor on a platform at each access: those of the interrupt by a fault, and those of a
/// task's operations by an interrupt, and by a fault.
fn loses_nothing(processor: &Processor, deviations: &[Deviation]) {
    let scene = Scene::new(&processor.deviating(deviations));
    for freezing in [false, scene.prepared.unit.can_freeze()] {
        // A hypervisor that drops the freeze bit, and the legacy enable bit.
        let dropped = deviations.contains(&Deviation::IgnoresDebugControl);
        let is_legacy = matches!(processor.branches, BranchConfiguration::Legacy { .. });
        if dropped && (freezing || is_legacy) {
            continue;
        }
        let at = format!("{}, {deviations:?}, {freezing}", processor.name);
        let faults =
            (1..).take_while(|access| !faults_in_interrupts(&scene, freezing, *access, &at));
        assert!(faults.count() > 5, "{at}");
        for fault in [false, true] {
            let disturbs =
                |access: &u32| !disturbs_operations(&scene, freezing, *access, fault, &at);
            assert!((1..).take_while(disturbs).count() > 7, "{at}");
        }
    }
}

/// Lets an access of each interrupt fail. Returns whether there was no such access.
fn faults_in_interrupts(scene: &Scene, freezing: bool, access: u32, at: &str) -> bool {
    const ROUNDS: u32 = 2;
    let mut ended = true;
    scene.with_counters(freezing, |mock, recorder, overflows| {
        for round in 1..=ROUNDS {
            for number in 0..34 {
                mock.branch(&user(number));
            }
            let before = mock.accesses().total();
            mock.inject(Fault::At(access));
            mock.advance(&mut happened(3, 100_000));
            mock.inject(Fault::None);
            ended &= mock.accesses().total() - before < access;
            assert!(overflows() >= round, "{at}, {access}: {}", overflows());
            recorder.clear().unwrap();
            mock.sleep();
        }
        ends_well(scene, mock, recorder, at, access);
    });
    ended
}

/// Interrupts a task's operations at an access, or lets the access fail. Returns whether there was no such access.
fn disturbs_operations(scene: &Scene, freezing: bool, access: u32, fault: bool, at: &str) -> bool {
    let mut ended = true;
    scene.with_counters(freezing, |mock, recorder, overflows| {
        let before = mock.accesses().total();
        if fault {
            mock.inject(Fault::At(access));
        } else {
            mock.interrupt_at(access);
        }
        recorder.start(BranchFilter::USER).unwrap();
        recorder.switch_out::<32>(None).unwrap();
        recorder.switch_in::<32>(None).unwrap();
        recorder.read().unwrap();
        recorder.restart().unwrap();
        mock.inject(Fault::None);
        mock.interrupt_at(0);
        ended = mock.accesses().total() - before < access;
        assert!(overflows() <= 2, "{at}, {access}");
        assert!(fault || ended || overflows() >= 1, "{at}, {access}");
        ends_well(scene, mock, recorder, at, access);
    });
    ended
}

/// The recording goes on with whole records, and ends for good.
fn ends_well(
    scene: &Scene,
    mock: &Mock<'_>,
    recorder: &mut Recorder<'_, '_>,
    at: &str,
    access: u32,
) {
    let processor = &scene.prepared.processor;
    assert!(recorder.is_recording() && is_recording(mock), "{at}, {access}");
    mock.branch(&user(70));
    if !processor.deviations.contains(Deviation::ErroneousBranches) {
        let found: Vec<_> = recorder.read().unwrap().iter().collect();
        assert_eq!(found, [scene.told[70]], "{at}, {access}");
    }
    recorder.shut_down().unwrap();
    assert!(!is_recording(mock), "{at}, {access}");
    mock.advance(&mut happened(3, 100_000));
    if let Some(breach) = mock.breach() {
        panic!("{at}, {access}: {breach}");
    }
}

#[test]
fn on_each_platform_a_fault_or_an_interrupt_at_an_access_loses_nothing() {
    for processor in processors() {
        for deviation in OF_BRANCHES.into_iter().chain(of_counters()) {
            loses_nothing(&processor, &[deviation]);
        }
    }
}

/// Tries each pair of a deviation of the counters and one of the branch records, on the kind of records with this name.
fn pairs_lose_nothing(name: &str) {
    let processors = processors();
    let processor = processors.iter().find(|processor| processor.name == name).unwrap();
    pairs_lose_nothing_of(processor);
}

fn pairs_lose_nothing_of(processor: &Processor) {
    for of_branches in OF_BRANCHES {
        of_counters().for_each(|of_counters| loses_nothing(processor, &[of_branches, of_counters]));
    }
}

// The legacy stacks' other formats differ in their records alone.

#[test]
fn on_each_pair_of_deviations_a_disturbed_access_loses_nothing_of_architectural_records() {
    pairs_lose_nothing("architectural");
}

#[test]
fn on_each_pair_of_deviations_a_disturbed_access_loses_nothing_of_a_stack_without_a_frozen_bit() {
    pairs_lose_nothing("format 3, version 3");
}

#[test]
fn on_each_pair_of_deviations_a_disturbed_access_loses_nothing_of_a_stack_with_a_frozen_bit() {
    let version_4 = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    let processors = processors();
    let haswell = processors.iter().find(|processor| processor.name == "format 4, version 3");
    let name = "format 4, version 4";
    pairs_lose_nothing_of(&Processor { name, configuration: version_4, ..*haswell.unwrap() });
}

#[test]
fn on_each_pair_of_deviations_a_disturbed_access_loses_nothing_of_amds_stack() {
    pairs_lose_nothing("AMD");
}

#[test]
fn on_each_pair_of_deviations_a_disturbed_access_loses_nothing_of_amds_stack_without_freeze() {
    pairs_lose_nothing("AMD, never freezing");
}
