//! The command line: reads the files that it names, runs the machine, and reports the end.

use core::time::Duration;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::boot::cpio;
use crate::boot::image::{Image, Request};
use crate::error::Error;
use crate::guest_pmu::spec;
use crate::machine::run::run as run_machine;
use crate::messages::say;
use crate::options::Options;
use crate::shared::end::End;

/// Does as the command line says, and returns the exit status.
pub(crate) fn run() -> ExitCode {
    let options = Options::parse();
    match start(&options) {
        Ok(End::Orderly(how)) => {
            say(&format_args!("the guest {how}"));
            ExitCode::SUCCESS
        }
        Ok(End::DebugExit(value)) => ExitCode::from(value << 1 | 1),
        Err(error) => {
            say(&error);
            ExitCode::from(error.exit_status())
        }
    }
}

/// Reads a file of bounded size.
fn read(path: &PathBuf) -> Result<Vec<u8>, Error> {
    let kind = fs::metadata(path).map(|metadata| metadata.file_type());
    let read = kind.and_then(|kind| match kind.is_file() || kind.is_dir() {
        true => fs::read(path),
        false => Err(io::Error::other("not a regular file")),
    });
    read.map_err(|error| Error::File { path: path.clone(), error })
}

fn start(options: &Options) -> Result<End, Error> {
    let configuration = spec::parse(&options.pmu)
        .map_err(|error| Error::Spec { spec: options.pmu.clone(), error })?;
    let kernel = read(&options.kernel)?;
    let initrd = match &options.init {
        Some(program) => Some(cpio::with_init(&read(program)?)),
        None => options.initrd.as_ref().map(read).transpose()?,
    };
    let image = Image::parse(&kernel)
        .map_err(|error| Error::Image { path: options.kernel.clone(), error })?;
    let request = Request { command_line: &options.append, initrd: initrd.as_deref() };
    let timeout = (options.timeout != 0).then(|| Duration::from_secs(options.timeout));
    run_machine(options, configuration, &image, &request, timeout)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use pmu_virt::configuration::IntelFeature;

    use super::*;

    #[test]
    fn each_key_is_in_the_readme_and_in_the_help() {
        let readme = include_str!("../README.md");
        let help = Options::command().render_long_help().to_string();
        for (pmu, key) in [
            ("intel:version=4", "version"),
            ("intel:gp=4", "gp"),
            ("intel:fixed=3", "fixed"),
            ("intel:version=6,gp-mask=5", "gp-mask"),
            ("intel:version=6,fixed-mask=5", "fixed-mask"),
            ("intel:width=48", "width"),
            ("intel:gp-width=48", "gp-width"),
            ("intel:fixed-width=48", "fixed-width"),
            ("intel:events=1", "events"),
            ("intel:transactional", "transactional"),
            ("amd:core,guest-host", "guest-host"),
            ("intel:lbr", "lbr"),
            ("amd:v2,lbr", "lbr"),
            ("amd:v2,ibs", "ibs"),
            ("intel:version=5,pebs", "pebs"),
            ("intel:version=5,fixed=4,topdown", "topdown"),
        ] {
            assert!(spec::parse(pmu).is_ok(), "{pmu}");
            assert!(readme.contains(&format!("`{key}`")), "README: {key}");
            assert!(help.contains(key), "--help: {key}");
        }
        for feature in IntelFeature::ALL.map(IntelFeature::name) {
            assert!(spec::parse(&format!("intel:version=6,{feature}")).is_ok(), "{feature}");
            assert!(help.contains(feature), "--help: {feature}");
        }
        assert!(readme.contains("[,counters=N]") && help.contains("[,counters=N]"));
    }
}
