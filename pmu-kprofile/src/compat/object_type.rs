//! The types of profile objects.

use pmu_core::windows::WindowsVersion;

/// The type of a profile object, as a number in Windows' `KOBJECTS` enumeration. The type is the first member of a
/// `KPROFILE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ObjectType {
    /// 0x0F: a basic profile object, in Windows versions up to 3.51.
    BasicNt3,
    /// 0x17: a basic profile object, in Windows versions after 3.51.
    Basic,
    /// 0x11: a profile callback object.
    Callback,
}

impl ObjectType {
    /// Returns the number of this type in the `KOBJECTS` enumeration.
    pub const fn value(self) -> u16 {
        match self {
            Self::BasicNt3 => 0x0F,
            Self::Basic => 0x17,
            Self::Callback => 0x11,
        }
    }

    /// Returns the type whose number in the `KOBJECTS` enumeration is `value`; `None` if `value` is not the number of a
    /// profile object type.
    pub const fn new(value: u16) -> Option<Self> {
        match value {
            0x0F => Some(Self::BasicNt3),
            0x17 => Some(Self::Basic),
            0x11 => Some(Self::Callback),
            _ => None,
        }
    }

    /// Returns the type that basic objects have in the given Windows version.
    pub const fn basic_of(version: WindowsVersion) -> Self {
        if version as u8 <= WindowsVersion::Nt351 as u8 { Self::BasicNt3 } else { Self::Basic }
    }
}
