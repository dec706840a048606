//! Files that samples are written into: their user's alone, and whole or not there, whatever other users have placed
//! under their names.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::time::Duration;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::thread;

use pmu_examples::profiler::new_file::NewFile;
use pmu_examples::profiler::output_file::{check, check_recording, create_recording, write};

/// Time in which a busy machine does what takes a second.
const PATIENCE: Duration = Duration::from_secs(120);

/// The number of another user.
const OTHER: u32 = 4321;

/// Returns an empty folder.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    _ = fs::remove_dir_all(&path);
    fs::create_dir(&path).unwrap();
    path
}

fn fifo(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a text that ends in 0.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(name).map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

/// Makes a recording of these bytes, as the writer does: within [`PATIENCE`].
fn record(path: &Path, bytes: &'static [u8]) -> std::io::Result<()> {
    let (path, (sender, receiver)) = (path.to_owned(), channel());
    thread::spawn(move || {
        let made = create_recording(&path).and_then(|mut file| {
            file.write_all(b"head")?;
            file.write_all(bytes)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(b"HEAD")?;
            file.put(true)
        });
        sender.send(made)
    });
    receiver.recv_timeout(PATIENCE).expect("it blocks")
}

/// Runs `profile record` with an umask that forbids nothing; `None`, and a line that says so, where the kernel does.
fn profile_record(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
    let sampled = ["--", env!("CARGO_BIN_EXE_short-lived"), "threads", "5", "20000"];
    command.arg("record").args(arguments).args(sampled);
    // SAFETY: one system call, which may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0);
            Ok(())
        })
    };
    let output = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("forbids sampling") || complaint.contains("perf events:") {
        println!("skipped: no perf events here: {complaint}");
        return None;
    }
    Some(output)
}

#[test]
fn a_recording_and_a_drawing_are_read_by_no_other_user() {
    let folder = folder("output-mode");
    let [recording, drawing] = ["perf.data", "flame.svg"].map(|name| folder.join(name));
    fs::write(&recording, "earlier").unwrap();
    let Some(output) = profile_record(&["-o", recording.to_str().unwrap()]) else { return };
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(mode(&recording), 0o600);
    assert_eq!(fs::read_to_string(folder.join("perf.data.old")).unwrap(), "earlier");
    write(&drawing, b"<svg/>").unwrap();
    assert_eq!(mode(&drawing), 0o600);
    assert_eq!(names(&folder), ["flame.svg", "perf.data", "perf.data.old"]);
}

#[test]
fn an_earlier_recording_is_kept_and_none_is_left_half_written() {
    let folder = folder("output-old");
    let place = folder.join("perf.data");
    record(&place, b" first").unwrap();
    assert_eq!(names(&folder), ["perf.data"]);
    record(&place, b" second").unwrap();
    record(&place, b" third").unwrap();
    assert_eq!(fs::read(&place).unwrap(), b"HEAD third");
    assert_eq!(fs::read(folder.join("perf.data.old")).unwrap(), b"HEAD second");
    // Until it is whole, the earlier one is there; and one that never is leaves nothing.
    let mut unfinished = create_recording(&place).unwrap();
    unfinished.write_all(b"half").unwrap();
    assert_eq!(fs::read(&place).unwrap(), b"HEAD third");
    assert_eq!(names(&folder).len(), 3);
    drop(unfinished);
    assert_eq!(names(&folder), ["perf.data", "perf.data.old"]);
}

