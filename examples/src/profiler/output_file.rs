//! The places that profiles are written into: files, and for those that have no need of one, pipes and devices.

use std::ffi::{CString, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::new_file::{NewFile, old};

/// The links that are followed, one after the other, as the kernel does.
const LINKS: u32 = 40;

/// A place that may be written.
enum Place {
    /// A file's, which is there or not.
    File(PathBuf),
    /// A pipe or a device, found and not opened.
    Stream(fs::File),
    /// A descriptor of this process.
    Descriptor(PathBuf),
}

/// Checks that a profile may be written to a path, and changes nothing there.
///
/// # Errors
/// The path is a directory's, a link or pipe of another user's, or may not be written. Other failures show only when
/// writing.
pub fn check(path: &Path) -> io::Result<()> {
    match find(path)? {
        Place::File(path) => check_folder(&path),
        Place::Stream(found) => check_access(&own(&found), libc::W_OK),
        Place::Descriptor(path) => check_access(&path, libc::W_OK),
    }
}

/// As [`check`], of a recording: it goes into a file alone, and what was there is kept.
///
/// # Errors
/// As of [`check`]; or what is there, or has the name that it would get, cannot be replaced.
pub fn check_recording(path: &Path) -> io::Result<()> {
    let path = place_of_recording(path)?;
    check_folder(&path)?;
    let is_taken = old(&path).symlink_metadata().is_ok_and(|there| there.is_dir());
    match is_taken && path.symlink_metadata().is_ok() {
        true => Err(refused(
            "its earlier version cannot be kept: there is a folder of its name and .old",
        )),
        false => Ok(()),
    }
}

/// Creates a recording's file.
///
/// # Errors
/// As of [`check_recording`].
pub fn create_recording(path: &Path) -> io::Result<NewFile> {
    NewFile::create(&place_of_recording(path)?)
}

/// Writes a profile, and replaces what a file contained. A pipe whose reader is gone is no error.
///
/// # Errors
/// Any of the system's. A file stays as it was, and one that did not exist before is not left behind.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    let place = find(path)?;
    let stream = match &place {
        Place::File(path) => {
            let mut file = NewFile::create(path)?;
            file.write_all(contents)?;
            return file.put(false);
        }
        Place::Stream(found) => own(found),
        Place::Descriptor(path) => path.clone(),
    };
    let mut options = OpenOptions::new();
    let opened = options.write(true).truncate(true).custom_flags(libc::O_NOCTTY).open(stream);
    match opened.and_then(|mut stream| stream.write_all(contents)) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn place_of_recording(path: &Path) -> io::Result<PathBuf> {
    match find(path)? {
        Place::File(path) => Ok(path),
        _ => Err(refused("not a regular file, as a recording is")),
    }
}

/// Finds what is at a path, and opens nothing, which a pipe or a device would notice. Links are followed where they are
/// this user's or root's.
fn find(path: &Path) -> io::Result<Place> {
    if is_descriptor(path) {
        return Ok(Place::Descriptor(path.into()));
    }
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let found = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return file(path),
            found => found?,
        };
        let there = found.metadata()?;
        let kind = there.file_type();
        if kind.is_file() {
            return file(path);
        } else if kind.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        } else if kind.is_char_device() {
            // Only root makes one.
            return Ok(Place::Stream(found));
        } else if !is_trusted(there.uid()) {
            return Err(refused("another user's link or pipe"));
        } else if kind.is_fifo() {
            return Ok(Place::Stream(found));
        } else if !kind.is_symlink() {
            return Err(refused("neither a file nor a pipe or a character device"));
        }
        let target = target(&found)?;
        path = path.parent().unwrap_or(Path::new("")).join(target);
        if is_descriptor(&path) {
            return Ok(Place::Descriptor(path));
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Returns a file's place, if no link to its folder is another user's.
fn file(path: PathBuf) -> io::Result<Place> {
    for folder in path.ancestors().skip(1) {
        let there = folder.symlink_metadata();
        if there.is_ok_and(|there| there.is_symlink() && !is_trusted(there.uid())) {
            return Err(refused("its folder is behind another user's link"));
        }
    }
    Ok(Place::File(path))
}

/// Returns the target of the link that was found, whatever has its name now: readlinkat(2), "an empty string".
fn target(link: &fs::File) -> io::Result<PathBuf> {
    let mut target = vec![0_u8; libc::PATH_MAX as usize];
    let (room, empty) = (target.as_mut_ptr().cast(), c"".as_ptr());
    // SAFETY: the text ends in 0, and there is room for as many bytes.
    let length = unsafe { libc::readlinkat(link.as_raw_fd(), empty, room, target.len()) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    target.truncate(length);
    Ok(OsString::from_vec(target).into())
}

/// Returns whether a path is that of a descriptor that this process has open, as a shell's `>(…)` is.
fn is_descriptor(path: &Path) -> bool {
    let standard = ["/dev/stdout", "/dev/stderr"].iter().any(|one| path == Path::new(one));
    let folders = ["/dev/fd", "/proc/self/fd"];
    standard || folders.iter().any(|folder| path.parent() == Some(Path::new(folder)))
}

fn is_trusted(user: u32) -> bool {
    // SAFETY: no preconditions.
    user == 0 || user == unsafe { libc::geteuid() }
}

/// Returns the path of what was found, whatever has its name now.
fn own(found: &fs::File) -> PathBuf {
    format!("/proc/self/fd/{}", found.as_raw_fd()).into()
}

/// Checks that a file can be created beside a path.
fn check_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    check_access(folder.unwrap_or(Path::new(".")), libc::W_OK | libc::X_OK)
}

fn check_access(path: &Path, access: i32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a text that ends in 0.
    let result = unsafe { libc::access(path.as_ptr(), access) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn refused(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}
