//! Sampled ops of this thread, from Linux' driver of AMD's instruction-based sampling.
//!
//! Read first: perf_event_open(2), "MMAP layout"; Linux, tools/perf/Documentation/perf-amd-ibs.txt.

use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use pmu_amd::ibs::IbsOpRecord;
use pmu_amd::ibs::registers::{IbsOpData, IbsOpData2, IbsOpData3};

/// The first 64 bytes of `perf_event_attr` (PERF_ATTR_SIZE_VER0).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// `cnt_ctl` of the format: the period counts dispatched ops.
const COUNTS_OPS: u64 = 1 << 19;
/// PERF_SAMPLE_RAW.
const RAW: u64 = 1 << 10;
/// `disabled`.
const DISABLED: u64 = 1;
/// PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_DISABLE.
const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;
/// PERF_RECORD_SAMPLE.
const SAMPLE: u32 = 9;

/// Bytes of the ring, a power of two of pages.
const RING: usize = 1 << 20;
const PAGE: usize = 4096;
/// Offsets of `data_head` and `data_tail` in the page before the ring.
const HEAD: usize = 1024;

/// Samples one op in `period` dispatched ops of this thread, user and kernel, while `work` runs. `None` if the kernel
/// has no such driver, or does not let this process use it. Closing the event leaves nothing changed.
pub(crate) fn sample_ops(
    root: &Path,
    period: u32,
    work: &mut dyn FnMut(),
) -> Option<Vec<IbsOpRecord>> {
    let text = fs::read_to_string(root.join("sys/bus/event_source/devices/ibs_op/type")).ok()?;
    let attributes = Attributes {
        kind: text.trim().parse().ok()?,
        size: size_of::<Attributes>() as u32,
        config: COUNTS_OPS,
        sample_period: period.into(),
        sample_type: RAW,
        flags: DISABLED,
        ..Attributes::default()
    };
    // SAFETY: the attributes live during the call, and have the size that they say.
    let descriptor = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &attributes, 0, -1, -1, libc::c_ulong::from(8u8))
    };
    // FLAG_FD_CLOEXEC is 8.
    let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: the descriptor is new, and no other object has it.
    let event = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let ring = Ring::map(&event)?;
    // SAFETY: a request without an argument.
    let control = |request| unsafe { libc::ioctl(event.as_raw_fd(), request, 0) } == 0;
    let enabled = control(ENABLE);
    work();
    (enabled && control(DISABLE)).then(|| records(&ring.taken()))
}

/// The mapped ring of an event.
struct Ring(*mut u8);

impl Ring {
    fn map(event: &OwnedFd) -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, and no object is there.
        let at = unsafe {
            let descriptor = event.as_raw_fd();
            libc::mmap(
                core::ptr::null_mut(),
                PAGE + RING,
                protection,
                libc::MAP_SHARED,
                descriptor,
                0,
            )
        };
        (at != libc::MAP_FAILED).then(|| Self(at.cast()))
    }

    /// Returns the bytes that the kernel has written. The event is disabled, and the ring was large enough.
    fn taken(&self) -> Vec<u8> {
        // SAFETY: the first page is mapped and aligned; the kernel writes `data_head` as a whole.
        let head = unsafe { &*self.0.add(HEAD).cast::<AtomicU64>() }.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let written = usize::try_from(head).unwrap_or(0).min(RING);
        // SAFETY: (1) the ring's bytes are mapped behind the first page; (2) the event is disabled, so the kernel
        // writes none of them.
        unsafe { core::slice::from_raw_parts(self.0.add(PAGE), written) }.to_vec()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.cast(), PAGE + RING) };
    }
}

/// Returns the samples of the ring's bytes. A record that is cut off ends the reading.
fn records(mut bytes: &[u8]) -> Vec<IbsOpRecord> {
    let mut found = Vec::new();
    while let Some((header, _)) = bytes.split_first_chunk::<8>() {
        let [a, b, c, d, _, _, low, high] = *header;
        let size = usize::from(u16::from_le_bytes([low, high]));
        let Some((record, rest)) = bytes.split_at_checked(size.max(8)) else { break };
        if u32::from_le_bytes([a, b, c, d]) == SAMPLE {
            found.extend(record.get(8..).and_then(op));
        }
        bytes = rest;
    }
    found
}

/// Decodes the raw data of a sample: its size, the capabilities, and the registers from `IBS_OP_CTL` on, each of 8
/// bytes.
fn op(raw: &[u8]) -> Option<IbsOpRecord> {
    let (size, rest) = raw.split_first_chunk::<4>()?;
    let data = rest.get(..u32::from_le_bytes(*size) as usize)?;
    let registers: Vec<u64> = data
        .get(4..)?
        .chunks_exact(8)
        .map(|word| word.try_into().map_or(0, u64::from_le_bytes))
        .collect();
    let [_control, rip, data, data2, data3, linear_address, _physical, ..] = registers[..] else {
        return None;
    };
    Some(IbsOpRecord {
        rip,
        data: IbsOpData::from_bits(data),
        data2: IbsOpData2::from_bits(data2),
        data3: IbsOpData3::from_bits(data3),
        linear_address,
        ..IbsOpRecord::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as perf_event_open(2) has it, with seven registers and a branch's target.
    fn record(kind: u32, registers: &[u64]) -> Vec<u8> {
        let raw = 4 + 8 * registers.len() as u32;
        let size = 8 + 4 + raw as u16;
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([2, 0]);
        bytes.extend(size.to_le_bytes());
        bytes.extend(raw.to_le_bytes());
        bytes.extend(0xBFFu32.to_le_bytes());
        registers.iter().for_each(|register| bytes.extend(register.to_le_bytes()));
        bytes
    }

    #[test]
    fn samples_are_found_among_other_records() {
        let mut bytes = record(SAMPLE, &[0x6_0010, 0x1111, 0x2222, 3, 1 << 17 | 1, 5, 6, 7]);
        bytes.extend(record(2, &[0; 3])); // PERF_RECORD_LOST
        bytes.extend(record(SAMPLE, &[0; 7]));
        bytes.extend(record(SAMPLE, &[0; 6])); // too few registers
        let found = records(&bytes);
        assert_eq!(found.len(), 2);
        let [op, _] = found[..] else { panic!() };
        assert_eq!((op.rip, op.linear_address, op.target), (0x1111, 5, 0));
        assert_eq!((op.data.into_bits(), op.data2.into_bits()), (0x2222, 3));
        assert!(op.data3.load() && op.data3.linear_address_valid());
    }

    #[test]
    fn bytes_from_anywhere_end() {
        let whole = record(SAMPLE, &[1; 8]);
        for length in 0..whole.len() {
            assert!(records(&whole[..length]).is_empty(), "{length}");
        }
        assert_eq!(records(&[0; 64]), []);
        let mut short = whole;
        short[8..12].fill(0xFF); // raw data beyond the record
        assert_eq!(records(&short), []);
    }

    #[test]
    fn a_kernel_without_the_driver_samples_nothing() {
        let nowhere = Path::new("/nonexistent");
        assert_eq!(sample_ops(nowhere, 0x1_0000, &mut || panic!("not run")), None);
    }
}
