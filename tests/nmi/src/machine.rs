//! The drivers, and the chips that they run on.

use pmu_amd::Amd64;
use pmu_core::EventSource;
use pmu_core::frame::PlainFrame;
use pmu_core::profile::KProfileSource;
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_intel::Emon;

use crate::{Chip, Kind, SOURCES};

/// The sources' interval.
pub const INTERVAL: u64 = 0x1000;

/// A driver, with the kind of its processor.
#[derive(Debug)]
pub struct Machine<I> {
    /// The driver.
    pub interface: I,
    /// The processor's CPUID leaves that matter here.
    pub processor: Snapshot,
    /// Vendor and kind of the registers.
    pub kind: Kind,
    /// Its counters freeze.
    pub freezes: bool,
    /// The sources that are used.
    pub sources: [KProfileSource; SOURCES],
}

impl<I: EventSource<Processor = Snapshot>> Machine<I> {
    fn new(interface: I, processor: Snapshot, kind: Kind, freezes: bool) -> Self {
        let mut rows = interface.sources().iter().filter(|row| {
            row.source() != KProfileSource::TIME
                && row.canonical().is_none()
                && interface.query(row.source()).is_supported()
        });
        let sources = core::array::from_fn(|_| rows.next().expect("another source").source());
        Self { interface, processor, kind, freezes, sources }
    }

    /// Creates a processor for it, with every interval at its initial value.
    pub fn chip(&self) -> Chip {
        let sources = self.sources.map(|source| {
            self.interface.set_interval(source, INTERVAL).expect("an interval");
            let row = self.interface.row(source).expect("a row");
            self.interface.sources()[row].select().select_bits()
        });
        Chip::new(self.kind, sources)
    }
}

/// An Intel processor of a version, with four counters, and from version 2 on three fixed ones.
pub fn intel(version: u32, freezes: bool) -> Machine<Emon> {
    let snapshot = Snapshot::capture(move |leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            0x0A => (0x0730_0400 | version, 0, 0, if version > 1 { 0x603 } else { 0 }),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    });
    let emon = Emon::detect(&snapshot).expect("Intel's");
    Machine::new(emon, snapshot, Kind::Intel(version), freezes)
}

/// An AMD processor.
pub fn amd(kind: Kind) -> Machine<Amd64> {
    let (core, v2) = (kind == Kind::Core(false), kind == Kind::Core(true));
    let snapshot = Snapshot::capture(move |leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (1, 0x6874_7541, 0x444D_4163, 0x6974_6E65),
            0x8000_0000 => (0x8000_0022, 0, 0, 0),
            0x8000_0001 => (0, 0, u32::from(core) << 23, 1 << 29),
            0x8000_0022 => (v2.into(), 4, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    });
    Machine::new(Amd64::detect(&snapshot).expect("AMD's"), snapshot, kind, false)
}

/// Returns the frame of an interrupt of a processor.
pub fn frame(processor: u16) -> PlainFrame {
    PlainFrame::new(0x1004, 0, 0, processor.into())
}
