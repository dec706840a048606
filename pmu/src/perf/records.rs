//! Reads of an event and records of its samples, as bytes.
//!
//! Source: `perf_event_open(2)`, "Reading results", `PERF_RECORD_SAMPLE` and `PERF_SAMPLE_DATA_SRC`;
//! `include/uapi/linux/perf_event.h`, `PERF_MEM_…`.

use pmu_core::facility::EventFacility;
use pmu_core::precise::{DataAccess, DataSource, LineState, PreciseSample, Translation};
use pmu_core::{EventCount, Sample};

use crate::perf::branch_samples::BranchSamples;
use crate::perf::error::PerfError;
use crate::perf::event_attr::PerfEventAttr;

/// The fields of an event's records, as its attributes select them: what a read of the event returns, and the record
/// `PERF_RECORD_SAMPLE` of a sample. [`PerfEventAttr::records`] creates the value, which a kernel keeps with the event.
///
/// ```
/// use pmu::perf::{PerfError, PerfEventAttr, RecordFormat, SampleContext};
/// use pmu::{EventCount, Kernel, PmuSample};
///
/// /// Writes a sample to the ring buffer; the kernel's `sampled` calls it. The event's tag is its number in records. A
/// /// sample that has a source is a profile's, and has no number.
/// fn record<K: Kernel>(format: &RecordFormat, sample: &PmuSample<'_, K>, ring: fn(&[u8])) {
///     let mut record = [0; 1024];
///     let ip = sample.address().unwrap_or(0);
///     let in_user = sample.frame().map(|frame| frame.in_user());
///     let context = SampleContext { ip, in_user, id: sample.tag, ..SampleContext::default() };
///     if let Ok(length) = format.sample(sample, &context, &[], &mut record) {
///         ring(&record[..length]);
///     }
/// }
/// // A read with PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING: three words.
/// let attr = PerfEventAttr { read_format: 0b11, ..PerfEventAttr::default() };
/// let mut bytes = [0; 24];
/// let count = EventCount { value: 1_000, enabled: 50, running: 40 };
/// assert_eq!(attr.records()?.read(&[(7, count)], &mut bytes), Ok(24));
/// assert_eq!(bytes[..2], 1_000_u16.to_le_bytes());
/// # fn used<K: Kernel>() { let _ = record::<K>; }
/// # Ok::<(), PerfError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RecordFormat {
    sample_type: u64,
    read_format: u64,
    branches: Option<BranchSamples>,
}

/// The kernel's knowledge of a sample, beside the sample itself. A field that the event's attributes do not select is
/// not written. If precise records wait in a buffer, what the interrupt finds is of a later moment than the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SampleContext<'a> {
    /// The interrupted instruction pointer.
    pub ip: u64,
    /// `true` if the interrupted code is user mode's; `None` if that is unknown, as of a sample without a frame. If the
    /// sample has an [exact address](Sample::address), that address decides in place of this field, because the
    /// interrupt of a buffered record may come in another mode. As in Linux, addresses of the upper half are the
    /// kernel's.
    pub in_user: Option<bool>,
    /// Number of the interrupted process.
    pub pid: u32,
    /// Number of the interrupted thread.
    pub tid: u32,
    /// Time by the clock that the attributes select, in nanoseconds.
    pub time: u64,
    /// Number of the event, for `PERF_SAMPLE_ID` and `PERF_SAMPLE_IDENTIFIER`, and to find its own count among those of
    /// its group. Of an inherited event, it is the number of the event that was opened.
    pub id: u64,
    /// Number of the event itself, for `PERF_SAMPLE_STREAM_ID`.
    pub stream_id: u64,
    /// `PERF_SAMPLE_ADDR` of a sample for which the processor recorded no data address: the faulting address of a page
    /// fault, for example.
    pub address: u64,
    /// The processor.
    pub cpu: u32,
    /// The call chain: return addresses, and marks such as `PERF_CONTEXT_USER`.
    pub call_chain: &'a [u64],
    /// The reader is privileged, and may see physical addresses. Otherwise `PERF_SAMPLE_PHYS_ADDR` is 0.
    pub is_privileged: bool,
}

