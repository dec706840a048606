//! The members of a `KPROFILE`, decoded from bytes and encoded to bytes.

use pmu_core::profile::KProfileSource;
use pmu_core::windows::{PointerWidth, WindowsVersion};

use crate::affinity::Affinity;
use crate::compat::LayoutError;
use crate::compat::layout::{Layout, Offsets};

/// `LIST_ENTRY`: the addresses of the next and of the previous list entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ListEntry {
    /// Address of the next list entry, not of the structure that contains that entry.
    pub flink: u64,
    /// Address of the previous list entry, not of the structure that contains that entry.
    pub blink: u64,
}

/// The members of a `KPROFILE` that have different meanings in basic objects and in callback objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Role {
    /// A basic profile object.
    Basic {
        /// First address of the profiled range.
        range_base: u64,
        /// Base plus size: the first address beyond the range.
        range_limit: u64,
        /// Base-2 logarithm of the bucket's size in bytes, minus 2.
        bucket_shift: u32,
        /// System address of the buffer.
        buffer: u64,
        /// CS value of the virtual-8086 code that is profiled; 0 if the object is not limited to virtual-8086 code.
        segment: u32,
    },
    /// A profile callback object.
    Callback {
        /// Address of the callback routine.
        callback: u64,
        /// Context argument of the callback routine.
        context: u64,
    },
}

/// The members of a `KPROFILE`, independent of their layout in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct KProfile {
    /// Type of the object. If the type is [`ObjectType::Callback`], [`role`](Self::role) must be [`Role::Callback`].
    /// For all other types, `role` must be [`Role::Basic`].
    pub object_type: ObjectType,
    /// List entry of the object.
    pub link: ListEntry,
    /// Address of the profiled process object; 0 if all execution is profiled.
    pub process: u64,
    /// Members that have different meanings in basic objects and in callback objects.
    pub role: Role,
    /// The profiled processors; empty if the layout has no member `Affinity`.
    pub affinity: Affinity,
    /// Profile source; `ProfileTime` if the layout has no member `Source`.
    pub source: KProfileSource,
    /// `Started`: `true` while the profile is started.
    pub started: bool,
}

impl KProfile {
    /// Decodes a `KPROFILE` from bytes of a given layout.
    ///
    /// For a callback object, the members `BucketShift`, `Buffer` and `Segment` are ignored.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::compat::LayoutError;
    /// use pmu_kprofile::compat::kprofile::{KProfile, Role};
    /// use pmu_kprofile::compat::layout::Layout;
    ///
    /// /// Prints the object at the beginning of bytes that a debugger read.
    /// fn print(bytes: &[u8]) -> Result<(), LayoutError> {
    ///     let profile = KProfile::decode(Layout::X64_WIN8, bytes)?;
    ///     match profile.role {
    ///         Role::Basic { range_base, range_limit, .. } => {
    ///             println!("{}: {range_base:#x}..{range_limit:#x}", profile.source);
    ///         }
    ///         Role::Callback { callback, context } => println!("calls {callback:#x}({context:#x})"),
    ///     }
    ///     Ok(())
    /// }
    /// # assert_eq!(print(&[0; 4]), Err(LayoutError::TooShort { needed: 0xF8, given: 4 }));
    /// ```
    pub fn decode(layout: Layout, bytes: &[u8]) -> Result<Self, LayoutError> {
        let (size, at) = (layout.size(), layout.offsets());
        let bytes = Bytes(
            bytes.get(..size).ok_or(LayoutError::TooShort { needed: size, given: bytes.len() })?,
            layout.width(),
        );
        let value = bytes.number(0, 2) as u16;
        let object_type = ObjectType::new(value)
            .filter(|t| layout.has_type(*t))
            .ok_or(LayoutError::ObjectType(value))?;
        let size_member = bytes.number(2, 2) as u16;
        if usize::from(size_member) != size {
            return Err(LayoutError::SizeMember(size_member));
        }
        let role = if object_type == ObjectType::Callback {
            Role::Callback {
                callback: bytes.pointer(at.range_base),
                context: bytes.pointer(at.range_limit),
            }
        } else {
            let bucket_shift = bytes.number(at.bucket_shift, 4) as u32;
            let segment = bytes.number(at.segment, 4) as u32;
            check_basic(layout.width(), bucket_shift, segment)?;
            Role::Basic {
                range_base: bytes.pointer(at.range_base),
                range_limit: bytes.pointer(at.range_limit),
                bucket_shift,
                buffer: bytes.pointer(at.buffer),
                segment,
            }
        };
        let source = match at.source {
            None => KProfileSource::TIME,
            Some(source) => {
                let value = i32::from(bytes.number(source, 2) as u16 as i16) as u32;
                KProfileSource::new(value).ok_or(LayoutError::Source(value))?
            }
        };
        let affinity = match at.affinity {
            None => Affinity::EMPTY,
            Some(affinity) => bytes.affinity(affinity, at.groups.into())?,
        };
        Ok(Self {
            object_type,
            link: ListEntry { flink: bytes.pointer(at.link), blink: bytes.pointer(blink_of(at)) },
            process: bytes.pointer(at.process),
            role,
            affinity,
            source,
            started: bytes.number(at.started, 1) != 0,
        })
    }

