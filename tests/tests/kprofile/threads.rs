//! Tasks and interrupts on several processors at once: real threads.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use pmu_core::frame::{InterruptFrame, ProcessorNumber};
use pmu_core::profile::{InterfaceError, KProfileSource};
use pmu_kprofile::{
    Affinity, BasicProfile, ProfileCallback, ProfileHardware, ProfileObject, Profiles, Rules,
};
use pmu_tests::kprofile::{Frame, Machine, counts, leak, on, process, processor, request, source};

const TIME: KProfileSource = KProfileSource::TIME;

/// Lists for few objects, on the processors of two groups.
type Lists = Profiles<5, 70>;

/// The hardware of one machine, accessed from several processors.
struct Shared<'m>(&'m Mutex<Machine>, ProcessorNumber);

impl Shared<'_> {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap()
    }
}

impl ProfileHardware for Shared<'_> {
    fn this_processor(&self) -> ProcessorNumber {
        self.1
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        self.machine().active
    }
    fn supports(&self, source: KProfileSource) -> bool {
        self.machine().supports(source)
    }
    fn start(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        self.machine().start(on, source)
    }
    fn stop(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        self.machine().stop(on, source)
    }
}

/// Hardware that is slow to start a source.
struct SlowHardware<'m> {
    machine: Shared<'m>,
    began: &'m AtomicBool,
    done: &'m AtomicBool,
}

impl ProfileHardware for SlowHardware<'_> {
    fn this_processor(&self) -> ProcessorNumber {
        self.machine.this_processor()
    }
    fn in_interrupt(&self) -> bool {
        self.machine.in_interrupt()
    }
    fn active_processors(&self) -> Affinity {
        self.machine.active_processors()
    }
    fn supports(&self, source: KProfileSource) -> bool {
        self.machine.supports(source)
    }
    fn start(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        self.began.store(true, Ordering::Release);
        thread::sleep(A_WHILE);
        self.done.store(true, Ordering::Release);
        self.machine.start(on, source)
    }
    fn stop(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        self.machine.stop(on, source)
    }
}

#[test]
fn one_writer_of_the_lists_waits_for_the_other() {
    let lists = leak(Lists::new());
    let machine = Mutex::new(Machine::new(Affinity::first(1)));
    let [one, other] = [0, 1].map(|_| on(0x19, &[0], &machine.lock().unwrap()));
    let (began, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let shared = |number| Shared(&machine, processor(0, number));
        let mut slow = SlowHardware { machine: shared(0), began: &began, done: &done };
        scope.spawn(move || lists.start(one, &mut slow).unwrap());
        wait_for(&began);
        // This object shares the source that is just being started.
        lists.start(other, &mut shared(1)).unwrap();
        assert!(done.load(Ordering::Acquire));
    });
    assert_eq!(machine.into_inner().unwrap().changes, 1);
}

/// Time in which other threads could do the forbidden.
const A_WHILE: Duration = Duration::from_millis(50);

#[track_caller]
fn wait_for(flag: &AtomicBool) {
    let begin = Instant::now();
    while !flag.load(Ordering::Acquire) {
        assert!(begin.elapsed() < Duration::from_secs(20), "it does not come");
        thread::yield_now();
    }
}

/// A callback that is slow, and is interrupted meanwhile.
struct Slow {
    lists: &'static Lists,
    began: AtomicBool,
    stop_returned: AtomicBool,
    was_stopped_meanwhile: AtomicBool,
}

impl ProfileCallback for Slow {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
        self.began.store(true, Ordering::Release);
        thread::sleep(A_WHILE);
        self.lists.interrupt(&frame, source(0x1F));
        thread::sleep(A_WHILE);
        let returned = self.stop_returned.load(Ordering::Acquire);
        self.was_stopped_meanwhile.store(returned, Ordering::Release);
    }
}

#[test]
fn stop_waits_for_an_interrupt_on_another_processor_and_not_for_what_interrupts_that() {
    let lists = leak(Lists::new());
    let mut machine = Machine::new(Affinity::first(2));
    let [began, stop_returned, was_stopped_meanwhile] = [const { AtomicBool::new(false) }; 3];
    let slow: &Slow = leak(Slow { lists, began, stop_returned, was_stopped_meanwhile });
    let object = leak(ProfileObject::callback(Rules::LATEST, TIME, slow).unwrap());
    lists.start(object, &mut machine).unwrap();
    thread::scope(|scope| {
        let frame = Frame { processor: processor(0, 1), ..Frame::default() };
        scope.spawn(move || lists.timer_interrupt(&frame));
        wait_for(&slow.began);
        lists.stop(object, &mut machine).unwrap();
        slow.stop_returned.store(true, Ordering::Release);
    });
    assert!(!slow.was_stopped_meanwhile.load(Ordering::Acquire));
}

/// The state shared by interrupted threads and threads that start and stop profiles.
struct Meeting {
    lists: &'static Lists,
    machine: Mutex<Machine>,
    begin: Instant,
    over: AtomicBool,
    counted: AtomicU64,
    rounds: AtomicU64,
}

impl Meeting {
    /// Returns whether they met often enough; on a busy machine that takes longer.
    fn is_enough(&self) -> bool {
        let often = |count: &AtomicU64| count.load(Ordering::Relaxed) > 100;
        let often = often(&self.counted) && often(&self.rounds);
        self.begin.elapsed() > Duration::from_millis(if often { 500 } else { 20_000 })
    }

