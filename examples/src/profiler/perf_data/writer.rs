//! Writing a recording: the records as they come, one buffer of them in memory at a time.

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use perf_event_open_sys::bindings::perf_event_attr;

use super::{
    ARCHITECTURE, BUILD_IDS, COMMAND_LINE, EVENT_DESCRIPTIONS, FINISHED_ROUND, HEADER_BYTES, MAGIC,
    OS_RELEASE, PROCESSOR, SECTION_BYTES, build_ids, synthesized,
};
use crate::profiler::maps::Mapping;
use crate::profiler::new_file::NewFile;
use crate::profiler::output_file::create_recording;
use crate::profiler::perf::{Record, What};

/// Texts in a file have room for a multiple of this (`NAME_ALIGN`).
const TEXT_ROOM: usize = 64;

/// The bytes of attributes that are written, `PERF_ATTR_SIZE_VER5`: the profiler sets none behind them, and perf reads
/// no more than it knows.
const ATTRIBUTES_BYTES: usize = 112;

/// Facts on a recording that its file tells.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The event's name.
    pub event: String,
    /// The processor's name.
    pub processor: String,
    /// The command line.
    pub command: Vec<String>,
}

/// A recording under way.
#[derive(Debug)]
pub struct Writer {
    file: BufWriter<NewFile>,
    attributes: Vec<u8>,
    facts: Facts,
    /// The files that were mapped.
    files: BTreeSet<PathBuf>,
    /// The bytes of records.
    pub bytes: u64,
    /// The samples among them.
    pub samples: u64,
}

impl Writer {
    /// Creates a file for records of an event with these attributes. It is in its place after [`finish`](Self::finish),
    /// and what was there has `.old` behind its name.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: &Path, attributes: &perf_event_attr, facts: Facts) -> io::Result<Self> {
        // SAFETY: plain data without padding: it is the kernel's interface.
        let bytes = unsafe {
            core::slice::from_raw_parts(
                core::ptr::from_ref(attributes).cast::<u8>(),
                size_of::<perf_event_attr>(),
            )
        };
        let mut attributes = bytes.to_vec();
        attributes.truncate(ATTRIBUTES_BYTES);
        // Its second word is their size.
        attributes[4..8].copy_from_slice(&(ATTRIBUTES_BYTES as u32).to_ne_bytes());
        let mut file = BufWriter::with_capacity(1 << 20, create_recording(path)?);
        file.write_all(&vec![0; HEADER_BYTES as usize])?;
        file.write_all(&attributes)?;
        // No numbers of events: there is one.
        file.write_all(&[0; SECTION_BYTES as usize])?;
        Ok(Self { file, attributes, facts, files: BTreeSet::new(), bytes: 0, samples: 0 })
    }

    fn data_begin(&self) -> u64 {
        HEADER_BYTES + self.attributes.len() as u64 + SECTION_BYTES
    }

    /// Writes where the kernel's text is.
    ///
    /// # Errors
    /// The system's.
    pub fn write_kernel(&mut self, text: &Mapping) -> io::Result<()> {
        self.write_bytes(&synthesized::kernel(text))
    }

    /// Writes a record: as the kernel wrote it, or what it would have written.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        match &record.what {
            What::Sample(_) => self.samples += 1,
            What::Map { mapping, .. } if mapping.path.is_absolute() => {
                self.files.insert(mapping.path.clone());
            }
            _ => {}
        }
        match record.raw.is_empty() {
            true => self.write_bytes(&synthesized::records(&record.what)),
            false => self.write_bytes(&record.raw),
        }
    }

    /// Tells that records from here on are not older than those before the last call.
    ///
    /// # Errors
    /// The system's.
    pub fn end_round(&mut self) -> io::Result<()> {
        let mut bytes = FINISHED_ROUND.to_ne_bytes().to_vec();
        bytes.extend([0, 0, 8, 0]);
        self.write_bytes(&bytes)
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Writes what the header tells of the whole file.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(mut self) -> io::Result<()> {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let command = &self.facts.command;
        let mut line = (command.len() as u32).to_ne_bytes().to_vec();
        command.iter().for_each(|word| line.extend(text(word)));
        // One event: its attributes, no numbers, and its name.
        let mut events = Vec::new();
        for number in [1, self.attributes.len() as u32] {
            events.extend(number.to_ne_bytes());
        }
        events.extend(&self.attributes);
        events.extend(0_u32.to_ne_bytes());
        events.extend(text(&self.facts.event));
        let features = [
            (BUILD_IDS, build_ids::section(&self.files)),
            (OS_RELEASE, text(release.trim_end())),
            (ARCHITECTURE, text("x86_64")),
            (PROCESSOR, text(&self.facts.processor)),
            (COMMAND_LINE, line),
            (EVENT_DESCRIPTIONS, events),
        ];
        let mut place = self.data_begin() + self.bytes + SECTION_BYTES * features.len() as u64;
        for (_, contents) in &features {
            write_section(&mut self.file, place, contents.len() as u64)?;
            place += contents.len() as u64;
        }
        for (_, contents) in &features {
            self.file.write_all(contents)?;
        }
        let (data, attributes) = (self.data_begin(), self.attributes.len() as u64 + SECTION_BYTES);
        let bits = features.iter().fold(0_u64, |bits, (feature, _)| bits | 1 << feature);
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&MAGIC)?;
        for word in [HEADER_BYTES, attributes, HEADER_BYTES, attributes, data, self.bytes, 0, 0] {
            self.file.write_all(&word.to_ne_bytes())?;
        }
        for word in [bits, 0, 0, 0] {
            self.file.write_all(&word.to_ne_bytes())?;
        }
        self.file.into_inner().map_err(io::IntoInnerError::into_error)?.put(true)
    }
}

fn write_section(file: &mut impl Write, place: u64, size: u64) -> io::Result<()> {
    file.write_all(&place.to_ne_bytes())?;
    file.write_all(&size.to_ne_bytes())
}

/// A text with its length.
fn text(text: &str) -> Vec<u8> {
    let room = (text.len() + 1).next_multiple_of(TEXT_ROOM);
    let mut bytes = (room as u32).to_ne_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.resize(4 + room, 0);
    bytes
}
