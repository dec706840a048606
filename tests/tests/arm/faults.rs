//! A fault, or an interrupt, at each access of a whole life of the counters.

use pmu::{Event, GenericEvent, PmuError};
use pmu_tests::arm::identify;

use crate::world::{
    Met, World, accesses, execute, in_pairs, is_met, machine, meet, model, on, running, samples,
    shut_down,
};

const PERIOD: u64 = 5_000;

/// A life of the counters: they are taken, used and given back. Returns the branches at EL0 that a sampling event
/// counted.
type Life = fn(&'static World) -> Result<u64, PmuError>;

const LIVES: [(&str, Life, u64); 3] =
    [("opened", opened, 53_750), ("thread", of_a_thread, 33_250), ("lent", lent, 41_000)];

fn sampling() -> Event {
    Event::generic(GenericEvent::Branches).user_only().every(PERIOD).with_total()
}

/// One event samples, and another one counts for a while.
fn opened(pmu: &'static World) -> Result<u64, PmuError> {
    pmu.processor_up(&identify(model()))?;
    let sampling = pmu.start(&sampling())?;
    execute(0, 27_500);
    let counting = pmu.start(&Event::generic(GenericEvent::Instructions))?;
    execute(0, 25_000);
    pmu.read(sampling)?;
    pmu.disable(counting)?;
    pmu.close(counting)?;
    execute(0, 1_250);
    pmu.disable(sampling)?;
    let total = pmu.read(sampling)?.value;
    pmu.close(sampling)?;
    pmu.processor_down()?;
    Ok(total)
}

/// A thread's events are switched out, and in again.
fn of_a_thread(pmu: &'static World) -> Result<u64, PmuError> {
    pmu.processor_up(&identify(model()))?;
    let cycles = Event::generic(GenericEvent::Cycles);
    let mut events = [pmu.thread_event(&sampling())?, pmu.thread_event(&cycles)?];
    for branches in [12_000, 250, 21_000] {
        pmu.switch(&mut [], &mut events)?;
        execute(0, branches);
        pmu.switch(&mut events, &mut [])?;
    }
    let total = pmu.read_thread(&events[0])?.value;
    pmu.processor_down()?;
    Ok(total)
}

/// The counters are lent, and lost in a suspend.
fn lent(pmu: &'static World) -> Result<u64, PmuError> {
    pmu.processor_up(&identify(model()))?;
    let sampling = pmu.start(&sampling())?;
    execute(0, 7_000);
    pmu.lend(|_| ())?;
    execute(0, 8_000);
    pmu.processor_suspended()?;
    model().reset();
    pmu.processor_resumed()?;
    execute(0, 26_000);
    pmu.disable(sampling)?;
    let total = pmu.read(sampling)?.value;
    pmu.close(sampling)?;
    pmu.processor_down()?;
    Ok(total)
}

/// An event is counted without a period, so that only the wraps of its counter interrupt. So is another one, for a
/// while.
fn counted(pmu: &'static World) -> Result<u64, PmuError> {
    pmu.processor_up(&identify(model()))?;
    let counting = pmu.start(&Event::generic(GenericEvent::Branches).user_only())?;
    execute(0, 1 << 31);
    let other = pmu.start(&Event::generic(GenericEvent::Cycles))?;
    execute(0, 1 << 30);
    pmu.read(counting)?;
    pmu.close(other)?;
    execute(0, 3);
    pmu.disable(counting)?;
    let total = pmu.read(counting)?.value;
    pmu.close(counting)?;
    pmu.processor_down()?;
    Ok(total)
}

type Machine = fn(u32) -> &'static World;

/// Counters of 64 and of 32 bits, at EL1 and EL2, in turns. Number 1 is as those of `SHORT`.
const ALTERNATING: Machine = |after| machine(after % 2 == 0, 1 + (after / 2 % 2) as u8);
const SHORT: Machine = |_| machine(false, 1);
const IN_PAIRS: Machine = |after| in_pairs(1 + (after % 2) as u8);

/// The lives on these machines, and with counters in pairs.
fn lives(machine: Machine) -> impl Iterator<Item = (Machine, &'static str, Life, u64)> {
    [machine, IN_PAIRS].into_iter().flat_map(|machine| {
        LIVES.into_iter().map(move |(name, life, executed)| (machine, name, life, executed))
    })
}

/// Number of accesses of a life.
fn length(machine: Machine, life: Life, branches: u64) -> u32 {
    let before = accesses();
    let pmu = machine(1);
    assert_eq!((life(pmu).unwrap(), model().left()), (branches, 0));
    accesses() - before
}

/// Interrupts come before any access, with branches that fill more than two periods. None is lost, and none counts
/// twice.
#[test]
fn an_interrupt_at_each_access_changes_no_count() {
    for (machine, name, life, executed) in lives(ALTERNATING) {
        for after in 0..length(machine, life, executed) {
            for branches in [1, 4_999, 11_725] {
                let pmu = machine(after);
                meet(after, Met::Branches(branches));
                let total = life(pmu);
                let total = total.unwrap_or_else(|error| panic!("{name}, access {after}: {error}"));
                let case = format!("{name}, access {after}: {total} with {branches}");
                assert!(is_met(), "{case}");
                // An interrupt among them synchronizes, which may start or stop the counter in their midst.
                assert!((executed..=executed + branches).contains(&total), "{case}");
                // While a session programs all its counters, it serves no interrupt: of several periods, one is seen.
                let unseen = if name == "lent" { branches / PERIOD } else { 0 };
                let sampled = total / PERIOD - unseen..=total / PERIOD;
                assert!(sampled.contains(&samples()), "{case}");
                assert_eq!(model().left(), 0, "{case}");
            }
        }
    }
}

/// The second one's branches may come while the first is serviced: then they belong to no period, as the next one
/// begins when the counter is loaded. Of the total, only those between the handler's read of the counter and its load
/// are lost.
#[test]
fn two_interrupts_at_accesses_close_together_change_no_count() {
    for (machine, name, life, executed) in lives(ALTERNATING) {
        for after in 0..length(machine, life, executed) {
            for (later, branches) in (1..9).flat_map(|later| [(later, 4_999), (later, 5_001)]) {
                let pmu = machine(after);
                meet(after, Met::Twice { branches, later });
                let total = life(pmu);
                let total = total.unwrap_or_else(|error| panic!("{name}, access {after}: {error}"));
                let case = format!("{name}, access {after}, {later}: {total} with {branches}");
                assert!((executed..=executed + 2 * branches).contains(&total), "{case}");
                let unseen = if name == "lent" { 2 } else { 1 };
                let sampled = total / PERIOD - unseen..=total / PERIOD;
                assert!(sampled.contains(&samples()), "{case}");
                assert_eq!(model().left(), 0, "{case}");
            }
        }
    }
}

/// A wrap of 32 bits before any access is counted once, and so are two.
#[test]
fn a_wrap_at_each_access_is_counted_once() {
    const EXECUTED: u64 = (1 << 31) + (1 << 30) + 3;
    let of_32_bits: Machine = |after| machine(false, 1 + (after % 2) as u8);
    for (machine, after) in [of_32_bits, IN_PAIRS].into_iter().flat_map(|machine| {
        (0..length(machine, counted, EXECUTED)).map(move |after| (machine, after))
    }) {
        for branches in [1 << 31, (1 << 32) + 7, (1 << 33) + 1] {
            let pmu = machine(after);
            meet(after, Met::Branches(branches));
            let counted = counted(pmu).unwrap() - EXECUTED;
            assert!(is_met(), "access {after}");
            // All, or none before the event is started and after it is disabled.
            assert!([0, branches].contains(&counted), "access {after}: {counted} of {branches}");
        }
    }
}

/// A fault that happens once is overcome.
#[test]
fn a_fault_at_each_access_is_tried_again() {
    for (machine, name, life, executed) in lives(SHORT) {
        for after in 0..length(machine, life, executed) {
            let pmu = machine(after);
            meet(after, Met::Fault { more: 0 });
            let total = life(pmu);
            let total = total.unwrap_or_else(|error| panic!("{name}, access {after}: {error}"));
            assert!(is_met(), "{name}, access {after}");
            let expected = (executed, executed / PERIOD, 0);
            assert_eq!((total, samples(), model().left()), expected, "{name}, access {after}");
        }
    }
}

/// A register that stays faulty for some accesses makes an operation fail. Once the register works again, the counters
/// can be given back, or taken again; nothing goes on counting.
#[test]
fn after_faults_in_a_row_the_counters_can_be_taken_down() {
    let mut failed = 0;
    for (machine, name, life, executed) in lives(SHORT) {
        for after in 0..length(machine, life, executed) {
            let pmu = machine(after);
            meet(after, Met::Fault { more: 1 });
            let lived = life(pmu);
            assert!(is_met(), "{name}, access {after}");
            failed += u32::from(lived.is_err());
            if lived.is_err() {
                match pmu.processor_down() {
                    Ok(()) => {}
                    Err(PmuError::NotUp) => {
                        pmu.processor_up(&identify(model())).unwrap();
                        pmu.processor_down().unwrap();
                    }
                    Err(error) => panic!("{name}, access {after}: {error}"),
                }
            }
            let before = samples();
            execute(0, 1 << 33);
            assert_eq!(samples(), 0, "{name}, access {after}, {before} before");
            assert_eq!(model().left(), 0, "{name}, access {after}: {lived:?}");
        }
    }
    assert!(failed > 10, "{failed}");
}

/// Both processors at once, in turns.
#[test]
fn processors_do_not_share_registers() {
    let pmu = running(false, 1);
    let event = Event::generic(GenericEvent::Branches).every(PERIOD).with_total();
    let events = [0, 1].map(|processor| on(processor, || pmu.start(&event).unwrap()));
    for turn in 1..10 {
        on(turn % 2, || execute(0, 5_000 * turn as u64));
    }
    let totals =
        [0, 1].map(|processor| on(processor, || pmu.read(events[processor]).unwrap().value));
    assert_eq!((totals, samples()), ([100_000, 125_000], 45));
    for processor in [0, 1] {
        on(processor, || pmu.close(events[processor]).unwrap());
    }
    shut_down(pmu);
}
