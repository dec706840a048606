//! The Windows versions whose behavior differs, and their rules.

// To add a version: its variant and its line of `WindowsVersion::ALL`, in order of time; what differs from it on, in
// the functions below; and its name in `VERSIONS` of `tests/src/kprofile/mod.rs`, by which every test that goes through
// the versions meets it. (`WindowsVersion::LATEST`, if it is to be the default.)

use core::fmt;

/// A version of Windows in which profiling changed.
///
/// The default is [`LATEST`](Self::LATEST). This version does not have the defects of earlier versions.
///
/// ```
/// use pmu_core::windows::WindowsVersion;
/// assert!(WindowsVersion::Windows8.end_is_inclusive() && !WindowsVersion::LATEST.end_is_inclusive());
/// assert!(WindowsVersion::Nt310 < WindowsVersion::Windows11);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum WindowsVersion {
    /// Windows NT 3.1: time is the only source, and profiles have no affinity.
    Nt310,
    /// Windows NT 3.5.
    Nt350,
    /// Windows NT 3.51: profiles have a source and an affinity.
    Nt351,
    /// Windows NT 4.0: the object type of a profile becomes 0x17.
    Nt40,
    /// Windows NT 4.0 SP4: a profile with an empty buffer is refused.
    Nt40Sp4,
    /// Windows 2000 (5.0).
    Windows2000,
    /// Windows XP (5.1): event tracing can record the interrupts of `ProfileTime`.
    WindowsXp,
    /// Windows Server 2003 (5.2).
    Server2003,
    /// Windows Server 2003 SP1: the 64-bit version has AMD's counters.
    Server2003Sp1,
    /// Windows Vista (6.0): the 64-bit version has Intel's counters.
    Vista,
    /// Windows 7 (6.1): the first version with processor groups.
    Windows7,
    /// Windows 8 (6.2): profile objects can call a function in each interrupt, and the 32-bit version has counters. By
    /// mistake, the end address of a profile becomes inclusive.
    Windows8,
    /// Windows 8.1 (6.3).
    Windows81,
    /// Windows 10, original release.
    Windows10v1507,
    /// Windows 10, version 1607.
    Windows10v1607,
    /// Windows 10, version 1703: the check of the size of a profile's buffer becomes correct.
    Windows10v1703,
    /// Windows 10, version 1803: sources can be added at run time.
    Windows10v1803,
    /// Windows 10, version 1809: the end address of a profile is exclusive again.
    Windows10v1809,
    /// Windows 10, version 1903: Intel's fixed counters are sources. The exact version is an inference from lists of
    /// sources: the lists of February 2019 lack the fixed counters.
    Windows10v1903,
    /// Windows 10, version 2004: the last version whose structure layouts are known for certain.
    Windows10v2004,
    /// Windows 11: the kernel has 32 processor groups. The changed structure layouts are inferred from the size of
    /// Windows 11's `KAFFINITY_EX`.
    Windows11,
}

/// Width of the kernel's pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PointerWidth {
    /// 32-bit Windows (x86).
    Bits32,
    /// 64-bit Windows (x64).
    Bits64,
}

impl PointerWidth {
    /// Returns the highest address that a pointer of this width can have.
    pub const fn max_address(self) -> u64 {
        match self {
            Self::Bits32 => u32::MAX as u64,
            Self::Bits64 => u64::MAX,
        }
    }

    /// Returns a pointer's size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bits32 => 4,
            Self::Bits64 => 8,
        }
    }
}

/// A profile interface of Windows' HAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HalInterface {
    /// The interface of a machine without counters. The interface's only source is `ProfileTime`.
    Default,
    /// The interface of Intel's counters.
    Emon,
    /// The interface of AMD's counters.
    Amd64,
}

impl WindowsVersion {
    /// All versions, from the oldest to the latest.
    pub const ALL: [Self; 21] = [
        Self::Nt310,
        Self::Nt350,
        Self::Nt351,
        Self::Nt40,
        Self::Nt40Sp4,
        Self::Windows2000,
        Self::WindowsXp,
        Self::Server2003,
        Self::Server2003Sp1,
        Self::Vista,
        Self::Windows7,
        Self::Windows8,
        Self::Windows81,
        Self::Windows10v1507,
        Self::Windows10v1607,
        Self::Windows10v1703,
        Self::Windows10v1803,
        Self::Windows10v1809,
        Self::Windows10v1903,
        Self::Windows10v2004,
        Self::Windows11,
    ];

