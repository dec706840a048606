//! `perf_event_attr` as bytes, of every size: read and checked as in Linux' system call.

use crate::perf::attr_flags::AttrFlags;
use crate::perf::attributes::PerfAttributes;
use crate::perf::error::PerfError;
use crate::perf::event_attr::PerfEventAttr;

/// Flags beyond [`AttrFlags`] in the word at offset 40.
const EXCLUDE_USER: u64 = 1 << 4;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const PRECISE_IP: u32 = 15;
const EXCLUDE_HOST: u64 = 1 << 19;
const EXCLUDE_GUEST: u64 = 1 << 20;
/// `__reserved_1`: the flags above the last one.
const RESERVED_FLAGS: u64 = !((1 << 40) - 1);

/// `sample_type` from `PERF_SAMPLE_MAX` on, and `read_format` from `PERF_FORMAT_MAX` on.
const RESERVED_SAMPLE_TYPE: u64 = !((1 << 25) - 1);
const RESERVED_READ_FORMAT: u64 = !((1 << 5) - 1);

/// Offsets of `__reserved_2`, and of `aux_action`, whose upper 29 bits are `__reserved_3`.
const RESERVED_2: usize = 110;
const AUX_ACTION: usize = 116;

impl PerfEventAttr {
    /// Sizes of `perf_event_attr` that Linux published: `PERF_ATTR_SIZE_VER0` to `PERF_ATTR_SIZE_VER9`.
    pub const SIZES: [usize; 10] = [64, 72, 80, 96, 104, 112, 120, 128, 136, 144];

    /// Size, in bytes, of the latest version of `perf_event_attr`, which [`to_bytes`](Self::to_bytes) writes.
    pub const SIZE: usize = 144;

    /// Greatest size of a `perf_event_attr` that user mode may pass: one page.
    pub const MAX_SIZE: usize = 4096;

    /// Returns the size, in bytes, of a `perf_event_attr` that user mode passes. `head` is the first eight bytes of
    /// this structure. The kernel copies this number of bytes from user mode, and passes the bytes to
    /// [`from_bytes`](Self::from_bytes). If the structure's size field is 0, the result is 64, the size of
    /// `PERF_ATTR_SIZE_VER0`.
    ///
    /// ```
    /// use pmu::perf::{PerfError, PerfEventAttr};
    /// let head = |size: u32| (u64::from(size) << 32).to_le_bytes();
    /// assert_eq!(PerfEventAttr::size_of(head(112)), Ok(112));
    /// assert_eq!(PerfEventAttr::size_of(head(0)), Ok(64));
    /// assert_eq!(PerfEventAttr::size_of(head(63)), Err(PerfError::Size(63)));
    /// ```
    ///
    /// # Errors
    /// [`Size`](PerfError::Size): the size is below 64 bytes, or above 4096 bytes.
    pub const fn size_of(head: [u8; 8]) -> Result<usize, PerfError> {
        let size = (u64::from_le_bytes(head) >> 32) as u32;
        match size as usize {
            0 => Ok(Self::SIZES[0]),
            size if size >= Self::SIZES[0] && size <= Self::MAX_SIZE => Ok(size),
            _ => Err(PerfError::Size(size)),
        }
    }

