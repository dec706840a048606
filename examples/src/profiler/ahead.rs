//! Symbols of files that are read beside the sampling, where a processor has nothing better to do: the end waits less.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::elf;

/// The lowest priority of setpriority(2).
const LOWEST: i32 = 19;

/// The most bytes of symbols that are read ahead.
const MOST_BYTES: usize = 512 << 20;

/// The files with their symbols, by their paths; `None` of what is no ELF file.
pub type Read = HashMap<PathBuf, Option<elf::File>>;

/// A thread that reads files.
pub struct Ahead {
    wanted: Sender<(PathBuf, fs::File)>,
    read: Arc<Mutex<Read>>,
    has_ended: Arc<AtomicBool>,
}

impl Ahead {
    /// Starts the thread; where there is none to be had, nothing is read ahead.
    pub(super) fn start() -> Self {
        let (wanted, files) = channel();
        let (read, has_ended) = (Arc::default(), Arc::default());
        let (result, end) = (Arc::clone(&read), Arc::clone(&has_ended));
        let thread = thread::Builder::new().name("symbols".into());
        let _ = thread.spawn(move || read_each(&files, &result, &end));
        Self { wanted, read, has_ended }
    }

    /// Reads a file when there is time.
    pub(super) fn want(&self, path: &Path, file: &fs::File) {
        // Opened anew: a copy would share its position with the file.
        if let Ok(own) = fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
            // Without a thread there is no receiver.
            let _ = self.wanted.send((path.into(), own));
        }
    }

    /// Returns what was read so far, and lets the thread end after the file that it is reading.
    pub(super) fn take(&self) -> Read {
        self.has_ended.store(true, Ordering::Relaxed);
        core::mem::take(&mut *self.read.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").finish_non_exhaustive()
    }
}

fn read_each(files: &Receiver<(PathBuf, fs::File)>, read: &Mutex<Read>, end: &AtomicBool) {
    // SAFETY: no preconditions; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST) };
    let mut bytes = 0;
    for (path, file) in files {
        if bytes > MOST_BYTES || end.load(Ordering::Relaxed) {
            return;
        }
        let symbols = elf::File::read(file, &path).ok();
        bytes += symbols.as_ref().map_or(0, elf::File::bytes);
        read.lock().unwrap_or_else(PoisonError::into_inner).insert(path, symbols);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn a_file_is_read_beside_and_the_files_own_position_stays() {
        use std::io::{Read as _, Seek};
        let path = std::env::current_exe().unwrap();
        let mut file = fs::File::open(&path).unwrap();
        let ahead = Ahead::start();
        ahead.want(&path, &file);
        ahead.want(Path::new("/dev/null"), &fs::File::open("/dev/null").unwrap());
        for _ in 0..3000 {
            if ahead.read.lock().unwrap().len() == 2 {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(file.stream_position().unwrap(), 0);
        let mut magic = [0; 4];
        file.read_exact(&mut magic).unwrap();
        assert_eq!(magic, *b"\x7FELF");
        let read = ahead.take();
        assert!(read[&path].as_ref().unwrap().has_functions());
        assert!(read[Path::new("/dev/null")].is_none());
        // The next one is not read any more.
        ahead.want(&path, &file);
        thread::sleep(Duration::from_millis(50));
        assert!(ahead.take().is_empty());
    }
}
