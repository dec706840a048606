//! The layouts of `KPROFILE`: the offsets of the members, by Windows version and pointer width.
//!
//! A layout describes a Windows version, not the machine that this code runs on: every layout is available on every
//! host. [`Layout::ALL`] contains all layouts. [`Layout::MAX_SIZE`] is the size of the largest structure in `ALL`.

// To add a layout: a row, and its name in `Layout::ALL`; its rows in `tests/data/kprofile_layouts.csv`, and one in
// `tests/data/kprofile_versions.csv`, with its first version and its object types. Buffers and the choice by version
// follow from the row.

use core::fmt;

use pmu_core::windows::{PointerWidth, Rules, WindowsVersion};

use crate::affinity::{Affinity, MAX_GROUPS};
use crate::compat::LayoutError;
use crate::compat::kprofile::ObjectType;

/// Offsets of the members of a `KPROFILE`, in bytes from the beginning of the structure. If the structure lacks a
/// member, the offset is `None`.
///
/// In every layout, the object type is at offset 0, and the size of the structure is at offset 2. The type and the size
/// are signed 16-bit numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Offsets {
    /// Width of the structure's pointers.
    pub width: PointerWidth,
    /// Size of the structure in bytes.
    pub size: u16,
    /// Offset of `ProfileListEntry`: two pointers.
    pub link: u16,
    /// Offset of `Process`: a pointer.
    pub process: u16,
    /// Offset of `RangeBase` in a basic object, and of `Callback` in a callback object: a pointer.
    pub range_base: u16,
    /// Offset of `RangeLimit` in a basic object, and of `Context` in a callback object: a pointer.
    pub range_limit: u16,
    /// Offset of `BucketShift`: 32 bits.
    pub bucket_shift: u16,
    /// Offset of `Buffer`: a pointer.
    pub buffer: u16,
    /// Offset of `Segment`: 32 bits.
    pub segment: u16,
    /// Offset of `Affinity`. From Windows 6.1 on, the member is a `KAFFINITY_EX`. In earlier versions, the member is a
    /// mask as wide as a pointer.
    pub affinity: Option<u16>,
    /// Number of processor groups that the `KAFFINITY_EX` has room for; 0 if the affinity is a mask.
    pub groups: u8,
    /// Offset of `Source`: a signed 16-bit number.
    pub source: Option<u16>,
    /// Offset of `Started`: 8 bits.
    pub started: u16,
    /// `true` if an object of this layout can be a callback object.
    pub callbacks: bool,
}

/// The layout of `KPROFILE` in a range of Windows versions, for one pointer width.
///
/// # Limitations
/// The last layout is that of Windows 11, of which only the size of `KAFFINITY_EX` is known. The offsets behind
/// `KAFFINITY_EX` are inferred, and so is that nothing else differs from Windows 10 version 2004.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    name: &'static str,
    since: WindowsVersion,
    offsets: Offsets,
}

/// The members that follow those common to all layouts of one pointer width.
struct Tail {
    segment: u16,
    affinity: Option<u16>,
    groups: u8,
    source: Option<u16>,
    started: u16,
    callbacks: bool,
    size: u16,
}

