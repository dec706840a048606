//! The sections of an ELF file from which callers are found: System V ABI, AMD64 supplement, "Stack Unwind Algorithm";
//! DWARF 5, section 6.4.

use core::ops::Range;
use std::fs;
use std::sync::Arc;

use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment, SegmentFlags};

use super::parts::{Parts, contents};

/// The largest section that is read.
const LARGEST: u64 = 128 << 20;

/// A section: its addresses in the file's own address space, and its bytes.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The addresses.
    pub addresses: Range<u64>,
    /// The bytes; none where they are not needed.
    pub contents: Arc<[u8]>,
}

/// The sections of a file that has any.
#[derive(Clone, Debug)]
pub struct UnwindSections {
    /// `.eh_frame_hdr`, an index of the next one.
    pub index: Option<Section>,
    /// `.eh_frame`.
    pub frames: Option<Section>,
    /// `.debug_frame`, where there is no other.
    pub debug_frames: Option<Section>,
    /// The addresses of `.text` and `.got`.
    pub text: Option<Range<u64>>,
    /// See `text`.
    pub got: Option<Range<u64>>,
    /// Offset in the file, size and address of each segment that is executed.
    segments: Vec<(u64, u64, u64)>,
}

impl UnwindSections {
    /// Reads those of a file; `None` if it has none.
    pub fn read(file: &fs::File) -> Option<Self> {
        let cache = ReadCache::new(file.try_clone().ok()?);
        let parts = Parts::parse(&cache).ok()?;
        let addresses = |name: &str| {
            let section = parts.section_by_name(name)?;
            Some(section.address()..section.address().checked_add(section.size())?)
        };
        let section = |name: &str| {
            let addresses = addresses(name).filter(|range| range.end - range.start <= LARGEST)?;
            let contents = contents(&parts, name);
            (!contents.is_empty()).then(|| Section { addresses, contents: Arc::from(&*contents) })
        };
        let (index, frames) = (section(".eh_frame_hdr"), section(".eh_frame"));
        // A table that has its end and nothing else, as Go's linker leaves it.
        let frames = frames.filter(|section| section.contents.len() > 4);
        let debug_frames = if frames.is_none() { section(".debug_frame") } else { None };
        if frames.is_none() && debug_frames.is_none() {
            return None;
        }
        // Others may share a page of the file with one that is executed.
        let is_executed =
            |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & 1 != 0);
        let executed = parts.segments().filter(|segment| is_executed(segment.flags()));
        let segments = executed.map(|segment| {
            let (file_offset, size) = segment.file_range();
            (file_offset, size, segment.address())
        });
        Some(Self {
            index: index.filter(|_| frames.is_some()),
            frames,
            debug_frames,
            text: addresses(".text"),
            got: addresses(".got"),
            segments: segments.collect(),
        })
    }

    /// Returns the distance between addresses in memory and the file's own, where a place in the file is mapped at an
    /// address.
    pub fn bias(&self, file_offset: u64, mapped_at: u64) -> Option<u64> {
        // A mapping begins at a page, and a segment within one.
        let page = |offset: u64| offset & !0xFFF;
        let place = self.segments.iter().find(|(offset, size, _)| {
            (page(*offset)..offset.saturating_add(*size)).contains(&file_offset)
        });
        let (offset, _, address) = place?;
        Some(mapped_at.wrapping_sub(address.wrapping_add(file_offset.wrapping_sub(*offset))))
    }
}
