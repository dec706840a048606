//! `perf_event_attr` with all its fields, and the event that it stands for.

use core::ops::BitOr;

use pmu_core::Event;
use pmu_core::precise::{Precision, SampleParts};
use pmu_core::registers::{EventList, EventSelect};

use crate::perf::attributes::{PERF_TYPE_RAW, PERF_TYPE_SOFTWARE, PerfAttributes};
use crate::perf::error::{Facility, PerfError};

/// All fields of `perf_event_attr`, the structure that user mode passes to Linux' `perf_event_open`.
///
/// [`from_bytes`](Self::from_bytes) reads the fields as the system call does. [`event`](Self::event) creates an
/// [`Event`] from the fields that a counter needs. The kernel itself must act on most flags, and on the fields that
/// describe sample records.
///
/// Source: `include/uapi/linux/perf_event.h`; `perf_event_open(2)`.
///
/// ```
/// use pmu::{Event, GenericEvent};
/// use pmu::perf::{AttrFlags, PerfEventAttr};
/// // As user mode wrote them: 64 bytes, instructions in user mode, one interrupt per 100,000.
/// let mut bytes = [0; 64];
/// bytes[4] = 64; // size
/// bytes[8] = 1; // config: PERF_COUNT_HW_INSTRUCTIONS
/// bytes[16..24].copy_from_slice(&100_000_u64.to_le_bytes());
/// bytes[40] = 0b10_0001; // disabled, exclude_kernel
///
/// let attr = PerfEventAttr::from_bytes(&bytes)?;
/// assert_eq!(attr.flags, AttrFlags::DISABLED);
/// let event = attr.event(&())?;
/// let expected = Event::generic(GenericEvent::Instructions).user_only().every(100_000);
/// assert_eq!(event, expected.with_total().rotating());
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PerfEventAttr {
    /// The fields that select the event. If [`AttrFlags::FREQ`] is set, the value of `sample_period` is perf's
    /// `sample_freq`, in interrupts per second.
    pub select: PerfAttributes,
    /// The flags of the attributes. The bits of `precise_ip`, and the flags that `select` has as fields, are not
    /// included.
    pub flags: AttrFlags,
    /// `precise_ip`: the precision of samples, from 0 to 3. A higher value permits less skid.
    pub precise_ip: u8,
    /// `sample_type`: bits that select the fields of a sample's record.
    pub sample_type: u64,
    /// `read_format`: bits that select the fields that a read of the event returns.
    pub read_format: u64,
    /// `wakeup_events`: the number of samples after which the kernel wakes the reader of the ring buffer. If
    /// [`AttrFlags::WATERMARK`] is set, this field is `wakeup_watermark`, a number of bytes.
    pub wakeup: u32,
    /// `bp_type`: the type of a breakpoint.
    pub bp_type: u32,
    /// `config2`: a second extension of `config`: the events that reload the counter (`acr_mask`). For a breakpoint,
    /// this field is `bp_len`, the length.
    pub config2: u64,
    /// `branch_sample_type`: bits that select the branches to record in each sample.
    pub branch_sample_type: u64,
    /// `sample_regs_user`: mask of the user-mode registers in each sample.
    pub sample_regs_user: u64,
    /// `sample_stack_user`: how many bytes of the user stack each sample carries.
    pub sample_stack_user: u32,
    /// `clockid`: the clock that provides the times in records, if [`AttrFlags::USE_CLOCKID`] is set.
    pub clockid: i32,
    /// `sample_regs_intr`: mask of the registers in each sample, with their values at the interrupt.
    pub sample_regs_intr: u64,
    /// `aux_watermark`: the number of bytes of AUX trace data after which the kernel wakes the reader of the AUX
    /// buffer.
    pub aux_watermark: u32,
    /// `sample_max_stack`: greatest number of frames in a call chain.
    pub sample_max_stack: u16,
    /// `aux_sample_size`: how many bytes of AUX trace data each sample carries.
    pub aux_sample_size: u32,
    /// `aux_action`: bits that start an AUX event in the paused state, or that let an overflow of the event pause or
    /// resume the AUX trace.
    pub aux_action: u32,
    /// `sig_data`: the data that SIGTRAP carries.
    pub sig_data: u64,
    /// `config3`: a third extension of `config`; not used for counters.
    pub config3: u64,
    /// `config4`: a fourth extension of `config`; not used for counters.
    pub config4: u64,
}