// Bits of `sample_type`.
const IP: u64 = 1 << 0;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const ADDR: u64 = 1 << 3;
const READ: u64 = PerfEventAttr::SAMPLE_READ;
const CALLCHAIN: u64 = 1 << 5;
const ID: u64 = 1 << 6;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const STREAM_ID: u64 = 1 << 9;
const BRANCH_STACK: u64 = PerfEventAttr::SAMPLE_BRANCH_STACK;
const WEIGHT: u64 = 1 << 14;
const DATA_SRC: u64 = 1 << 15;
const IDENTIFIER: u64 = 1 << 16;
const TRANSACTION: u64 = 1 << 17;
const PHYS_ADDR: u64 = 1 << 19;
const WEIGHT_STRUCT: u64 = 1 << 24;

const WRITTEN: u64 = IP
    | TID
    | TIME
    | ADDR
    | READ
    | CALLCHAIN
    | ID
    | CPU
    | PERIOD
    | STREAM_ID
    | BRANCH_STACK
    | WEIGHT
    | DATA_SRC
    | IDENTIFIER
    | TRANSACTION
    | PHYS_ADDR
    | WEIGHT_STRUCT;

// Bits of `read_format`.
const TIME_ENABLED: u64 = 1 << 0;
const TIME_RUNNING: u64 = 1 << 1;
const FORMAT_ID: u64 = 1 << 2;
const GROUP: u64 = PerfEventAttr::FORMAT_GROUP;
const LOST: u64 = 1 << 4;

// `struct perf_event_header`: type, misc.
const RECORD_SAMPLE: u32 = 9;
const MISC_UNKNOWN: u32 = 0;
const MISC_KERNEL: u32 = 1;
const MISC_USER: u32 = 2;
const MISC_EXACT_IP: u32 = 1 << 14;

impl PerfEventAttr {
    /// Returns the fields of the event's records.
    ///
    /// ```
    /// use pmu::perf::{PerfError, PerfEventAttr};
    /// let raw_data = PerfEventAttr { sample_type: 1 << 10, ..PerfEventAttr::default() };
    /// assert_eq!(raw_data.records(), Err(PerfError::SampleFields(1 << 10)));
    /// ```
    ///
    /// # Errors
    /// - The errors of [`branches`](Self::branches), and [`BranchBits`](PerfError::BranchBits): `branch_sample_type`
    ///   selects [counters](BranchSamples::COUNTERS), which no record has.
    /// - [`SampleFields`](PerfError::SampleFields): `sample_type` selects fields that no record has: raw data,
    ///   registers, the user stack, AUX data, cgroups, or sizes of pages.
    pub fn records(&self) -> Result<RecordFormat, PerfError> {
        let missing = self.sample_type & !WRITTEN;
        if missing != 0 {
            return Err(PerfError::SampleFields(missing));
        }
        let Self { sample_type, read_format, .. } = *self;
        let branches = self.branches()?;
        if branches.is_some() && self.branch_sample_type & BranchSamples::COUNTERS != 0 {
            return Err(PerfError::BranchBits(BranchSamples::COUNTERS));
        }
        Ok(RecordFormat { sample_type, read_format, branches })
    }
}

impl RecordFormat {
    /// Returns whether a read, and a sample with `PERF_SAMPLE_READ`, has the counts of the whole group.
    ///
    /// ```
    /// use pmu::perf::PerfEventAttr;
    /// let attr = PerfEventAttr { read_format: PerfEventAttr::FORMAT_GROUP, ..PerfEventAttr::default() };
    /// assert!(attr.records()?.reads_group());
    /// # Ok::<(), pmu::perf::PerfError>(())
    /// ```
    pub const fn reads_group(&self) -> bool {
        self.read_format & GROUP != 0
    }

    /// Returns whether a sample has counts: the argument `counts` of [`sample`](Self::sample).
    ///
    /// ```
    /// use pmu::perf::PerfEventAttr;
    /// let attr = PerfEventAttr { sample_type: PerfEventAttr::SAMPLE_READ, ..PerfEventAttr::default() };
    /// assert!(attr.records()?.samples_counts());
    /// # Ok::<(), pmu::perf::PerfError>(())
    /// ```
    pub const fn samples_counts(&self) -> bool {
        self.sample_type & READ != 0
    }