    /// Encodes a `KPROFILE` into the beginning of `bytes` in a given layout, and returns the size of the structure.
    ///
    /// Every byte of the structure is written. For a callback object, the members `BucketShift`, `Buffer` and `Segment`
    /// are written as zeros.
    ///
    /// # Errors
    /// See [`LayoutError`]. After an error, `bytes` is unchanged.
    ///
    /// # Examples
    /// ```
    /// use pmu_core::frame::InterruptFrame;
    /// use pmu_core::profile::KProfileSource;
    /// use pmu_kprofile::compat::kprofile::{KProfile, ListEntry};
    /// use pmu_kprofile::compat::layout::Layout;
    /// use pmu_kprofile::{ProfileObject, Rules};
    ///
    /// // An object of this crate, as a debugger of Windows would find it on a list.
    /// let callback = |_: &dyn InterruptFrame, _: KProfileSource| {};
    /// let object = ProfileObject::callback(Rules::LATEST, KProfileSource::TIME, &callback).unwrap();
    /// let link = ListEntry { flink: 0xFFFF_F800_0000_1000, blink: 0xFFFF_F800_0000_1000 };
    /// let profile = KProfile { link, ..object.to_kprofile() };
    /// let mut bytes = [0; Layout::MAX_SIZE];
    /// let size = profile.encode(Layout::X64_WIN8, &mut bytes).unwrap();
    /// assert_eq!(KProfile::decode(Layout::X64_WIN8, &bytes[..size]), Ok(profile));
    /// ```
    pub fn encode(&self, layout: Layout, bytes: &mut [u8]) -> Result<usize, LayoutError> {
        let (size, at) = (layout.size(), layout.offsets());
        let given = bytes.len();
        let target = bytes.get_mut(..size).ok_or(LayoutError::TooShort { needed: size, given })?;
        let is_callback = matches!(self.role, Role::Callback { .. });
        if !layout.has_type(self.object_type)
            || is_callback != (self.object_type == ObjectType::Callback)
        {
            return Err(LayoutError::ObjectType(self.object_type.value()));
        }
        let mut image = Image { bytes: [0; Layout::MAX_SIZE], width: layout.width(), error: None };
        image.number(0, 2, self.object_type.value().into());
        image.number(2, 2, size as u64);
        image.pointer(at.link, self.link.flink);
        image.pointer(blink_of(at), self.link.blink);
        image.pointer(at.process, self.process);
        match self.role {
            Role::Callback { callback, context } => {
                image.pointer(at.range_base, callback);
                image.pointer(at.range_limit, context);
            }
            Role::Basic { range_base, range_limit, bucket_shift, buffer, segment } => {
                check_basic(layout.width(), bucket_shift, segment)?;
                image.pointer(at.range_base, range_base);
                image.pointer(at.range_limit, range_limit);
                image.number(at.bucket_shift, 4, bucket_shift.into());
                image.pointer(at.buffer, buffer);
                image.number(at.segment, 4, segment.into());
            }
        }
        match at.source {
            None if self.source != KProfileSource::TIME => {
                return Err(LayoutError::NoSourceOrAffinity);
            }
            None => {}
            Some(source) => {
                let value = self.source.value();
                // Windows reads a SHORT and extends its sign.
                let short = i16::try_from(value as i32).map_err(|_| LayoutError::Source(value))?;
                image.number(source, 2, u64::from(short as u16));
            }
        }
        match at.affinity {
            None if !self.affinity.is_empty() => return Err(LayoutError::NoSourceOrAffinity),
            None => {}
            Some(affinity) => image.affinity(affinity, at.groups.into(), &self.affinity),
        }
        image.number(at.started, 1, self.started.into());
        if let Some(error) = image.error {
            return Err(error);
        }
        // Only now, so that the caller's bytes are unchanged after an error.
        target.iter_mut().zip(image.bytes).for_each(|(to, from)| *to = from);
        Ok(size)
    }
}

