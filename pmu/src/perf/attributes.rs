//! The fields of `perf_event_attr` that select an event, and the [`Event`]s that they stand for.

use pmu_core::msr::MsrAddress;
use pmu_core::{CounterSet, Event, EventSelect, GenericEvent};
use pmu_intel::precise::registers::MSR_PEBS_LD_LAT_THRESHOLD;

use crate::perf::error::PerfError;
use crate::perf::raw_config::RawConfig;

/// Type of perf's generic events, `PERF_TYPE_HARDWARE`: the configuration is the number of an event in
/// [`HARDWARE_EVENTS`].
pub const PERF_TYPE_HARDWARE: u32 = 0;

/// Type of raw events, `PERF_TYPE_RAW`: the configuration is a [`RawConfig`].
pub const PERF_TYPE_RAW: u32 = 4;

/// The hardware events of perf that are [`GenericEvent`]s, with their numbers: `PERF_COUNT_HW_CPU_CYCLES`,
/// `PERF_COUNT_HW_INSTRUCTIONS` and others. Three events are not in this list: bus cycles (6), stalled cycles of the
/// front end (7) and stalled cycles of the back end (8). [`PerfAttributes::resolved`] replaces these events by raw
/// events of a processor.
pub const HARDWARE_EVENTS: [(u64, GenericEvent); GenericEvent::COUNT] = [
    (0, GenericEvent::Cycles),
    (1, GenericEvent::Instructions),
    (2, GenericEvent::CacheReferences),
    (3, GenericEvent::CacheMisses),
    (4, GenericEvent::Branches),
    (5, GenericEvent::BranchMisses),
    (9, GenericEvent::ReferenceCycles),
];

/// Extra register of each of Intel's events that have one, by event and unit mask: off-core response, Nova Lake's
/// off-module response, load latency, and front end. An event that several registers serve has several numbers.
///
/// Source: SDM vol. 4 (the registers), vol. 3B (the events); Linux' `arch/x86/events/intel/core.c` (that `config1` is
/// their value).
const EXTRA_REGISTERS: [(u16, u32); 17] = [
    (0x01B7, 0x1A6),
    (0x01BB, 0x1A7),
    (0x02B7, 0x1A7),
    (0x012A, 0x1A6),
    (0x012B, 0x1A7),
    (0x01D6, 0x3E0),
    (0x02D6, 0x3E1),
    (0x04D6, 0x3E2),
    (0x08D6, 0x3E3),
    (0x100B, 0x3F6),
    (0x01CD, 0x3F6),
    (0x05D0, 0x3F6),
    (0x01C6, 0x3F7),
    (0x02C6, 0x3F7),
    (0x03C6, 0x3F7),
    (0x04C2, 0x3F7),
    (0x40AD, 0x3F7),
];

/// Returns the extra register of the event with these bits.
fn extra_register(config: u64) -> Option<MsrAddress> {
    let known = EXTRA_REGISTERS.iter().find(|(event, _)| u64::from(*event) == config & 0xFFFF);
    // SAFETY: masks and thresholds of events; none holds an address.
    known.map(|(_, register)| unsafe { MsrAddress::new(*register) })
}

/// Returns whether this is the register of the event of load latencies.
fn is_latency(register: Option<MsrAddress>) -> bool {
    register.is_some_and(|register| register.get() == MSR_PEBS_LD_LAT_THRESHOLD)
}

impl PerfAttributes {
    /// Takes the latency of the event of load latencies out of `config1`: `None` if the event is another one, or has no
    /// latency.
    pub(crate) fn take_latency(&mut self) -> Option<u16> {
        let register = extra_register(self.config).filter(|_| self.type_ == PERF_TYPE_RAW);
        let latency = u16::try_from(self.config1).ok().filter(|latency| *latency != 0)?;
        is_latency(register).then(|| {
            self.config1 = 0;
            latency
        })
    }
}

