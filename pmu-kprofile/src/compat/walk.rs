//! A walk over the profile lists in a foreign memory image, such as that of a crash dump or a guest.

use core::fmt;

use crate::compat::LayoutError;
use crate::compat::kprofile::KProfile;
use crate::compat::layout::Layout;

/// Reads the memory of an image, such as a crash dump or a guest. The addresses are virtual addresses of the kernel in
/// the image.
///
/// ```
/// use pmu_kprofile::compat::walk::MemoryReader;
///
/// struct Image<'i> {
///     base: u64,
///     bytes: &'i [u8],
/// }
///
/// #[derive(Debug, PartialEq)]
/// struct NotInImage(u64);
///
/// impl MemoryReader for Image<'_> {
///     type Error = NotInImage;
///     fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), NotInImage> {
///         let from = address.checked_sub(self.base).ok_or(NotInImage(address))? as usize;
///         let bytes = self.bytes.get(from..).and_then(|bytes| bytes.get(..buffer.len()));
///         buffer.copy_from_slice(bytes.ok_or(NotInImage(address))?);
///         Ok(())
///     }
/// }
/// ```
pub trait MemoryReader {
    /// Error type of a failed read.
    type Error;

    /// Fills all of `buffer` with the memory from `address` on.
    ///
    /// # Errors
    /// Part of the memory to read is unmapped, or is not in the image.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Self::Error>;
}

impl<R: MemoryReader + ?Sized> MemoryReader for &R {
    type Error = R::Error;
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), R::Error> {
        (**self).read(address, buffer)
    }
}

/// Structure that a [`walk`] tried to read when the [`MemoryReader`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Reading {
    /// The list head.
    Head,
    /// A profile object.
    Object,
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "the list's head",
            Self::Object => "the profile object",
        })
    }
}

/// Reason why a [`walk`] ended before the end of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum WalkError<E> {
    /// A link leads to memory that cannot be read.
    Unreadable {
        /// Address that could not be read.
        address: u64,
        /// Structure that was expected at the address.
        reading: Reading,
        /// Error of the [`MemoryReader`].
        error: E,
    },
    /// A link leads to this address. The address is too low for a list entry: the profile object would begin below
    /// address 0.
    Link(u64),
    /// A link leads to bytes that are not a profile object.
    Object {
        /// Address at which an object was expected.
        address: u64,
        /// Reason why the bytes were rejected.
        error: LayoutError,
    },
    /// The backward link of an entry does not lead to the previous entry. The list is damaged, was being changed when
    /// the image was taken, or is a cycle that does not contain the list head.
    BrokenLink {
        /// Address of the entry.
        entry: u64,
        /// Backward link of the entry.
        blink: u64,
    },
    /// The list has more objects than the limit that was passed to [`walk`].
    TooLong,
}

impl<E: fmt::Display> fmt::Display for WalkError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { address, reading, error } => {
                write!(f, "{reading} at {address:#X} cannot be read: {error}")
            }
            Self::Link(entry) => write!(f, "no profile can have its list entry at {entry:#X}"),
            Self::Object { address, error } => write!(f, "no profile at {address:#X}: {error}"),
            Self::BrokenLink { entry, blink } => {
                write!(f, "the list entry at {entry:#X} is linked back to {blink:#X}")
            }
            Self::TooLong => f.write_str("the list is longer than the limit"),
        }
    }
}