    /// Writes what a read of the event returns, and returns its length in bytes. `counts` has the number of each event
    /// with its count: of the event alone, or of its group, the leader first, if the format [is of a
    /// group](Self::reads_group). The times are those of `counts`, which are nanoseconds if the kernel's
    /// [clock](crate::Kernel::now) has these. The word of `PERF_FORMAT_LOST` is 0 and is the last one of an event: only
    /// the kernel knows how many samples its ring had no room for.
    ///
    /// # Errors
    /// - [`NoCounts`](PerfError::NoCounts): `counts` is empty.
    /// - [`NoSpace`](PerfError::NoSpace): the bytes are too few. A part may be written.
    pub fn read(&self, counts: &[(u64, EventCount)], bytes: &mut [u8]) -> Result<usize, PerfError> {
        let mut record = Record { bytes, length: 0 };
        self.write_counts(&mut record, counts)?;
        record.finish()
    }

    /// Writes the record of a sample, with its header, and returns its length in bytes: a multiple of 8, below 64 KiB.
    /// If samples [have counts](Self::samples_counts), `counts` is what
    /// [`Pmu::sample_read`](crate::Pmu::sample_read) read in the handler: the counts of the whole group. A format that
    /// is not of a group takes the count with the number [`id`](SampleContext::id), or the only one. Otherwise `counts`
    /// may be empty.
    ///
    /// `PERF_SAMPLE_ADDR` is the recorded address of data, or [`address`](SampleContext::address).
    /// `PERF_SAMPLE_TRANSACTION` is 0, and the hardware index of the branches is unknown (-1).
    ///
    /// # Context
    /// Any context, including NMI.
    ///
    /// # Errors
    /// Each of them is a lost sample, which the kernel counts for `PERF_RECORD_LOST_SAMPLES`. A part may be written.
    /// - [`NoCounts`](PerfError::NoCounts): the sample has counts, and `counts` lacks the event's, because it could not
    ///   be read.
    /// - [`NoSpace`](PerfError::NoSpace): the bytes are too few, or the call chain makes the record longer than its
    ///   header can tell.
    pub fn sample<F: EventFacility>(
        &self,
        sample: &Sample<'_, F>,
        context: &SampleContext<'_>,
        counts: &[(u64, EventCount)],
        bytes: &mut [u8],
    ) -> Result<usize, PerfError> {
        let instruction = sample.instruction().unwrap_or_default();
        let access = instruction.access.unwrap_or_default();
        let mut record = Record { bytes, length: 0 };
        record.word(0); // The header, which has the length.
        let of_exact = instruction.address.map(|exact| exact >> 63 == 0);
        let [mode, exact] = [
            match of_exact.or(context.in_user) {
                None => MISC_UNKNOWN,
                Some(false) => MISC_KERNEL,
                Some(true) => MISC_USER,
            },
            if instruction.address.is_some() { MISC_EXACT_IP } else { 0 },
        ];
        let physical = access.physical_address.filter(|_| context.is_privileged);
        let has = |field: u64| self.sample_type & field != 0;
        // In the order of the fields in the record, which is not that of the bits.
        for (field, word) in [
            (IDENTIFIER, context.id),
            (IP, sample.address(context.ip)),
            (TID, pair(context.pid, context.tid)),
            (TIME, context.time),
            (ADDR, access.address.unwrap_or(context.address)),
            (ID, context.id),
            (STREAM_ID, context.stream_id),
            (CPU, context.cpu.into()),
            (PERIOD, sample.period),
        ] {
            record.word_if(has(field), word);
        }
        if has(READ) {
            let counts = match counts {
                [_] => counts,
                _ if self.reads_group() => counts,
                _ => own_of(counts, context.id),
            };
            self.write_counts(&mut record, counts)?;
        }
        if has(CALLCHAIN) {
            record.word(context.call_chain.len() as u64);
            context.call_chain.iter().for_each(|address| record.word(*address));
        }
        if let Some(branches) = self.branches {
            self.write_branches(&mut record, &branches, sample);
        }
        // `var1_dw`, `var2_w` and `var3_w`.
        let weights =
            [(access.latency, 0), (instruction.latency, 32), (instruction.retire_latency, 48)];
        let known = if has(WEIGHT_STRUCT) { weights.len() } else { 1 };
        let weight = weights.iter().take(known);
        let weight = weight.fold(0, |word, (part, at)| word | u64::from(part.unwrap_or(0)) << at);
        for (field, word) in [
            (WEIGHT | WEIGHT_STRUCT, weight),
            (DATA_SRC, data_source(&instruction)),
            (TRANSACTION, 0),
            (PHYS_ADDR, physical.unwrap_or(0)),
        ] {
            record.word_if(has(field), word);
        }
        let length = u16::try_from(record.length)
            .map_err(|_| PerfError::NoSpace { needed: record.length })?;
        record.replace(0, pair(RECORD_SAMPLE, mode | exact | u32::from(length) << 16));
        record.finish()
    }

