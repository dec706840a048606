//! `KPROFILE` as bytes, in every layout that Windows has had.
//!
//! A layout describes a Windows, not the machine that this code runs on: all are available on any.

use core::fmt;

use pmu_core::KProfileSource;

use crate::{Affinity, PointerWidth, WindowsVersion};

/// A layout of `KPROFILE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Layout {
    /// 32-bit, 3.10 to 3.50: 0x28 bytes, without source and affinity.
    X86Nt310,
    /// 32-bit, 3.51 to 6.0: 0x2C bytes.
    X86Nt351,
    /// 32-bit, 6.1 and later: 0x34 bytes, one processor group.
    X86Win7,
    /// 64-bit, 5.2 to 6.0: 0x58 bytes.
    X64Server2003,
    /// 64-bit, 6.1: 0x78 bytes, 4 processor groups.
    X64Win7,
    /// 64-bit, 6.2 and later: 0xF8 bytes, 20 processor groups.
    X64Win8,
}

/// Where the members are that differ between the layouts of one width.
struct Tail {
    started: usize,
    segment: usize,
    /// `None`: no affinity and no source; else the number of groups, 0 for a plain `KAFFINITY`.
    groups: Option<usize>,
    affinity: usize,
    source: usize,
    size: usize,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::X86Nt310,
        Self::X86Nt351,
        Self::X86Win7,
        Self::X64Server2003,
        Self::X64Win7,
        Self::X64Win8,
    ];

    /// The width of its pointers.
    pub const fn width(self) -> PointerWidth {
        match self {
            Self::X86Nt310 | Self::X86Nt351 | Self::X86Win7 => PointerWidth::Bits32,
            Self::X64Server2003 | Self::X64Win7 | Self::X64Win8 => PointerWidth::Bits64,
        }
    }

    /// The structure's size in bytes.
    pub const fn size(self) -> usize {
        self.tail().size
    }

    /// Returns whether an object of this layout can be a callback object. (Of the 32-bit layout of 6.1, only
    /// from version 6.2 on.)
    pub const fn has_callback_objects(self) -> bool {
        matches!(self, Self::X86Win7 | Self::X64Win8)
    }

    /// How far the list entry is from the structure's beginning.
    pub const fn link_offset(self) -> usize {
        // Behind the two shorts, aligned as a pointer is.
        self.width().bytes()
    }

    /// The processors that its affinity has room for; none where it has none.
    pub(crate) const fn processors(self) -> Affinity {
        match (self.tail().groups, self.width()) {
            (None, _) => Affinity::EMPTY,
            (Some(_), PointerWidth::Bits32) => Affinity::first(32),
            (Some(0), PointerWidth::Bits64) => Affinity::first(64),
            (Some(groups), PointerWidth::Bits64) => Affinity::first(64 * groups),
        }
    }

    /// Offset of the `index`th pointer: two of the list entry, process, base, limit.
    const fn pointer(self, index: usize) -> usize {
        self.link_offset() + index * self.width().bytes()
    }

    const fn bucket_shift(self) -> usize {
        self.pointer(5)
    }

    const fn buffer(self) -> usize {
        self.pointer(6)
    }

    const fn tail(self) -> Tail {
        match self {
            Self::X86Nt310 => Tail::new(0x20, 0x24, None, 0, 0, 0x28),
            Self::X86Nt351 => Tail::new(0x2A, 0x20, Some(0), 0x24, 0x28, 0x2C),
            Self::X86Win7 => Tail::new(0x32, 0x20, Some(1), 0x24, 0x30, 0x34),
            Self::X64Server2003 => Tail::new(0x52, 0x40, Some(0), 0x48, 0x50, 0x58),
            Self::X64Win7 => Tail::new(0x72, 0x40, Some(4), 0x48, 0x70, 0x78),
            Self::X64Win8 => Tail::new(0xF2, 0x40, Some(20), 0x48, 0xF0, 0xF8),
        }
    }
}

impl Tail {
    const fn new(
        started: usize,
        segment: usize,
        groups: Option<usize>,
        affinity: usize,
        source: usize,
        size: usize,
    ) -> Self {
        Self { started, segment, groups, affinity, source, size }
    }
}

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

/// `LIST_ENTRY`: addresses of the neighbours' list entries (not of their structures).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ListEntry {
    /// The next entry's address.
    pub flink: u64,
    /// The previous entry's address.
    pub blink: u64,
}

/// The members that mean one thing in a basic object and another in a callback object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Role {
    /// A basic profile object.
    Basic {
        /// The profiled range's first address.
        range_base: u64,
        /// Base plus size.
        range_limit: u64,
        /// Two less than the logarithm of the bucket's size.
        bucket_shift: u32,
        /// The buffer's system address.
        buffer: u64,
        /// The segment of virtual-8086 execution; 0: none.
        segment: u32,
    },
    /// A profile callback object.
    Callback {
        /// The routine's address.
        callback: u64,
        /// Its context argument.
        context: u64,
    },
}

