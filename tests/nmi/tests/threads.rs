//! Threads in the interrupt's place: two are processors that are interrupted all the time, two start
//! and stop profiles. For ThreadSanitizer, which knows threads and no interrupts: see `tsan.sh`.
//!
//! With `SEEDED` in the environment an object is touched before it is stopped, which it must find.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use pmu_core::frame::InterruptFrame;
use pmu_core::profile::KProfileSource;
use pmu_kprofile::testing::AnySource;
use pmu_kprofile::trace::{Hook, TraceCallback, TraceRing};
use pmu_kprofile::{BasicProfile, PointerWidth, ProfileCallback, ProfileObject, Profiles, Rules};
use pmu_nmi_tests::frame;

const TIME: KProfileSource = KProfileSource::TIME;
const PROCESSORS: u16 = 2;

static LISTS: Profiles<8, 4> = Profiles::new();
static RINGS: [TraceRing<16>; PROCESSORS as usize] = [const { TraceRing::new() }; 2];
static TRACE: TraceCallback<16> =
    TraceCallback::new(Hook::SampledProfile, PointerWidth::Bits64, &RINGS);

/// Number of calls of [`Plain`].
static CALLS: AtomicU64 = AtomicU64::new(0);

fn hardware(this: u16) -> AnySource {
    AnySource { this, active: 4 }
}

/// Data that interrupts read, and that its owner writes when it is stopped.
struct Plain(UnsafeCell<u64>);

// SAFETY: the test proves that no write overlaps a read.
unsafe impl Sync for Plain {}

impl Plain {
    fn write(&self) {
        // SAFETY: see above.
        unsafe { *self.0.get() += 1 };
    }
}

impl ProfileCallback for Plain {
    fn profile_interrupt(&self, _: &dyn InterruptFrame, _: KProfileSource) {
        // SAFETY: see above.
        std::hint::black_box(unsafe { *self.0.get() });
        CALLS.fetch_add(1, Relaxed);
    }
}

#[test]
fn what_is_stopped_is_its_owners() {
    let seeded = std::env::var_os("SEEDED").is_some();
    let (over, hits, counted, rounds) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let drained = Mutex::new(0);
    let begin = Instant::now();
    let interrupts = |processor| {
        while !over.load(Relaxed) {
            hits.fetch_add(LISTS.interrupt(&frame(processor), TIME).hits.into(), Relaxed);
            thread::yield_now();
        }
    };
    let change = |processor: u16| {
        while begin.elapsed() < Duration::from_secs(2) {
            let (buffer, plain) = (vec![AtomicU32::new(0), AtomicU32::new(0)], Plain(0.into()));
            plain.write();
            let request = BasicProfile {
                process: None,
                base: 0x1000,
                size: 8,
                bucket_log2: 2,
                buffer: &buffer,
                source: TIME,
                affinity: None,
            };
            let objects = [
                ProfileObject::basic(Rules::LATEST, request, &hardware(processor)).unwrap(),
                ProfileObject::callback(Rules::LATEST, TIME, &plain).unwrap(),
                ProfileObject::callback(Rules::LATEST, TIME, &TRACE).unwrap(),
            ];
            for object in &objects {
                // SAFETY: object and buffer live until the stop below.
                unsafe { LISTS.start_borrowed(object, &mut hardware(processor)) }.unwrap();
            }
            thread::yield_now();
            if seeded {
                plain.write();
            }
            for object in &objects {
                LISTS.stop(object, &mut hardware(processor)).unwrap();
            }
            plain.write();
            let counts: u64 = buffer.iter().map(|count| u64::from(count.load(Relaxed))).sum();
            counted.fetch_add(counts, Relaxed);
            rounds.fetch_add(1, Relaxed);
            let ring = RINGS[usize::from(processor % PROCESSORS)].drain();
            *drained.lock().unwrap() += ring.filter(|record| record.decode().is_ok()).count();
        }
    };
    thread::scope(|scope| {
        (0..PROCESSORS).for_each(|processor| _ = scope.spawn(move || interrupts(processor)));
        let changers = [2, 3].map(|processor| scope.spawn(move || change(processor)));
        let changed = changers.map(|changer| changer.join());
        over.store(true, Relaxed);
        changed.into_iter().for_each(Result::unwrap);
    });
    let rest: usize = RINGS.iter().map(|ring| ring.drain().count()).sum();
    let recorded = (drained.into_inner().unwrap() + rest) as u64 + TRACE.dropped();
    let (hits, counted) = (hits.into_inner(), counted.into_inner());
    assert_eq!(hits, counted + CALLS.load(Relaxed) + recorded, "a hit is one of these");
    assert!(counted > 0 && recorded > 0, "nothing happened");
    println!("{} rounds, {hits} hits, {counted} counts, {recorded} records", rounds.into_inner());
}
