//! Profiling by perf events: their records are the profile interrupts, and each mapping of each
//! process, once it is hit, has a profile object on the process's list.

mod frame;
mod hardware;
pub mod outcome;
mod process;
mod recording;
pub mod selection;
pub mod thinning;

use core::cmp::Reverse;
use core::ops::Range;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::thread;

use pmu_core::frame::ProcessId;
use pmu_kprofile::{MAX_GROUPS, ProfileError, ProfileObject, Profiles, Statistics};

use super::call_graph::CallGraph;
use super::call_stacks::{CallStacks, Thread};
use super::error::Error;
use super::histogram::{Histogram, Histograms};
use super::kallsyms::KERNEL;
use super::kept::Kept;
use super::maps::Mapping;
use super::perf::{Callers, Event, PerfEvents, Record, Sample, Scope, What};
use super::perf_data::writer::Facts;
use super::perf_map;
use super::report::consumed::{Consumed, Unit};
use super::unwind::Unwinding;
use crate::machine::Source;
use crate::untrusted::visible;
use hardware::Hardware;
use outcome::Outcome;
use process::{Object, Process};
use recording::Recording;
use selection::Selection;

/// The number of mappings of all processes that can be profiled at a time, unless said otherwise.
const OBJECTS: usize = 4096;

/// The number of processors that a set can speak of.
const PROCESSORS: usize = MAX_GROUPS * 64;

/// The kernel's half of the address space (Linux, Documentation/arch/x86/x86_64/mm.rst), but for its
/// last page: a range ends before the last address.
const KERNEL_HALF: Range<u64> = 0xFFFF_8000_0000_0000..0xFFFF_FFFF_FFFF_F000;

/// Returns a part of the kernel without known functions.
fn between(start: u64, end: u64) -> Mapping {
    let size = end.saturating_sub(start);
    Mapping { start, size, file_offset: start, path: KERNEL.into() }
}

/// Lists that live forever. They are megabytes, which a debug build has on the stack first: on one that is
/// large enough.
fn lists<const N: usize>() -> &'static Profiles<N, PROCESSORS> {
    let make = || &*Box::leak(Box::new(Profiles::new()));
    let stack = 4 * size_of::<Profiles<N, PROCESSORS>>() + (1 << 20);
    let made = thread::Builder::new().stack_size(stack).spawn(make).map(|thread| thread.join());
    match made {
        Ok(Ok(lists)) => lists,
        // There is no thread to be had: then on this one's stack.
        _ => make(),
    }
}

/// Sampling under way, of at most `N` mappings at a time.
pub struct Sampling<E: PerfEvents, const N: usize = OBJECTS> {
    hardware: Hardware<E>,
    profiles: &'static Profiles<N, PROCESSORS>,
    /// The parts of the kernel, ascending by address.
    kernel: Vec<(Histogram, &'static ProfileObject<'static>)>,
    histograms: Histograms,
    processes: HashMap<u32, Process>,
    stacks: CallStacks,
    names: HashMap<(u32, u32), String>,
    kept: Kept,
    /// The way to callers from copied stacks.
    unwinding: Unwinding,
    selection: Selection,
    /// The interrupts of the threads that are not selected.
    left_out: HashMap<(u32, u32), u64>,
    /// Records that one still to come may precede.
    pending: Vec<Record>,
    lost: u64,
    throttled: u64,
    unprofiled: u64,
    recording: Recording,
}

impl<E: PerfEvents, const N: usize> Sampling<E, N> {
    /// Opens the source's event, at this interval, on all processors: the programs that the calling
    /// thread's children execute from now on are sampled.
    ///
    /// # Errors
    /// The kernel forbids it, or has no such event.
    pub fn start(
        events: E,
        source: &Source,
        interval: u32,
        call_graph: CallGraph,
    ) -> Result<Self, Error> {
        let mut sampling = Self {
            hardware: Hardware::new(events, source, interval, call_graph.callers())?,
            profiles: lists(),
            kernel: Vec::new(),
            histograms: Histograms::default(),
            processes: HashMap::new(),
            stacks: CallStacks::default(),
            names: HashMap::new(),
            kept: Kept::default(),
            unwinding: Unwinding::new(call_graph == CallGraph::Dwarf),
            selection: Selection::default(),
            left_out: HashMap::new(),
            pending: Vec::new(),
            lost: 0,
            throttled: 0,
            unprofiled: 0,
            recording: Recording::default(),
        };
        sampling.kept.is_replayed = sampling.hardware.events.recorded_period().is_some();
        sampling.kept.build_ids = sampling.hardware.events.recorded_build_ids();
        sampling.profile_kernel(source.name)?;
        // Whatever happened before the events were opened precedes every record of theirs.
        for record in sampling.hardware.events.existing() {
            sampling.apply(record.clone()).map_err(Error::Profile)?;
            sampling.recording.keep(record);
        }
        Ok(sampling)
    }

