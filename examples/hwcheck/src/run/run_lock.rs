//! One run at a time, and the changes that an interrupted run left behind.
//!
//! A file is locked by flock(2) as long as a run lives, in its supervisor or its worker. While the run writes, the file
//! holds what was found before; an end that restored everything empties it.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::machine::interface::Machine;
use crate::machine::software::content_error;
use crate::report::hex::Hex;

/// The file, in the folder that is emptied at boot, and that root alone writes.
const FILE: &str = "run/hwcheck";

/// The right to write this machine's registers and its `rdpmc`, until it and the processes forked from here are gone.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    left_behind: Option<Found>,
}

/// The state that a run found before it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The processor.
    pub processor: u32,
    /// The registers that are written, and their values.
    pub registers: BTreeMap<u32, u64>,
    /// The files of sysfs' `rdpmc`, and their settings.
    pub rdpmc: Vec<(PathBuf, String)>,
}

/// Reason for which the lock was not taken.
#[derive(Debug)]
pub enum LockError {
    /// Another run has the lock.
    AnotherRun,
    /// The file cannot be opened, locked or read.
    System(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl RunLock {
    /// Takes the lock of a machine.
    ///
    /// # Errors
    /// Another run lives on it, of whichever processor; or the file is not to be had.
    pub fn take(machine: &dyn Machine) -> Result<Self, LockError> {
        let path = machine.root().join(FILE);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => LockError::AnotherRun,
            TryLockError::Error(error) => error.into(),
        })?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // A file that was cut off tells of a run that had written nothing yet.
        Ok(Self { file, left_behind: serde_json::from_slice(&text).ok() })
    }

    /// Returns what an interrupted run had found.
    pub fn left_behind(&self) -> Option<&Found> {
        self.left_behind.as_ref()
    }

    /// Keeps what was found, before anything is written.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(&self, found: &Found) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&serde_json::to_vec(found).map_err(content_error)?)?;
        file.sync_data()
    }

    /// Forgets what was found: everything is restored.
    pub fn end(&self) {
        // If this fails, the next run names what holds other values than before.
        let _ = self.file.set_len(0).or_else(|_| self.file.write_all_at(b"\0", 0));
    }
}

impl Found {
    /// Describes what holds other values than were found, in a line each. Of a processor other than the machine's all
    /// registers are named: they cannot be read here.
    pub fn changes(&self, machine: &dyn Machine, read: impl Fn(u32) -> Option<u64>) -> String {
        let mut text = String::new();
        for (address, found) in &self.registers {
            let address_text = Hex(u64::from(*address));
            let now = (self.processor == machine.processor()).then(|| read(*address)).flatten();
            // A String takes whatever is written.
            let _ = match now {
                Some(now) if now == *found => Ok(()),
                Some(now) => {
                    writeln!(
                        text,
                        "  register {address_text} held {}, holds {}",
                        Hex(*found),
                        Hex(now)
                    )
                }
                None => writeln!(text, "  register {address_text} held {}", Hex(*found)),
            };
        }
        for (path, found) in &self.rdpmc {
            let now = fs::read_to_string(path).unwrap_or_default();
            if now.trim_end() != found {
                let _ =
                    writeln!(text, "  {} held {found}, holds {}", path.display(), now.trim_end());
            }
        }
        text
    }
}
