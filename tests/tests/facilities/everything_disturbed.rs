//! Events that ask for all facilities of a processor, with an overflow at each access of each call of the life, and one
//! access that fails beside it. Everything goes on.

use pmu_virt::mock::{Deviation, Deviations, Fault};

use super::everything::*;

/// Calls with what comes before each, and after it.
type Call = (&'static str, [fn(&mut World) -> Outcome; 3]);

const CALLS: [Call; 5] = [
    ("start", [World::take, World::start, nothing]),
    ("window", [started, World::lend, nothing]),
    ("suspend", [started, World::suspend, resumed]),
    ("resume", [suspended, World::resume, nothing]),
    ("reprogram", [registers_lost, World::reprogram, nothing]),
];

/// Disturbs a call. Returns whether it had so many accesses.
fn disturbed(
    machine: &'static Machine,
    (name, [prepare, call, then]): Call,
    interrupt: u32,
    fault: Fault,
) -> bool {
    let what = format!("{}, {name}, {interrupt}, {fault:?}", machine.name);
    let (mut world, mock) = (World::new(machine), machine.mock);
    prepare(&mut world).unwrap();
    let before = mock.accesses().total();
    mock.inject(fault);
    mock.interrupt_at(interrupt);
    let done = call(&mut world);
    mock.inject(Fault::None);
    mock.interrupt_at(0);
    let is_within = mock.accesses().total() - before >= interrupt;
    done.expect(&what);
    then(&mut world).expect(&what);
    assert_eq!(world.missing(), Vec::<&str>::new(), "{what}");
    assert_eq!(world.missing(), Vec::<&str>::new(), "{what}");
    world.end(&what);
    is_within
}

#[test]
fn an_overflow_at_each_access_of_each_call_loses_no_facility() {
    for deviation in [None, Some(Deviation::NestsInterrupts)] {
        let deviations = deviation.map_or(Deviations::NONE, |of| Deviations::of(&[of]));
        for (machine, freezes) in machines().into_iter().flat_map(|of| [(of, false), (of, true)]) {
            for call in CALLS {
                let mut accesses = 1..;
                let is_within =
                    |access| disturbed(machine(freezes, deviations), call, access, Fault::None);
                assert!(accesses.find(|access| !is_within(*access)).unwrap() > 3);
            }
        }
    }
}

/// The access that fails once is that of the overflow, or one of the next two.
#[test]
fn an_overflow_and_a_fault_at_each_access_of_each_call_lose_no_facility() {
    // Each second kind of processors: formats 0, 2, 4, 6 and AMD.
    for machine in machines().into_iter().step_by(2) {
        for call in CALLS {
            for interrupt in 1_u32.. {
                let mut is_within = false;
                for fault in interrupt..interrupt + 3 {
                    let machine = machine(interrupt % 2 == 0, Deviations::NONE);
                    is_within |= disturbed(machine, call, interrupt, Fault::At(fault));
                }
                if !is_within {
                    break;
                }
            }
        }
    }
}