/// A `KPROFILE`, independent of layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct KProfile {
    /// What kind of object it is. Agrees with [`role`](Self::role).
    pub object_type: ObjectType,
    /// Its place in a list.
    pub link: ListEntry,
    /// The process object's address; 0: the profile is global.
    pub process: u64,
    /// What it does.
    pub role: Role,
    /// The processors to be profiled; empty in a layout that has none.
    pub affinity: Affinity,
    /// What makes the interrupt recur; `ProfileTime` in a layout that has none.
    pub source: KProfileSource,
    /// Whether profiling has started.
    pub started: bool,
}

/// Why bytes are no `KPROFILE`, or a `KPROFILE` cannot be put into bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum LayoutError {
    /// Fewer bytes than the layout has.
    TooShort {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// The type is none of a profile object, or none that the layout has.
    ObjectType(u16),
    /// The size that the structure says of itself is not the layout's.
    SizeMember(u16),
    /// The source's value is no source, or does not fit the structure's signed 16 bits.
    Source(u32),
    /// A segment that is none.
    Segment(u32),
    /// A bucket shift above 29.
    BucketShift(u32),
    /// The count of an affinity's groups exceeds the layout's, or its processors do not fit.
    Affinity,
    /// An address does not fit the layout's pointers.
    Address(u64),
    /// The layout has no place for a source other than `ProfileTime`, or for an affinity.
    NoSourceOrAffinity,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { needed, given } => {
                write!(f, "{given} bytes where {needed} are needed")
            }
            Self::ObjectType(value) => write!(f, "object type {value:#04X} is no profile's"),
            Self::SizeMember(value) => write!(f, "the structure's size member is {value:#X}"),
            Self::Source(value) => write!(f, "{value:#X} is no source, or does not fit 16 bits"),
            Self::Segment(value) => write!(f, "{value:#X} is no segment"),
            Self::BucketShift(value) => write!(f, "bucket shift {value} is above 29"),
            Self::Affinity => f.write_str("the affinity does not fit the layout's groups"),
            Self::Address(value) => write!(f, "address {value:#X} does not fit a pointer"),
            Self::NoSourceOrAffinity => f.write_str("the layout has no source and no affinity"),
        }
    }
}

impl core::error::Error for LayoutError {}

impl KProfile {
    /// Reads a structure. Of the members that mean something in one role only, the other role's are not
    /// looked at.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn decode(layout: Layout, bytes: &[u8]) -> Result<Self, LayoutError> {
        let (size, tail) = (layout.size(), layout.tail());
        let bytes = Bytes(
            bytes.get(..size).ok_or(LayoutError::TooShort { needed: size, given: bytes.len() })?,
            layout.width(),
        );
        let value = bytes.number(0, 2) as u16;
        let object_type = ObjectType::new(value)
            .filter(|t| has_type(layout, *t))
            .ok_or(LayoutError::ObjectType(value))?;
        let size_member = bytes.number(2, 2) as u16;
        if usize::from(size_member) != size {
            return Err(LayoutError::SizeMember(size_member));
        }
        let role = if object_type == ObjectType::Callback {
            Role::Callback {
                callback: bytes.pointer(layout.pointer(3)),
                context: bytes.pointer(layout.pointer(4)),
            }
        } else {
            let bucket_shift = bytes.number(layout.bucket_shift(), 4) as u32;
            let segment = bytes.number(tail.segment, 4) as u32;
            check_basic(bucket_shift, segment)?;
            Role::Basic {
                range_base: bytes.pointer(layout.pointer(3)),
                range_limit: bytes.pointer(layout.pointer(4)),
                bucket_shift,
                buffer: bytes.pointer(layout.buffer()),
                segment,
            }
        };
        let (affinity, source) = match tail.groups {
            None => (Affinity::EMPTY, KProfileSource::TIME),
            Some(groups) => {
                let value = i32::from(bytes.number(tail.source, 2) as u16 as i16) as u32;
                let source = KProfileSource::new(value).ok_or(LayoutError::Source(value))?;
                (bytes.affinity(tail.affinity, groups)?, source)
            }
        };
        Ok(Self {
            object_type,
            link: ListEntry {
                flink: bytes.pointer(layout.pointer(0)),
                blink: bytes.pointer(layout.pointer(1)),
            },
            process: bytes.pointer(layout.pointer(2)),
            role,
            affinity,
            source,
            started: bytes.number(tail.started, 1) != 0,
        })
    }

    /// Writes the structure to the beginning of `bytes`, every byte of it, and says how many those
    /// are. Members that the object does not use are zero.
    ///
    /// # Errors
    /// See [`LayoutError`]; `bytes` is then unchanged.
    pub fn encode(&self, layout: Layout, bytes: &mut [u8]) -> Result<usize, LayoutError> {
        let (size, tail) = (layout.size(), layout.tail());
        let given = bytes.len();
        let target = bytes.get_mut(..size).ok_or(LayoutError::TooShort { needed: size, given })?;
        let is_callback = matches!(self.role, Role::Callback { .. });
        if !has_type(layout, self.object_type)
            || is_callback != (self.object_type == ObjectType::Callback)
        {
            return Err(LayoutError::ObjectType(self.object_type.value()));
        }
        let mut image = Image { bytes: [0; MAX_SIZE], width: layout.width(), error: None };
        image.number(0, 2, self.object_type.value().into());
        image.number(2, 2, size as u64);
        image.pointer(layout.pointer(0), self.link.flink);
        image.pointer(layout.pointer(1), self.link.blink);
        image.pointer(layout.pointer(2), self.process);
        match self.role {
            Role::Callback { callback, context } => {
                image.pointer(layout.pointer(3), callback);
                image.pointer(layout.pointer(4), context);
            }
            Role::Basic { range_base, range_limit, bucket_shift, buffer, segment } => {
                check_basic(bucket_shift, segment)?;
                image.pointer(layout.pointer(3), range_base);
                image.pointer(layout.pointer(4), range_limit);
                image.number(layout.bucket_shift(), 4, bucket_shift.into());
                image.pointer(layout.buffer(), buffer);
                image.number(tail.segment, 4, segment.into());
            }
        }
        match tail.groups {
            None if self.source != KProfileSource::TIME || !self.affinity.is_empty() => {
                return Err(LayoutError::NoSourceOrAffinity);
            }
            None => {}
            Some(groups) => {
                let value = self.source.value();
                // A SHORT that is read with its sign.
                let source = i16::try_from(value as i32).map_err(|_| LayoutError::Source(value))?;
                image.number(tail.source, 2, u64::from(source as u16));
                image.affinity(tail.affinity, groups, &self.affinity);
            }
        }
        image.number(tail.started, 1, self.started.into());
        if let Some(error) = image.error {
            return Err(error);
        }
        target.iter_mut().zip(image.bytes).for_each(|(to, from)| *to = from);
        Ok(size)
    }
}

