//! Windows' own structures as bytes, for instance in a crash dump or in the memory of a guest.
//!
//! - [`layout`]: the offsets of the members of `KPROFILE`, by Windows version and pointer width
//! - [`kprofile`]: a `KPROFILE`, read from bytes and written as bytes
//! - [`walk`]: the lists of profile objects in a foreign memory image
//! - [`source_list`]: the list that Windows returns to a query for its profile sources
//!
//! The interrupt path does not use this module. The module reads addresses from structures, but never dereferences
//! them. Of the crate's other modules, this module may use `affinity` and `object`.

pub mod kprofile;
pub mod layout;
pub mod source_list;
pub mod walk;

use pmu_core::frame::ProcessId;
use pmu_core::profile::NtStatus;

use crate::affinity::Affinity;
use crate::compat::kprofile::{KProfile, ListEntry, ObjectType, Role};
use crate::compat::layout::Layout;
use crate::object::bucket::Basic;
use crate::object::profile_object::{Action, ProfileObject};

/// Reason why bytes could not be decoded as a `KPROFILE` or as a source list, or why one of these could not be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum LayoutError {
    /// The argument `bytes` is shorter than the structure in this layout.
    #[error("{given} bytes where {needed} are needed")]
    TooShort {
        /// Number of bytes that the structure has.
        needed: usize,
        /// Number of bytes that were given.
        given: usize,
    },
    /// The object type is invalid. The value is the type's number in `KOBJECTS`. In the layout's Windows versions, no
    /// profile object has this type. An encoding also fails if [`role`](kprofile::KProfile::role) is not the
    /// role of this type.
    #[error("object type {0:#04X} is no profile's")]
    ObjectType(u16),
    /// The size that is stored in the structure differs from the size of the layout. The value is the stored size.
    #[error("the structure's size member is {0:#X}")]
    SizeMember(u16),
    /// No profile source has this number, or the number does not fit the structure's 16-bit member `Source`.
    #[error("{0:#X} is no source, or does not fit 16 bits")]
    Source(u32),
    /// The segment is above 0xFFFF, or is not 0 in a 64-bit layout. The value is the segment.
    #[error("{0:#X} is no segment")]
    Segment(u32),
    /// The bucket shift is above 29, the shift of the largest bucket. The value is the shift.
    #[error("bucket shift {0} is above 29")]
    BucketShift(u32),
    /// An encoding failed because the layout has no bit for a processor of the affinity. A decoding failed because the
    /// structure has more processor groups than the layout.
    #[error("the affinity does not fit the layout's groups")]
    Affinity,
    /// This address needs more bits than a pointer of the layout has.
    #[error("address {0:#X} does not fit a pointer")]
    Address(u64),
    /// [`Layout::from_offsets`](layout::Layout::from_offsets) refused the offsets: a member would be outside the
    /// structure, the structure is too large, or the structure has too many processor groups.
    #[error("the offsets do not fit the layout's size")]
    Offsets,
    /// The layout lacks a member that the profile needs. A layout without `Source` can only encode the source
    /// `ProfileTime`. A layout without `Affinity` can only encode an empty affinity.
    #[error("the layout has no source and no affinity")]
    NoSourceOrAffinity,
    /// The buffer is too small for the source list; nothing was written.
    #[error("the source list needs {needed} bytes")]
    BufferTooSmall {
        /// Number of bytes that the list needs.
        needed: usize,
    },
    /// The first word of the buffer is this number instead of
    /// [`SOURCE_LIST_CLASS`](source_list::SOURCE_LIST_CLASS).
    #[error("class {0:#X} is not the source list's")]
    WrongClass(u32),
    /// An entry of the source list is ill-formed, or is partly outside the buffer. The entry includes its name and its
    /// link to the next entry.
    #[error("malformed entry at offset {offset:#X}")]
    Malformed {
        /// Offset of the entry in the buffer.
        offset: usize,
    },
}

impl LayoutError {
    /// Returns the status with which Windows reports an error of a source list; `None` for an error of a `KPROFILE`.
    pub const fn status(&self) -> Option<NtStatus> {
        match self {
            Self::BufferTooSmall { .. } => Some(NtStatus::BUFFER_TOO_SMALL),
            Self::WrongClass(_) => Some(NtStatus::NOT_IMPLEMENTED),
            Self::Malformed { .. } => Some(NtStatus::INVALID_PARAMETER),
            Self::TooShort { .. }
            | Self::ObjectType(_)
            | Self::SizeMember(_)
            | Self::Source(_)
            | Self::Segment(_)
            | Self::BucketShift(_)
            | Self::Affinity
            | Self::Address(_)
            | Self::Offsets
            | Self::NoSourceOrAffinity => None,
        }
    }
}

impl ProfileObject<'_> {
    /// Returns this profile object as a `KPROFILE`, for a debugger. The members have the values that Windows would set,
    /// except the list entry.
    ///
    /// Both addresses in the list entry are 0. For a callback object, `callback` is the address that
    /// [`ProfileCallback::routine`](crate::ProfileCallback::routine) returns, and `context` is the address of the
    /// callback's data.
    pub fn to_kprofile(&self) -> KProfile {
        let (object_type, role, affinity) = match self.action() {
            Action::Basic(basic) => (
                ObjectType::basic_of(self.rules().version),
                role_of(basic),
                match basic.affinity {
                    Affinity::ALL => {
                        Layout::of(self.rules()).map_or(Affinity::ALL, Layout::processors)
                    }
                    affinity => affinity,
                },
            ),
            Action::Callback(callback) => (
                ObjectType::Callback,
                Role::Callback {
                    callback: callback.routine(),
                    context: core::ptr::from_ref(*callback).cast::<()>() as usize as u64,
                },
                Affinity::EMPTY,
            ),
        };
        KProfile {
            object_type,
            link: ListEntry::default(),
            process: self.process().map_or(0, ProcessId::get),
            role,
            affinity,
            source: self.source(),
            started: self.is_started(),
        }
    }
}

fn role_of(basic: &Basic<'_>) -> Role {
    Role::Basic {
        range_base: basic.base,
        range_limit: basic.limit,
        bucket_shift: basic.bucket.shift(),
        buffer: basic.buffer.as_ptr() as usize as u64,
        segment: basic.segment.into(),
    }
}
