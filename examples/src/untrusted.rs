//! Text and files of other users: printing the one, opening the other.
//!
//! Names of threads and functions, arguments, paths and strings of files are any text. Characters that would move a
//! terminal's cursor, or change the direction of writing, are made visible.
//!
//! Other users may have placed map files of JIT compilers, separate files of symbols, and programs. A name may lead to
//! a FIFO, which blocks, a device, which acts or never ends, another user's file, or a file of any size. Each such file
//! is opened here.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Returns a text with U+FFFD in place of each control character, and of each that changes the direction of writing.
pub fn visible(text: &str) -> Cow<'_, str> {
    match text.contains(is_control) {
        true => text.replace(is_control, "\u{FFFD}").into(),
        false => text.into(),
    }
}

/// As [`visible`], of a text of several lines: they stay.
pub fn visible_lines(text: &str) -> String {
    text.split('\n').map(visible).collect::<Vec<_>>().join("\n")
}

/// Returns whether a character is a control character (Unicode, general category Cc), ends a line, or is one of
/// `Bidi_Control`.
pub fn is_control(character: char) -> bool {
    let is_direction = matches!(character, '\u{61C}' | '\u{200E}' | '\u{200F}')
        || matches!(character, '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    character.is_control() || is_direction
}

/// The users whose files are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// All: the file is a program that a process executes already.
    Any,
    /// Root, and the user with this number.
    RootOr(u32),
}

/// Opens a regular file of at most `limit` bytes. A symbolic link at the path's end is not followed.
///
/// # Errors
/// It is no such file, or another user's, or the system does not let it be read.
pub fn open(path: &Path, owner: Owner, limit: u64) -> io::Result<File> {
    open_with(path, false, owner, limit)
}

/// As [`open`], and follows links: for paths in folders that are root's alone, and the links that the kernel shows in
/// `/proc`.
///
/// # Errors
/// As of [`open`].
pub fn open_link(path: &Path, owner: Owner, limit: u64) -> io::Result<File> {
    open_with(path, true, owner, limit)
}

/// Reads a whole file.
///
/// # Errors
/// As of [`open`]; or it has grown beyond the limit since.
pub fn read(path: &Path, owner: Owner, limit: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    open(path, owner, limit)?.take(limit + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > limit { Err(refused("too large")) } else { Ok(contents) }
}

fn refused(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

fn open_with(path: &Path, follows: bool, owner: Owner, limit: u64) -> io::Result<File> {
    let found = system::find(path, follows)?;
    let kind = found.metadata()?;
    if !kind.is_file() {
        return Err(refused("not a regular file"));
    }
    let user = system::owner(&kind);
    match owner {
        Owner::RootOr(own) if user != 0 && user != own => return Err(refused("another user's")),
        _ => {}
    }
    if kind.len() > limit {
        return Err(refused("too large"));
    }
    system::open(found)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod system {
    use std::fs::{File, Metadata, OpenOptions};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::path::Path;

    /// Finds a file, and does not open it, which a FIFO or a device would notice: `O_PATH` of open(2).
    pub(super) fn find(path: &Path, follows: bool) -> io::Result<File> {
        let flags = if follows { libc::O_PATH } else { libc::O_PATH | libc::O_NOFOLLOW };
        OpenOptions::new().read(true).custom_flags(flags).open(path)
    }

    pub(super) fn owner(kind: &Metadata) -> u32 {
        kind.uid()
    }

    /// Opens the file that was found, whatever has its name now.
    pub(super) fn open(found: File) -> io::Result<File> {
        let own = format!("/proc/self/fd/{}", found.as_raw_fd());
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(own)
    }
}

/// Other systems run the tools that read a user's own files alone.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod system {
    use std::fs::{File, Metadata};
    use std::io;
    use std::path::Path;

    pub(super) fn find(path: &Path, _: bool) -> io::Result<File> {
        File::open(path)
    }

    pub(super) fn owner(_: &Metadata) -> u32 {
        0
    }

    pub(super) fn open(found: File) -> io::Result<File> {
        Ok(found)
    }
}
