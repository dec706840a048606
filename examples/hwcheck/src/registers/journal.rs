//! The last value written to each register, in memory that the worker shares with its supervisor.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::io;

use crate::registers::agreed::{Agreed, Cell, ENABLE, FIXED_PRIVILEGES, MAX_CELLS, PRIVILEGES};
use pmu_virt::registers::RegisterKind;

/// A write was made, or begun.
const CHANGED: u32 = 1 << 0;
/// A write was begun; whether the register took it is unknown.
const PENDING: u32 = 1 << 1;
/// The counter may have counted since its last write.
const MOVED: u32 = 1 << 2;

#[derive(Debug)]
struct State {
    holds: AtomicU64,
    flags: AtomicU32,
}

/// The state of each [`Cell`] of an [`Agreed`] list. It outlives the worker: processes that are forked from here on
/// have it in common.
#[derive(Debug)]
pub struct Journal {
    states: NonNull<[State; MAX_CELLS]>,
}

impl Journal {
    /// A journal of registers that hold what was found.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(agreed: &Agreed) -> io::Result<Self> {
        // SAFETY: a new mapping, wherever the kernel puts it.
        let mapped = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                size_of::<[State; MAX_CELLS]>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let states = NonNull::new(mapped).filter(|_| mapped != libc::MAP_FAILED);
        let states = states.ok_or_else(io::Error::last_os_error)?.cast();
        let journal = Self { states };
        for (state, cell) in journal.states().iter().zip(agreed.cells()) {
            state.holds.store(cell.found, SeqCst);
        }
        Ok(journal)
    }

    fn states(&self) -> &[State; MAX_CELLS] {
        // SAFETY: (1) the mapping is readable, large enough and aligned to pages, and lives as long as `self`; (2) it
        // began as zeros, which are valid atomics; (3) it is shared, and changed by atomics alone.
        unsafe { self.states.as_ref() }
    }

    fn flags(&self, place: usize) -> u32 {
        self.states().get(place).map_or(0, |state| state.flags.load(SeqCst))
    }

    fn change(&self, place: usize, clear: u32, set: u32) {
        if let Some(state) = self.states().get(place) {
            let flags = state.flags.load(SeqCst);
            state.flags.store(flags & !clear | set, SeqCst);
        }
    }

    /// The value that a register holds, as it was read after it was written.
    pub fn holds(&self, place: usize) -> u64 {
        self.states().get(place).map_or(0, |state| state.holds.load(SeqCst))
    }

    /// Returns whether a write was made or begun.
    pub fn is_changed(&self, place: usize) -> bool {
        self.flags(place) & CHANGED != 0
    }

    /// Returns whether the register is to hold [what it held](Self::holds): no write was begun of which nothing more is
    /// known, and it is no counter that may have counted since it was written.
    pub fn is_known(&self, place: usize) -> bool {
        self.flags(place) & (PENDING | MOVED) == 0
    }

    /// A write of `value` begins.
    pub fn begin(&self, agreed: &Agreed, place: usize, value: u64) {
        self.change(place, 0, CHANGED | PENDING);
        // Before it runs.
        self.mark_running(agreed, Some((place, value)));
    }

    /// The write was refused: the register holds what it held.
    pub fn refused(&self, place: usize) {
        self.change(place, PENDING, 0);
    }

    /// The write was made, and the register read as `holds`.
    pub fn done(&self, agreed: &Agreed, place: usize, holds: u64) {
        if let Some(state) = self.states().get(place) {
            state.holds.store(holds, SeqCst);
        }
        self.change(place, PENDING | MOVED, 0);
        self.mark_running(agreed, None);
    }

    /// Marks the counters that run, or would with this value in this place.
    fn mark_running(&self, agreed: &Agreed, with: Option<(usize, u64)>) {
        let value = |kind, counter| {
            let place = agreed.place(kind, counter)?;
            match with {
                Some((changed, value)) if changed == place => Some(value),
                _ => Some(self.holds(place)),
            }
        };
        let global = value(RegisterKind::GlobalControl, 0).unwrap_or(u64::MAX);
        let runs = |cell: &Cell| {
            let enabled = match cell.kind {
                RegisterKind::GeneralCounter => value(RegisterKind::EventSelect, cell.counter)
                    .is_some_and(|select| select & ENABLE != 0 && select & PRIVILEGES != 0),
                RegisterKind::FixedCounter => value(RegisterKind::FixedControl, 0)
                    .is_some_and(|bits| bits >> (4 * cell.counter) & FIXED_PRIVILEGES != 0),
                _ => false,
            };
            enabled && global & cell.global_bit() != 0
        };
        for (place, cell) in agreed.cells().iter().enumerate() {
            if runs(cell) {
                self.change(place, 0, MOVED);
            }
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // SAFETY: the mapping is this journal's, and nothing is borrowed from it any more.
        unsafe {
            libc::munmap(self.states.as_ptr().cast(), size_of::<[State; MAX_CELLS]>());
        }
    }
}
