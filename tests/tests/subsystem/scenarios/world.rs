//! A machine on which a kernel's perf runs, with what happens on it, and the comparison with the naive model.

use core::ops::Range;

use pmu::core::access::{CounterIndex, RegisterBackend};
use pmu::core::reading::RemoteCount;
use pmu::core::{CounterSet, EventCount, EventStatus};
use pmu_tests::linux_page::{LinuxPage, Read};
use pmu_tests::opened::{KINDS, Mock, Processor, processors, running};
use pmu_tests::software_pmu::KERNEL;
use pmu_virt::configuration::{Configuration, IntelConfiguration, Vendor};
use pmu_virt::mock::Deviations;
use pmu_virt::{EventKey, FedEvents, Feed, Mode, Privilege, VirtualPmu};

use super::naive::Naive;
use crate::kernel::perf::{Perf, Target};

/// `HG_ONLY` of AMD's selects: a guest's events, and the host's (APM vol. 2, "Performance Event-Select Registers").
const OF_GUEST: u64 = 1 << 40;
const OF_HOST: u64 = 1 << 41;
/// The watchdog's cycles on AMD's processors.
const AMD_CYCLES: EventKey = EventKey::general(0x76, 0);

/// Returns the key of an event of [`KINDS`] that AMD's processors confine to guests or to the host.
fn confined(kind: usize, of: u64) -> EventKey {
    let (event, mask) = KINDS[kind];
    EventKey::of_select(Vendor::Amd, of | u64::from(mask) << 8 | u64::from(event))
}

fn fed() -> FedEvents {
    let mut keys: Vec<_> =
        KINDS.map(|(event, mask)| EventKey::general(event.into(), mask)).to_vec();
    keys.push(AMD_CYCLES);
    keys.extend([2, 3].iter().flat_map(|kind| [OF_GUEST, OF_HOST].map(|of| confined(*kind, of))));
    FedEvents::new(&keys).unwrap()
}

/// Returns so many of an event that each of these keys counts.
fn feed(keys: &[EventKey], privilege: Privilege, count: u64) -> Feed {
    let events = fed();
    let mut feed = Feed::new(&events);
    for key in keys {
        feed.add(events.find(*key).unwrap(), privilege, count).unwrap();
    }
    feed
}

/// Returns the processors of each machine: two alike, of each kind; and two of different types of core.
pub(crate) fn machines(deviations: Deviations) -> Vec<[Processor; 2]> {
    let mut machines: Vec<_> = processors(deviations).into_iter().map(|of| [of; 2]).collect();
    let core = |general, core_type| {
        let configuration = Configuration::Intel(IntelConfiguration::new(5, general, 3));
        let mut core = Processor::new(configuration, false, deviations);
        core.unit.set_core_type(core_type);
        core
    };
    machines.push([core(8, 0x4000_0001), core(6, 0x2000_0001)]);
    machines.push([core(6, 0x2000_0001), core(6, 0x4000_0001)]);
    machines
}

pub(crate) struct World {
    pub(crate) perf: Perf,
    pub(crate) processors: &'static [Processor; 2],
    pub(crate) mocks: Vec<&'static Mock<'static>>,
    pub(crate) naive: Vec<Naive>,
}

impl World {
    pub(crate) fn new(processors: &[Processor; 2]) -> Self {
        Self::found(processors, |_| ())
    }