    /// The default version. Windows 11 is later, but some of its structure layouts are inferred.
    pub const LATEST: Self = Self::Windows10v2004;

    /// Returns whether a profile object of this version has a source and an affinity. In a version without source and
    /// affinity, every profile interrupt acts on every started object.
    pub const fn has_source_and_affinity(self) -> bool {
        self as u8 >= Self::Nt351 as u8
    }

    /// Returns whether this version refuses to create a profile with an empty buffer.
    pub const fn refuses_empty_buffer(self) -> bool {
        self as u8 >= Self::Nt40Sp4 as u8
    }

    /// Returns whether a profile's buffer must have room for every bucket of the profile's range. Earlier versions
    /// accept some smaller buffers.
    pub const fn checks_buffer_strictly(self) -> bool {
        self as u8 >= Self::Windows10v1703 as u8
    }

    /// Returns whether this version refuses to create a profile with an unsupported source.
    pub const fn checks_source(self) -> bool {
        self as u8 >= Self::Windows8 as u8
    }

    /// Returns whether this version has processor groups and `NtCreateProfileEx`.
    pub const fn has_groups(self) -> bool {
        self as u8 >= Self::Windows7 as u8
    }

    /// Returns whether this version refuses to create a profile whose affinity selects a processor that does not exist.
    pub const fn checks_affinity(self) -> bool {
        self as u8 >= Self::Windows7 as u8
    }

    /// Returns whether this version forbids callers with a restricted token to profile the kernel's address space.
    pub const fn restricts_callers(self) -> bool {
        self as u8 >= Self::Windows81 as u8
    }

    /// Returns the maximum number of profiles that can be started on a machine at the same time. Returns `None` if only
    /// memory limits this number.
    pub const fn started_profiles_limit(self, processors: usize) -> Option<usize> {
        // Earlier versions intended 8, but did not count.
        if self as u8 >= Self::Windows7 as u8 {
            Some(processors.saturating_mul(8192))
        } else {
            None
        }
    }

    /// Returns whether setting an interval requires `SeSystemProfilePrivilege`.
    pub const fn interval_takes_privilege(self) -> bool {
        self as u8 >= Self::Windows8 as u8
    }

    /// Returns whether this version has a `PROCESSOR_PROFILE_CONTROL_AREA`.
    pub const fn has_control_area(self) -> bool {
        self as u8 >= Self::Windows8 as u8
    }

    /// Returns whether this version treats an affinity without active processors as an affinity to all processors.
    pub const fn idle_affinity_means_all(self) -> bool {
        self as u8 >= Self::Nt40Sp4 as u8 && !self.checks_affinity()
    }

    /// Returns whether this version treats the end address of a profile's range as part of the range.
    ///
    /// ```
    /// # use pmu_core::windows::WindowsVersion;
    /// /// Returns the end of a range for the rules of a version: the first address that is outside.
    /// fn end(version: WindowsVersion, end: u64) -> u64 {
    ///     end + u64::from(version.end_is_inclusive())
    /// }
    /// assert_eq!(end(WindowsVersion::Windows8, 0x2000), 0x2001);
    /// assert_eq!(end(WindowsVersion::LATEST, 0x2000), 0x2000);
    /// ```
    pub const fn end_is_inclusive(self) -> bool {
        self as u8 >= Self::Windows8 as u8 && (self as u8) < Self::Windows10v1809 as u8
    }

    /// Returns whether this version can trace the interrupts of `ProfileTime`, as the ETW event SampledProfile. From
    /// Windows 8 on, the kernel starts a profile object for the trace. The trace records are the same in all versions.
    pub const fn traces_sampled_profile(self) -> bool {
        self as u8 >= Self::WindowsXp as u8
    }

    /// Returns whether this version can trace each interrupt of a counter, as the ETW event PMC interrupt.
    pub const fn traces_pmc_interrupts(self) -> bool {
        self as u8 >= Self::Windows8 as u8
    }

