//! Counters for the built-in workload: the vendor's driver on a software PMU, which is fed with the
//! time that the workload's thread ran, as cycles of a processor of 1 GHz.
//!
//! Time is all that is known of what the thread did, so cycles are all that is fed: a source of any
//! other event says so, and does not pretend.

use core::sync::atomic::{AtomicU64, Ordering};

use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::KProfileSource;
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_core::{EventSource, service};
use pmu_intel::Emon;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::MockMsr;
use pmu_virt::{EventKey, FedEvent, FedEvents, Feed, Privilege, VirtualPmu};

use super::processor::{PROFILES, SignalFrame, thread_time};
use crate::machine::Source;

/// Architectural performance monitoring, version 4, with four general counters.
const PMU: IntelConfiguration = IntelConfiguration::new(4, 4, 3);

/// A processor with counters, and the driver for them.
pub struct Counters {
    /// The driver.
    pub interface: Emon,
    /// The processor's CPUID leaves that matter here.
    pub processor: Snapshot,
    /// The processor's registers and its local APIC.
    pub registers: MockMsr<'static, 1>,
    /// The needs of the driver's interrupt path.
    pub memory: CounterMemory<[CounterSlot; 4]>,
    cycles: FedEvent,
    /// The thread's time up to which the counters have counted, in nanoseconds.
    counted: AtomicU64,
}

impl Counters {
    /// The event that a source counts, if the thread's time tells of it.
    pub fn feed_of(source: &Source) -> Option<EventKey> {
        let wanted = EventKey::general(source.event, source.unit_mask);
        // Unhalted core cycles and unhalted reference cycles; at 1 GHz, they are the same.
        let cycles = [EventKey::general(0x3C, 0x00), EventKey::general(0x3C, 0x01)];
        cycles.into_iter().find(|event| *event == wanted)
    }

    /// A processor that can count a source truthfully; `None`: it cannot be fed. Lives forever, since
    /// a signal handler will look at it.
    pub fn for_source(source: &Source) -> Option<&'static Self> {
        let event = Self::feed_of(source)?;
        let fed = FedEvents::new(&[event]).ok()?;
        let configuration = Configuration::Intel(PMU);
        let processor = Snapshot::capture(move |leaf: u32, subleaf: u32| {
            let [eax, ebx, ecx, edx] = configuration.cpuid(leaf, subleaf, intel(leaf));
            CpuIdResult { eax, ebx, ecx, edx }
        });
        Some(Box::leak(Box::new(Self {
            interface: Emon::detect(&processor).ok()?,
            processor,
            registers: MockMsr::strict(VirtualPmu::new(configuration, fed).ok()?),
            memory: CounterMemory::new(),
            cycles: fed.find(event)?,
            counted: AtomicU64::new(0),
        })))
    }

    /// Counts from now on.
    pub fn begin(&self) {
        self.counted.store(thread_time().as_nanos() as u64, Ordering::Relaxed);
    }

    /// The timer's interrupt: lets the time since the last one happen, and services the performance
    /// interrupts that come of it.
    ///
    /// The registers are not borrowed then: the timer runs only between starting and stopping.
    pub fn tick(&self, frame: &SignalFrame<'_>) {
        let now = thread_time().as_nanos() as u64;
        let passed = now.saturating_sub(self.counted.swap(now, Ordering::Relaxed));
        let mut feed = self.registers.with_pmu(|pmu| Feed::new(pmu.events()));
        // Both are of the PMU's events.
        let _ = feed.add(self.cycles, Privilege::User, passed);
        while !feed.is_empty()
            && let Ok(advanced) = self.registers.with_pmu(|pmu| pmu.advance(&mut feed))
        {
            if advanced.pmi {
                self.registers.with_pmu(pmu_virt::VirtualPmu::init);
                self.performance_interrupt(frame);
            }
        }
    }

    fn performance_interrupt(&self, frame: &SignalFrame<'_>) {
        // The model raises no fault where the driver is right, and is strict where it is not.
        let _ = service(&self.interface, &self.registers, &self.memory, |sample| {
            if let Some(overflow) = self.interface.overflow(&sample) {
                PROFILES.interrupt(frame, overflow.source);
            }
        });
    }
}

/// An Intel processor's words on itself, apart from its PMU.
fn intel(leaf: u32) -> [u32; 4] {
    if leaf == 0 { [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69] } else { [0; 4] }
}

/// Returns true if a source's interrupts come from a counter.
pub fn is_counter(source: &Source) -> bool {
    source.id != KProfileSource::TIME
}
