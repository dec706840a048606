//! Writing the records of a sampling into a file.

use std::path::Path;

use super::Sampling;
use crate::profiler::error::Error;
use crate::profiler::kallsyms::KERNEL;
use crate::profiler::perf::{PerfEvents, Record, What};
use crate::profiler::perf_data::writer::{Facts, Writer};

impl<E: PerfEvents, const N: usize> Sampling<E, N> {
    /// Writes the records into a file in place of profiling by them.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn record_into(&mut self, path: &Path, facts: Facts) -> Result<(), Error> {
        let events = &self.hardware.events;
        let Some(attributes) = events.attributes() else { return Ok(()) };
        let failed = |error| Error::File { path: path.to_string_lossy().into(), error };
        let mut writer = Writer::create(path, &attributes, facts).map_err(failed)?;
        let texts = events.kernel_texts();
        let image = texts.iter().find(|text| text.path == Path::new(KERNEL));
        image.map_or(Ok(()), |text| writer.write_kernel(text)).map_err(failed)?;
        let mut existing = self.existing.drain(..);
        existing.try_for_each(|record| writer.write(&record)).map_err(failed)?;
        self.recording = Some(Ok(writer));
        Ok(())
    }

    /// Writes a record, unless it is a sample of others; a failure is kept until the end.
    pub(super) fn record(&mut self, record: &Record) {
        if let What::Sample(sample) = &record.what
            && (!self.is_of_target(sample) || !self.is_selected(sample))
        {
            return;
        }
        if let Some(Ok(writer)) = &mut self.recording
            && let Err(error) = writer.write(record)
        {
            self.recording = Some(Err(error));
        }
    }

    /// Returns the recording's samples and bytes so far, or what failed; `None` where nothing is recorded.
    pub fn recorded(&self) -> Option<(u64, u64)> {
        let writer = self.recording.as_ref()?.as_ref().ok();
        Some(writer.map_or((0, 0), |writer| (writer.samples, writer.bytes)))
    }

    /// Tells that all older records are written.
    pub(super) fn end_round(&mut self) {
        if let Some(Ok(writer)) = &mut self.recording
            && let Err(error) = writer.end_round()
        {
            self.recording = Some(Err(error));
        }
    }
}
