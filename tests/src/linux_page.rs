//! A program that reads Linux' `perf_event_mmap_page`: its loop, from the comments of the header `linux/perf_event.h`.
#![allow(missing_docs, reason = "parts of tests")]

use core::sync::atomic::{Ordering, compiler_fence};

/// Offsets of the fields.
pub const FIELDS: &str = include_str!("../data/perf_event_mmap_page.csv");

/// Returns the name, place and size of each field.
pub fn fields() -> impl Iterator<Item = [&'static str; 3]> {
    let rows = FIELDS.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split(',').collect::<Vec<_>>().try_into().unwrap())
}

/// A count that a program read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub value: u64,
    pub enabled: u64,
    pub running: u64,
}

/// A page as a program has it mapped.
#[derive(Clone, Copy)]
pub struct LinuxPage<'a>(&'a [u8; 4096]);

impl<'a> LinuxPage<'a> {
    pub fn of<T>(page: &'a T) -> Self {
        assert_eq!((size_of::<T>(), align_of::<T>()), (4096, 4096), "a page is mapped");
        // SAFETY: initialized bytes of this size. They are read by volatile reads alone.
        Self(unsafe { &*(&raw const *page).cast() })
    }

    /// Returns a field, or a bit of the capabilities.
    pub fn field(&self, name: &str) -> u64 {
        let [_, at, size] = fields().find(|[of, ..]| *of == name).unwrap();
        if let Some((at, bit)) = at.split_once(':') {
            return self.bytes(at.parse().unwrap(), 8) >> bit.parse::<u32>().unwrap() & 1;
        }
        self.bytes(at.parse().unwrap(), size.parse().unwrap())
    }

    fn bytes(&self, at: usize, size: usize) -> u64 {
        let at = (&raw const self.0[at]).cast_mut();
        // SAFETY: a field of the page, aligned to its size.
        unsafe {
            match size {
                2 => at.cast::<u16>().read_volatile().into(),
                4 => at.cast::<u32>().read_volatile().into(),
                _ => at.cast::<u64>().read_volatile(),
            }
        }
    }

    /// Reads the event as the header's comments do. `None`: the program makes a system call.
    pub fn read(
        &self,
        mut rdpmc: impl FnMut(u32) -> u64,
        mut rdtsc: impl FnMut() -> u64,
    ) -> Option<Read> {
        let (mut count, mut enabled, mut running, mut index, mut delta);
        loop {
            let sequence = self.field("lock");
            compiler_fence(Ordering::SeqCst);
            (enabled, running) = (self.field("time_enabled"), self.field("time_running"));
            delta = 0;
            if self.field("cap_user_time") != 0 && enabled != running {
                let (shift, mult) = (self.field("time_shift"), self.field("time_mult"));
                let cycles = rdtsc();
                let (quotient, rest) = (cycles >> shift, cycles & ((1 << shift) - 1));
                let scaled = quotient.wrapping_mul(mult).wrapping_add((rest * mult) >> shift);
                delta = self.field("time_offset").wrapping_add(scaled);
            }
            index = self.field("index") as u32;
            count = self.field("offset");
            if self.field("cap_user_rdpmc") == 0 {
                return None;
            }
            if index != 0 {
                let width = self.field("pmc_width");
                let pmc = (rdpmc(index - 1) << (64 - width)) as i64 >> (64 - width);
                count = count.wrapping_add(pmc as u64);
            }
            compiler_fence(Ordering::SeqCst);
            if self.field("lock") == sequence {
                break;
            }
        }
        enabled += delta;
        if index != 0 {
            running += delta;
        }
        Some(Read { value: count, enabled, running })
    }
}
