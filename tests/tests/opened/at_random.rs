//! Events at random, with faults, interrupts whose restart fails, guests, windows and suspends: whatever a session says
//! is on a counter counts each occurrence, in its host and its guests, and another owner's bit stays.

use core::cell::Cell;

use pmu_core::lending::guest_control;
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSet, Event, EventId, Events, service};
use pmu_tests::StateRegisters;
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviation, Deviations, Fault};

/// Runs the program of a seed. An error has its history.
fn program(seed: u64) -> Result<(), String> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    for _ in 0..5 {
        random.below(2);
    }
    use Deviation::{MasksOnDelivery, RaisesOnUnmask};
    let deviations = [
        Deviations::NONE,
        Deviations::of(&[RaisesOnUnmask]),
        Deviations::of(&[MasksOnDelivery]),
        Deviations::of(&[RaisesOnUnmask, MasksOnDelivery]),
    ][random.below(4) as usize];
    let all: Vec<Processor> =
        processors(deviations).into_iter().filter(|p| p.unit.global().is_some()).collect();
    let processor = all[random.below(all.len() as u64) as usize];
    let control = processor.unit.global().unwrap().control.get();
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let source = Events::new(&processor.unit, &table);
    let failing = Cell::new(false);
    let handler = |mock: &Mock<'_>| {
        if failing.get() {
            mock.inject(Fault::Register(control));
        }
        let _ = service(&source, mock, &memory, |_| ());
        if failing.get() {
            mock.inject(Fault::None);
        }
    };
    mock.on_interrupt(&handler);
    let others = processor.unit.counters() & CounterSet::GENERAL;
    let other = others.iter().nth(2).unwrap().only();
    let mut session = processor.take_only(CounterSet::ALL.without(other), &mock, &memory, &table);
    session.set_others_control(other.bits(), true).unwrap();
    let intel = processor.unit.global().is_some() && guest_control(&source, &memory).is_some();
    if intel {
        session.set_virtualization(true).unwrap();
    }
    let unit = &processor.unit;
    // The event of a mode of guests, by its number.
    let g = |e: Event, m: u64| match m {
        0 if intel => e.in_guests(),
        1 if intel => e.outside_guests(),
        _ => e,
    };
    let mut events: Vec<(EventId, usize, u64)> = vec![];
    let mut add = |session: &mut Opened<'_, '_>, kind: usize, random: &mut Random| {
        let m = random.below(6);
        let mut e = g(raw(kind).with_total(), m);
        if random.below(2) == 0 {
            e = e.every(0x1000);
        }
        if random.below(2) == 0 {
            e = e.rotating();
        }
        if let Ok(id) = session.open(unit, &[e]) {
            events.push((id, kind, if intel { m } else { 9 }));
        }
    };
    for kind in [0, 1, 2, 3, 4] {
        add(&mut session, kind, &mut random);
    }
    let (m5, m6) = (random.below(6), random.below(6));
    let group = session
        .open(unit, &[g(raw(5).with_total().every(0x1000), m5), g(raw(6).with_total(), m6)])
        .unwrap();
    let members: Vec<EventId> = session.group_events(group).collect();
    events.push((members[0], 5, if intel { m5 } else { 9 }));
    events.push((members[1], 6, if intel { m6 } else { 9 }));
    let mut history = format!("{processor:?}\n{events:?}\n");
    for now in 1..14u64 {
        let op = random.below(12);
        let (id, _, _) = events[random.below(5) as usize];
        let fault = match random.below(6) {
            0 => Fault::At(1 + random.below(8) as u32),
            1 => Fault::From(1 + random.below(8) as u32),
            2 => Fault::Register(control),
            _ => Fault::None,
        };
        let nmi = if random.below(2) == 0 { 1 + random.below(8) as u32 } else { 0 };
        let nmi_fails = fault == Fault::None && random.below(2) == 0;
        failing.set(nmi_fails);
        mock.interrupt_at(nmi);
        if fault != Fault::None {
            mock.inject(fault);
        }
        let done = match op {
            0 | 1 => format!("start {:?}", session.enable(id, now)),
            2 => format!("iffree {:?}", session.enable_if_free(id, now)),
            3 => format!("stop {:?}", session.disable(id, now)),
            4 => format!("sgroup {:?}", session.enable(group, now)),
            5 => format!("xgroup {:?}", session.disable(group, now)),
            6 => format!("rotate {:?}", session.rotate(now)),
            7 => format!("reprogram {:?}", session.reprogram(|_| ())),
            8 => format!("apply {:?}", session.apply_period(id, 0x1000, now, |_| ())),
            9 => {
                let mut t = [ThreadEvent::Opened(id)];
                let o = session.switch_out(&mut t, now, |_| ());
                let i = session.switch_in(unit, &mut t, now);
                let place = events.iter().position(|e| e.0 == id).unwrap();
                if let ThreadEvent::Opened(n) = t[0] {
                    events[place].0 = n;
                } else {
                    mock.inject(Fault::None);
                    mock.interrupt_at(0);
                    let i2 = session.switch_in(unit, &mut t, now);
                    if let ThreadEvent::Opened(n) = t[0] {
                        events[place].0 = n;
                    } else {
                        return Err(format!("{history} lost {i2:?}"));
                    }
                }
                format!("switch {o:?} {i:?}")
            }
            10 => match session.lend(now, |_| ()) {
                Ok(w) => format!("window {:?}", w.end(now)),
                Err(e) => format!("lend {e:?}"),
            },
            _ => {
                let s = session.suspend(now, |_| ());
                let mut text = format!("suspend {s:?}");
                if s.is_ok() {
                    if random.below(2) == 0 {
                        mock.lose_registers();
                        let _ = mock.with_pmu(|p| p.write(control, 0));
                    }
                    let r = session.resume(now, |_| ());
                    text += &format!("resume {r:?}");
                }
                text
            }
        };
        mock.inject(Fault::None);
        mock.interrupt_at(0);
        failing.set(false);
        history += &format!("{op} {id:?} {fault:?} nmi {nmi} {nmi_fails}: {done}\n");
        if memory.counter_of(id).is_none() && session.counter_of(id).is_some() {
            return Err(format!("{history} memory differs"));
        }
        if mock.performance_entry() & 1 << 16 != 0 {
            return Ok(());
        }
        let gc = guest_control(&source, &memory);
        for (n, &(id, kind, mode)) in events.iter().enumerate() {
            let Some(c) = session.counter_of(id) else { continue };
            for guest in [false, true] {
                if guest && gc.is_none() {
                    continue;
                }
                let found = mock.with_pmu(|pmu| pmu.state()).global_control();
                if guest {
                    let _ = mock.with_pmu(|p| p.write(control, gc.unwrap().guest));
                }
                let before = session.read(id, now);
                happen(&mock, kind, 3);
                if guest {
                    let _ = mock.with_pmu(|p| p.write(control, found));
                }
                let after = session.read(id, now);
                let (Ok(b), Ok(a)) = (before, after) else {
                    return Err(format!("{history} read {n} on {c:?}: {before:?} {after:?}"));
                };
                let expected = match (mode, guest) {
                    (0, false) | (1, true) => 0,
                    _ => 3,
                };
                if a.value != b.value + expected {
                    return Err(format!(
                        "{history}event {n} kind {kind} mode {mode} guest {guest} on {c:?}: {} -> {}; control {:#x} gc {gc:x?}",
                        b.value, a.value, found
                    ));
                }
            }
        }
    }
    let done = session.reprogram(|_| ());
    if done.is_err() {
        return Err(format!("{history} last reprogram {done:?}"));
    }
    let found = mock.with_pmu(|pmu| pmu.state()).global_control();
    if found & other.bits() == 0 {
        return Err(format!("{history} others' bit {found:#x}"));
    }
    session.shut_down().map_err(|e| format!("{history} {e:?}"))?;
    if !running(&mock).without(other).is_empty() {
        return Err(format!("{history} running"));
    }
    Ok(())
}

/// Three thousand programs of fourteen steps.
#[test]
fn an_event_on_a_counter_counts_whatever_faults_and_failing_restarts_came() {
    for seed in 1..=3_000 {
        if let Err(told) = program(seed) {
            panic!("seed {seed}: {told}");
        }
    }
}