    /// Returns whether a trace contains the sources' intervals (trace records 0x0F48 to 0x0F4A).
    pub const fn traces_intervals(self) -> bool {
        self as u8 >= Self::Vista as u8
    }

    /// Returns the maximum number of counter values in one trace record. For example, the record of a context switch
    /// contains the values of several sources' counters.
    ///
    /// The limit is 4 before version 1703, and 8 from version 1703 to version 1809. From version 1903 on, the limit is
    /// `reported`, the number of counters that the HAL reports.
    pub const fn traced_counters_limit(self, reported: usize) -> usize {
        match self {
            _ if self as u8 >= Self::Windows10v1903 as u8 => reported,
            _ if self as u8 >= Self::Windows10v1703 as u8 => 8,
            _ => 4,
        }
    }

    /// Returns whether this version has profile objects that call a function in each profile interrupt.
    pub const fn has_callback_objects(self) -> bool {
        self as u8 >= Self::Windows8 as u8
    }

    /// Returns whether the HAL of this version has the counter sources of `interface`, in a kernel with pointers of
    /// `width`.
    ///
    /// ```
    /// # use pmu_core::windows::{HalInterface, PointerWidth, WindowsVersion};
    /// // Vista's HAL has Intel's counters in its 64-bit version alone.
    /// let has = |width| WindowsVersion::Vista.has_counters(HalInterface::Emon, width);
    /// assert!(has(PointerWidth::Bits64) && !has(PointerWidth::Bits32));
    /// ```
    pub const fn has_counters(self, interface: HalInterface, width: PointerWidth) -> bool {
        let since = match (interface, width) {
            (HalInterface::Default, _) => return false,
            (_, PointerWidth::Bits32) => Self::Windows8,
            (HalInterface::Amd64, PointerWidth::Bits64) => Self::Server2003Sp1,
            (HalInterface::Emon, PointerWidth::Bits64) => Self::Vista,
        };
        self as u8 >= since as u8
    }

    /// Returns whether the HAL of this version uses only four counters of an AMD processor, even if the processor has
    /// more. This limit is documented for the original release of Windows 10. From version 1903 on, the HAL reports how
    /// many counters it uses (`HalQueryProfileNumberOfCounters`). This crate assumes that from this version on, the HAL
    /// uses all counters that the processor declares.
    pub const fn has_four_amd_counters(self) -> bool {
        (self as u8) < Self::Windows10v1903 as u8
    }

    /// Returns whether this version has the profile sources 0x20 to 0x24 on Intel processors.
    pub const fn has_fixed_sources(self) -> bool {
        self as u8 >= Self::Windows10v1903 as u8
    }

    /// Returns whether sources can be added at run time (`EventTraceProfileSourceAddInformation`).
    pub const fn adds_sources(self) -> bool {
        self as u8 >= Self::Windows10v1803 as u8
    }
}

impl Default for WindowsVersion {
    fn default() -> Self {
        Self::LATEST
    }
}

/// The Windows version whose behavior applies, and the width of the kernel's pointers.
///
/// ```
/// use pmu_core::profile::{AddedSources, KProfileSource};
/// use pmu_core::windows::{HalInterface, PointerWidth, Rules, WindowsVersion};
/// let windows_7 = Rules { version: WindowsVersion::Windows7, width: PointerWidth::Bits32 };
/// // A 32-bit Windows 7 has no counters.
/// let (cycles, added) = (KProfileSource::TOTAL_CYCLES, AddedSources::none());
/// assert!(!windows_7.has_source(HalInterface::Emon, cycles, added));
/// assert!(Rules::LATEST.has_source(HalInterface::Emon, cycles, added));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Rules {
    /// Version of Windows.
    pub version: WindowsVersion,
    /// Width of the kernel's pointers.
    pub width: PointerWidth,
}

impl Rules {
    /// The rules of [`WindowsVersion::LATEST`] with 64-bit pointers.
    pub const LATEST: Self = Self { version: WindowsVersion::LATEST, width: PointerWidth::Bits64 };
}

impl Default for Rules {
    fn default() -> Self {
        Self::LATEST
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-bit {:?}", 8 * self.width.bytes(), self.version)
    }
}