/// Returns the offset of the list entry's second pointer.
const fn blink_of(at: &Offsets) -> u16 {
    at.link + at.width.bytes() as u16
}

/// Checks the members that only a basic object has. The 64-bit layouts keep the segment's member, but only x86 uses it.
const fn check_basic(
    width: PointerWidth,
    bucket_shift: u32,
    segment: u32,
) -> Result<(), LayoutError> {
    if bucket_shift > 29 {
        Err(LayoutError::BucketShift(bucket_shift))
    } else if segment > 0xFFFF || (segment != 0 && matches!(width, PointerWidth::Bits64)) {
        Err(LayoutError::Segment(segment))
    } else {
        Ok(())
    }
}

/// The bytes of a structure to be decoded; offsets come from a layout and are in bounds.
struct Bytes<'b>(&'b [u8], PointerWidth);

impl Bytes<'_> {
    fn number(&self, offset: u16, size: usize) -> u64 {
        let offset = usize::from(offset);
        let bytes = self.0.get(offset..offset + size).unwrap_or(&[]);
        bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn pointer(&self, offset: u16) -> u64 {
        self.number(offset, self.1.bytes())
    }

    fn affinity(&self, offset: u16, groups: usize) -> Result<Affinity, LayoutError> {
        if groups == 0 {
            return Ok(Affinity::of_group(0, self.pointer(offset)));
        }
        // KAFFINITY_EX: Count, Size, Reserved, Bitmap. Masks beyond the count have no meaning.
        let count = self.number(offset, 2) as usize;
        if count > groups {
            return Err(LayoutError::Affinity);
        }
        let mask = |group| self.pointer(mask_at(offset, group, self.1));
        Ok((0..count).fold(Affinity::EMPTY, |set, group| {
            set.union(Affinity::of_group(group as u16, mask(group)))
        }))
    }
}

/// Returns the offset of a group's mask in a `KAFFINITY_EX`, after its count, size and reserved members.
const fn mask_at(affinity: u16, group: usize, width: PointerWidth) -> u16 {
    affinity + 8 + (group * width.bytes()) as u16
}

/// The bytes of a structure being encoded. Keeps the first error, so that nothing is written in part.
struct Image {
    bytes: [u8; Layout::MAX_SIZE],
    width: PointerWidth,
    error: Option<LayoutError>,
}

impl Image {
    fn number(&mut self, offset: u16, size: usize, value: u64) {
        let offset = usize::from(offset);
        let target = self.bytes.get_mut(offset..offset + size).unwrap_or(&mut []);
        target.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
    }

    fn pointer(&mut self, offset: u16, value: u64) {
        if value > self.width.max_address() {
            self.error.get_or_insert(LayoutError::Address(value));
        }
        self.number(offset, self.width.bytes(), value);
    }

    fn affinity(&mut self, offset: u16, groups: usize, affinity: &Affinity) {
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
            let place = mask_at(offset, group, self.width);
            self.number(place, self.width.bytes(), affinity.mask(group));
        }
    }
}

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
