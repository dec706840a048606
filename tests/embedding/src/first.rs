//! A first build with `pmu-kprofile`, without features: a profile is started and stopped by the forms that never wait,
//! and nothing is asked of the embedder. Its exit status says what went wrong; 0: nothing.
#![no_std]
#![no_main]

mod bare;

use core::hint::black_box;
use core::sync::atomic::{AtomicU32, Ordering};

use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_core::profile::{InterfaceError, KProfileSource};
use pmu_kprofile::{Affinity, BasicProfile, ProfileHardware, ProfileObject, Profiles, Rules};

static PROFILES: Profiles<4, 1> = Profiles::new();
static BUFFER: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];

/// Any address as the interrupted one.
struct Frame(u64);

impl InterruptFrame for Frame {
    fn pc(&self) -> u64 {
        self.0
    }
    fn cs(&self) -> u16 {
        0x10
    }
    fn flags(&self) -> u64 {
        2
    }
    fn processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(0)
    }
    fn process(&self) -> Option<ProcessId> {
        None
    }
}

/// A timer, of which nothing is to be told.
struct Timer;

impl ProfileHardware for Timer {
    fn this_processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(0)
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        Affinity::first(1)
    }
    fn supports(&self, source: KProfileSource) -> bool {
        source == KProfileSource::TIME
    }
    fn start(&mut self, _: ProcessorNumber, _: KProfileSource) -> Result<(), InterfaceError> {
        Ok(())
    }
    fn stop(&mut self, _: ProcessorNumber, _: KProfileSource) -> Result<(), InterfaceError> {
        Ok(())
    }
}

fn profile() -> Result<(), i32> {
    let request = BasicProfile {
        process: None,
        base: 0x1000,
        size: 0x10,
        bucket_log2: 2,
        buffer: &BUFFER,
        source: KProfileSource::TIME,
        affinity: None,
    };
    let object = ProfileObject::basic(Rules::LATEST, request, &Timer).map_err(|_| 1)?;
    // SAFETY: the object is stopped, and its grace period over, before this function returns.
    unsafe { PROFILES.try_start_borrowed(&object, &mut Timer) }.map_err(|_| 2)?;
    PROFILES.timer_interrupt(black_box(&Frame(0x1009)));
    let stopping = loop {
        if let Ok(stopping) = PROFILES.try_stop(&object, &mut Timer) {
            break stopping;
        }
    };
    while !stopping.is_over() {}
    stopping.hardware().map_err(|_| 3)
}

extern "C" fn main() -> i32 {
    match profile() {
        Ok(()) if BUFFER.get(2).is_some_and(|bucket| bucket.load(Ordering::Relaxed) == 1) => 0,
        Ok(()) => 4,
        Err(what) => what,
    }
}
