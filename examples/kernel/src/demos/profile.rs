//! Profiling: where in the kernel a source's events happen.

use core::sync::atomic::{AtomicU32, Ordering};

use pmu::apic::Delivery;
use pmu::core::EventSource;
use pmu::core::frame::ProcessorNumber;
use pmu::core::profile::KProfileSource;
use pmu_kprofile::{Affinity, BasicProfile, ProfileObject, Rules};

use crate::demos::failure::Failure;
use crate::demos::rate::{PERIOD_MS, Rate, patience_ms};
use crate::demos::workload;
use crate::embedding::memory::PMU;
use crate::embedding::sessions::Sessions;
use crate::line;
use crate::machine::clock;

/// 16 bytes of code a bucket.
const BUCKET_LOG2: u32 = 4;
/// Enough for the workload.
const BUCKET_COUNT: usize = 64;
/// From so many samples on, the shares are checked: 5 points are three standard deviations.
const ENOUGH: u64 = 1_000;
/// Distance that a share may have from the known one, in tenths of a percent.
const TOLERANCE: u64 = 50;

static BUCKETS: [AtomicU32; BUCKET_COUNT] = [const { AtomicU32::new(0) }; BUCKET_COUNT];

/// Knowledge of a source's event on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It is what the name says, and passes evenly in the workload: the functions' shares are known.
    Even,
    /// It is what the name says.
    Known,
    /// The processor counts something else or nothing under it, or it is unknown what.
    Untrue(pmu::amd::Meaning),
}

/// A profile to be taken: of which source, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The source.
    pub source: KProfileSource,
    /// Its name.
    pub name: &'static str,
    /// Delivery of its interrupt; `None`: by the timer.
    pub delivery: Option<Delivery>,
    /// The interval, before limits.
    pub interval: u64,
    /// The processor.
    pub processor: u16,
    /// Number of samples to take.
    pub samples: u64,
    /// Knowledge of the shares.
    pub meaning: Meaning,
}

impl Plan {
    /// Plans profiling by time.
    pub fn by_time(samples: u64) -> Self {
        Self {
            source: KProfileSource::TIME,
            name: "ProfileTime",
            delivery: None,
            interval: PERIOD_MS * 10_000,
            processor: 0,
            samples,
            meaning: Meaning::Even,
        }
    }

    /// Plans profiling by a counter source that was seen to count.
    pub fn by_counter(
        (source, name, meaning): (KProfileSource, &'static str, Meaning),
        rate: Rate,
        delivery: Delivery,
        samples: u64,
    ) -> Self {
        let interval = rate.per(PERIOD_MS);
        Self { source, name, delivery: Some(delivery), interval, processor: 0, samples, meaning }
    }

    /// Profiles this processor, which executes the workload.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub fn run_here(&self, sessions: &Sessions) -> Result<(), Failure> {
        self.run(sessions, |_| {
            workload::turn();
            Ok(())
        })
    }

    /// Profiles the workload's code while `meanwhile` runs, again and again, until there are enough samples.
    ///
    /// # Errors
    /// Those of the interface and of profile objects; too few samples; shares that are not the known.
    pub fn run(
        &self,
        sessions: &Sessions,
        mut meanwhile: impl FnMut(&Sessions) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        sessions.machine().set_interval_clamped(self.source, self.interval)?;
        for bucket in &BUCKETS {
            bucket.store(0, Ordering::Relaxed);
        }
        let (start, end) = workload::code();
        let processor = ProcessorNumber::from_index(self.processor);
        let object = ProfileObject::basic(
            Rules::LATEST,
            BasicProfile {
                process: None,
                base: start,
                size: end - start,
                bucket_log2: BUCKET_LOG2,
                buffer: &BUCKETS,
                source: self.source,
                affinity: Some(Affinity::of(processor)),
            },
            &sessions.hardware(),
        )?;
        // More than a source that is not rare needs: a hypervisor that is busy lets processors wait.
        let patience = clock::milliseconds(3 * patience_ms(self.samples));
        let (before, begin) = (PMU.profiles().statistics(), clock::now());
        // SAFETY: the object is on this stack until `stop`, which follows on every way out.
        unsafe { PMU.profiles().start_borrowed(&object, &mut sessions.hardware())? };
        let mut outcome = Ok(());
        while outcome.is_ok() && sampled() < self.samples && clock::now() - begin < patience {
            outcome = meanwhile(sessions);
        }
        PMU.profiles().stop(&object, &mut sessions.hardware())?;
        outcome?;
        let missed = PMU.profiles().statistics().missed - before.missed;
        self.report(missed)
    }

    /// Prints the histogram by function. What no bucket is for was executing elsewhere in the kernel.
    fn report(&self, elsewhere: u64) -> Result<(), Failure> {
        let delivery = match self.delivery {
            None => "timer",
            Some(Delivery::NON_MASKABLE) => "NMI",
            Some(_) => "vector",
        };
        let (by, processor, samples) = (self.name, self.processor, sampled());
        line!("samples {} {} {} {}", by, delivery, processor, samples);
        if samples < self.samples {
            return Err(Failure::Wrong("too few samples came in time"));
        }
        let share = |name, found: u64| {
            let tenths = found * 1_000 / (samples + elsewhere);
            let (percent, tenth) = (tenths / 10, tenths % 10);
            let bar = bar(tenths);
            line!("share {} {} {} {} {}.{}{}", by, delivery, processor, name, percent, tenth, bar);
            tenths
        };
        let mut right = true;
        for function in workload::functions() {
            let tenths = share(function.name, samples_in(function.start, function.end));
            right &= tenths.abs_diff(u64::from(function.share) * 10) <= TOLERANCE;
        }
        share("elsewhere", elsewhere);
        if self.meaning == Meaning::Even && samples >= ENOUGH && !right {
            return Err(Failure::Wrong("a function's share is not its known one"));
        }
        Ok(())
    }
}

/// Samples in all buckets.
fn sampled() -> u64 {
    BUCKETS.iter().map(|bucket| u64::from(bucket.load(Ordering::Relaxed))).sum()
}

/// Samples in a function, whose ends are multiples of a bucket's size.
fn samples_in(start: u64, end: u64) -> u64 {
    let (base, _) = workload::code();
    let bucket = |address: u64| (address - base) as usize >> BUCKET_LOG2;
    BUCKETS[bucket(start)..bucket(end)]
        .iter()
        .map(|bucket| u64::from(bucket.load(Ordering::Relaxed)))
        .sum()
}

/// Returns a space and one character per two percent; nothing below that.
fn bar(tenths: u64) -> &'static str {
    const BAR: &str = " ##################################################";
    match tenths as usize / 20 {
        0 => "",
        length => &BAR[..=length.min(BAR.len() - 1)],
    }
}
