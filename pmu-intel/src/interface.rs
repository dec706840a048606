//! The Emon profile interface.

use core::sync::atomic::AtomicU32;

use pmu_core::error::NoInterface;
use pmu_core::profile::{ProfileSources, SourceTable};
use pmu_core::windows::{HalInterface, PointerWidth, Rules};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterUnit, EventSource};

use crate::counters::{self, Perfmon};
use crate::cpuid::ArchitecturalPerfmon;
use crate::sources::{SOURCES, TABLE};

/// The Emon interface: Windows' profile interface for machines with Intel processors.
///
/// The interface uses the general counters of architectural performance monitoring, and has the sources in
/// [`SOURCES`](crate::SOURCES).
///
/// ```
/// use pmu_core::EventSource;
/// use pmu_core::profile::KProfileSource;
/// use pmu_intel::Emon;
/// // For a listing; a driver detects it from CPUID.
/// let emon = Emon::declared();
/// let information = emon.query(KProfileSource::TOTAL_CYCLES);
/// assert_eq!(information.interval, 65_536);
/// ```
#[derive(Debug)]
pub struct Emon {
    perfmon: ArchitecturalPerfmon,
    sources: ProfileSources<[AtomicU32; SOURCES.len()]>,
}

impl Emon {
    /// The table of the interface's sources, which are [`SOURCES`](crate::SOURCES).
    pub const TABLE: &'static SourceTable = &TABLE;

    /// Detects the Emon interface of a machine. The machine must meet the conditions below. Windows checks most of
    /// these conditions, too. `snapshot` describes the boot processor.
    ///
    /// The conditions are:
    ///
    /// - The vendor is Intel.
    /// - No Microsoft-compatible hypervisor hides the counters.
    /// - The version in CPUID leaf 0x0A is not 0.
    /// - CPUID declares a plausible number of general counters, and a width of 32 to 64 bits. Windows checks neither
    ///   the number nor the width.
    /// - The number of events in the leaf is not 0, and the first event, cycles, is available.
    ///
    /// ```
    /// use pmu_core::x86::Snapshot;
    /// use pmu_core::error::NoInterface;
    /// use pmu_intel::Emon;
    /// fn emon(boot_processor: &Snapshot) -> Option<Emon> {
    ///     match Emon::detect(boot_processor) {
    ///         Ok(emon) => return Some(emon),
    ///         Err(NoInterface::OtherVendor(_)) => {} // AMD's, perhaps
    ///         Err(reason) => println!("no profile sources but time: {reason}"),
    ///     }
    ///     None
    /// }
    /// # let _ = emon;
    /// ```
    ///
    /// # Errors
    /// Returns the first of these conditions that is not met.
    pub fn detect(snapshot: &Snapshot) -> Result<Self, NoInterface> {
        let unit = counters::unit(snapshot, false);
        let perfmon = ArchitecturalPerfmon::from_snapshot(snapshot);
        if let Some(why) = unit.why_absent() {
            Err(why)
        } else if perfmon.events() == 0 {
            Err(NoInterface::NoPerformanceMonitoring)
        } else if !perfmon.has_event(0) {
            Err(NoInterface::CyclesUnavailable)
        } else {
            Ok(Self::new(perfmon, unit))
        }
    }

    /// Detects the Emon interface as the HAL of the Windows version in `rules` does. Some versions of the HAL have no
    /// Emon interface. A 32-bit HAL has the interface only on processors of families 6 and 15. The call also checks the
    /// conditions of [`detect`](Self::detect).
    ///
    /// # Errors
    /// The errors of [`detect`](Self::detect), and [`NotInVersion`](NoInterface::NotInVersion),
    /// [`OtherFamily`](NoInterface::OtherFamily).
    ///
    /// # Examples
    /// ```
    /// # use pmu_core::x86::dump::CpuidDump;
    /// # use pmu_core::x86::Snapshot;
    /// # let dump = CpuidDump::parse(
    /// #     "   0x00000000 0x00: eax=0x0000000a ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
    /// #         0x00000001 0x00: eax=0x000506e3 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    /// #         0x0000000a 0x00: eax=0x07300404 ebx=0x00000000 ecx=0x00000000 edx=0x00000603",
    /// # )?;
    /// # let boot_processor = Snapshot::capture(&dump);
    /// use pmu_core::error::NoInterface;
    /// use pmu_core::windows::{PointerWidth, Rules, WindowsVersion};
    /// use pmu_intel::Emon;
    ///
    /// let windows_7 = Rules { version: WindowsVersion::Windows7, width: PointerWidth::Bits32 };
    /// let absent = Emon::detect_as_of(&boot_processor, windows_7).map(|_| ());
    /// assert_eq!(absent, Err(NoInterface::NotInVersion(windows_7)));
    /// assert!(Emon::detect_as_of(&boot_processor, Rules::LATEST).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn detect_as_of(snapshot: &Snapshot, rules: Rules) -> Result<Self, NoInterface> {
        let emon = Self::detect(snapshot)?;
        if !rules.version.has_counters(HalInterface::Emon, rules.width) {
            Err(NoInterface::NotInVersion(rules))
        } else if rules.width == PointerWidth::Bits32 && !matches!(snapshot.family(), 6 | 15) {
            Err(NoInterface::OtherFamily(snapshot.family()))
        } else {
            Ok(emon)
        }
    }

    /// Returns the Emon interface of a fictitious machine that supports every source in [`SOURCES`](crate::SOURCES). A
    /// tool can use this interface to list the sources on any machine.
    pub fn declared() -> Self {
        let perfmon = ArchitecturalPerfmon::from_registers(0x0730_0401, 0, 0, 0);
        Self::new(perfmon, CounterUnit::of(&Perfmon::new(perfmon)))
    }

    const fn new(perfmon: ArchitecturalPerfmon, unit: CounterUnit) -> Self {
        Self { perfmon, sources: ProfileSources::new("Emon", unit) }
    }

    /// Returns CPUID leaf 0x0A of the boot processor.
    pub const fn perfmon(&self) -> &ArchitecturalPerfmon {
        &self.perfmon
    }
}

// SAFETY: the unit is a field, or a constant; that of another processor is what its CPUID declares.
unsafe impl EventSource for Emon {
    type Processor = Snapshot;
    type Facility = ();

    fn facility(&self) {}

    #[inline]
    fn profile_sources(&self) -> &ProfileSources {
        &self.sources
    }

    #[inline]
    fn table(&self) -> &'static SourceTable {
        Self::TABLE
    }

    fn unit_of(&self, processor: &Snapshot) -> CounterUnit {
        counters::unit(processor, false)
    }

    fn is_declared(&self, row: usize) -> bool {
        SOURCES
            .get(row)
            .is_some_and(|source| source.event_bit().is_none_or(|bit| self.perfmon.has_event(bit)))
    }

    /// Returns `false`. Without memory for the counters, Windows continues, and every source is unsupported.
    fn requires_memory(&self) -> bool {
        false
    }
}
