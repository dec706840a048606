//! The sources that a Windows version can have.

use crate::profile::added::AddedSources;
use crate::profile::source::KProfileSource;
use crate::windows::{HalInterface, Rules};

/// General sources of the Emon interface, one bit per value: 0x02, 0x06, 0x0A, 0x0B and 0x13.
const GENERAL_OF_EMON: u32 = 1 << 0x02 | 1 << 0x06 | 1 << 0x0A | 1 << 0x0B | 1 << 0x13;

/// General sources of the Amd64 interface, one bit per value: 0x02, 0x06, 0x08, 0x09, 0x0B, 0x0D, 0x14 and 0x15.
const GENERAL_OF_AMD64: u32 =
    1 << 0x02 | 1 << 0x06 | 1 << 0x08 | 1 << 0x09 | 1 << 0x0B | 1 << 0x0D | 1 << 0x14 | 1 << 0x15;

impl Rules {
    /// Returns whether this Windows version has the profile source `source` on a machine whose profile interface is
    /// `interface`. The version has the following sources:
    ///
    /// - `ProfileTime`;
    /// - the sources of the interface's table, if this version's HAL has the counters of the interface;
    /// - Intel's sources 0x20 to 0x24, if this version has them
    ///   ([`has_fixed_sources`](crate::windows::WindowsVersion::has_fixed_sources));
    /// - the sources of higher values that are in `added`, if this version can add sources at run time
    ///   ([`adds_sources`](crate::windows::WindowsVersion::adds_sources)). If the kernel adds no sources, pass
    ///   [`AddedSources::none`].
    ///
    /// ```
    /// # use pmu_core::profile::{AddedSources, KProfileSource};
    /// # use pmu_core::windows::{HalInterface, Rules, WindowsVersion};
    /// // Intel's fixed counters are sources from version 1903 on.
    /// let (fixed, none) = (KProfileSource::new(0x20).unwrap(), AddedSources::none());
    /// assert!(Rules::LATEST.has_source(HalInterface::Emon, fixed, none));
    /// let before = Rules { version: WindowsVersion::Windows8, ..Rules::LATEST };
    /// assert!(!before.has_source(HalInterface::Emon, fixed, none));
    /// // A higher value is no source, unless the kernel adds it.
    /// assert!(!Rules::LATEST.has_source(HalInterface::Emon, KProfileSource::new(0x25).unwrap(), none));
    /// ```
    pub fn has_source(
        self,
        interface: HalInterface,
        source: KProfileSource,
        added: &AddedSources,
    ) -> bool {
        let (version, value) = (self.version, source.value());
        let in_version = match (interface, value) {
            (HalInterface::Emon, 0x20..=0x24) => version.has_fixed_sources(),
            (HalInterface::Emon, 0x25..) | (HalInterface::Amd64, 0xC0..) => {
                version.adds_sources() && added.contains(source)
            }
            (HalInterface::Emon, 0..0x19) => GENERAL_OF_EMON >> value & 1 != 0,
            (HalInterface::Amd64, 0..0x19) => GENERAL_OF_AMD64 >> value & 1 != 0,
            _ => true,
        };
        value == KProfileSource::TIME.value()
            || (version.has_counters(interface, self.width) && in_version)
    }
}