/// Fields of perf's `perf_event_attr` that select an event and its privilege levels. If all fields are 0, the event
/// counts cycles at all privilege levels, and does not interrupt.
///
/// ```
/// use pmu::core::{Event, EventSelect};
/// use pmu::perf::{PERF_TYPE_RAW, PerfAttributes};
/// // perf stat -e r1a8:u
/// let attributes = PerfAttributes {
///     type_: PERF_TYPE_RAW,
///     config: 0x1A8,
///     exclude_kernel: true,
///     ..PerfAttributes::default()
/// };
/// let event = Event::try_from(attributes)?;
/// assert_eq!(event, Event::raw(EventSelect::from_bits(0x1A8)).user_only());
/// assert_eq!(PerfAttributes::try_from(event)?, attributes);
/// # Ok::<(), pmu::perf::PerfError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PerfAttributes {
    /// `type`: [`PERF_TYPE_HARDWARE`] or [`PERF_TYPE_RAW`]. [`resolved`](Self::resolved) converts some events of other
    /// types into raw events.
    pub type_: u32,
    /// `config`: the event, in the encoding that `type` selects.
    pub config: u64,
    /// `config1`: value of the event's [extra register](Event::with_extra), if the event has one. perf's terms
    /// `offcore_rsp`, `ldlat` and `frontend` set this value. If `config1` is 0, the extra register is not written. Some
    /// events can use one of two extra registers. For these events, `config` selects the register.
    pub config1: u64,
    /// `sample_period`: number of events between two interrupts; 0 for no interrupt.
    pub sample_period: u64,
    /// `exclude_user`: does not count above privilege level 0.
    pub exclude_user: bool,
    /// `exclude_kernel`: does not count at privilege level 0.
    pub exclude_kernel: bool,
    /// `exclude_host`: counts only while a guest runs.
    pub exclude_host: bool,
    /// `exclude_guest`: counts only while no guest runs.
    pub exclude_guest: bool,
}

impl PerfAttributes {
    /// Converts the attributes into an event.
    ///
    /// `constraints` receives the event select of a raw event, and returns the set of counters that can count the
    /// event. On many processors, only some counters can count a given event. The crate `pmu-events` has this set for
    /// each event and core type. A kernel that does not use `pmu-events` returns `None` from `constraints`: then any
    /// counter may count the event.
    ///
    /// In perf, user mode can read the count of an event that has a period. A kernel that supports such reads calls
    /// [`with_total`](Event::with_total) on the event. perf can also multiplex events. A kernel that supports
    /// multiplexing calls [`rotating`](Event::rotating) on the event.
    ///
    /// ```
    /// use pmu::core::{Event, Snapshot};
    /// use pmu::perf::{PERF_TYPE_RAW, PerfAttributes, RawConfig};
    /// use pmu_events::Processor;
    ///
    /// /// Returns the event of a text such as `cpu/event=0xd1,umask=0x20/`, for the processor with this CPUID.
    /// fn event(text: &str, this: &Snapshot) -> Result<Event, Box<dyn core::error::Error>> {
    ///     let core_type = Processor::detect(this)?.core_type();
    ///     let config = text.parse::<RawConfig>()?.bits();
    ///     let attributes = PerfAttributes { type_: PERF_TYPE_RAW, config, ..PerfAttributes::default() };
    ///     Ok(attributes.event(|select| core_type.constraints(select))?)
    /// }
    /// # let dump = pmu::core::dump::CpuidDump::parse(
    /// #     "   0x00000000 0x00: eax=0x00000020 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
    /// #         0x00000001 0x00: eax=0x000806f8 ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
    /// # )?;
    /// # use pmu::core::{CounterSet, EventSelect};
    /// # let confined = event("cpu/event=0xd1,umask=0x20/", &Snapshot::capture(&dump))?;
    /// # let counters = CounterSet::from_bits(0b1111) | CounterSet::FIXED;
    /// # assert_eq!(confined, Event::raw(EventSelect::from_bits(0x20D1)).on(counters));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Type`](PerfError::Type), [`Hardware`](PerfError::Hardware), [`Bits`](PerfError::Bits),
    /// [`ExcludesAll`](PerfError::ExcludesAll), [`NoExtraRegister`](PerfError::NoExtraRegister): the attributes select
    /// no event that a counter can count.
    pub fn event(
        self,
        constraints: impl FnOnce(EventSelect) -> Option<CounterSet>,
    ) -> Result<Event, PerfError> {
        let event = match self.type_ {
            PERF_TYPE_HARDWARE => {
                let known = HARDWARE_EVENTS.iter().find(|(number, _)| *number == self.config);
                let (_, name) = known.ok_or(PerfError::Hardware(self.config))?;
                Event::generic(*name)
            }
            PERF_TYPE_RAW => {
                let select = RawConfig::new(self.config)?.select();
                Event::raw(select).on(constraints(select).unwrap_or(CounterSet::ALL))
            }
            other => return Err(PerfError::Type(other)),
        };
        let raw = self.type_ == PERF_TYPE_RAW;
        let event = match extra_register(self.config).filter(|_| raw) {
            _ if self.config1 == 0 => event,
            Some(register) => event.with_extra(register, self.config1),
            None => return Err(PerfError::NoExtraRegister(self.config)),
        };
        let event = match (self.exclude_user, self.exclude_kernel) {
            (false, false) => event,
            (true, false) => event.kernel_only(),
            (false, true) => event.user_only(),
            (true, true) => return Err(PerfError::ExcludesAll),
        };
        let event = match (self.exclude_host, self.exclude_guest) {
            (false, false) => event,
            (true, false) => event.in_guests(),
            (false, true) => event.outside_guests(),
            (true, true) => return Err(PerfError::ExcludesAll),
        };
        Ok(if self.sample_period == 0 { event } else { event.every(self.sample_period) })
    }
}

