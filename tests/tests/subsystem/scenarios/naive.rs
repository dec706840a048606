//! The naive model of an event: what it counted, its times, and its samples.

use pmu::core::EventCount;
use pmu::core::memory::EventTable;
use pmu::perf::{AttrFlags, PerfEventAttr};
use pmu_tests::opened::KINDS;

use crate::kernel::event::{MAX_PER_TICK, Sample, TICK};

/// The frequency of an event, by the arithmetic of Linux' `perf_calculate_period` and `perf_adjust_period`.
#[derive(Clone, Debug)]
struct Frequency {
    hertz: u64,
    period: u64,
    before: Option<u64>,
    counted: u64,
}

impl Frequency {
    fn adjust(&mut self, nanoseconds: u64, count: u64) {
        if nanoseconds == 0 {
            return;
        }
        let per_second = i128::from(count) * 1_000_000_000;
        let wanted = per_second / (i128::from(nanoseconds) * i128::from(self.hertz));
        let difference = wanted - i128::from(self.period);
        let step = (difference + 7 * if difference < 0 { -1 } else { 1 }) / 8;
        let shortest = i128::from(EventTable::DEFAULT_MIN_PERIOD);
        self.period = (i128::from(self.period) + step).max(shortest) as u64;
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Naive {
    pub(crate) kind: usize,
    user: bool,
    kernel: bool,
    pub(crate) in_guests: bool,
    in_host: bool,
    pub(crate) count: EventCount,
    /// The period that begins next; 0: the event does not sample.
    pub(crate) every: u64,
    current: u64,
    pub(crate) left: u64,
    pub(crate) samples: Vec<Sample>,
    in_tick: u32,
    pub(crate) throttled: bool,
    frequency: Option<Frequency>,
    /// The events of its group.
    pub(crate) group: Vec<usize>,
    pub(crate) parent: Option<usize>,
    pub(crate) has_ended: bool,
}

impl Naive {
    pub(crate) fn new(attr: &PerfEventAttr, group: Vec<usize>, parent: Option<usize>) -> Self {
        let config = attr.select.config;
        let kind = KINDS
            .iter()
            .position(|(event, mask)| config == u64::from(*event) | u64::from(*mask) << 8);
        let is_rate = attr.flags.contains(AttrFlags::FREQ);
        let asked = attr.select.sample_period;
        let every = if is_rate { EventTable::DEFAULT_MIN_PERIOD } else { asked };
        let (period, counted) = (every, 0);
        let frequency = Frequency { hertz: asked, period, before: None, counted };
        Self {
            kind: kind.unwrap_or(KINDS.len()),
            user: !attr.select.exclude_user,
            kernel: !attr.select.exclude_kernel,
            in_guests: !attr.select.exclude_guest,
            in_host: !attr.select.exclude_host,
            count: EventCount::default(),
            every,
            current: every,
            left: every,
            samples: vec![],
            in_tick: 0,
            throttled: false,
            frequency: is_rate.then_some(frequency),
            group,
            parent,
            has_ended: false,
        }
    }

    /// Returns whether the event counts what happens of a kind in user or kernel mode, of a guest or of the host.
    pub(crate) fn counts(&self, kind: usize, user: bool, in_guest: bool) -> bool {
        let is_level = if user { self.user } else { self.kernel };
        self.kind == kind && is_level && if in_guest { self.in_guests } else { self.in_host }
    }

    /// Returns the number of events up to the next sample.
    pub(crate) fn until_sample(&self) -> u64 {
        if self.every == 0 || self.throttled { u64::MAX } else { self.left }
    }

    /// Counts so many events, at most up to the next sample. Returns whether it is reached.
    pub(crate) fn pass(&mut self, events: u64) -> bool {
        let is_sample = events == self.until_sample();
        self.count.value += events;
        self.left = self.left.wrapping_sub(events);
        is_sample
    }

    /// Takes a sample.
    pub(crate) fn sample(&mut self, counts: Vec<(usize, u64)>, now: u64) {
        self.samples.push(Sample { period: self.current, counts });
        if let Some(frequency) = &mut self.frequency {
            let elapsed = frequency.before.map(|before| now - before);
            if let Some(elapsed) = elapsed.filter(|elapsed| *elapsed < 2 * TICK) {
                frequency.adjust(elapsed, frequency.period);
            }
            frequency.before = Some(now);
            self.every = frequency.period;
        }
        self.begin();
        self.in_tick += 1;
        self.throttled = self.in_tick == MAX_PER_TICK;
    }

    fn begin(&mut self) {
        (self.current, self.left) = (self.every, self.every);
    }

    /// Is put on a counter anew: a period that is shorter by now begins.
    pub(crate) fn resume(&mut self) {
        if self.every < self.left {
            self.begin();
        }
    }

    pub(crate) fn tick(&mut self) {
        if let Some(frequency) = &mut self.frequency {
            let happened = self.count.value - frequency.counted;
            frequency.counted = self.count.value;
            if happened != 0 {
                frequency.adjust(TICK, happened);
            }
            self.every = frequency.period;
        }
        // The present period would last more than eight new ones.
        if core::mem::take(&mut self.throttled) || self.current / 8 > self.every {
            self.begin();
        }
        self.in_tick = 0;
    }
}