impl<E: core::error::Error + 'static> core::error::Error for WalkError<E> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Unreadable { error, .. } => Some(error),
            Self::Object { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Walks the profile objects of a list in a memory image, starting at the address of the list head.
///
/// The list head is a `LIST_ENTRY`: `KPROCESS.ProfileListHead`, or the kernel's global list head.
///
/// Each item has the address of a `KPROFILE`, and the decoded members. If the walk meets an error, the error is the
/// last item; the items before the error are valid. The walk always ends. If the list has more than `limit` objects,
/// the walk returns the first `limit` objects, and then the error [`TooLong`](WalkError::TooLong). If the list has a
/// cycle that does not contain the list head, the walk ends with the error [`BrokenLink`](WalkError::BrokenLink).
///
/// # Examples
/// ```
/// use pmu_core::frame::InterruptFrame;
/// use pmu_core::profile::KProfileSource;
/// use pmu_kprofile::compat::kprofile::{KProfile, ListEntry};
/// use pmu_kprofile::compat::layout::Layout;
/// use pmu_kprofile::compat::walk::{MemoryReader, walk};
/// use pmu_kprofile::{ProfileObject, Rules};
///
/// /// An image with a list's head at its beginning, and one object behind it.
/// struct Image([u8; 0x200]);
/// const BASE: u64 = 0xFFFF_F800_0000_0000;
/// const OBJECT: u64 = BASE + 0x10;
///
/// impl MemoryReader for Image {
///     type Error = u64;
///     fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), u64> {
///         let from = address.checked_sub(BASE).ok_or(address)? as usize;
///         let bytes = self.0.get(from..from + buffer.len()).ok_or(address)?;
///         buffer.copy_from_slice(bytes);
///         Ok(())
///     }
/// }
///
/// let callback = |_: &dyn InterruptFrame, _: KProfileSource| {};
/// let object = ProfileObject::callback(Rules::LATEST, KProfileSource::TIME, &callback).unwrap();
/// let profile = KProfile { link: ListEntry { flink: BASE, blink: BASE }, ..object.to_kprofile() };
/// let layout = Layout::X64_WIN8;
/// let mut image = Image([0; 0x200]);
/// let entry = OBJECT + layout.link_offset() as u64;
/// image.0[..8].copy_from_slice(&entry.to_le_bytes());
/// image.0[8..16].copy_from_slice(&entry.to_le_bytes());
/// profile.encode(layout, &mut image.0[0x10..]).unwrap();
///
/// let found: Result<Vec<_>, _> = walk(&image, layout, BASE, 100).collect();
/// assert_eq!(found, Ok(vec![(OBJECT, profile)]));
/// ```
pub fn walk<R: MemoryReader>(
    reader: R,
    layout: Layout,
    head: u64,
    limit: usize,
) -> impl Iterator<Item = Result<(u64, KProfile), WalkError<R::Error>>> {
    Walk { reader, layout, head, previous: head, left: limit, next: Next::Head }
}

struct Walk<R> {
    reader: R,
    layout: Layout,
    head: u64,
    /// The entry that led to the next one.
    previous: u64,
    left: usize,
    next: Next,
}

enum Next {
    /// The head has not been read yet.
    Head,
    /// The list entry to visit.
    Entry(u64),
    /// The walk is over.
    End,
}

impl<R: MemoryReader> Walk<R> {
    fn pointer(&self, address: u64) -> Result<u64, WalkError<R::Error>> {
        let mut bytes = [0; 8];
        let pointer = bytes.get_mut(..self.layout.width().bytes()).unwrap_or(&mut []);
        self.reader.read(address, pointer).map_err(|error| WalkError::Unreadable {
            address,
            reading: Reading::Head,
            error,
        })?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn visit(&mut self) -> Result<Option<(u64, KProfile)>, WalkError<R::Error>> {
        let entry = match self.next {
            Next::Head => self.pointer(self.head)?,
            Next::Entry(entry) => entry,
            Next::End => return Ok(None),
        };
        // A list whose end was cut off leads to its head, too. The head's link back shows it.
        if entry == self.head {
            let address = self.head.wrapping_add(self.layout.width().bytes() as u64);
            let blink = self.pointer(address)?;
            return if blink == self.previous {
                Ok(None)
            } else {
                Err(WalkError::BrokenLink { entry, blink })
            };
        }
        // A corrupted list may be a circle that never comes back to its head.
        self.left = self.left.checked_sub(1).ok_or(WalkError::TooLong)?;
        let address =
            entry.checked_sub(self.layout.link_offset() as u64).ok_or(WalkError::Link(entry))?;
        let mut bytes = [0; Layout::MAX_SIZE];
        let bytes = bytes.get_mut(..self.layout.size()).unwrap_or(&mut []);
        self.reader.read(address, bytes).map_err(|error| WalkError::Unreadable {
            address,
            reading: Reading::Object,
            error,
        })?;
        let object = KProfile::decode(self.layout, bytes)
            .map_err(|error| WalkError::Object { address, error })?;
        if object.link.blink != self.previous {
            return Err(WalkError::BrokenLink { entry, blink: object.link.blink });
        }
        self.previous = entry;
        self.next = Next::Entry(object.link.flink);
        Ok(Some((address, object)))
    }
}

impl<R: MemoryReader> Iterator for Walk<R> {
    type Item = Result<(u64, KProfile), WalkError<R::Error>>;

    fn next(&mut self) -> Option<Self::Item> {
        let visited = self.visit().transpose();
        // Behind an error, the links cannot be trusted.
        if !matches!(visited, Some(Ok(_))) {
            self.next = Next::End;
        }
        visited
    }
}