const MAX_SIZE: usize = Layout::X64Win8.size();

const fn has_type(layout: Layout, object_type: ObjectType) -> bool {
    match object_type {
        // Version 3.51 has the old type in the newer layout.
        ObjectType::BasicNt3 => matches!(layout, Layout::X86Nt310 | Layout::X86Nt351),
        ObjectType::Basic => !matches!(layout, Layout::X86Nt310),
        ObjectType::Callback => layout.has_callback_objects(),
    }
}

const fn check_basic(bucket_shift: u32, segment: u32) -> Result<(), LayoutError> {
    if bucket_shift > 29 {
        Err(LayoutError::BucketShift(bucket_shift))
    } else if segment > 0xFFFF {
        Err(LayoutError::Segment(segment))
    } else {
        Ok(())
    }
}

/// A structure's bytes, to read from; offsets come from a layout and lie inside.
struct Bytes<'b>(&'b [u8], PointerWidth);

impl Bytes<'_> {
    fn number(&self, offset: usize, size: usize) -> u64 {
        let bytes = self.0.get(offset..offset + size).unwrap_or(&[]);
        bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn pointer(&self, offset: usize) -> u64 {
        self.number(offset, self.1.bytes())
    }

    fn affinity(&self, offset: usize, groups: usize) -> Result<Affinity, LayoutError> {
        if groups == 0 {
            return Ok(Affinity::of_group(0, self.pointer(offset)));
        }
        // KAFFINITY_EX: Count, Size, Reserved, Bitmap. Masks beyond the count are not meaningful.
        let count = self.number(offset, 2) as usize;
        if count > groups {
            return Err(LayoutError::Affinity);
        }
        let mask = |group| self.pointer(offset + 8 + group * self.1.bytes());
        Ok((0..count).fold(Affinity::EMPTY, |set, group| {
            set.union(Affinity::of_group(group as u16, mask(group)))
        }))
    }
}

/// A structure's bytes, to write; keeps the first error, so that nothing is written in part.
struct Image {
    bytes: [u8; MAX_SIZE],
    width: PointerWidth,
    error: Option<LayoutError>,
}

impl Image {
    fn number(&mut self, offset: usize, size: usize, value: u64) {
        let target = self.bytes.get_mut(offset..offset + size).unwrap_or(&mut []);
        target.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
    }

    fn pointer(&mut self, offset: usize, value: u64) {
        if value > self.width.max_address() {
            self.error.get_or_insert(LayoutError::Address(value));
        }
        self.number(offset, self.width.bytes(), value);
    }

    fn affinity(&mut self, offset: usize, groups: usize, affinity: &Affinity) {
        let used = (0..crate::MAX_GROUPS).rev().find(|g| affinity.mask(*g) != 0);
        let used = used.map_or(1, |highest| highest + 1);
        let too_wide = (0..used).any(|group| affinity.mask(group) > self.width.max_address());
        if used > groups.max(1) || too_wide {
            self.error.get_or_insert(LayoutError::Affinity);
            return;
        }
        if groups == 0 {
            self.number(offset, self.width.bytes(), affinity.mask(0));
            return;
        }
        self.number(offset, 2, used as u64);
        self.number(offset + 2, 2, groups as u64);
        for group in 0..used {
            let place = offset + 8 + group * self.width.bytes();
            self.number(place, self.width.bytes(), affinity.mask(group));
        }
    }
}
