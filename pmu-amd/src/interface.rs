//! The Amd64 profile interface.

use core::sync::atomic::AtomicU32;

use pmu_core::error::NoInterface;
use pmu_core::profile::classes::BUG_CHECK_HAL_MEMORY_ALLOCATION;
use pmu_core::profile::{ProfileSources, SourceTable};
use pmu_core::windows::{HalInterface, Rules};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterUnit, EventSource};

use crate::counters::{self, Core};
use crate::sources::{SOURCES, TABLE};

/// Windows' Amd64 interface: it counts the events of profile sources on the core counters of AMD processors.
///
/// The interface has the sources of [`SOURCES`](crate::SOURCES). The interface uses the first group of counters that
/// the processor has, in this order:
///
/// - the counters of PerfMonV2, with its global registers;
/// - the counters of the core extension;
/// - the four legacy counters, which every AMD processor has.
///
/// ```
/// use pmu_amd::Amd64;
/// use pmu_core::EventSource;
/// use pmu_core::profile::KProfileSource;
/// // For a listing; a driver detects it from CPUID.
/// let amd64 = Amd64::declared();
/// assert_eq!(amd64.unit().counters().len(), 4);
/// assert_eq!(amd64.query(KProfileSource::TOTAL_ISSUES).interval, 65_536);
/// ```
///
/// # Limitations
/// - The source tables are those of the original release of Windows 10. On processors since family 10h, many of their
///   events count something else, or nothing: [`Generation::meaning`](crate::Generation::meaning).
/// - From version 1903 on, it is not known which counters Windows' HAL uses, only that it reports their number. All
///   counters that CPUID declares are taken.
#[derive(Debug)]
pub struct Amd64 {
    legacy: bool,
    sources: ProfileSources<[AtomicU32; SOURCES.len()]>,
}

impl Amd64 {
    /// The table of the interface's sources, which are [`SOURCES`](crate::SOURCES).
    pub const TABLE: &'static SourceTable = &TABLE;

    /// Number of the bug check `HAL_MEMORY_ALLOCATION` (0xAC). Where Windows raises this bug check,
    /// [`Session::take`](pmu_core::profile::Session::take) returns
    /// [`InsufficientMemory`](pmu_core::error::CounterError::InsufficientMemory).
    pub const BUG_CHECK_WITHOUT_MEMORY: u32 = BUG_CHECK_HAL_MEMORY_ALLOCATION;

    /// Detects the Amd64 interface of a machine by the conditions that Windows checks. `snapshot` describes the boot
    /// processor.
    ///
    /// The conditions are:
    ///
    /// - The vendor is AMD.
    /// - The processor has long mode.
    /// - The processor is not under a Microsoft-compatible hypervisor that hides the counters.
    ///
    /// CPUID does not say whether the legacy counters exist. So [`Session::take`](pmu_core::profile::Session::take)
    /// tests the counters before the interface uses them.
    ///
    /// ```
    /// use pmu_amd::{Amd64, Generation, Meaning};
    /// use pmu_core::x86::Snapshot;
    /// use pmu_core::error::NoInterface;
    /// use pmu_core::profile::KProfileSource;
    /// fn amd64(boot_processor: &Snapshot) -> Result<Amd64, NoInterface> {
    ///     let amd64 = Amd64::detect(boot_processor)?;
    ///     let generation = Generation::of(boot_processor);
    ///     let misses = generation.and_then(|one| one.meaning(KProfileSource::DCACHE_MISSES));
    ///     if misses != Some(Meaning::Same) {
    ///         println!("ProfileDcacheMisses does not count misses of the data cache here");
    ///     }
    ///     Ok(amd64)
    /// }
    /// # let _ = amd64;
    /// ```
    ///
    /// # Errors
    /// The error names the first condition that does not hold.
    pub fn detect(snapshot: &Snapshot) -> Result<Self, NoInterface> {
        let unit = counters::unit(snapshot, &[counters::AMD]);
        unit.why_absent().map_or_else(|| Ok(Self::new(unit)), Err)
    }