#[rustfmt::skip] // One row per line.
impl Layout {
    /// Layout of 32-bit Windows 3.10 to 3.50: 0x28 bytes, without the members `Source` and `Affinity`.
    pub const X86_NT310: Self = Self::x86("X86Nt310", WindowsVersion::Nt310, Tail { segment: 0x24, affinity: None, groups: 0, source: None, started: 0x20, callbacks: false, size: 0x28 });
    /// Layout of 32-bit Windows 3.51 to 6.0: 0x2C bytes.
    pub const X86_NT351: Self = Self::x86("X86Nt351", WindowsVersion::Nt351, Tail { segment: 0x20, affinity: Some(0x24), groups: 0, source: Some(0x28), started: 0x2A, callbacks: false, size: 0x2C });
    /// Layout of 32-bit Windows 6.1 and later: 0x34 bytes, one processor group. Callback objects exist from version 6.2
    /// on.
    pub const X86_WIN7: Self = Self::x86("X86Win7", WindowsVersion::Windows7, Tail { segment: 0x20, affinity: Some(0x24), groups: 1, source: Some(0x30), started: 0x32, callbacks: true, size: 0x34 });
    /// Layout of 64-bit Windows 5.2 to 6.0: 0x58 bytes.
    pub const X64_SERVER2003: Self = Self::x64("X64Server2003", WindowsVersion::Server2003, Tail { segment: 0x40, affinity: Some(0x48), groups: 0, source: Some(0x50), started: 0x52, callbacks: false, size: 0x58 });
    /// Layout of 64-bit Windows 6.1: 0x78 bytes, 4 processor groups.
    pub const X64_WIN7: Self = Self::x64("X64Win7", WindowsVersion::Windows7, Tail { segment: 0x40, affinity: Some(0x48), groups: 4, source: Some(0x70), started: 0x72, callbacks: false, size: 0x78 });
    /// Layout of 64-bit Windows 6.2 to 10.0 version 2004: 0xF8 bytes, 20 processor groups.
    pub const X64_WIN8: Self = Self::x64("X64Win8", WindowsVersion::Windows8, Tail { segment: 0x40, affinity: Some(0x48), groups: 20, source: Some(0xF0), started: 0xF2, callbacks: true, size: 0xF8 });
    /// Layout of 64-bit Windows 11: 0x158 bytes, 32 processor groups. **Inferred**: only the size of `KAFFINITY_EX`,
    /// 0x108 bytes, is known. `Source` and `Started` are assumed to follow the `KAFFINITY_EX`, as in earlier layouts.
    pub const X64_WIN11: Self = Self::x64("X64Win11", WindowsVersion::Windows11, Tail { segment: 0x40, affinity: Some(0x48), groups: 32, source: Some(0x150), started: 0x152, callbacks: true, size: 0x158 });

    /// All known layouts. The 32-bit layouts come first, then the 64-bit layouts. Within each of these two groups, the
    /// Windows versions ascend.
    pub const ALL: [Self; 7] = [
        Self::X86_NT310, Self::X86_NT351, Self::X86_WIN7,
        Self::X64_SERVER2003, Self::X64_WIN7, Self::X64_WIN8, Self::X64_WIN11,
    ];
}

impl Layout {
    /// Size in bytes of the largest layout. A buffer of this size can hold any `KPROFILE`.
    pub const MAX_SIZE: usize = {
        let (mut largest, mut row) = (0, 0);
        while row < Self::ALL.len() {
            if Self::ALL[row].size() > largest {
                largest = Self::ALL[row].size();
            }
            row += 1;
        }
        largest
    };

    const fn x86(name: &'static str, since: WindowsVersion, tail: Tail) -> Self {
        Self::new(name, since, PointerWidth::Bits32, [0x04, 0x0C, 0x10, 0x14, 0x18, 0x1C], tail)
    }

    const fn x64(name: &'static str, since: WindowsVersion, tail: Tail) -> Self {
        Self::new(name, since, PointerWidth::Bits64, [0x08, 0x18, 0x20, 0x28, 0x30, 0x38], tail)
    }

    const fn new(
        name: &'static str,
        since: WindowsVersion,
        width: PointerWidth,
        [link, process, range_base, range_limit, bucket_shift, buffer]: [u16; 6],
        tail: Tail,
    ) -> Self {
        let Tail { segment, affinity, groups, source, started, callbacks, size } = tail;
        let offsets = Offsets {
            width,
            size,
            link,
            process,
            range_base,
            range_limit,
            bucket_shift,
            buffer,
            segment,
            affinity,
            groups,
            source,
            started,
            callbacks,
        };
        Self { name, since, offsets }
    }

    /// Returns the layout of a Windows version and pointer width. Returns `None` if 64 bits are requested, but the
    /// version had no 64-bit edition.
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::compat::layout::Layout;
    /// use pmu_kprofile::{PointerWidth, Rules, WindowsVersion};
    ///
    /// let rules = Rules { version: WindowsVersion::Windows8, width: PointerWidth::Bits64 };
    /// let layout = Layout::of(rules).unwrap();
    /// assert_eq!((layout.size(), layout.offsets().source), (0xF8, Some(0xF0)));
    /// ```
    pub const fn of(rules: Rules) -> Option<Self> {
        // From the end: versions ascend, so the first layout that is not too late is the version's own.
        let mut row = Self::ALL.len();
        while row > 0 {
            row -= 1;
            let layout = Self::ALL[row];
            if layout.width() as u8 == rules.width as u8
                && layout.since as u8 <= rules.version as u8
            {
                return Some(layout);
            }
        }
        None
    }