    /// Boots on processors whose state `before` prepares.
    pub(crate) fn found(processors: &[Processor; 2], before: impl Fn(&Mock<'_>)) -> Self {
        let processors = &*Box::leak(Box::new(*processors));
        let mocks = processors.iter().map(|processor| {
            let pmu = VirtualPmu::new(processor.configuration, fed()).unwrap();
            let mock = Mock::strict(pmu).deviating(processor.deviations);
            for control in [0x38F, 0xC000_0301] {
                let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
            }
            before(&mock);
            &*Box::leak(Box::new(mock))
        });
        let mocks: Vec<_> = mocks.collect();
        let perf = Perf::boot(processors, &mocks);
        // The watchdogs are no event of a user.
        let naive = vec![Naive::new(&perf.shared.event(0).attr, vec![], None)];
        Self { perf, processors, mocks, naive }
    }

    /// Opens events, and their models. Returns the number of the first one; those of the others follow.
    #[track_caller]
    pub(crate) fn open(&mut self, target: Target, texts: &[&str]) -> usize {
        let numbers = self.perf.open(target, texts).unwrap();
        for number in &numbers {
            let group = if numbers.len() > 1 { numbers.clone() } else { vec![*number] };
            let attr = self.perf.shared.event(*number).attr;
            self.naive.push(Naive::new(&attr, group, None));
        }
        numbers[0]
    }

    pub(crate) fn fork(&mut self, parent: usize) -> usize {
        let before = self.naive.len();
        let child = self.perf.fork(parent);
        for number in before..self.perf.shared.events.borrow().len() {
            let event = self.perf.shared.event(number);
            self.naive.push(Naive::new(&event.attr, vec![number], event.parent));
        }
        child
    }

    /// Ends a task whose events have these numbers.
    pub(crate) fn exit(&mut self, task: usize, numbers: Range<usize>) {
        self.perf.exit(task);
        for number in numbers {
            self.naive[number].has_ended = true;
            let EventCount { value, enabled, running } = self.naive[number].count;
            if let Some(parent) = self.naive[number].parent {
                let count = &mut self.naive[parent].count;
                count.value += value;
                count.enabled += enabled;
                count.running += running;
            }
        }
    }

    pub(crate) fn switch(&mut self, cpu: usize, task: Option<usize>) {
        self.perf.switch(cpu, task);
        let switched = task.map_or(&[][..], |task| &self.perf.tasks[task].numbers);
        switched.iter().for_each(|number| self.naive[*number].resume());
    }

    /// Lets time pass on all processors, with cycles, of which each processor's watchdog counts its own.
    pub(crate) fn pass(&mut self, nanoseconds: u64) {
        let tsc = &self.perf.shared.tsc;
        tsc.set(tsc.get() + 2 * nanoseconds);
        for number in 1..self.naive.len() {
            if self.perf.place(number).is_some() {
                let runs = self.perf.is_active(number);
                let count = &mut self.naive[number].count;
                count.enabled += nanoseconds;
                count.running += if runs { nanoseconds } else { 0 };
            }
        }
    }

    /// Lets the cores execute so many cycles, and counts how often each watchdog reports.
    pub(crate) fn cycles(&mut self, cpu: usize, count: u64) {
        let key = match self.processors[cpu].configuration {
            Configuration::Intel(_) => EventKey::general(0x3C, 0),
            _ => AMD_CYCLES,
        };
        self.mocks[cpu].advance(&mut feed(&[key], Privilege::Kernel, count));
    }

    /// Lets so many events of a kind happen on a processor in user mode.
    pub(crate) fn happen(&mut self, cpu: usize, kind: usize, count: u64) {
        self.occur((cpu, kind), true, false, count);
    }

    pub(crate) fn happen_in_kernel(&mut self, cpu: usize, kind: usize, count: u64) {
        self.occur((cpu, kind), false, false, count);
    }

    pub(crate) fn happen_in_guest(&mut self, cpu: usize, kind: usize, count: u64) {
        self.occur((cpu, kind), true, true, count);
    }

    fn occur(&mut self, (cpu, kind): (usize, usize), user: bool, in_guest: bool, count: u64) {
        let (event, mask) = KINDS[kind];
        let mut keys = vec![EventKey::general(event.into(), mask)];
        if [2, 3].contains(&kind) {
            keys.push(confined(kind, if in_guest { OF_GUEST } else { OF_HOST }));
        }
        let privilege = if user { Privilege::User } else { Privilege::Kernel };
        let counts = |number: &usize| {
            let here = self.perf.place(*number).is_some_and(|(of, _)| of == cpu);
            here && self.perf.is_active(*number) && self.naive[*number].counts(kind, user, in_guest)
        };
        let active: Vec<usize> = (1..self.naive.len()).filter(counts).collect();
        let mut left = count;
        while left > 0 {
            let next = active.iter().map(|number| self.naive[*number].until_sample()).min();
            let step = left.min(next.unwrap_or(left));
            left -= step;
            let now = self.perf.shared.now();
            let all = active.iter().filter(|number| self.naive[**number].pass(step));
            let sampled: Vec<usize> = all.copied().collect();
            for number in sampled {
                let members = self.naive[number].group.clone();
                let of = |number: usize| (number, self.naive[number].count.value);
                let counts = members.into_iter().map(of).collect();
                self.naive[number].sample(counts, now);
            }
            let mut happened = feed(&keys, privilege, step);
            if in_guest {
                self.perf.run_guest(cpu, |mock| {
                    let _ = mock.pass(&mut happened);
                    happened.is_empty()
                });
            } else {
                self.mocks[cpu].advance(&mut happened);
            }
        }
    }

    /// Lends a processor's counters to a guest, which leaves them programmed. `estimates`: as in [`Perf::lend`].
    pub(crate) fn lend(&mut self, cpu: usize, estimates: bool, nanoseconds: u64) {
        let before: Vec<_> = self.naive.iter().map(|naive| naive.count).collect();
        self.pass(nanoseconds);
        let tsc = &self.perf.shared.tsc;
        tsc.set(tsc.get() - 2 * nanoseconds);
        let unit = &self.processors[cpu].unit;
        self.perf.lend(cpu, estimates, |mock, lent| {
            for (counter, registers) in
                unit.iter().filter(|(of, _)| !of.is_fixed() && lent.contains(*of))
            {
                let select = (registers.control().register().get(), 0x53_01D0);
                let value = registers.preload(1 << (30 - counter.number()));
                for (register, value) in [select, (registers.value_register().get(), value)] {
                    let _ = mock.with_pmu(|pmu| pmu.write(register, value));
                }
            }
            for control in [0x38F, 0xC000_0301] {
                let _ = mock.with_pmu(|pmu| pmu.write(control, lent.bits()));
            }
            let before = mock.accesses().total();
            let (event, mask) = KINDS[2];
            let key = EventKey::general(event.into(), mask);
            mock.advance(&mut feed(&[key], Privilege::User, 100_000));
            assert_eq!(mock.accesses().total(), before, "the host's handler");
            tsc.set(tsc.get() + 2 * nanoseconds);
        });
        // The host's events of this processor stood still.
        for (number, before) in before.into_iter().enumerate().skip(1) {
            if self.perf.place(number).is_some_and(|(of, _)| of == cpu) {
                let naive = &mut self.naive[number];
                let is_missing = estimates && naive.in_guests;
                naive.count = before;
                naive.count.enabled += if is_missing { nanoseconds } else { 0 };
            }
        }
    }

    /// Lets the timer tick on all processors.
    pub(crate) fn tick(&mut self) {
        for cpu in 0..self.perf.cpus.len() {
            let here = |number: &usize| self.perf.place(*number).is_some_and(|(of, _)| of == cpu);
            let here: Vec<_> = (1..self.naive.len()).filter(here).collect();
            self.perf.tick(cpu);
            here.into_iter().for_each(|number| self.naive[number].tick());
        }
    }

    fn sum(&self, number: usize) -> EventCount {
        let mut sum = self.naive[number].count;
        for (child, naive) in self.naive.iter().enumerate() {
            if naive.parent == Some(number) && !naive.has_ended {
                let EventCount { value, enabled, running } = self.sum(child);
                sum.value += value;
                sum.enabled += enabled;
                sum.running += running;
            }
        }
        sum
    }

    /// Compares every count, time, sample and page with its model, and the running counters with the events that are
    /// on counters.
    #[track_caller]
    pub(crate) fn check(&self, step: &str) {
        let context = format!("{:?}: {step}", self.processors);
        for (number, naive) in self.naive.iter().enumerate().skip(1) {
            let context = format!("{context}: event {number}");
            // Before the processor itself brings the event's times up to now.
            self.check_remotely(number, &context);
            if !naive.has_ended {
                assert_eq!(self.perf.read(number), self.sum(number), "{context}");
            }
            let samples = self.perf.shared.event(number).samples.borrow();
            assert_eq!(*samples, naive.samples, "{context}");
            if let Some((cpu, _)) = self.perf.place(number) {
                self.check_page(cpu, number, &context);
            }
        }
        for (cpu, mock) in self.mocks.iter().enumerate() {
            let here = self.perf.cpus[cpu].as_ref().unwrap();
            let here_is = self.processors[cpu].configuration;
            let is_intel = matches!(here_is, Configuration::Intel(_));
            let on = here.session.events().filter_map(|id| {
                let number = here.session.event_tag(id).unwrap() as usize;
                // Intel's counters of guests' events stand still in the host.
                let stands = is_intel && self.perf.shared.event(number).attr.select.exclude_host;
                match here.session.event_status(id) {
                    Ok(EventStatus::Active(counter)) if !stands => Some(counter),
                    _ => None,
                }
            });
            assert_eq!(running(mock), on.collect::<CounterSet>(), "{context}: processor {cpu}");
            assert_eq!(here.per.unknown.get(), 0, "{context}: processor {cpu}");
        }
    }

    /// Reads an event's page as a program for Linux does, and as our own reader does.
    #[track_caller]
    fn check_page(&self, cpu: usize, number: usize, context: &str) {
        let mock = self.mocks[cpu];
        let rdpmc = |index| {
            mock.set_mode(Mode { cpl: 3, pce: true, protected: true });
            let read = || mock.read_counter(CounterIndex::new(index));
            // A fault that passes is the kernel's to handle; this one is the program's own.
            let value = read().or_else(|_| read()).unwrap();
            mock.set_mode(KERNEL);
            value
        };
        let rdtsc = || self.perf.shared.tsc.get();
        let page = &self.perf.shared.event(number).page;
        let count = self.naive[number].count;
        let unit = &self.processors[cpu].unit;
        let own = &self.perf.cpus[cpu].as_ref().unwrap().own;
        let of_processor = own.iter().any(|(of, _)| *of == number);
        let is_denied = unit.can_deny_user_reads() && of_processor;
        let has_no_index = match self.perf.status(number) {
            Some(EventStatus::Active(on)) => unit.counter(on).unwrap().read_index().is_none(),
            _ => false,
        };
        if is_denied || has_no_index {
            // The program makes a system call.
            assert_eq!(page.read_with_times(rdpmc, rdtsc), None, "{context}: page");
            return assert_eq!(LinuxPage::of(page).read(rdpmc, rdtsc), None, "{context}: page");
        }
        assert_eq!(page.read_with_times(rdpmc, rdtsc), Some(count), "{context}: page");
        let Read { value, enabled, running } = LinuxPage::of(page).read(rdpmc, rdtsc).unwrap();
        // Times that are the same stand as they were published.
        if enabled != running {
            assert_eq!([enabled, running], [count.enabled, count.running], "{context}: times");
        }
        assert_eq!(value, count.value, "{context}: page");
    }

    /// Reads an event from another processor: exactly while it is on no counter, and else as far as memory tells.
    #[track_caller]
    fn check_remotely(&self, number: usize, context: &str) {
        let (naive, is_active) = (self.naive[number].count, self.perf.is_active(number));
        match self.perf.read_remotely(number) {
            Some(RemoteCount::Current(count)) if !is_active => {
                assert_eq!(count, naive, "{context}")
            }
            Some(RemoteCount::Older { count, lacks }) if is_active => {
                let lacking = naive.value.checked_sub(count.value);
                let most = lacks.unwrap_or(u64::MAX);
                assert!(lacking.is_some_and(|lacking| lacking <= most), "{context}: {count:?}");
                assert!(count.enabled <= naive.enabled && count.running <= naive.running);
            }
            None => {}
            other => panic!("{context}: {other:?}"),
        }
    }

    /// Closes all, and checks that nothing runs and nothing is left on.
    pub(crate) fn end(mut self) {
        self.check("the end");
        for cpu in 0..self.mocks.len() {
            self.perf.offline(cpu);
            assert_eq!(running(self.mocks[cpu]), CounterSet::NONE, "{:?}", self.processors);
        }
    }
}