/// Converts the attributes like [`PerfAttributes::event`], but lets a raw event use any counter. On AMD's processors,
/// every core counter can count every event. On Intel's processors, use `PerfAttributes::event`, because some counters
/// count some events wrongly or not at all.
///
/// # Errors
/// The errors of [`PerfAttributes::event`].
impl TryFrom<PerfAttributes> for Event {
    type Error = PerfError;

    fn try_from(perf: PerfAttributes) -> Result<Self, PerfError> {
        perf.event(|_| None)
    }
}

/// Converts an event into perf's attributes. A property of the event is lost if [`PerfAttributes`] has no field for it.
/// For example, the attributes do not contain the counters that [`on`](Event::on) set, or the tag that
/// [`tagged`](Event::tagged) set.
///
/// # Errors
/// - [`Bits`](PerfError::Bits): the event select of the event has bits that belong to no term.
/// - [`Hardware`](PerfError::Hardware): the event is a generic event that is not in [`HARDWARE_EVENTS`].
/// - [`NoExtraRegister`](PerfError::NoExtraRegister): the event has an extra register that perf does not write for this
///   event, or a [latency](Event::latency_at_least) without being an event of load latencies.
impl TryFrom<Event> for PerfAttributes {
    type Error = PerfError;

    fn try_from(event: Event) -> Result<Self, PerfError> {
        let (type_, config) = match (event.select(), event.name()) {
            (Some(select), _) => (PERF_TYPE_RAW, RawConfig::new(select.select_bits())?.bits()),
            (None, name) => {
                let known = HARDWARE_EVENTS.iter().find(|(_, known)| Some(*known) == name);
                let (number, _) = known.ok_or(PerfError::Hardware(u64::MAX))?;
                (PERF_TYPE_HARDWARE, *number)
            }
        };
        let register = if type_ == PERF_TYPE_RAW { extra_register(config) } else { None };
        let config1 = match event.extra() {
            Some((own, value)) if Some(own) == register => value,
            Some(_) => return Err(PerfError::NoExtraRegister(config)),
            None => match event.latency() {
                None => 0,
                Some(latency) if is_latency(register) => latency.into(),
                Some(_) => return Err(PerfError::NoExtraRegister(config)),
            },
        };
        Ok(Self {
            type_,
            config,
            config1,
            sample_period: event.period().unwrap_or(0),
            exclude_user: !event.counts_user(),
            exclude_kernel: !event.counts_kernel(),
            exclude_host: !event.counts_outside_guests(),
            exclude_guest: !event.counts_in_guests(),
        })
    }
}
