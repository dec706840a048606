//! The types of profile objects.

use pmu_core::WindowsVersion;

/// The object type at the beginning, from the `KOBJECTS` enumeration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ObjectType {
    /// 0x0F: a basic profile object up to version 3.51.
    BasicNt3,
    /// 0x17: a basic profile object since.
    Basic,
    /// 0x11: a profile callback object.
    Callback,
}

impl ObjectType {
    /// The enumeration's value.
    pub const fn value(self) -> u16 {
        match self {
            Self::BasicNt3 => 0x0F,
            Self::Basic => 0x17,
            Self::Callback => 0x11,
        }
    }

    /// The type with this value.
    pub const fn new(value: u16) -> Option<Self> {
        match value {
            0x0F => Some(Self::BasicNt3),
            0x17 => Some(Self::Basic),
            0x11 => Some(Self::Callback),
            _ => None,
        }
    }

    /// The type of a version's basic objects.
    pub const fn basic_of(version: WindowsVersion) -> Self {
        if version as u8 <= WindowsVersion::Nt351 as u8 { Self::BasicNt3 } else { Self::Basic }
    }
}