    /// Leaves the samples out that are not of the selected processes and threads.
    pub fn select(&mut self, selection: Selection) {
        self.selection = selection;
    }

    /// Writes the records into a file in place of profiling by them.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn record_into(&mut self, path: &Path, facts: Facts) -> Result<(), Error> {
        self.recording.begin(path, facts, &self.hardware.events)
    }

    /// Returns true as long as a process of the target is running.
    pub fn is_running(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Returns true once a recording has no more records.
    pub fn has_ended(&self) -> bool {
        self.hardware.events.has_ended()
    }

    /// Returns the error that ended a recording before its last record.
    pub fn failure(&mut self) -> Option<io::Error> {
        self.hardware.events.failure()
    }

    /// Profiles the kernel: finely where its functions and its modules' are, and coarsely in between.
    fn profile_kernel(&mut self, source: &'static str) -> Result<(), Error> {
        let texts = self.hardware.events.kernel_texts();
        let mut start = KERNEL_HALF.start;
        for text in texts {
            // The first object of the source starts the hardware.
            self.profile_kernel_part(Histogram::coarse, between(start, text.start), source)?;
            if !self.hardware.request.kernel {
                return Ok(());
            }
            start = text.end();
            self.profile_kernel_part(Histogram::fine, text, source)?;
        }
        self.profile_kernel_part(Histogram::coarse, between(start, KERNEL_HALF.end), source)
    }

    /// Profiles a part of the kernel, with an object on the global list.
    fn profile_kernel_part(
        &mut self,
        histogram: fn(&Mapping) -> Histogram,
        part: Mapping,
        source: &'static str,
    ) -> Result<(), Error> {
        if part.size == 0 {
            return Ok(());
        }
        let histogram = histogram(&part);
        let object = histogram
            .object(None, part.start, self.hardware.source(), &self.hardware)
            .map_err(Error::Create)?;
        self.profiles
            .start(object, &mut self.hardware)
            .map_err(|error| self.hardware.refusal(source).unwrap_or(Error::Profile(error)))?;
        self.kernel.push((histogram, object));
        Ok(())
    }

    /// Takes in what has been recorded since the last call.
    ///
    /// # Errors
    /// A profile object could not be stopped.
    pub fn read(&mut self) -> Result<(), Error> {
        // Each processor's records are in order, but one may come here later than another's later
        // one. No record is older than what all processors had when they were last asked.
        let settled = self.pending.iter().map(|record| record.time).max().unwrap_or(0);
        self.hardware.events.read(&mut self.pending);
        self.pending.sort_by_key(|record| record.time);
        let later = self.pending.partition_point(|record| record.time <= settled);
        let later = self.pending.split_off(later);
        self.take_in(later)
    }

    /// Applies the pending records; `later` are pending then.
    fn take_in(&mut self, later: Vec<Record>) -> Result<(), Error> {
        let settled = core::mem::replace(&mut self.pending, later);
        settled.into_iter().try_for_each(|record| self.apply(record)).map_err(Error::Profile)?;
        self.recording.end_round();
        Ok(())
    }

    /// The interrupts so far, hit and missed.
    pub fn statistics(&self) -> Statistics {
        self.profiles.statistics()
    }

    /// Takes in the rest, and stops.
    ///
    /// # Errors
    /// A profile object could not be stopped.
    pub fn finish(mut self) -> Result<Outcome, Error> {
        let consumed = self.hardware.events.consumed();
        self.read()?;
        self.take_in(Vec::new())?;
        for process in self.processes.keys().copied().collect::<Vec<_>>() {
            self.unmap_all(process).map_err(Error::Profile)?;
        }
        let recorded = self.recording.counts();
        self.recording.finish()?;
        let mut histograms = self.histograms.into_vec();
        for (histogram, object) in self.kernel {
            self.profiles.stop(object, &mut self.hardware).map_err(Error::Profile)?;
            histograms.push(histogram);
        }
        let statistics = self.profiles.statistics();
        let Hardware { events, request, interval, .. } = self.hardware;
        let unit = match request.event {
            Event::Clock => Unit::Nanoseconds,
            Event::Raw(_) => Unit::Events,
        };
        let sampled = statistics.seen.saturating_mul(interval);
        // The kernel counts for the selected and the others together.
        let counted = consumed;
        let consumed = consumed.filter(|_| self.selection == Selection::default());
        let (mut stacks, names) = (self.stacks, self.names);
        let name = |process, thread| {
            let name = names.get(&(process, thread)).or(names.get(&(process, process)));
            name.map_or_else(String::new, |name| visible(name).into_owned())
        };
        stacks.name_threads(name);
        let mut left_out: Vec<_> = self.left_out.into_iter().collect();
        left_out.sort_by_key(|(numbers, interrupts)| (Reverse(*interrupts), *numbers));
        let named = |((process, thread), _)| Thread {
            process,
            thread,
            process_name: name(process, process),
            name: name(process, thread),
        };
        let left_out = left_out.into_iter().map(named).collect();
        Ok(Outcome {
            histograms,
            statistics,
            stacks,
            used: matches!(request.callers, Callers::Stack(_)).then_some(self.unwinding.used),
            kept: self.kept,
            recorded,
            is_replayed: events.recorded_period().is_some(),
            lost: self.lost,
            throttled: self.throttled,
            unprofiled: self.unprofiled,
            consumed: consumed.map(|total| Consumed { unit, total, sampled }),
            counted,
            left_out,
            request,
            setting: events.setting(),
        })
    }

    fn apply(&mut self, record: Record) -> Result<(), ProfileError> {
        if self.recording.is_on() {
            let What::Sample(sample) = &record.what else {
                self.recording.write(&record);
                return self.take_note(record);
            };
            if self.is_of_target(sample) && self.is_selected(sample) {
                self.recording.write(&record);
            }
            return Ok(());
        }
        self.take_note(record)
    }

    fn take_note(&mut self, record: Record) -> Result<(), ProfileError> {
        let Record { time, what, .. } = record;
        match what {
            What::Sample(mut sample) if self.is_of_target(&sample) => {
                let interrupts = self.hardware.interrupts();
                if interrupts == 0 {
                    return Ok(());
                }
                if !self.is_selected(&sample) {
                    let left_out =
                        self.left_out.entry((sample.process, sample.thread)).or_default();
                    *left_out += u64::from(interrupts);
                    return Ok(());
                }
                self.profile(&sample);
                self.unwind(&mut sample);
                for _ in 0..interrupts {
                    self.profiles.interrupt(&sample, self.hardware.source());
                }
                self.add_stack(time, &sample, interrupts);
            }
            What::Sample(_) => {}
            What::Map { process, mapping } => self.map(process, mapping)?,
            What::Name { process, thread, name } => {
                self.names.insert((process, thread), name);
            }
            What::Exec { process, name } => {
                self.names.insert((process, process), name);
                self.unmap_all(process)?;
                self.processes.insert(process, Process::new(Vec::new()));
            }
            What::Fork { process, parent } if process == parent => {
                self.processes.entry(process).or_default().threads += 1;
            }
            What::Fork { process, parent } => {
                let inherited = self.processes.get(&parent).map(|parent| &*parent.mappings);
                let unhit = |(mapping, _): &(Mapping, Object)| (mapping.clone(), Object::Unhit);
                let mappings = inherited.unwrap_or_default().iter().map(unhit).collect();
                self.processes.insert(process, Process::new(mappings));
                if let Some(name) = self.names.get(&(parent, parent)).cloned() {
                    self.names.insert((process, process), name);
                }
            }
            What::Exit { process } => {
                let Some(exiting) = self.processes.get_mut(&process) else { return Ok(()) };
                exiting.threads = exiting.threads.saturating_sub(1);
                if exiting.threads == 0 {
                    self.unmap_all(process)?;
                    self.processes.remove(&process);
                }
            }
            What::Lost(records) => self.lost += records,
            What::Throttled => self.throttled += 1,
        }
        Ok(())
    }

    /// Returns true if a sample is the target's. Of system-wide samples, those are of the processes whose
    /// begin was recorded.
    fn is_of_target(&self, sample: &Sample) -> bool {
        self.hardware.request.scope == Scope::PerThread
            || self.processes.contains_key(&sample.process)
    }

    fn is_selected(&self, sample: &Sample) -> bool {
        let Sample { process, thread, .. } = *sample;
        let name = |thread| self.names.get(&(process, thread)).map(String::as_str);
        self.selection.has(process, thread, [name(process), name(thread)])
    }

    /// Adds the callers that are found in a sample's copied stack.
    fn unwind(&mut self, sample: &mut Sample) {
        let Some(user) = &sample.user else { return };
        let Some(process) = self.processes.get_mut(&sample.process) else { return };
        let mappings = process.mappings.iter().map(|(mapping, _)| mapping);
        let mut make = || self.unwinding.unwinder(sample.process, mappings.clone(), &mut self.kept);
        let unwinder = process.unwinder.get_or_insert_with(&mut make);
        let at = |address| mappings.clone().find(|mapping| mapping.has(address));
        let callers = self.unwinding.callers(unwinder, user, &self.kept, at);
        if sample.kernel {
            sample.callers.push(user.ip());
        }
        sample.callers.extend(callers);
    }

    /// Adds the call stack of a sample. It ends before the first caller that is nowhere.
    fn add_stack(&mut self, time: u64, sample: &Sample, interrupts: u32) {
        let mappings = self.processes.get(&sample.process).map(|process| &*process.mappings);
        let mappings = mappings.unwrap_or_default();
        let place = |address| {
            if KERNEL_HALF.contains(&address) {
                let here = |(part, _): &&(Histogram, _)| address - part.file_offset < part.size;
                let next = self.kernel.partition_point(|(part, _)| part.file_offset <= address);
                let part = self.kernel[..next].last().filter(here);
                return Some((part.map_or(Path::new(KERNEL), |(part, _)| &part.path), address));
            }
            let (mapping, _) = mappings.iter().find(|(mapping, _)| mapping.has(address))?;
            Some((&*mapping.path, mapping.offset(address)))
        };
        let calls = sample.callers.iter().copied();
        let places = core::iter::once(sample.pc).chain(calls).map_while(place);
        self.stacks.add(time, (sample.process, sample.thread), places, interrupts);
    }

    /// Records a new mapping, in place of those that it covers.
    fn map(&mut self, process: u32, mut mapping: Mapping) -> Result<(), ProfileError> {
        if perf_map::is_anonymous(&mapping.path) {
            // This memory is the process's own, and known by its address.
            mapping.path = perf_map::path(process);
            mapping.file_offset = mapping.start;
        }
        let process = self.processes.entry(process).or_default();
        let mappings = &mut process.mappings;
        // The kernel tells of a mapping again when a part of it gets another protection.
        if mappings.iter().any(|(old, _)| old.contains(&mapping)) {
            return Ok(());
        }
        let mut is_of_file = !perf_map::is_anonymous(&mapping.path);
        for (old, object) in mappings.extract_if(.., |(old, _)| old.overlaps(&mapping)) {
            is_of_file |= !perf_map::is_anonymous(&old.path);
            if let Object::Started(object) = object {
                self.profiles.stop(object, &mut self.hardware)?;
            }
        }
        mappings.push((mapping, Object::Unhit));
        if is_of_file {
            process.unwinder = None;
        }
        Ok(())
    }

    /// Starts the profile object of the mapping that a sample is in, if this is its first sample.
    fn profile(&mut self, sample: &Sample) {
        let Some(id) = id(sample.process) else { return };
        let Some(process) = self.processes.get_mut(&sample.process) else { return };
        let here = |(mapping, _): &&mut (Mapping, Object)| mapping.has(sample.pc);
        let Some((mapping, object @ Object::Unhit)) = process.mappings.iter_mut().find(here) else {
            return;
        };
        self.kept.keep(sample.process, mapping);
        let histogram = self.histograms.of(mapping);
        let (source, hardware) = (self.hardware.source(), &mut self.hardware);
        let started = histogram
            .object(Some(id), mapping.start, source, hardware)
            .ok()
            .filter(|object| self.profiles.start(object, hardware).is_ok());
        self.unprofiled += u64::from(started.is_none());
        *object = started.map_or(Object::Refused, Object::Started);
    }

    fn unmap_all(&mut self, process: u32) -> Result<(), ProfileError> {
        let mappings = self.processes.get_mut(&process).map(|process| {
            process.unwinder = None;
            &mut process.mappings
        });
        for (_, object) in mappings.into_iter().flat_map(|mappings| mappings.drain(..)) {
            if let Object::Started(object) = object {
                self.profiles.stop(object, &mut self.hardware)?;
            }
        }
        Ok(())
    }
}

fn id(process: u32) -> Option<ProcessId> {
    ProcessId::new(process.into())
}