    /// Creates a layout from offsets that a tool read from a symbol file.
    ///
    /// # Errors
    /// [`LayoutError::Offsets`], if one of these conditions holds:
    /// - a member does not fit in the [`size`](Offsets::size) of the structure;
    /// - the size is above [`MAX_SIZE`](Self::MAX_SIZE);
    /// - [`groups`](Offsets::groups) is above [`MAX_GROUPS`].
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::compat::LayoutError;
    /// use pmu_kprofile::compat::layout::{Layout, Offsets};
    ///
    /// // A build of Windows whose structure has eight bytes more in front of the source.
    /// let offsets = Offsets { source: Some(0xF8), started: 0xFA, size: 0x100, ..*Layout::X64_WIN8.offsets() };
    /// let layout = Layout::from_offsets(offsets)?;
    /// assert_eq!(layout.size(), 0x100);
    /// let beyond = Offsets { size: 0xF8, ..offsets };
    /// assert_eq!(Layout::from_offsets(beyond), Err(LayoutError::Offsets));
    /// # Ok::<(), LayoutError>(())
    /// ```
    pub const fn from_offsets(offsets: Offsets) -> Result<Self, LayoutError> {
        let layout = Self { name: "FromOffsets", since: WindowsVersion::LATEST, offsets };
        let pointer = offsets.width.bytes();
        let members = [
            (0, 4),
            (offsets.link, 2 * pointer),
            (offsets.process, pointer),
            (offsets.range_base, pointer),
            (offsets.range_limit, pointer),
            (offsets.bucket_shift, 4),
            (offsets.buffer, pointer),
            (offsets.segment, 4),
            (or_zero(offsets.affinity), layout.affinity_bytes()),
            (or_zero(offsets.source), 2),
            (offsets.started, 1),
        ];
        let mut member = 0;
        while member < members.len() {
            let (offset, bytes) = members[member];
            if offset as usize + bytes > layout.size() {
                return Err(LayoutError::Offsets);
            }
            member += 1;
        }
        if layout.size() > Self::MAX_SIZE || offsets.groups as usize > MAX_GROUPS {
            return Err(LayoutError::Offsets);
        }
        Ok(layout)
    }

    /// Returns the offsets of the members of a `KPROFILE` in this layout.
    pub const fn offsets(&self) -> &Offsets {
        &self.offsets
    }

    /// Returns the width of the pointers in a `KPROFILE` of this layout.
    pub const fn width(self) -> PointerWidth {
        self.offsets.width
    }

    /// Returns the size in bytes of a `KPROFILE` of this layout.
    pub const fn size(self) -> usize {
        self.offsets.size as usize
    }

    /// Returns whether an object of this layout can be a callback object.
    ///
    /// The result is `true` for the 32-bit layout of Windows 6.1 and later. Windows 6.1 itself has no callback objects.
    pub const fn has_callback_objects(self) -> bool {
        self.offsets.callbacks
    }

    /// Returns the offset of the list entry from the beginning of a `KPROFILE` of this layout.
    pub const fn link_offset(self) -> usize {
        self.offsets.link as usize
    }

    /// Returns whether the layout's versions have an object type.
    pub(super) const fn has_type(self, object_type: ObjectType) -> bool {
        match object_type {
            // Version 3.51 combines the old type with the newer layout.
            ObjectType::BasicNt3 => self.since as u8 <= WindowsVersion::Nt351 as u8,
            ObjectType::Basic => self.since as u8 >= WindowsVersion::Nt351 as u8,
            ObjectType::Callback => self.has_callback_objects(),
        }
    }

    /// Returns the processors that the layout's affinity has room for; empty if it has no affinity.
    pub(super) const fn processors(self) -> Affinity {
        match (self.offsets.affinity, self.offsets.groups) {
            (None, _) => Affinity::EMPTY,
            (Some(_), 0 | 1) => Affinity::first(8 * self.width().bytes()),
            (Some(_), groups) => Affinity::first(8 * self.width().bytes() * groups as usize),
        }
    }

    /// Returns the size of the affinity in bytes.
    const fn affinity_bytes(self) -> usize {
        match (self.offsets.affinity, self.offsets.groups as usize) {
            (None, _) => 0,
            (Some(_), 0) => self.width().bytes(),
            (Some(_), groups) => 8 + groups * self.width().bytes(),
        }
    }
}

const fn or_zero(offset: Option<u16>) -> u16 {
    match offset {
        Some(offset) => offset,
        None => 0,
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Layout {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{=str}", self.name);
    }
}
