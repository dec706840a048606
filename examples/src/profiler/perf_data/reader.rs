//! Reading a recording, this profiler's or perf's own, by `linux-perf-data`: its records take the place of the
//! kernel's.

use core::mem::zeroed;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use linux_perf_data::linux_perf_event_reader::{
    AttrFlags, PerfEventAttr, PerfEventType, SamplingPolicy,
};
use linux_perf_data::{PerfFile, PerfFileReader, PerfFileRecord, PerfRecordIter};
use perf_event_open_sys::bindings::perf_event_attr;

use super::{HEADER_BYTES, MAGIC, SECTION_BYTES};
use crate::profiler::kallsyms::Kallsyms;
use crate::profiler::maps::Mapping;
use crate::profiler::perf::record::Layout;
use crate::profiler::perf::setting::Setting;
use crate::profiler::perf::{OpenError, PerfEvents, Record, Request, What};

/// The records that are read at a time.
const AT_ONCE: usize = 4096;

/// The most that the parts of a file beside its records may have.
const MOST_FEATURES: u64 = 64 << 20;

/// The kind of the record by which perf and this profiler tell where the kernel is: `PERF_RECORD_MMAP`, of no process.
const MMAP: u32 = 1;

/// The kinds of records that are refused: `PERF_RECORD_AUXTRACE`, `_COMPRESSED` and `_COMPRESSED2`.
const AUXTRACE: u32 = 71;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;

/// A recording.
pub struct Reader {
    file: PerfFile,
    records: PerfRecordIter<BufReader<File>>,
    /// By the event's number.
    layouts: Vec<Layout>,
    /// Records before the first sample, which tell of the kernel.
    first: VecDeque<Record>,
    /// Set if the recorded kernel's functions are where the running one's are.
    is_this_kernel: bool,
    has_ended: bool,
    /// Facts for the reader.
    pub facts: Recorded,
}

/// Facts that a recording tells of itself.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The event's name.
    pub event: String,
    /// Set if its period is of time, in nanoseconds.
    pub is_time: bool,
    /// The distance between two samples.
    pub period: u64,
    /// The processor's name.
    pub processor: String,
    /// The command line.
    pub command: String,
}

impl Reader {
    /// Opens a recording.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn open(path: &Path) -> io::Result<Self> {
        check(&mut File::open(path)?)?;
        let PerfFileReader { perf_file: file, record_iter: records } =
            PerfFileReader::parse_file(BufReader::with_capacity(1 << 20, File::open(path)?))
                .map_err(io::Error::other)?;
        let events = file.event_attributes();
        let layouts = events.iter().map(|event| layout(event.attributes())).collect();
        let event = events.first().ok_or_else(|| io::Error::other("no event was recorded"))?;
        let is_time = matches!(event.attributes().type_, PerfEventType::Software(_));
        let text = |text: Result<Option<&str>, _>| text.ok().flatten().unwrap_or_default().into();
        let facts = Recorded {
            event: event.name().unwrap_or("recorded event").into(),
            is_time,
            period: match event.attributes().sampling_policy {
                SamplingPolicy::Period(period) => period.get(),
                SamplingPolicy::Frequency(hertz) if is_time => 1_000_000_000 / hertz.max(1),
                _ => 1,
            },
            processor: text(file.cpu_desc()),
            command: file.cmdline().ok().flatten().unwrap_or_default().join(" "),
        };
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let is_same = file.os_release().ok().flatten() == Some(release.trim_end());
        let mut reader = Self {
            file,
            records,
            layouts,
            first: VecDeque::new(),
            is_this_kernel: false,
            has_ended: false,
            facts,
        };
        let here = Kallsyms::running().and_then(|kernel| kernel.texts().next());
        while let Some((record, kernel)) = reader.next()? {
            // The kernel's first address is chosen at each boot.
            reader.is_this_kernel |=
                is_same && kernel.is_some() && kernel == here.as_ref().map(|text| text.start);
            let is_sample = record.as_ref().is_some_and(|one| matches!(one.what, What::Sample(_)));
            reader.first.extend(record);
            if is_sample || reader.first.len() > AT_ONCE {
                break;
            }
        }
        Ok(reader)
    }

    /// Returns the next record, if the profiler needs it, and the kernel's first address, if the record tells it;
    /// `None` at the end.
    fn next(&mut self) -> io::Result<Option<(Option<Record>, Option<u64>)>> {
        let next = self.records.next_record(&mut self.file).map_err(io::Error::other)?;
        let Some(record) = next else {
            self.has_ended = true;
            return Ok(None);
        };
        let PerfFileRecord::EventRecord { attr_index, record } = record else {
            return Ok(Some((None, None)));
        };
        let (kind, body) = (record.record_type.0, record.data.as_slice());
        let word = |place: usize| Some(u64::from_le_bytes(*body.get(place..)?.first_chunk()?));
        let is_kernel = kind == MMAP && word(0).is_some_and(|both| both as u32 == u32::MAX);
        let kernel = is_kernel.then(|| word(8)).flatten();
        let layout = self.layouts.get(attr_index);
        let mut parsed = layout.and_then(|layout| layout.parse(kind, record.misc, &body));
        if let Some(Record { what: What::Sample(sample), .. }) = &mut parsed {
            // All that is left to do for a recording is on one processor.
            sample.processor = 0;
        }
        Ok(Some((parsed, kernel)))
    }
}

