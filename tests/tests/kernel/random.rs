//! Operations at random on every processor, of the kernel and of its `Pmu`, while registers fail: afterwards everything
//! works, and nothing is left running.

use core::cell::RefCell;
use core::sync::atomic::{AtomicU32, Ordering};

use pmu::PmuError;
use pmu::core::profile::KProfileSource;
use pmu::core::{CounterSet, Event, GenericEvent};
use pmu_tests::opened::{Random, running};
use pmu_virt::mock::Fault;

use crate::world::{Happens, Machine, PROCESSORS, TestPmu, machines};

const PERIOD: u64 = 10_007;
/// Number of runs on each machine.
const SEEDS: u64 = 40;

fn cycles() -> Event {
    Event::generic(GenericEvent::Cycles).every(PERIOD)
}

struct Attack {
    machine: &'static Machine,
    pmu: &'static TestPmu,
    random: RefCell<Random>,
    log: RefCell<Vec<String>>,
}

impl Attack {
    fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().below(end)
    }

    fn happen(&self) {
        let (cpu, count) = (self.below(PROCESSORS as u64) as usize, self.below(3 * PERIOD));
        let event = [Happens::Instructions, Happens::Cycles][self.below(2) as usize];
        self.machine.happen(cpu, event, count);
    }

    /// Does one thing on a processor, some of whose accesses may fail.
    fn act(&self, depth: u32, faults: bool) {
        let (machine, pmu) = (self.machine, self.pmu);
        let cpu = self.below(PROCESSORS as u64) as usize;
        let operation = self.below(13);
        let access = 1 + self.below(16) as u32;
        let fault = match self.below(6) {
            0 if faults => Fault::At(access),
            1 if faults => Fault::From(access),
            _ => Fault::None,
        };
        machine.mocks[cpu].inject(fault);
        let outcome = machine.on(cpu, || match operation {
            0 => pmu.processor_up(&machine.snapshot()).map(drop),
            1 => pmu.processor_down(),
            2 => pmu.processor_suspended(),
            3 => {
                if self.below(2) == 0 {
                    machine.mocks[cpu].lose_registers();
                }
                pmu.processor_resumed().map(drop)
            }
            4 => pmu.watch(PERIOD, 1 + self.below(3) as u32),
            5 => pmu.unwatch(),
            6 => {
                let events = [GenericEvent::Instructions, GenericEvent::Cycles].map(Event::generic);
                let work = || (depth..2).for_each(|depth| self.act(depth + 1, faults));
                pmu.count(&events, work).map(drop)
            }
            7 => {
                let event = Event::generic(GenericEvent::Instructions).every(PERIOD).tagged(7);
                let event = if self.below(2) == 0 { event.rotating() } else { event };
                let opened = pmu.with(|session, unit| {
                    let counters = session.counters_mut();
                    let id = counters.open(unit, &[event])?;
                    counters.enable(id, 0)
                });
                opened.and_then(|opened| Ok(opened?))
            }
            8 => self.close_all(),
            9 | 10 => {
                let event = cycles().every(PERIOD * (1 + self.below(2)));
                let work = || (depth..2).for_each(|depth| self.act(depth + 1, faults));
                pmu.profile(event, 0..64, &BUCKETS, work).map(drop)
            }
            11 => {
                let work = || (depth..2).for_each(|depth| self.act(depth + 1, faults));
                pmu.profile(KProfileSource::TOTAL_ISSUES, 0..64, &BUCKETS, work).map(drop)
            }
            _ => {
                let is_dropped = self.below(2) == 0;
                // `?` between the beginning and the end of a window drops it.
                let lent = pmu.with(|session, _| {
                    let window = session.counters_mut().lend(0, |_| ())?;
                    if is_dropped {
                        return Ok(());
                    }
                    window.end(0).map_err(pmu::core::error::CounterError::from)
                });
                let resumed = if is_dropped { pmu.processor_resumed().map(drop) } else { Ok(()) };
                lent.and_then(|lent| Ok(lent?)).and(resumed)
            }
        });
        machine.mocks[cpu].inject(Fault::None);
        let mut log = self.log.borrow_mut();
        log.push(format!("{cpu}: {operation}, {fault:?}: {outcome:?}"));
        drop(log);
        self.happen();
    }

    /// Closes the kernel's events on this processor.
    fn close_all(&self) -> Result<(), PmuError> {
        let closed = self.pmu.with(|session, _| {
            let counters = session.counters_mut();
            let events: Vec<_> = counters.events().collect();
            events.into_iter().try_for_each(|event| counters.close(event, 0).map(drop))
        });
        Ok(closed??)
    }

    /// Repairs every processor as the documents say, and counts exactly.
    fn end(&self) {
        let (machine, pmu) = (self.machine, self.pmu);
        let context = self.log.borrow().join("\n");
        let context = format!("{:?}\n{context}", machine.configuration);
        for cpu in 0..PROCESSORS {
            machine.on(cpu, || {
                match pmu.processor_resumed() {
                    Err(PmuError::NotUp) => {
                        pmu.processor_up(&machine.snapshot()).map(drop).unwrap()
                    }
                    // Once more, after an error.
                    Err(_) => drop(pmu.processor_resumed().unwrap()),
                    Ok(_) => {}
                }
                // None answered as the processor came up.
                if pmu.with(|session, _| session.counters().usable).unwrap().is_empty() {
                    pmu.processor_down().unwrap();
                    pmu.processor_up(&machine.snapshot()).unwrap();
                }
                self.close_all().unwrap_or_else(|error| panic!("{context}: {error:?}"));
                pmu.unwatch().unwrap_or_else(|error| panic!("{context}: {error:?}"));
            });
        }
        let all = [cycles().into(), KProfileSource::TOTAL_ISSUES.into()];
        let kinds: [(pmu::Profiled, _, _); 2] =
            [(all[0], Happens::Cycles, PERIOD), (all[1], Happens::Instructions, 0x1_0000)];
        for (by, event, period) in kinds {
            let buffer: [AtomicU32; 16] = Default::default();
            let work = || {
                for cpu in 0..PROCESSORS {
                    machine.happen(cpu, event, 3 * period + 1);
                }
            };
            let outcome = pmu.profile(by, 0..64, &buffer, work).map(drop);
            assert_eq!(outcome, Ok(()), "{context}");
            let hits: u32 = buffer.iter().map(|hits| hits.load(Ordering::Relaxed)).sum();
            assert_eq!(hits, 3 * PROCESSORS as u32, "{context}");
        }
        for cpu in 0..PROCESSORS {
            machine.on(cpu, || {
                pmu.watch(PERIOD, 10).unwrap();
                machine.interrupted.take();
                machine.happen(cpu, Happens::Cycles, 20 * PERIOD);
                let stuck = machine.interrupted.take();
                let stuck: Vec<_> = stuck.iter().map(|(_, of)| of.is_stuck).collect();
                assert_eq!(stuck, [false, true], "{context}");
                pmu.processor_down().unwrap();
                assert_eq!(running(&machine.mocks[cpu]), CounterSet::NONE, "{context}");
            });
        }
    }
}

static BUCKETS: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];

fn attack(faults: bool) {
    for (number, processors) in machines().into_iter().enumerate() {
        for seed in 1..=SEEDS {
            let (machine, pmu) = Machine::of(processors);
            let seed = (seed << 8 | number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let (random, log) = (RefCell::new(Random(seed)), RefCell::default());
            let attack = Attack { machine, pmu, random, log };
            machine.up();
            (0..40).for_each(|_| attack.act(0, faults));
            attack.end();
        }
    }
}

#[test]
fn whatever_the_kernel_does_everything_works_afterwards() {
    attack(false);
}

#[test]
fn whatever_fails_everything_works_after_it_was_repaired() {
    attack(true);
}
