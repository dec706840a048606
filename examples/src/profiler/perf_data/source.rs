//! The bytes of a recording, none of which is read again once it was checked: whoever may write the file may do so
//! meanwhile. The parts beside the records stay in memory from their check to their use; a record is checked when it is
//! read.
//!
//! Source: Linux, tools/perf/Documentation/perf.data-file-format.txt.

use core::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use super::check::{Section, check, wrong};
use super::records::Records;

/// The bytes that are read of the parts at a time, and the most of those that are held.
const PAGE: u64 = 4096;
const MOST_PAGES: usize = 1 << 15;

/// A recording whose parts beside the records are checked, for the library, which owns its reader.
#[derive(Clone)]
pub(super) struct Source(Rc<RefCell<State>>);

enum State {
    Parts(Parts, Section),
    Records(Records<BufReader<File>>),
}

impl Source {
    /// Checks all but the records.
    ///
    /// # Errors
    /// The file is no recording, or damaged, or of a kind that is not read; or the system's.
    pub(super) fn check(file: File) -> io::Result<Self> {
        let mut parts = Parts::of(file)?;
        let records = check(&mut parts)?;
        parts.rewind()?;
        Ok(Self(Rc::new(RefCell::new(State::Parts(parts, records)))))
    }

    /// Ends the parts: what is read from now on are the records, from the first.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn begin_records(&self) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        if let State::Parts(parts, records) = &*state {
            let mut file = BufReader::with_capacity(1 << 20, parts.file.try_clone()?);
            file.seek(SeekFrom::Start(records.place))?;
            *state = State::Records(Records::new(file, records.size));
        }
        Ok(())
    }
}

impl Read for Source {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut *self.0.borrow_mut() {
            State::Parts(parts, _) => parts.read(bytes),
            State::Records(records) => records.read(bytes),
        }
    }
}

impl Seek for Source {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut *self.0.borrow_mut() {
            State::Parts(parts, _) => parts.seek(to),
            State::Records(_) => Err(io::ErrorKind::NotSeekable.into()),
        }
    }
}

/// The parts of a file, as they were when they were first read.
pub(super) struct Parts {
    file: File,
    pub(super) size: u64,
    place: u64,
    pages: HashMap<u64, Vec<u8>>,
}

impl Parts {
    fn of(file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        Ok(Self { file, size, place: 0, pages: HashMap::new() })
    }

    /// Fills `bytes` from a place in the file.
    pub(super) fn read_at(&mut self, bytes: &mut [u8], place: u64) -> io::Result<()> {
        self.place = place;
        self.read_exact(bytes)
    }
}

impl Read for Parts {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let begin = self.place / PAGE * PAGE;
        let length = self.size.saturating_sub(begin).min(PAGE);
        let held = self.pages.len();
        let page = match self.pages.entry(begin) {
            Entry::Occupied(page) => page.into_mut(),
            Entry::Vacant(_) if held == MOST_PAGES => {
                return wrong("a damaged recording: its parts are too large");
            }
            Entry::Vacant(new) => {
                let mut page = vec![0; length as usize];
                self.file.read_exact_at(&mut page, begin)?;
                new.insert(page)
            }
        };
        let read = page.get((self.place - begin) as usize..).unwrap_or_default().read(bytes)?;
        self.place += read as u64;
        Ok(read)
    }
}

impl Seek for Parts {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::Current(by) => self.place.checked_add_signed(by),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
        };
        self.place = place.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.place)
    }
}