    /// Detects the Amd64 interface as the HAL of a given Windows version does. The HAL of some versions has no Amd64
    /// interface. The HAL of other versions uses only the [four legacy counters](Self::with_legacy_counters). The call
    /// also checks the conditions of [`detect`](Self::detect).
    ///
    /// [`has_four_amd_counters`](pmu_core::windows::WindowsVersion::has_four_amd_counters) returns whether the HAL of a
    /// Windows version uses only four counters.
    ///
    /// ```
    /// # use pmu_core::x86::dump::CpuidDump;
    /// # use pmu_core::x86::Snapshot;
    /// # let dump = CpuidDump::parse(
    /// #     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    /// #         0x80000000 0x00: eax=0x80000001 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    /// #         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00800000 edx=0x20000000",
    /// # )?;
    /// # let boot_processor = Snapshot::capture(&dump);
    /// use pmu_amd::Amd64;
    /// use pmu_core::EventSource;
    /// use pmu_core::windows::{PointerWidth, Rules, WindowsVersion};
    /// let windows_7 = Rules { version: WindowsVersion::Windows7, width: PointerWidth::Bits64 };
    /// let amd64 = Amd64::detect_as_of(&boot_processor, windows_7)?;
    /// assert_eq!(amd64.unit().counters().len(), 4); // of six
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`detect`](Self::detect), and [`NotInVersion`](NoInterface::NotInVersion).
    pub fn detect_as_of(snapshot: &Snapshot, rules: Rules) -> Result<Self, NoInterface> {
        let amd64 = Self::detect(snapshot)?;
        if !rules.version.has_counters(HalInterface::Amd64, rules.width) {
            Err(NoInterface::NotInVersion(rules))
        } else if rules.version.has_four_amd_counters() {
            Ok(amd64.with_legacy_counters())
        } else {
            Ok(amd64)
        }
    }

    /// Restricts this interface to the four legacy counters. The interface accesses these counters at the legacy MSR
    /// addresses. This is the documented behavior of Windows' Amd64 interface. Other drivers may use the remaining
    /// counters.
    ///
    /// On a processor with PerfMonV2, the interface also uses the global registers, because these registers control the
    /// legacy counters, too.
    ///
    /// # Examples
    /// ```
    /// # use pmu_core::x86::dump::CpuidDump;
    /// # use pmu_core::x86::Snapshot;
    /// # let dump = CpuidDump::parse(
    /// #     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    /// #         0x80000000 0x00: eax=0x80000001 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    /// #         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00800000 edx=0x20000000",
    /// # )?;
    /// # let boot_processor = Snapshot::capture(&dump);
    /// use pmu_amd::Amd64;
    /// use pmu_core::EventSource;
    ///
    /// let amd64 = Amd64::detect(&boot_processor)?;
    /// assert_eq!(amd64.unit().counters().len(), 6);
    /// assert_eq!(amd64.with_legacy_counters().unit().counters().len(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn with_legacy_counters(self) -> Self {
        let unit = counters::as_legacy(self.sources.unit());
        Self { legacy: true, sources: self.sources.with_unit(unit) }
    }

    /// Returns the Amd64 interface with the four legacy counters, which every AMD processor has. A tool can list the
    /// sources of this interface on any machine, because the call reads no CPUID.
    pub fn declared() -> Self {
        Self::new(CounterUnit::of(&Core::LEGACY))
    }

    const fn new(unit: CounterUnit) -> Self {
        Self { legacy: false, sources: ProfileSources::new("Amd64", unit) }
    }
}

// SAFETY: the unit is a field, or a constant; that of another processor is what its CPUID declares.
unsafe impl EventSource for Amd64 {
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
        let unit = counters::unit(processor, &[counters::AMD]);
        if self.legacy { counters::as_legacy(&unit) } else { unit }
    }

    /// Returns `true`: Windows stops with [`BUG_CHECK_WITHOUT_MEMORY`](Self::BUG_CHECK_WITHOUT_MEMORY).
    fn requires_memory(&self) -> bool {
        true
    }
}
