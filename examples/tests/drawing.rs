//! The places that `profile --svg` draws to.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn profile(svg: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_profile"))
        .args(["--interval", "1221", "--svg"])
        .arg(svg)
        .args(arguments)
        .output()
        .expect("the program runs")
}

/// A path at which there is nothing.
fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => panic!("{error}"),
        _ => path,
    }
}

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn assert_is_drawing(svg: &str) {
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert!(svg.contains("workload::forty_percent"), "{svg}");
}

#[test]
fn a_drawing_goes_into_a_pipe() {
    let path = scratch("pipe.svg");
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name is a text that ends in 0.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    // Opened first, so that the writer does not wait for a reader; a drawing fits into the pipe's buffer.
    let mut reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    assert_success(&profile(&path, &["--seconds", "1"]));
    let mut svg = String::new();
    reader.read_to_string(&mut svg).unwrap();
    assert_is_drawing(&svg);
}

#[test]
fn a_drawing_goes_into_an_unnamed_pipe_and_to_a_device() {
    let output = profile(Path::new("/dev/stderr"), &["--seconds", "1"]);
    assert_success(&output);
    assert_is_drawing(&String::from_utf8(output.stderr).unwrap());
    assert_success(&profile(Path::new("/dev/null"), &["--seconds", "1"]));
    // A device that is full is told.
    let output = profile(Path::new("/dev/full"), &["--seconds", "1"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && complaint.contains("/dev/full"), "{complaint}");
}

#[test]
fn a_longer_file_is_replaced_and_not_written_over() {
    let path = scratch("longer.svg");
    fs::write(&path, "x".repeat(1 << 20)).unwrap();
    assert_success(&profile(&path, &["--seconds", "1"]));
    assert_is_drawing(&fs::read_to_string(&path).unwrap());
}

#[test]
fn a_run_without_a_profile_leaves_no_file() {
    for (arguments, status) in [
        (&["--", "/no/such/command"][..], &[127, 2][..]),
        (&["--interval", "1000000", "--", "true"], &[2]),
        (&["--source", "LLCMisses"], &[2]),
    ] {
        let path = scratch("none.svg");
        let output = Command::new(env!("CARGO_BIN_EXE_profile"))
            .arg("--svg")
            .arg(&path)
            .args(arguments)
            .output()
            .unwrap();
        // A processor's clock may strike within the shortest command.
        if output.status.success() {
            println!("skipped: by chance there was a sample: {arguments:?}");
            continue;
        }
        assert!(status.contains(&output.status.code().unwrap()), "{arguments:?}: {output:?}");
        assert!(!path.exists(), "{arguments:?} leaves a file");
    }
}

#[test]
fn a_run_without_a_profile_leaves_an_earlier_drawing_as_it_was() {
    let path = scratch("earlier.svg");
    fs::write(&path, "<svg/>").unwrap();
    let _ = profile(&path, &["--", "/no/such/command"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "<svg/>");
}

#[test]
fn a_place_that_cannot_be_written_is_told_before_anything_runs() {
    let marker = scratch("marker");
    let script = format!("echo > {}", marker.display());
    for place in [Path::new("/no/such/directory/x.svg"), Path::new(env!("CARGO_TARGET_TMPDIR"))] {
        let output = profile(place, &["--", "sh", "-c", &script]);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(place.to_str().unwrap()), "{complaint}");
        assert!(!marker.exists(), "the command ran");
    }
}
