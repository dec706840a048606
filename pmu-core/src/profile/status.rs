//! Windows' status values, for errors that have one.

use core::fmt;

/// An `NTSTATUS` value, with its name. Source: [MS-ERREF] §2.3.1.
///
/// ```
/// use pmu_core::profile::NtStatus;
/// let status = NtStatus::PROFILING_AT_LIMIT;
/// assert_eq!((status.value(), status.name()), (0xC000_00D3, "STATUS_PROFILING_AT_LIMIT"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NtStatus(u32);

macro_rules! statuses {
    ($($constant:ident = $value:literal $name:literal;)*) => {
        impl NtStatus {
            $(#[doc = concat!("`", $name, "`, ", stringify!($value), ".")]
            pub const $constant: Self = Self($value);)*

            /// All status values that have a constant here. Windows' profiling calls return these values.
            pub const ALL: &[Self] = &[$(Self::$constant),*];

            /// Returns the name of the status in NTSTATUS.H.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $name,)*
                    _ => "(unnamed)",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x0000_0000 "STATUS_SUCCESS";
    DATATYPE_MISALIGNMENT = 0x8000_0002 "STATUS_DATATYPE_MISALIGNMENT";
    BUFFER_OVERFLOW = 0x8000_0005 "STATUS_BUFFER_OVERFLOW";
    NOT_IMPLEMENTED = 0xC000_0002 "STATUS_NOT_IMPLEMENTED";
    INVALID_INFO_CLASS = 0xC000_0003 "STATUS_INVALID_INFO_CLASS";
    INFO_LENGTH_MISMATCH = 0xC000_0004 "STATUS_INFO_LENGTH_MISMATCH";
    ACCESS_VIOLATION = 0xC000_0005 "STATUS_ACCESS_VIOLATION";
    INVALID_HANDLE = 0xC000_0008 "STATUS_INVALID_HANDLE";
    INVALID_PARAMETER = 0xC000_000D "STATUS_INVALID_PARAMETER";
    NO_MEMORY = 0xC000_0017 "STATUS_NO_MEMORY";
    INVALID_SYSTEM_SERVICE = 0xC000_001C "STATUS_INVALID_SYSTEM_SERVICE";
    ACCESS_DENIED = 0xC000_0022 "STATUS_ACCESS_DENIED";
    BUFFER_TOO_SMALL = 0xC000_0023 "STATUS_BUFFER_TOO_SMALL";
    OBJECT_TYPE_MISMATCH = 0xC000_0024 "STATUS_OBJECT_TYPE_MISMATCH";
    PRIVILEGE_NOT_HELD = 0xC000_0061 "STATUS_PRIVILEGE_NOT_HELD";
    INSUFFICIENT_RESOURCES = 0xC000_009A "STATUS_INSUFFICIENT_RESOURCES";
    MEMORY_NOT_ALLOCATED = 0xC000_00A0 "STATUS_MEMORY_NOT_ALLOCATED";
    PROFILING_NOT_STARTED = 0xC000_00B7 "STATUS_PROFILING_NOT_STARTED";
    PROFILING_NOT_STOPPED = 0xC000_00B8 "STATUS_PROFILING_NOT_STOPPED";
    NOT_SUPPORTED = 0xC000_00BB "STATUS_NOT_SUPPORTED";
    PROFILING_AT_LIMIT = 0xC000_00D3 "STATUS_PROFILING_AT_LIMIT";
    INVALID_PARAMETER_7 = 0xC000_00F5 "STATUS_INVALID_PARAMETER_7";
    ADDRESS_ALREADY_EXISTS = 0xC000_020A "STATUS_ADDRESS_ALREADY_EXISTS";
    WMI_INSTANCE_NOT_FOUND = 0xC000_0296 "STATUS_WMI_INSTANCE_NOT_FOUND";
    WMI_ALREADY_ENABLED = 0xC000_0303 "STATUS_WMI_ALREADY_ENABLED";
}

impl NtStatus {
    /// Returns the status as a number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns whether the status has the severity success or informational, as `NT_SUCCESS` does. For a warning such
    /// as [`BUFFER_OVERFLOW`](Self::BUFFER_OVERFLOW) the result is `false`.
    ///
    /// ```
    /// # use pmu_core::profile::NtStatus;
    /// assert!(NtStatus::SUCCESS.is_success());
    /// assert!(!NtStatus::BUFFER_OVERFLOW.is_success()); // a warning
    /// ```
    pub const fn is_success(self) -> bool {
        self.0 < 0x8000_0000
    }
}

impl fmt::Debug for NtStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#010X})", self.name(), self.0)
    }
}
