//! The files that a profile is written into.

use std::path::{Path, PathBuf};

use clap::Args;

use super::error::Error;
use super::export::pprof::Weight;
use super::export::{firefox, flame_graph, folded, pprof};
use super::output_file;
use super::report::consumed::Unit;
use super::report::{Report, svg};

/// Files, pipes or devices, one per format.
#[derive(Args, Debug, Default)]
pub struct Files {
    /// Draw the functions and the hottest one's buckets into a file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Draw the call stacks as a flame graph (SVG, for a browser).
    #[arg(long, value_name = "FILE")]
    flamegraph: Option<PathBuf>,

    /// Write folded stacks: a line per stack, with its samples.
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,

    /// Write the call stacks in pprof's format.
    #[arg(long, value_name = "FILE")]
    pprof: Option<PathBuf>,

    /// Write the samples in the Firefox Profiler's processed format (JSON).
    #[arg(long, value_name = "FILE")]
    firefox: Option<PathBuf>,
}

impl Files {
    /// Checks that all may be written, and changes nothing there.
    ///
    /// # Errors
    /// One may not.
    pub fn check(&self) -> Result<(), Error> {
        let Self { svg, flamegraph, folded, pprof, firefox } = self;
        let paths = [svg, flamegraph, folded, pprof, firefox].into_iter().flatten();
        paths.into_iter().try_for_each(|path| output_file::check(path).map_err(at_fault(path)))
    }

    /// Writes them all.
    ///
    /// # Errors
    /// Any of the system's.
    pub fn write(&self, report: &Report) -> Result<(), Error> {
        let (graph, run) = (&report.graph, &report.run);
        write(&self.svg, || Ok(svg::draw(report)))?;
        write(&self.flamegraph, || flame_graph::draw(graph, &run.subject, "samples"))?;
        write(&self.folded, || Ok(folded::write(graph)))?;
        write(&self.pprof, || {
            let (kind, unit) = match run.unit {
                Unit::Nanoseconds => ("cpu", "nanoseconds"),
                Unit::Events => (run.source, "count"),
            };
            pprof::write(graph, Weight { kind, unit, each: run.each }, run.start)
        })?;
        write(&self.firefox, || {
            let nanoseconds = (run.unit == Unit::Nanoseconds).then_some(run.each);
            Ok(firefox::write(graph, &run.subject, run.start, nanoseconds)?)
        })
    }
}

fn write<T: AsRef<[u8]>>(
    path: &Option<PathBuf>,
    contents: impl FnOnce() -> std::io::Result<T>,
) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    contents()
        .and_then(|contents| output_file::write(path, contents.as_ref()))
        .map_err(at_fault(path))
}

fn at_fault(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::File { path: path.to_string_lossy().into(), error }
}
