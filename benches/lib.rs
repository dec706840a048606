//! The benchmarks are in `benches/`, one file per crate or subject.
//!
//! ```text
//! cargo install gungraun-runner --version 0.20.0 --locked
//! cargo bench --manifest-path benches/Cargo.toml
//! ```

pub mod one_processor;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pmu_core::Platform;
use pmu_core::access::{CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate};
use pmu_core::error::PlatformError;
use pmu_core::interval::Interval;
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;

/// 64 registers, by the low bits of their numbers, which differ for those that a driver uses.
pub struct Registers {
    file: [AtomicU64; 64],
    /// The place of counter 0, and the distance to the next.
    counters: (u32, u32),
}

impl Registers {
    /// Creates registers of 0. RDPMC reads the `counters`: the register of counter 0, and the distance to the next.
    pub const fn new(counters: (u32, u32)) -> Self {
        Self { file: [const { AtomicU64::new(0) }; 64], counters }
    }

    /// Returns the register with this number.
    pub fn at(&self, number: u32) -> &AtomicU64 {
        &self.file[number as usize % 64]
    }
}

impl RegisterBackend for Registers {
    type Error = core::convert::Infallible;

    #[inline]
    fn read(&self, address: RegisterAddress) -> Result<u64, Self::Error> {
        Ok(self.at(address.get()).load(Relaxed))
    }

    #[inline]
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), Self::Error> {
        self.at(address.get()).store(value, Relaxed);
        Ok(())
    }

    #[inline]
    fn read_counter(&self, index: CounterIndex) -> Result<u64, Self::Error> {
        Ok(self.at(self.counters.0 + self.counters.1 * index.get()).load(Relaxed))
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, Self::Error> {
        let register = self.at(update.register());
        let found = register.load(Relaxed);
        register.store(update.apply(found).unwrap_or(found), Relaxed);
        Ok(found)
    }
}

impl Platform for Registers {
    #[inline]
    fn unmask_performance_interrupt(&self) {
        // The place of LVTPC's offset, 0x340.
        self.file[0].store(0x400, Relaxed);
    }

    fn mask_performance_interrupt(&self) {
        self.file[0].store(0x1_0400, Relaxed);
    }

    fn start_profile_timer(&self, _: Interval) -> Result<(), PlatformError> {
        Err(PlatformError::NoTimer)
    }

    fn stop_profile_timer(&self) {}
}

/// Returns an Intel processor with eight general counters of 48 bits.
pub fn intels(version: u32) -> Snapshot {
    Snapshot::capture(move |leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            0x0A => (0x0730_0800 | version, 0, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    })
}