impl PerfEventAttr {
    /// Bit of `sample_type`, `PERF_SAMPLE_BRANCH_STACK`: each sample carries records of branches.
    pub const SAMPLE_BRANCH_STACK: u64 = 1 << 11;
    /// Bit of `sample_type`, `PERF_SAMPLE_READ`: each sample carries the values that a read of the event returns.
    pub const SAMPLE_READ: u64 = 1 << 4;
    /// Bit of `read_format`, `PERF_FORMAT_GROUP`: a read returns the counts of the whole group.
    pub const FORMAT_GROUP: u64 = 1 << 3;

    /// Converts the attributes into an event to open. If the event has a period, it also keeps its
    /// [total count](Event::with_total). If [`AttrFlags::PINNED`] is not set, the event [rotates](Event::rotating). The
    /// event is [exclusive](Event::exclusive) if [`AttrFlags::EXCLUSIVE`] is set. `list` has the same meaning as in
    /// [`PerfAttributes::event`].
    ///
    /// Linux permits RDPMC for an event of a task. Linux does not permit RDPMC for an event of a processor, because
    /// that event also counts other tasks. On processors that can deny RDPMC for each counter, the returned event
    /// denies RDPMC. If user mode may map the page of a task's event, a kernel that behaves like Linux calls
    /// [`with_user_reads`](Event::with_user_reads) on the event.
    ///
    /// If [`sample_type`](Self::sample_type) has [`SAMPLE_BRANCH_STACK`](Self::SAMPLE_BRANCH_STACK), the event's
    /// samples [have branches](Event::with_branches). [`branches`](Self::branches) returns how to write them into a
    /// sample.
    ///
    /// With a [`precise_ip`](Self::precise_ip) of 1 to 3, the event is [precise](Event::precise), and `config1` of
    /// Intel's load-latency event (perf's `ldlat`) is the [minimum latency](Event::latency_at_least) in cycles. Golden
    /// Cove counts this event only in a group, behind another event. If the processor cannot sample the event
    /// precisely, opening the event fails with [`NotPrecise`](pmu_core::error::CounterError::NotPrecise). On AMD's
    /// processors, the event `cycles` and the raw events 0x76 and 0xC1 are sampled ops, as in Linux. Events of the
    /// types [`PERF_TYPE_IBS_OP`](crate::perf::PERF_TYPE_IBS_OP) and
    /// [`PERF_TYPE_IBS_FETCH`](crate::perf::PERF_TYPE_IBS_FETCH) are sampled ops and fetches with the terms of Linux'
    /// PMUs `ibs_op` and `ibs_fetch`, and `PERF_SAMPLE_PHYS_ADDR` gives their samples physical addresses.
    ///
    /// `config2`, perf's term `acr_mask`, names the events of the group that [reload](Event::reloaded_by) this event's
    /// counter. Such an event keeps no total. An event names later ones of its group only if the group is opened at
    /// once.
    ///
    /// If `sample_type` selects the address, the physical address, the data source or a weight, the precise event
    /// [records](Event::recording) the instruction's access to memory. Linux writes zeros if the processor's records
    /// have no access (PEBS format 0); here opening the event fails.
    ///
    /// [`errno`](crate::perf::errno) returns Linux' `errno` value of an error of opening the event.
    ///
    /// A precise event needs a period. A text of perf sets the period by the term `period` or `freq`, as in
    /// `branches/period=10007/pp`. The text `branches:pp` sets no period. A period below the event table's
    /// [minimum](pmu_core::memory::EventTable::DEFAULT_MIN_PERIOD) is refused as the event is opened.
    ///
    /// ```
    /// use pmu::core::precise::Precision;
    /// use pmu::perf::PerfEvent;
    /// // Every 10,007th load of 30 cycles or more.
    /// let text = "cpu/event=0xcd,umask=0x1,ldlat=30,period=10007/pp";
    /// let event = PerfEvent::parse(text, &())?.attr.event(&())?;
    /// assert_eq!((event.precision(), event.latency()), (Some(Precision::ZeroSkidRequested), Some(30)));
    /// # Ok::<(), pmu::perf::PerfError>(())
    /// ```
    ///
    /// An event with [`AttrFlags::FREQ`] is sampled [at a frequency](Event::at_frequency). The kernel must act on the
    /// flags that this function does not use. For instance, if [`AttrFlags::DISABLED`] is not set, the kernel starts
    /// the event.
    ///
    /// # Errors
    /// - The errors of [`PerfAttributes::event`].
    /// - The errors of [`branches`](Self::branches).
    /// - [`Facility`](PerfError::Facility): the attributes ask for a facility that no event of a counter has, or
    ///   `precise_ip` is above 3.
    /// - [`Bits`](PerfError::Bits): the event is raw and precise, and has perf's term `pc` (bit 19).
    /// - [`Extension`](PerfError::Extension): `config3` or `config4` is not 0, or `config2` names more than the first
    ///   six events of a group.
    pub fn event(&self, list: &dyn EventList) -> Result<Event, PerfError> {
        if let Some(missing) = self.missing() {
            return Err(PerfError::Facility(missing));
        }
        for (number, value) in [(3, self.config3), (4, self.config4)] {
            if value != 0 {
                return Err(PerfError::Extension(number));
            }
        }
        let branches = self.branches()?;
        let mut select = self.select.resolved(list)?;
        // As in Linux, `precise_ip` says nothing of a software event, nor of a sampled op.
        let precision = match select.type_ {
            PERF_TYPE_SOFTWARE => None,
            _ if select.is_of_ibs() => Some(Precision::ZeroSkidRequested),
            _ => Precision::of_level(self.precise_ip),
        };
        let is_raw = select.type_ == PERF_TYPE_RAW;
        if precision.is_some() && is_raw && select.config & EventSelect::OF_UNIT != 0 {
            // In a precise event, the bit stands for a sampling unit, with what the kernel alone may ask of it.
            return Err(PerfError::Bits(EventSelect::OF_UNIT));
        }
        let latency = precision.and_then(|_| select.take_latency());
        let event = select.event_with(self.sample_type & PHYSICAL != 0, list)?;
        let event = match self.reloading()? {
            0 => event.with_total(),
            members => event.reloaded_by(members),
        };
        let event = match self.flags.contains(AttrFlags::FREQ) {
            true => event.at_frequency(u32::try_from(select.sample_period).unwrap_or(u32::MAX)),
            false => event,
        };
        let parts =
            if self.sample_type & OF_ACCESS != 0 { SampleParts::ACCESS } else { SampleParts::NONE };
        let event = precision.map_or(event, |precision| event.precise(precision).recording(parts));
        let event = latency.map_or(event, |cycles| event.latency_at_least(cycles));
        let event = branches.map_or(event, |branches| event.with_branches(branches.filter()));
        let exclusive = self.flags.contains(AttrFlags::EXCLUSIVE);
        let event = if exclusive { event.exclusive() } else { event };
        Ok(if self.flags.contains(AttrFlags::PINNED) { event } else { event.rotating() })
    }

