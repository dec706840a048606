//! Events that ask for all facilities of a processor. A fault lasts from each access of each call of the life on. When
//! the fault is gone, a repeat of the call makes everything well; if counters faulted, a reprogramming and a start do.
//! If one facility cannot be suspended for a window, all are as before.

use pmu_virt::mock::{Deviations, Fault};

use super::everything::*;

/// Makes a call with a fault that lasts from each access on, and once more without. `prepare` comes before it, `then`
/// behind it.
fn with_a_lasting_fault([prepare, call, then]: [fn(&mut World) -> Outcome; 3]) {
    for (machine, freezes) in machines().into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let mut failed = 0;
        for access in 1.. {
            let machine = machine(freezes, Deviations::NONE);
            let mut world = World::new(machine);
            prepare(&mut world).unwrap();
            machine.mock.inject(Fault::From(access));
            let first = call(&mut world);
            machine.mock.inject(Fault::None);
            let what = format!("{}, from access {access}: {first:?}", machine.name);
            if let Err(failure) = &first {
                failed += 1;
                let again = call(&mut world).and_then(|()| then(&mut world));
                assert!(again.is_ok() || failure.stops_events(), "{what}: {again:?}");
                let missing = if again.is_ok() { world.missing() } else { vec![] };
                assert!(missing.is_empty() || failure.stops_events(), "{what}: no {missing:?}");
                if again.is_err() || !missing.is_empty() {
                    world.reprogram().expect(&what);
                    world.start().expect(&what);
                }
                assert_eq!(world.missing(), Vec::<&str>::new(), "{what}");
            } else {
                then(&mut world).expect(&what);
                assert_eq!(world.missing(), Vec::<&str>::new(), "{what}");
            }
            world.end(&what);
            if first.is_ok() {
                break;
            }
        }
        assert!(failed > 2, "{failed}");
    }
}

#[test]
fn a_repeat_of_each_call_makes_all_facilities_of_events_well_after_a_lasting_fault() {
    with_a_lasting_fault([nothing, World::take, World::start]);
    with_a_lasting_fault([World::take, World::start, nothing]);
    with_a_lasting_fault([started, World::lend, nothing]);
    with_a_lasting_fault([started, World::suspend, resumed]);
    with_a_lasting_fault([suspended, World::resume, nothing]);
    with_a_lasting_fault([registers_lost, World::reprogram, nothing]);
    with_a_lasting_fault([started, World::shut_down, started]);
}

/// An access of the window's begin and its retry fail.
#[test]
fn if_one_facility_cannot_be_suspended_for_a_window_all_are_as_they_were() {
    for (machine, freezes) in machines().into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let mut of_facilities = 0;
        let calls: [fn(&mut World) -> Outcome; 2] = [World::lend, World::suspend];
        for (access, call) in (1..).flat_map(|access| calls.map(|call| (access, call))) {
            let machine = machine(freezes, Deviations::NONE);
            let mut world = World::new(machine);
            started(&mut world).unwrap();
            let mock = machine.mock;
            let happen = |count| {
                let samples = || machine.whole[RECORDED].get() + machine.whole[SAMPLED].get();
                let before = samples();
                for kind in [RECORDED, SAMPLED] {
                    mock.advance(&mut happened(kind, count));
                }
                samples() - before
            };
            assert_eq!((world.missing(), happen(30)), (vec![], 0));
            let ends = mock.accesses().total() + access + 1;
            mock.inject(Fault::From(access));
            mock.on_access(Box::leak(Box::new(move |mock: &Mock| {
                if mock.accesses().total() == ends {
                    mock.inject(Fault::None);
                }
            })));
            let failed = call(&mut world);
            mock.inject(Fault::None);
            mock.on_access(&|_| ());
            let what = format!("{}, access {access}: {failed:?}", machine.name);
            match &failed {
                Err(failure) if failure.stops_events() => {
                    world.reprogram().expect(&what);
                    world.start().expect(&what);
                }
                Err(_) => {
                    of_facilities += 1;
                    machine.branch();
                    assert_eq!((happen(PERIOD - 31), happen(1)), (0, 2), "{what}");
                }
                Ok(()) => drop(world.resume()),
            }
            assert_eq!(world.missing(), Vec::<&str>::new(), "{what}");
            world.end(&what);
            if failed.is_ok() {
                break;
            }
        }
        assert!(of_facilities > 2, "{of_facilities}");
    }
}
