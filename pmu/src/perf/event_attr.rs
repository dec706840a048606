//! `perf_event_attr` with all its fields, and the event that it stands for.

use pmu_core::precise::Precision;
use pmu_core::{CounterSet, Event, EventSelect};

use crate::perf::attr_flags::AttrFlags;
use crate::perf::attributes::PerfAttributes;
use crate::perf::error::PerfError;
use crate::perf::facility::Facility;
use crate::perf::frequency::Frequency;

/// All fields of `perf_event_attr`, the structure that user mode passes to Linux' `perf_event_open`.
///
/// [`from_bytes`](Self::from_bytes) reads the fields as the system call does. [`event`](Self::event) creates an
/// [`Event`] from the fields that a counter needs. The kernel itself must act on most flags, and on the fields that
/// describe sample records.
///
/// Source: `include/uapi/linux/perf_event.h`; `perf_event_open(2)`.
///
/// ```
/// use pmu::core::{Event, GenericEvent};
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
/// let event = attr.event(|_select| None)?;
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
    /// `config2`: a second extension of `config`. For a breakpoint, this field is `bp_len`, the length.
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
    /// event is [exclusive](Event::exclusive) if [`AttrFlags::EXCLUSIVE`] is set. `constraints` has the same meaning as
    /// in [`PerfAttributes::event`].
    ///
    /// Linux permits RDPMC for an event of a task. Linux does not permit RDPMC for an event of a processor, because
    /// that event also counts other tasks. On processors that can deny RDPMC for each counter, the returned event
    /// denies RDPMC. If user mode may map the page of a task's event, a kernel that behaves like Linux calls
    /// [`with_user_rdpmc`](Event::with_user_rdpmc) on the event.
    ///
    /// If [`sample_type`](Self::sample_type) has [`SAMPLE_BRANCH_STACK`](Self::SAMPLE_BRANCH_STACK), the event's
    /// samples [have branches](Event::with_branches). [`branches`](Self::branches) returns how to write them into a
    /// sample.
    ///
    /// With a [`precise_ip`](Self::precise_ip) of 1 to 3, the event is [precise](Event::precise), and `config1` of
    /// Intel's load-latency event (perf's `ldlat`) is the [minimum latency](Event::latency_at_least) in cycles. Golden
    /// Cove counts this event only in a group, behind another event. If the processor cannot sample the event
    /// precisely, opening the event fails with [`NotPrecise`](pmu_core::CounterError::NotPrecise). On AMD's processors,
    /// the event `cycles` and the raw events 0x76 and 0xC1 are sampled ops, as in Linux.
    ///
    /// [`errno`](crate::perf::errno) returns Linux' `errno` value of an error of opening the event.
    ///
    /// A precise event needs a period. A text of perf sets the period by the term `period` or `freq`, as in
    /// `branches/period=10007/pp`. The text `branches:pp` sets no period. A period below the event table's
    /// [minimum](pmu_core::EventTable::DEFAULT_MIN_PERIOD) is refused as the event is opened.
    ///
    /// ```
    /// use pmu::core::precise::Precision;
    /// use pmu::perf::PerfEvent;
    /// // Every 10,007th load of 30 cycles or more.
    /// let text = "cpu/event=0xcd,umask=0x1,ldlat=30,period=10007/pp";
    /// let event = PerfEvent::parse(text, |_| None)?.attr.event(|_| None)?;
    /// assert_eq!((event.precision(), event.latency()), (Some(Precision::ZeroSkidRequested), Some(30)));
    /// # Ok::<(), pmu::perf::PerfError>(())
    /// ```
    ///
    /// An event with a frequency starts with [`Frequency::INITIAL_PERIOD`]. The kernel must act on the flags that this
    /// function does not use. For instance, if [`AttrFlags::DISABLED`] is not set, the kernel starts the event.
    ///
    /// # Errors
    /// - The errors of [`PerfAttributes::event`].
    /// - The errors of [`branches`](Self::branches).
    /// - [`Facility`](PerfError::Facility): the attributes ask for a facility that no event of a counter has, or
    ///   `precise_ip` is above 3.
    /// - [`Extension`](PerfError::Extension): `config3` or `config4` is not 0.
    pub fn event(
        &self,
        constraints: impl FnOnce(EventSelect) -> Option<CounterSet>,
    ) -> Result<Event, PerfError> {
        if let Some(missing) = self.missing() {
            return Err(PerfError::Facility(missing));
        }
        for (number, value) in [(3, self.config3), (4, self.config4)] {
            if value != 0 {
                return Err(PerfError::Extension(number));
            }
        }
        let branches = self.branches()?;
        let mut select = self.select;
        if self.flags.contains(AttrFlags::FREQ) && select.sample_period != 0 {
            select.sample_period = Frequency::INITIAL_PERIOD;
        }
        let precision = Precision::of_level(self.precise_ip);
        let latency = precision.and_then(|_| select.take_latency());
        let event = select.event(constraints)?.with_total();
        let event = precision.map_or(event, |precision| event.precise(precision));
        let event = latency.map_or(event, |cycles| event.latency_at_least(cycles));
        let event = branches.map_or(event, |branches| event.with_branches(branches.filter()));
        let exclusive = self.flags.contains(AttrFlags::EXCLUSIVE);
        let event = if exclusive { event.exclusive() } else { event };
        Ok(if self.flags.contains(AttrFlags::PINNED) { event } else { event.rotating() })
    }

    /// Returns the facility that the event needs beside a counter.
    fn missing(&self) -> Option<Facility> {
        let trace = self.flags.contains(AttrFlags::AUX_OUTPUT) || self.aux_action != 0;
        [
            (self.precise_ip > 3, Facility::PreciseSampling),
            (trace || self.aux_sample_size != 0, Facility::ProcessorTrace),
            (self.config2 != 0, Facility::AutoCounterReload),
        ]
        .into_iter()
        .find_map(|(needed, facility)| needed.then_some(facility))
    }
}
