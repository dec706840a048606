//! A file, pipe or device that a profile is written into.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fs, io};

/// Checks that a profile may be written to a path, and changes nothing there.
///
/// # Errors
/// The path is a directory's, or may not be written. Other failures show only when writing.
pub fn check(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        Ok(_) => check_writable(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| *parent != Path::new(""));
            check_writable(parent.unwrap_or(Path::new(".")))
        }
        Err(error) => Err(error),
    }
}

fn check_writable(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a text that ends in 0.
    let result = unsafe { libc::access(path.as_ptr(), libc::W_OK) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes a profile, and replaces what a file contained. A pipe whose reader is gone is no error.
///
/// # Errors
/// Any of the system's. A file that did not exist before is not left behind.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    let is_new = !path.exists();
    match fs::write(path, contents) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            if is_new {
                // It may not even have been created.
                _ = fs::remove_file(path);
            }
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}