#[test]
fn what_another_user_placed_under_a_recordings_names_is_not_written_through() {
    let folder = folder("output-planted");
    let [place, victim] = ["perf.data", "victim"].map(|name| folder.join(name));
    fs::write(&victim, "precious").unwrap();
    // The link that would be the earlier one's is replaced, whosever it is.
    record(&place, b" first").unwrap();
    symlink(&victim, folder.join("perf.data.old")).unwrap();
    record(&place, b" second").unwrap();
    assert_eq!(fs::read(folder.join("perf.data.old")).unwrap(), b"HEAD first");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");

    fs::remove_file(&place).unwrap();
    symlink(&victim, &place).unwrap();
    if lchown(&place, Some(OTHER), None).is_err() {
        println!("skipped: only root has another user's link");
        return;
    }
    for path in [&place, &place.with_file_name("perf.data")] {
        assert_eq!(record(path, b" third").unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(check_recording(path).is_err() && check(path).is_err());
        assert_eq!(write(path, b"<svg/>").unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    // So are a link of this user's to it, and a folder behind another user's link.
    let [own, behind] = ["own", "behind"].map(|name| folder.join(name));
    symlink(&place, &own).unwrap();
    symlink(".", &behind).unwrap();
    lchown(&behind, Some(OTHER), None).unwrap();
    for path in [own, behind.join("new")] {
        assert!(record(&path, b"").is_err() && write(&path, b"<svg/>").is_err());
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn a_link_of_this_user_leads_to_the_file_that_is_replaced() {
    let folder = folder("output-link");
    let [link, file] = ["link", "file"].map(|name| folder.join(name));
    fs::write(&file, "earlier").unwrap();
    symlink("file", &link).unwrap();
    record(&link, b" one").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"HEAD one");
    assert!(link.is_symlink());
    assert_eq!(names(&folder), ["file", "file.old", "link"]);
}

#[test]
fn a_recording_into_a_pipe_or_device_is_refused_before_anything_runs() {
    let folder = folder("output-pipe");
    let [pipe, marker] = ["pipe", "marker"].map(|name| folder.join(name));
    fifo(&pipe);
    for place in [&*pipe, Path::new("/dev/null"), &folder] {
        assert!(record(place, b"").is_err(), "{}", place.display());
        let script = format!("echo > {}", marker.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
        command.arg("record").arg("-o").arg(place).args(["--", "sh", "-c", &script]);
        let (sender, receiver) = channel();
        thread::spawn(move || sender.send(command.output().unwrap()));
        let output = receiver.recv_timeout(PATIENCE).expect("it blocks");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(place.to_str().unwrap()), "{complaint}");
        assert!(!marker.exists(), "the command ran");
    }
}

#[test]
fn a_drawing_does_not_go_into_another_users_pipe() {
    let folder = folder("output-others-pipe");
    let pipe = folder.join("pipe");
    fifo(&pipe);
    if lchown(&pipe, Some(OTHER), None).is_err() {
        println!("skipped: only root has another user's pipe");
        return;
    }
    assert!(check(&pipe).is_err());
    assert_eq!(write(&pipe, b"<svg/>").unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn a_recording_whose_earlier_version_cannot_be_kept_is_told_before_and_not_lost_after() {
    let folder = folder("output-kept");
    let place = folder.join("perf.data");
    fs::create_dir(folder.join("perf.data.old")).unwrap();
    check_recording(&place).unwrap();
    record(&place, b" first").unwrap();
    assert!(check_recording(&place).is_err());
    let error = record(&place, b" second").unwrap_err().to_string();
    let kept = names(&folder).into_iter().find(|name| name.starts_with(".perf.data.")).unwrap();
    assert!(error.contains(&kept), "{error}");
    assert_eq!(fs::read(folder.join(kept)).unwrap(), b"HEAD second");
    assert_eq!(fs::read(&place).unwrap(), b"HEAD first");
}

/// A folder as `/tmp` is, where each removes only what is his own.
#[test]
fn another_users_file_in_a_sticky_folder_is_an_error_for_an_ordinary_user() {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root makes another user's file");
        return;
    }
    let folder = std::env::temp_dir().join(format!("pmu-output-sticky-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o1777)).unwrap();
    let place = folder.join("perf.data");
    fs::write(&place, "root's").unwrap();
    fs::set_permissions(&place, Permissions::from_mode(0o666)).unwrap();
    let (other, is_refused) = (place.clone(), move |place: &Path| {
        let mut file = NewFile::create(place)?;
        file.write_all(b"secret")?;
        file.put(true)
    });
    // Another user for this thread alone: setfsuid(2).
    let refused = thread::spawn(move || {
        // SAFETY: no preconditions.
        unsafe { libc::setfsuid(OTHER) };
        is_refused(&other)
    });
    let error = refused.join().unwrap().unwrap_err();
    let (kept, earlier) = (names(&folder), fs::read_to_string(&place).unwrap());
    let hidden = kept.iter().find(|name| name.starts_with(".perf.data.")).unwrap();
    assert_eq!(mode(&folder.join(hidden)), 0o600);
    assert_eq!(File::open(folder.join(hidden)).unwrap().metadata().unwrap().uid(), OTHER);
    fs::remove_dir_all(&folder).unwrap();
    assert!(error.to_string().contains(hidden.as_str()), "{error}");
    assert_eq!(earlier, "root's");
}
