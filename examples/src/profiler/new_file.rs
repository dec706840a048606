//! A file that takes its place when it is whole. Until then it is beside its place, under a random name, and readable
//! by its user alone.
//!
//! Another user who may write in the folder can have placed anything under these names. So a name is only created where
//! there is none, and renamed, which follows no link and opens nothing.

use core::hash::{BuildHasher, Hasher};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::RandomState;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The mode of a new file: samples may have other users' secrets, from their programs' stacks.
const MODE: u32 = 0o600;

/// The names that are tried.
const ATTEMPTS: u32 = 16;

/// A file that is written, and is removed unless it is [put](Self::put) into its place.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    place: PathBuf,
    /// Set once it is to stay.
    stays: bool,
}

impl NewFile {
    /// Creates a file for a place, in its folder.
    ///
    /// # Errors
    /// The system's.
    pub fn create(place: &Path) -> io::Result<Self> {
        let mut attempts = 0;
        loop {
            let mut name = OsString::from(".");
            name.push(place.file_name().unwrap_or_default());
            // Each state has other keys.
            name.push(format!(".{:016x}", RandomState::new().build_hasher().finish()));
            let path = place.with_file_name(name);
            let mut options = OpenOptions::new();
            // A new file is neither a link's target nor a FIFO.
            match options.write(true).create_new(true).mode(MODE).open(&path) {
                Ok(file) => return Ok(Self { file, path, place: place.into(), stays: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    attempts += 1;
                    if attempts == ATTEMPTS {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts the file into its place. What was there is replaced, or, where `keeps` is set, gets the name with `.old`
    /// behind it, in place of what had that.
    ///
    /// # Errors
    /// The system's: the file stays where it is, and the error tells its name. Or another user put something else under
    /// one of the names.
    pub fn put(mut self, keeps: bool) -> io::Result<()> {
        self.stays = true;
        let at_fault = |error: io::Error| {
            let text = format!("{error}; what was written is in {}", self.path.display());
            io::Error::new(error.kind(), text)
        };
        if keeps && self.place.symlink_metadata().is_ok() {
            fs::rename(&self.place, old(&self.place)).map_err(at_fault)?;
        }
        fs::rename(&self.path, &self.place).map_err(at_fault)?;
        let (own, there) = (self.file.metadata()?, self.place.symlink_metadata()?);
        if (own.dev(), own.ino()) != (there.dev(), there.ino()) {
            let text = "another user, who may write in its folder, put another file there";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    }
}

/// Returns the place of what a file replaces.
pub fn old(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(".old");
    name.into()
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.stays {
            // Another user of the folder may have removed it.
            _ = fs::remove_file(&self.path);
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for NewFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