    /// Writes `struct read_format`.
    fn write_counts(
        &self,
        record: &mut Record<'_>,
        counts: &[(u64, EventCount)],
    ) -> Result<(), PerfError> {
        let has = |field: u64| self.read_format & field != 0;
        let (_, leader) = *counts.first().ok_or(PerfError::NoCounts)?;
        let counts = if self.reads_group() { counts } else { counts.get(..1).unwrap_or(&[]) };
        let times = |record: &mut Record<'_>| {
            record.word_if(has(TIME_ENABLED), leader.enabled);
            record.word_if(has(TIME_RUNNING), leader.running);
        };
        if self.reads_group() {
            record.word(counts.len() as u64);
            times(record);
        }
        for (id, count) in counts {
            record.word(count.value);
            if !self.reads_group() {
                times(record);
            }
            record.word_if(has(FORMAT_ID), *id);
            // Only the kernel knows how many samples its ring had no room for, and it can write the word itself.
            record.word_if(has(LOST), 0);
        }
        Ok(())
    }

    /// Writes the branches before a sample.
    fn write_branches<F: EventFacility>(
        &self,
        record: &mut Record<'_>,
        branches: &BranchSamples,
        sample: &Sample<'_, F>,
    ) {
        let number = record.length;
        record.word(0);
        record.word_if(branches.has_hardware_index(), u64::MAX); // unknown
        let mut written = 0;
        for entry in sample.branches().filter_map(|branch| branches.entry(&branch)) {
            entry.words().into_iter().for_each(|word| record.word(word));
            written += 1;
        }
        record.replace(number, written);
    }
}

/// Returns the counts from that of the event with this number on; none if there is no such count.
fn own_of(counts: &[(u64, EventCount)], id: u64) -> &[(u64, EventCount)] {
    let own = counts.iter().position(|(other, _)| *other == id);
    own.and_then(|own| counts.get(own..)).unwrap_or_default()
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The bytes of a record. Words beyond the last byte are counted and not written, so that the error has the length that
/// is needed.
struct Record<'b> {
    bytes: &'b mut [u8],
    length: usize,
}

impl Record<'_> {
    fn word(&mut self, word: u64) {
        self.replace(self.length, word);
        self.length += 8;
    }

    fn word_if(&mut self, is_selected: bool, word: u64) {
        if is_selected {
            self.word(word);
        }
    }

    fn replace(&mut self, at: usize, word: u64) {
        if let Some(place) = self.bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn finish(self) -> Result<usize, PerfError> {
        let Self { bytes, length } = self;
        if length <= bytes.len() { Ok(length) } else { Err(PerfError::NoSpace { needed: length }) }
    }
}

// The lowest bits of the fields. Each field but the level's number and the hops is a set of bits, of which the first
// says that nothing is known.
const LEVEL: u32 = 5;
const SNOOP: u32 = 19;
const LOCK: u32 = 24;
const TLB: u32 = 26;
const LEVEL_NUMBER: u32 = 33;
const REMOTE: u32 = 37;
const HOPS: u32 = 43;

const NOT_AVAILABLE: u64 = 1;

const OP_LOAD: u64 = 1 << 1;
const OP_STORE: u64 = 1 << 2;
const OP_PREFETCH: u64 = 1 << 3;

const LEVEL_HIT: u64 = 1 << 1;
const LEVEL_L1: u64 = 1 << 3;
const LEVEL_FILL_BUFFER: u64 = 1 << 4;
const LEVEL_L2: u64 = 1 << 5;
const LEVEL_L3: u64 = 1 << 6;
const LEVEL_LOCAL_MEMORY: u64 = 1 << 7;
const LEVEL_REMOTE_MEMORY: u64 = 1 << 8;
const LEVEL_REMOTE_CACHE: u64 = 1 << 10;
const LEVEL_FAR_CACHE: u64 = 1 << 11;
const LEVEL_IO: u64 = 1 << 12;

const NUMBER_L2_FILL_BUFFER: u64 = 5;
const NUMBER_MEMORY_SIDE_CACHE: u64 = 6;
const NUMBER_CXL: u64 = 9;
const NUMBER_IO: u64 = 10;
const NUMBER_ANY_CACHE: u64 = 11;
const NUMBER_FILL_BUFFER: u64 = 12;
const NUMBER_MEMORY: u64 = 13;
const NUMBER_PERSISTENT: u64 = 14;
const NUMBER_NOT_AVAILABLE: u64 = 15;