    /// Returns the events of the group that reload this event's counter.
    fn reloading(&self) -> Result<u8, PerfError> {
        // `swfilt` of sampled ops: the unit counts all levels, and samples of others are dropped. So it is always.
        let (config, most) = if self.select.is_of_ibs() { (0, 1) } else { (self.config2, 0x3F) };
        if self.config2 > most { Err(PerfError::Extension(2)) } else { Ok(config as u8) }
    }

    /// Returns the facility that the event needs beside a counter.
    fn missing(&self) -> Option<Facility> {
        let trace = self.flags.contains(AttrFlags::AUX_OUTPUT) || self.aux_action != 0;
        [
            (self.precise_ip > 3, Facility::PreciseSampling),
            (trace || self.aux_sample_size != 0, Facility::ProcessorTrace),
        ]
        .into_iter()
        .find_map(|(needed, facility)| needed.then_some(facility))
    }

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
    ///   [`ReadFormat`](PerfError::ReadFormat): reserved bits are set, or `sample_type` has both kinds of weights.
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
        let weights = self.sample_type & BOTH_WEIGHTS;
        if flags != 0 {
            Err(PerfError::Flags(flags))
        } else if u32_at(bytes, 108) >> 16 != 0 {
            Err(PerfError::Reserved { at: RESERVED_2 })
        } else if self.aux_action >> 3 != 0 {
            Err(PerfError::Reserved { at: AUX_ACTION })
        } else if self.sample_type & RESERVED_SAMPLE_TYPE != 0 {
            Err(PerfError::SampleType(self.sample_type & RESERVED_SAMPLE_TYPE))
        } else if weights == BOTH_WEIGHTS {
            Err(PerfError::SampleType(weights))
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

/// Fields of a sample that are of the instruction's access to memory: `PERF_SAMPLE_ADDR`, `_WEIGHT`, `_DATA_SRC`,
/// `_PHYS_ADDR` and `_WEIGHT_STRUCT`.
const OF_ACCESS: u64 = 1 << 3 | 1 << 14 | 1 << 15 | PHYSICAL | 1 << 24;

/// `PERF_SAMPLE_PHYS_ADDR`.
const PHYSICAL: u64 = 1 << 19;

/// `PERF_SAMPLE_WEIGHT` and `PERF_SAMPLE_WEIGHT_STRUCT`, which share a word.
const BOTH_WEIGHTS: u64 = 1 << 14 | 1 << 24;

/// Offsets of `__reserved_2`, and of `aux_action`, whose upper 29 bits are `__reserved_3`.
const RESERVED_2: usize = 110;
const AUX_ACTION: usize = 116;

fn u64_at(bytes: &[u8; PerfEventAttr::SIZE], at: usize) -> u64 {
    bytes.iter().skip(at).take(8).rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn u32_at(bytes: &[u8; PerfEventAttr::SIZE], at: usize) -> u32 {
    bytes.iter().skip(at).take(4).rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// Flags of `perf_event_attr`, except `precise_ip` and the `exclude_…` flags that are fields of
/// [`PerfAttributes`](crate::perf::PerfAttributes). [`PerfEventAttr::event`](crate::perf::PerfEventAttr::event) acts on
/// [`PINNED`](Self::PINNED), [`EXCLUSIVE`](Self::EXCLUSIVE) and [`FREQ`](Self::FREQ). The kernel itself must act on all
/// other flags.
///
/// Source: `include/uapi/linux/perf_event.h`, `struct perf_event_attr`. Each flag is a bit of the 64-bit word at offset
/// 40 of the structure.
///
/// ```
/// use pmu::perf::AttrFlags;
/// let flags = AttrFlags::PINNED | AttrFlags::DISABLED;
/// assert!(flags.contains(AttrFlags::PINNED) && !flags.contains(AttrFlags::FREQ));
/// assert_eq!(flags.bits(), 0b101);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AttrFlags(u64);

impl AttrFlags {
    /// No flag.
    pub const NONE: Self = Self(0);

    /// `disabled`: the event does not count until it is enabled.
    pub const DISABLED: Self = Self(1 << 0);
    /// `inherit`: each new child of the counted thread, whether a thread or a process, inherits the event.
    pub const INHERIT: Self = Self(1 << 1);
    /// `pinned`: the event is always on a counter, or is in an error state.
    pub const PINNED: Self = Self(1 << 2);
    /// `exclusive`: while the event's group is on the counters, no other group is on the counters.
    pub const EXCLUSIVE: Self = Self(1 << 3);
    /// `exclude_hv`: does not count in the hypervisor. As in Linux, the flag has no effect on x86.
    pub const EXCLUDE_HV: Self = Self(1 << 6);
    /// `exclude_idle`: does not count while the processor is idle. As in Linux, the flag affects only software events,
    /// not hardware counters.
    pub const EXCLUDE_IDLE: Self = Self(1 << 7);
    /// `mmap`: asks for records of executable mappings.
    pub const MMAP: Self = Self(1 << 8);
    /// `comm`: asks for a record whenever the name of a thread changes.
    pub const COMM: Self = Self(1 << 9);
    /// `freq`: the period field holds `sample_freq`, a [frequency](Event::at_frequency) in interrupts per second.
    pub const FREQ: Self = Self(1 << 10);
    /// `inherit_stat`: each thread that inherits the event has its own count.
    pub const INHERIT_STAT: Self = Self(1 << 11);
    /// `enable_on_exec`: the event starts at the next exec.
    pub const ENABLE_ON_EXEC: Self = Self(1 << 12);
    /// `task`: asks for records of forks and exits.
    pub const TASK: Self = Self(1 << 13);
    /// `watermark`: [`wakeup`](crate::perf::PerfEventAttr::wakeup) is a number of bytes, not of samples.
    pub const WATERMARK: Self = Self(1 << 14);
    /// `mmap_data`: asks for records of mappings that are not executable.
    pub const MMAP_DATA: Self = Self(1 << 17);
    /// `sample_id_all`: each record has the identity of the event to which the record belongs.
    pub const SAMPLE_ID_ALL: Self = Self(1 << 18);
    /// `exclude_callchain_kernel`: call chains omit the kernel's functions.
    pub const EXCLUDE_CALLCHAIN_KERNEL: Self = Self(1 << 21);
    /// `exclude_callchain_user`: call chains omit the functions of user mode.
    pub const EXCLUDE_CALLCHAIN_USER: Self = Self(1 << 22);
    /// `mmap2`: records of mappings have the identity of the mapped file.
    pub const MMAP2: Self = Self(1 << 23);
    /// `comm_exec`: records of threads' names say whether an exec changed the name.
    pub const COMM_EXEC: Self = Self(1 << 24);
    /// `use_clockid`: the clock [`clockid`](crate::perf::PerfEventAttr::clockid) provides the times in records.
    pub const USE_CLOCKID: Self = Self(1 << 25);
    /// `context_switch`: asks for records of context switches.
    pub const CONTEXT_SWITCH: Self = Self(1 << 26);
    /// `write_backward`: the ring buffer is written from its end.
    pub const WRITE_BACKWARD: Self = Self(1 << 27);
    /// `namespaces`: asks for records of namespaces.
    pub const NAMESPACES: Self = Self(1 << 28);
    /// `ksymbol`: asks for a record whenever a kernel symbol is registered or unregistered.
    pub const KSYMBOL: Self = Self(1 << 29);
    /// `bpf_event`: asks for records of BPF programs.
    pub const BPF_EVENT: Self = Self(1 << 30);
    /// `aux_output`: the event's samples go to the AUX trace (Intel PT), not to sample records.
    pub const AUX_OUTPUT: Self = Self(1 << 31);
    /// `cgroup`: asks for records of control groups.
    pub const CGROUP: Self = Self(1 << 32);
    /// `text_poke`: asks for a record whenever the kernel changes its own code.
    pub const TEXT_POKE: Self = Self(1 << 33);
    /// `build_id`: records of mappings have the build ID of the mapped file.
    pub const BUILD_ID: Self = Self(1 << 34);
    /// `inherit_thread`: new threads of the same process inherit the event, but new processes do not.
    pub const INHERIT_THREAD: Self = Self(1 << 35);
    /// `remove_on_exec`: an exec removes the event.
    pub const REMOVE_ON_EXEC: Self = Self(1 << 36);
    /// `sigtrap`: an overflow sends SIGTRAP at once.
    pub const SIGTRAP: Self = Self(1 << 37);
    /// `defer_callchain`: the user-mode part of a sample's call chain follows in a separate record.
    pub const DEFER_CALLCHAIN: Self = Self(1 << 38);
    /// `defer_output`: asks for records of deferred call chains.
    pub const DEFER_OUTPUT: Self = Self(1 << 39);

    /// All flags of this type. The value has bits 0 to 39 of Linux' flags set, except the two bits of `precise_ip` and
    /// those `exclude_…` flags that are fields of [`PerfAttributes`](crate::perf::PerfAttributes).
    pub const ALL: Self = Self(((1 << 40) - 1) & !(0b11 << 4 | 0b11 << 15 | 0b11 << 19));

    /// Returns the flags that are set in `bits`, the word at offset 40 of `perf_event_attr`. Other bits are ignored.
    pub const fn from_bits_truncate(bits: u64) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Returns the flags as bits of the word at offset 40 of `perf_event_attr`.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the flags of this value that are not in `flags`.
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Returns whether this value has all flags in `flags`.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for AttrFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
