//! Reading a recording, this profiler's or perf's own, by `linux-perf-data`: its records take the place of the
//! kernel's.

use core::mem::zeroed;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use linux_perf_data::linux_perf_event_reader::{
    AttrFlags, PerfEventAttr, PerfEventType, SampleFormat, SamplingPolicy,
};
use linux_perf_data::{Error, PerfFile, PerfFileReader, PerfFileRecord, PerfRecordIter};
use perf_event_open_sys::bindings::perf_event_attr;

use super::source::Source;
use crate::profiler::kallsyms::Kallsyms;
use crate::profiler::maps::Mapping;
use crate::profiler::perf::record::Layout;
use crate::profiler::perf::setting::Setting;
use crate::profiler::perf::{OpenError, PerfEvents, Record, Request, What};
use crate::untrusted::{Owner, open_link};

/// The records that are read at a time.
const AT_ONCE: usize = 4096;

/// The longest period, more than the kernel's counters have bits for: several of them are a number.
const LONGEST_PERIOD: u64 = 1 << 62;

/// The kind of the record by which perf and this profiler tell where the kernel is: `PERF_RECORD_MMAP`, of no process.
const MMAP: u32 = 1;

/// A recording.
pub struct Reader {
    file: PerfFile,
    records: PerfRecordIter<Source>,
    /// By the event's number.
    layouts: Vec<Layout>,
    /// Records before the first sample, which tell of the kernel.
    first: VecDeque<Record>,
    /// Set if the recorded kernel's functions are where the running one's are.
    is_this_kernel: bool,
    has_ended: bool,
    failure: Option<io::Error>,
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
    /// Set if its samples have call chains, or copies of stacks.
    pub has_callers: bool,
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
        // A FIFO of this name would block; where the file is, its reader named it.
        Self::of(Source::check(open_link(path, Owner::Any, u64::MAX)?)?)
    }

    /// Reads what was checked.
    fn of(source: Source) -> io::Result<Self> {
        let PerfFileReader { perf_file: file, record_iter: records } =
            PerfFileReader::parse_file(source.clone()).map_err(error)?;
        source.begin_records()?;
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
            has_callers: event
                .attributes()
                .sample_format
                .intersects(SampleFormat::CALLCHAIN | SampleFormat::STACK_USER),
            processor: text(file.cpu_desc()),
            command: file.cmdline().ok().flatten().unwrap_or_default().join(" "),
        };
        if facts.period > LONGEST_PERIOD {
            return Err(io::Error::other("a damaged recording: a period that no counter has"));
        }
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let is_same = file.os_release().ok().flatten() == Some(release.trim_end());
        let mut reader = Self {
            file,
            records,
            layouts,
            first: VecDeque::new(),
            is_this_kernel: false,
            has_ended: false,
            failure: None,
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
        let next = self.records.next_record(&mut self.file).map_err(error)?;
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

/// Returns the error of the file itself, if that was it.
fn error(error: Error) -> io::Error {
    match error {
        Error::IoError(error) => error,
        error => io::Error::other(error),
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
            if self.has_ended {
                return;
            }
            match self.next() {
                Ok(next) => records.extend(next.and_then(|(record, _)| record)),
                // A damaged record hides where the next one begins.
                Err(error) => (self.failure, self.has_ended) = (Some(error), true),
            }
        }
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// A recording that the fuzzer keeps: 50 samples of one event.
    const WHOLE: &[u8] = include_bytes!("../../../../fuzz/seeds/profile_recording/fifty-samples");

    /// Checks the recording, has its file rewritten, and reads it. Returns its facts, and the number of its samples.
    fn rewritten(name: &str, rewrite: impl FnOnce(&File)) -> io::Result<(Recorded, usize)> {
        let name = format!("pmu-rewritten-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, WHOLE).unwrap();
        let source = Source::check(File::open(&path).unwrap()).unwrap();
        rewrite(&File::options().write(true).open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let mut reader = Reader::of(source)?;
        let mut records = Vec::new();
        while !reader.has_ended() {
            reader.read(&mut records);
        }
        let samples = records.iter().filter(|one| matches!(one.what, What::Sample(_)));
        reader.failure().map_or(Ok((reader.facts, samples.count())), Err)
    }

    /// The records' section.
    fn records() -> core::ops::Range<usize> {
        let word = |place| u64::from_le_bytes(WHOLE[place..place + 8].try_into().unwrap()) as usize;
        word(40)..word(40) + word(48)
    }

    #[test]
    fn a_recording_rewritten_between_its_check_and_its_reading_is_read_as_it_was_checked() {
        let (as_it_is, samples) = rewritten("nothing", |_| ()).unwrap();
        assert_eq!(samples, 50);
        // Each count and size beside the records is the largest that there is.
        let (facts, samples) = rewritten("parts", |file| {
            let all = [0xFF].repeat(WHOLE.len());
            file.write_all_at(&all[..records().start], 0).unwrap();
            let end = records().end;
            file.write_all_at(&all[end..], end as u64).unwrap();
        })
        .unwrap();
        assert_eq!(samples, 50);
        assert_eq!((facts.command, facts.event), (as_it_is.command, as_it_is.event));
    }

    /// The library allocates as much for a trace as the first word of its body says.
    #[test]
    fn records_rewritten_before_they_are_read_are_an_error_and_nothing_is_allocated_for_them() {
        let mut last = records().start;
        loop {
            let size = usize::from(u16::from_le_bytes([WHOLE[last + 6], WHOLE[last + 7]]));
            if last + 2 * size > records().end {
                break;
            }
            last += size;
        }
        for (header, told) in [
            ([71, 0, 0, 0, 0, 0, 72, 0], "trace"),
            ([81, 0, 0, 0, 0, 0, 72, 0], "compressed"),
            ([9, 0, 0, 0, 0, 0, 0xFF, 0xFF], "longer"),
            ([9, 0, 0, 0, 0, 0, 0, 0], "longer"),
        ] {
            let failure = rewritten(told, |file| {
                file.write_all_at(&[header, (1_u64 << 46).to_le_bytes()].concat(), last as u64)
                    .unwrap();
            });
            let failure = failure.unwrap_err().to_string();
            assert!(failure.contains(told), "{failure}");
        }
    }
}