/// The cache of another core of the node, and that of another socket.
const HOPS_CORE: u64 = 1;
const HOPS_SOCKET: u64 = 3;

const SNOOP_HIT: u64 = 1 << 2;
const SNOOP_HIT_MODIFIED: u64 = 1 << 4;

const LOCKED: u64 = 1 << 1;

const TLB_HIT: u64 = 1 << 1;
const TLB_MISS: u64 = 1 << 2;
const TLB_L1: u64 = 1 << 3;
const TLB_L2: u64 = 1 << 4;

/// Returns the word of a sampled instruction; that of an instruction without an access says that nothing is known.
pub(crate) fn data_source(instruction: &PreciseSample) -> u64 {
    let access = instruction.access.unwrap_or_default();
    let DataAccess { load, store, prefetch, source, .. } = access;
    let op = [(load, OP_LOAD), (store, OP_STORE), (prefetch, OP_PREFETCH)];
    let op = op.iter().filter(|(is, _)| *is).fold(0, |ops, (_, bit)| ops | bit);
    let remote = access.remote == Some(true);
    let (level, number) = source.map_or((0, NUMBER_NOT_AVAILABLE), |source| level(source, remote));
    let hops = match source {
        Some(DataSource::NearCache) => HOPS_CORE,
        Some(DataSource::FarCache) => HOPS_SOCKET,
        _ => 0,
    };
    let is_other_cache = level & (LEVEL_REMOTE_CACHE | LEVEL_FAR_CACHE) != 0;
    let snoop = match access.line {
        // Memory is out of date in both.
        Some(LineState::Modified | LineState::Owned) => SNOOP_HIT_MODIFIED,
        None if is_other_cache => SNOOP_HIT,
        None => NOT_AVAILABLE,
    };
    let tlb = match access.translation {
        None => NOT_AVAILABLE,
        Some(Translation::L1Tlb) => TLB_HIT | TLB_L1,
        Some(Translation::L2Tlb) => TLB_HIT | TLB_L2,
        Some(Translation::PageWalk) => TLB_MISS | TLB_L2,
    };
    let op = if op == 0 { NOT_AVAILABLE } else { op };
    let level = if level == 0 { NOT_AVAILABLE } else { level | LEVEL_HIT };
    let lock = if access.locked == Some(true) { LOCKED } else { NOT_AVAILABLE };
    let remote = u64::from(remote || is_other_cache);
    [
        (level, LEVEL),
        (snoop, SNOOP),
        (lock, LOCK),
        (tlb, TLB),
        (number, LEVEL_NUMBER),
        (remote, REMOTE),
        (hops, HOPS),
    ]
    .iter()
    .fold(op, |word, (field, at)| word | field << at)
}

/// Returns the bit of the level, which tools up to Linux 4.14 read, and the number that later ones read. A level of
/// which older tools do not know has no bit.
const fn level(source: DataSource, remote: bool) -> (u64, u64) {
    let memory = if remote { LEVEL_REMOTE_MEMORY } else { LEVEL_LOCAL_MEMORY };
    match source {
        DataSource::L1 => (LEVEL_L1, 1),
        DataSource::FillBuffer => (LEVEL_FILL_BUFFER, NUMBER_FILL_BUFFER),
        DataSource::L2 => (LEVEL_L2, 2),
        DataSource::L2FillBuffer => (LEVEL_L2, NUMBER_L2_FILL_BUFFER),
        DataSource::L3 => (LEVEL_L3, 3),
        DataSource::NearCache | DataSource::OtherCache => (LEVEL_REMOTE_CACHE, NUMBER_ANY_CACHE),
        DataSource::FarCache => (LEVEL_FAR_CACHE, NUMBER_ANY_CACHE),
        DataSource::MemorySideCache => (memory, NUMBER_MEMORY_SIDE_CACHE),
        DataSource::Memory | DataSource::PeerMemory => (memory, NUMBER_MEMORY),
        DataSource::PersistentMemory => (memory, NUMBER_PERSISTENT),
        DataSource::ExtensionMemory => (0, NUMBER_CXL),
        DataSource::Io => (LEVEL_IO, NUMBER_IO),
    }
}
