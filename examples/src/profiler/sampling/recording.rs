//! The file that the records of a sampling are written into.

use std::io;
use std::path::Path;

use crate::profiler::error::Error;
use crate::profiler::kallsyms::KERNEL;
use crate::profiler::perf::{PerfEvents, Record};
use crate::profiler::perf_data::writer::{Facts, Writer};

/// A recording, if there is one.
#[derive(Default)]
pub(super) struct Recording {
    /// The occurrences before the events were opened, until they are written.
    existing: Vec<Record>,
    /// The file, or the failure that ended it.
    writer: Option<io::Result<Writer>>,
}

impl Recording {
    /// Keeps an occurrence from before the events were opened.
    pub(super) fn keep(&mut self, record: Record) {
        self.existing.push(record);
    }

    /// Creates the file.
    pub(super) fn begin(
        &mut self,
        path: &Path,
        facts: Facts,
        events: &impl PerfEvents,
    ) -> Result<(), Error> {
        let Some(attributes) = events.attributes() else { return Ok(()) };
        let failed = |error| Error::File { path: path.to_string_lossy().into(), error };
        let mut writer = Writer::create(path, &attributes, facts).map_err(failed)?;
        let texts = events.kernel_texts();
        let image = texts.iter().find(|text| text.path == Path::new(KERNEL));
        image.map_or(Ok(()), |text| writer.write_kernel(text)).map_err(failed)?;
        let mut existing = self.existing.drain(..);
        existing.try_for_each(|record| writer.write(&record)).map_err(failed)?;
        self.writer = Some(Ok(writer));
        Ok(())
    }

    /// Returns true if records are written.
    pub(super) fn is_on(&self) -> bool {
        self.writer.is_some()
    }

    /// Writes a record; a failure is kept until the end.
    pub(super) fn write(&mut self, record: &Record) {
        self.try_to(|writer| writer.write(record));
    }

    /// Tells that all older records are written.
    pub(super) fn end_round(&mut self) {
        self.try_to(Writer::end_round);
    }

    fn try_to(&mut self, write: impl FnOnce(&mut Writer) -> io::Result<()>) {
        if let Some(Ok(writer)) = &mut self.writer
            && let Err(error) = write(writer)
        {
            self.writer = Some(Err(error));
        }
    }

    /// Returns the samples and bytes so far, none where writing failed; `None` where nothing is recorded.
    pub(super) fn counts(&self) -> Option<(u64, u64)> {
        let writer = self.writer.as_ref()?.as_ref().ok();
        Some(writer.map_or((0, 0), |writer| (writer.samples, writer.bytes)))
    }

    /// Completes the file.
    pub(super) fn finish(self) -> Result<(), Error> {
        let finished = self.writer.map_or(Ok(()), |writer| writer.and_then(Writer::finish));
        finished.map_err(Error::Recording)
    }
}