    /// Interrupts a processor until all threads have finished. Returns the number of objects that acted and of
    /// interrupts.
    fn be_interrupted(&self, number: u8) -> (u64, u64) {
        let (mut hits, mut seen) = (0, 0);
        let mut frame = Frame { processor: processor(0, number), ..Frame::default() };
        while !self.over.load(Ordering::Relaxed) {
            frame.pc = 0x1000 + seen % 20;
            frame.process = process(1 + seen % 2);
            hits += u64::from(self.lists.timer_interrupt(&frame).hits);
            seen += 1;
            thread::yield_now();
        }
        (hits, seen)
    }

    /// Starts and stops profiles that live only as long as they must, on a processor.
    fn write(&self, number: u8) {
        let mut hardware = Shared(&self.machine, processor(0, number));
        while !self.is_enough() {
            let counters: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
            let owner = process(self.rounds.fetch_add(1, Ordering::Relaxed) % 3);
            let request = BasicProfile { process: owner, ..request(&counters) };
            let object = ProfileObject::basic(Rules::LATEST, request, &hardware).unwrap();
            // SAFETY: the object and its buffer live, and do not move, until the stop below.
            unsafe { self.lists.start_borrowed(&object, &mut hardware) }.unwrap();
            thread::yield_now();
            self.lists.stop(&object, &mut hardware).unwrap();
            let at_stop = counts(&counters);
            thread::yield_now();
            assert_eq!(counts(&counters), at_stop, "counted after stop");
            let sum: u32 = at_stop.iter().sum();
            self.counted.fetch_add(sum.into(), Ordering::Relaxed);
        }
    }
}

/// Two threads, as processors 0 and 1, are interrupted repeatedly, while two more, as processors 2 and 3, start and
/// stop profiles that live only as long as they must.
#[test]
fn after_stop_nothing_touches_the_buffer_and_every_hit_is_in_it() {
    let meeting = Meeting {
        lists: leak(Lists::new()),
        machine: Mutex::new(Machine::new(Affinity::first(4))),
        begin: Instant::now(),
        over: AtomicBool::new(false),
        counted: AtomicU64::new(0),
        rounds: AtomicU64::new(0),
    };
    let all = &meeting;
    let [(hits_0, seen_0), (hits_1, seen_1)] = thread::scope(|scope| {
        let interrupted = [0, 1].map(|number| scope.spawn(move || all.be_interrupted(number)));
        let writers = [2, 3].map(|number| scope.spawn(move || all.write(number)));
        let written = writers.map(|writer| writer.join());
        all.over.store(true, Ordering::Relaxed);
        let interrupted = interrupted.map(|thread| thread.join().unwrap());
        written.into_iter().for_each(Result::unwrap);
        interrupted
    });
    let Meeting { lists, machine, counted, .. } = meeting;
    assert_eq!(counted.into_inner(), hits_0 + hits_1);
    let statistics = lists.statistics();
    assert_eq!((statistics.seen, statistics.outside), (seen_0 + seen_1, 0));
    assert_eq!(statistics.hit + statistics.missed, statistics.seen);
    assert!(machine.into_inner().unwrap().running.is_empty());
    assert_eq!(lists.started(), 0);
    assert!(hits_0 + hits_1 > 100, "nothing happened");
}

/// A callback that does not return until it is released.
#[derive(Default)]
struct Hold {
    inside: AtomicU32,
    released: [AtomicBool; 2],
}

impl ProfileCallback for Hold {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
        self.inside.fetch_add(1, Ordering::SeqCst);
        while !self.released[frame.pc() as usize].load(Ordering::SeqCst) {
            thread::yield_now();
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Frames that name one processor on two, as those of a faulty kernel may, with dispatches that end in another order
/// than on one processor: `stop` waits for all of them.
#[test]
fn stop_waits_for_dispatches_that_do_not_nest() {
    let lists = leak(Profiles::<4, 8>::new());
    let hold: &'static Hold = leak(Hold::default());
    let object = leak(ProfileObject::callback(Rules::LATEST, TIME, hold).unwrap());
    let machine = Mutex::new(Machine::new(Affinity::of(processor(0, 5))));
    let mut hardware = Shared(&machine, processor(0, 5));
    lists.start(object, &mut hardware).unwrap();
    let (first, second) = (Frame::at(0), Frame::at(1));
    thread::scope(|scope| {
        for (number, frame) in [&first, &second].into_iter().enumerate() {
            scope.spawn(move || lists.timer_interrupt(frame));
            while hold.inside.load(Ordering::SeqCst) as usize != number + 1 {
                thread::yield_now();
            }
        }
        let stopping = scope.spawn(|| lists.stop(object, &mut Shared(&machine, processor(0, 5))));
        // The first in is the first out. The second is still inside, and so is `stop`.
        hold.released[0].store(true, Ordering::SeqCst);
        while hold.inside.load(Ordering::SeqCst) != 1 {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(50));
        let too_early = stopping.is_finished();
        hold.released[1].store(true, Ordering::SeqCst);
        stopping.join().unwrap().unwrap();
        assert!(!too_early);
    });
}