/// The layout of an event's records.
fn layout(event: &PerfEventAttr) -> Layout {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut attributes: perf_event_attr = unsafe { zeroed() };
    attributes.sample_type = event.sample_format.bits();
    attributes.read_format = event.read_format.bits();
    attributes.branch_sample_type = event.branch_sample_format.bits();
    attributes.sample_regs_user = event.sample_regs_user;
    attributes.sample_regs_intr = event.sample_regs_intr;
    attributes.set_sample_id_all(event.flags.contains(AttrFlags::SAMPLE_ID_ALL).into());
    Layout::of(&attributes)
}

/// Checks that a file is a recording of this byte order, whose sections lie in the file: the library allocates as much
/// as they say.
fn check(file: &mut File) -> io::Result<()> {
    let wrong = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidData, reason.to_owned()));
    let kind = file.metadata()?;
    if !kind.is_file() {
        return wrong("not a regular file");
    }
    let mut header = [0; HEADER_BYTES as usize];
    if file.read_exact(&mut header).is_err() || header[..8] != MAGIC {
        return wrong("no recording: it does not begin as perf.data does");
    }
    let word = |place: usize| {
        let bytes = header.get(8 * place..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    // The size of the header and of an event's attributes with their place; places and sizes of attributes, records
    // and the names of events; the features.
    let within =
        |place: u64, size: u64| place.checked_add(size).is_some_and(|end| end <= kind.len());
    if word(1) < HEADER_BYTES
        || word(2) < SECTION_BYTES
        || ![3, 5, 7].iter().all(|first| within(word(*first), word(first + 1)))
    {
        return wrong(
            "a damaged recording: a section is not in the file; was it ended before its end?",
        );
    }
    if word(6) == 0 {
        return wrong("a recording without records: was it ended before its end?");
    }
    let features: u64 = (9..13).map(|place| u64::from(word(place).count_ones())).sum();
    let table = word(5) + word(6);
    if !within(table, features * SECTION_BYTES)
        || word(4) > MOST_FEATURES
        || word(8) > MOST_FEATURES
    {
        return wrong("a damaged recording: its features are not in the file");
    }
    let mut sections = vec![0; (features * SECTION_BYTES) as usize];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut sections, table)?;
    for section in sections.chunks_exact(SECTION_BYTES as usize) {
        let (place, size) = section.split_at(8);
        let number =
            |bytes: &[u8]| bytes.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        if !within(number(place), number(size)) || number(size) > MOST_FEATURES {
            return wrong("a damaged recording: a feature is not in the file");
        }
    }
    check_records(file, word(5), word(6))
}

/// Walks through the headers of the records: those whose bodies the library would take for lengths of what follows are
/// refused, as are those that it cannot read.
fn check_records(file: &File, begin: u64, bytes: u64) -> io::Result<()> {
    let wrong = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidData, reason.to_owned()));
    let mut reader = BufReader::with_capacity(1 << 20, file);
    reader.seek(SeekFrom::Start(begin))?;
    let mut left = bytes;
    while left > 0 {
        let mut header = [0; 8];
        reader.read_exact(&mut header)?;
        let [a, b, c, d, _, _, low, high] = header;
        let (kind, size) =
            (u32::from_le_bytes([a, b, c, d]), u64::from(u16::from_le_bytes([low, high])));
        if size < 8 || size > left {
            return wrong("a damaged recording: a record is longer than what is left");
        }
        match kind {
            AUXTRACE => {
                return wrong("a recording of a processor's trace (AUX area), which is not read");
            }
            COMPRESSED | COMPRESSED2 => {
                return wrong("a compressed recording; record it without -z");
            }
            _ => {}
        }
        reader.seek_relative(size as i64 - 8)?;
        left -= size;
    }
    Ok(())
}

impl PerfEvents for Reader {
    fn processors(&self) -> io::Result<Vec<u16>> {
        Ok(vec![0])
    }

    fn open(&mut self, _: u16, _: &Request) -> Result<(), OpenError> {
        Ok(())
    }

    fn close(&mut self, _: u16) {}

    fn read(&mut self, records: &mut Vec<Record>) {
        records.extend(self.first.drain(..));
        for _ in 0..AT_ONCE {
            match self.next() {
                Ok(Some((record, _))) => records.extend(record),
                Ok(None) => return,
                // A damaged record hides where the next one begins.
                Err(_) => {
                    self.has_ended = true;
                    return;
                }
            }
        }
    }

    fn consumed(&mut self) -> Option<u64> {
        None
    }

    fn setting(&self) -> Setting {
        Setting::default()
    }

    fn kernel_texts(&self) -> Vec<Mapping> {
        let kernel = if self.is_this_kernel { Kallsyms::running() } else { None };
        kernel.map(|kernel| kernel.texts().collect()).unwrap_or_default()
    }

    fn has_ended(&self) -> bool {
        self.has_ended && self.first.is_empty()
    }

    fn recorded_period(&self) -> Option<u64> {
        Some(self.facts.period)
    }

    fn recorded_build_ids(&self) -> HashMap<PathBuf, Vec<u8>> {
        let files = self.file.build_ids().unwrap_or_default().into_values();
        let path = |path: Vec<u8>| PathBuf::from(OsString::from_vec(path));
        files.map(|file| (path(file.path), file.build_id)).collect()
    }
}