    /// Reads a `perf_event_attr` of any size, as Linux' system call does.
    ///
    /// The structure contains its own size. A field beyond this size is read as 0. Bytes beyond the latest version of
    /// the structure must be 0, and reserved fields must be 0. The function ignores any bytes after the end of the
    /// structure.
    ///
    /// # Errors
    /// - [`Size`](PerfError::Size), [`Short`](PerfError::Short), [`LaterField`](PerfError::LaterField): the size is
    ///   invalid, or does not fit the bytes.
    /// - [`Flags`](PerfError::Flags), [`Reserved`](PerfError::Reserved), [`SampleType`](PerfError::SampleType),
    ///   [`ReadFormat`](PerfError::ReadFormat): reserved bits are set.
    /// - [`Period`](PerfError::Period): the period is too long.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PerfError> {
        let head = bytes.first_chunk().ok_or(PerfError::Short { needed: 8 })?;
        let size = Self::size_of(*head)?;
        let given = bytes.get(..size).ok_or(PerfError::Short { needed: size })?;
        let (known, beyond) = given.split_at_checked(Self::SIZE).unwrap_or((given, &[]));
        if let Some(place) = beyond.iter().position(|byte| *byte != 0) {
            return Err(PerfError::LaterField { at: Self::SIZE + place });
        }
        let mut all = [0; Self::SIZE];
        for (place, byte) in all.iter_mut().zip(known) {
            *place = *byte;
        }
        let attr = Self::read(&all);
        attr.check(&all)?;
        Ok(attr)
    }

    fn read(bytes: &[u8; Self::SIZE]) -> Self {
        let flags = u64_at(bytes, 40);
        Self {
            select: PerfAttributes {
                type_: u32_at(bytes, 0),
                config: u64_at(bytes, 8),
                config1: u64_at(bytes, 56),
                sample_period: u64_at(bytes, 16),
                exclude_user: flags & EXCLUDE_USER != 0,
                exclude_kernel: flags & EXCLUDE_KERNEL != 0,
                exclude_host: flags & EXCLUDE_HOST != 0,
                exclude_guest: flags & EXCLUDE_GUEST != 0,
            },
            flags: AttrFlags::from_bits_truncate(flags),
            precise_ip: (flags >> PRECISE_IP) as u8 & 0b11,
            sample_type: u64_at(bytes, 24),
            read_format: u64_at(bytes, 32),
            wakeup: u32_at(bytes, 48),
            bp_type: u32_at(bytes, 52),
            config2: u64_at(bytes, 64),
            branch_sample_type: u64_at(bytes, 72),
            sample_regs_user: u64_at(bytes, 80),
            sample_stack_user: u32_at(bytes, 88),
            clockid: u32_at(bytes, 92) as i32,
            sample_regs_intr: u64_at(bytes, 96),
            aux_watermark: u32_at(bytes, 104),
            sample_max_stack: u32_at(bytes, 108) as u16,
            aux_sample_size: u32_at(bytes, 112),
            aux_action: u32_at(bytes, AUX_ACTION),
            sig_data: u64_at(bytes, 120),
            config3: u64_at(bytes, 128),
            config4: u64_at(bytes, 136),
        }
    }

    /// Checks what Linux checks of every type of event.
    fn check(&self, bytes: &[u8; Self::SIZE]) -> Result<(), PerfError> {
        let flags = u64_at(bytes, 40) & RESERVED_FLAGS;
        let period = self.select.sample_period;
        if flags != 0 {
            Err(PerfError::Flags(flags))
        } else if u32_at(bytes, 108) >> 16 != 0 {
            Err(PerfError::Reserved { at: RESERVED_2 })
        } else if self.aux_action >> 3 != 0 {
            Err(PerfError::Reserved { at: AUX_ACTION })
        } else if self.sample_type & RESERVED_SAMPLE_TYPE != 0 {
            Err(PerfError::SampleType(self.sample_type & RESERVED_SAMPLE_TYPE))
        } else if self.read_format & RESERVED_READ_FORMAT != 0 {
            Err(PerfError::ReadFormat(self.read_format & RESERVED_READ_FORMAT))
        } else if period >> 63 != 0 && !self.flags.contains(AttrFlags::FREQ) {
            Err(PerfError::Period(period))
        } else {
            Ok(())
        }
    }

    /// Returns the attributes as a `perf_event_attr` of the latest version. The size field is the size of this version.
    /// Only the low two bits of `precise_ip` are written.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let mut put = |at: usize, value: &[u8]| {
            for (place, byte) in bytes.iter_mut().skip(at).zip(value) {
                *place = *byte;
            }
        };
        let Self { select, flags, .. } = self;
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        let flags = flags.bits()
            | u64::from(self.precise_ip & 0b11) << PRECISE_IP
            | flag(select.exclude_user, EXCLUDE_USER)
            | flag(select.exclude_kernel, EXCLUDE_KERNEL)
            | flag(select.exclude_host, EXCLUDE_HOST)
            | flag(select.exclude_guest, EXCLUDE_GUEST);
        for (at, value) in [
            (8, select.config),
            (16, select.sample_period),
            (24, self.sample_type),
            (32, self.read_format),
            (40, flags),
            (56, select.config1),
            (64, self.config2),
            (72, self.branch_sample_type),
            (80, self.sample_regs_user),
            (96, self.sample_regs_intr),
            (120, self.sig_data),
            (128, self.config3),
            (136, self.config4),
        ] {
            put(at, &value.to_le_bytes());
        }
        for (at, value) in [
            (0, select.type_),
            (4, Self::SIZE as u32),
            (48, self.wakeup),
            (52, self.bp_type),
            (88, self.sample_stack_user),
            (92, self.clockid as u32),
            (104, self.aux_watermark),
            (108, self.sample_max_stack.into()),
            (112, self.aux_sample_size),
            (AUX_ACTION, self.aux_action),
        ] {
            put(at, &value.to_le_bytes());
        }
        bytes
    }
}

fn u64_at(bytes: &[u8; PerfEventAttr::SIZE], at: usize) -> u64 {
    bytes.iter().skip(at).take(8).rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn u32_at(bytes: &[u8; PerfEventAttr::SIZE], at: usize) -> u32 {
    bytes.iter().skip(at).take(4).rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}
