//! A hypervisor with one guest on real counters, which the mock plays, and a guest of the software alone.

use pmu_core::CounterSet;
use pmu_core::lending::LentCounters;
use pmu_tests::software_pmu::{self, CYCLES, INSTRUCTIONS};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, Vendor};
use pmu_virt::mediated::{GuestInterrupts, HostCounters, Loaded, MediationError, Put};
use pmu_virt::mock::{Deviations, Fault, MockMsr};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, Read, VirtualPmu, Write};

pub(crate) type Mock<'h> = MockMsr<'h, 256>;
pub(crate) const GUEST_ONLY: u64 = 1 << 40;

/// Returns hosts, each with a guest that gets its counters.
pub(crate) fn pairs() -> Vec<(Configuration, Configuration)> {
    let intel = |version, general, fixed| {
        Configuration::Intel(IntelConfiguration::new(version, general, fixed))
    };
    let amd = |counters, guest_host| {
        let mut amd = AmdConfiguration::perf_mon_v2(counters);
        amd.guest_host = guest_host;
        Configuration::Amd(amd)
    };
    vec![
        (intel(4, 4, 3), intel(4, 4, 3)),
        (intel(5, 8, 4), intel(5, 8, 4)),
        (intel(5, 8, 4), intel(4, 8, 4)),
        (intel(6, 8, 4), intel(5, 8, 4)),
        (amd(6, true), amd(6, false)),
        (amd(8, true), amd(8, false)),
    ]
}

pub(crate) fn events() -> FedEvents {
    FedEvents::new(&[CYCLES, INSTRUCTIONS]).unwrap()
}

/// Returns the host's processor; on AMD GuestOnly distinguishes a guest's events.
pub(crate) fn processor<'h>(host: Configuration) -> Mock<'h> {
    let qualified = |key: u64| EventKey::of_select(Vendor::Amd, key | GUEST_ONLY);
    let keys = match host.vendor() {
        Vendor::Intel => vec![CYCLES, INSTRUCTIONS],
        Vendor::Amd => vec![qualified(0x3C), qualified(0xC0)],
    };
    Mock::strict(VirtualPmu::new(host, FedEvents::new(&keys).unwrap()).unwrap())
}

/// Returns a feed of a guest's events on the real processor.
pub(crate) fn on(mock: &Mock<'_>, vendor: Vendor, cycles: u64, instructions: u64) -> Feed {
    mock.with_pmu(|pmu| {
        let mut feed = Feed::new(pmu.events());
        for (event, count) in [(0x3C, cycles), (0xC0, instructions)] {
            let only = if vendor == Vendor::Amd { GUEST_ONLY } else { 0 };
            let event = pmu.events().find(EventKey::of_select(vendor, event | only)).unwrap();
            feed.add(event, Privilege::Kernel, count).unwrap();
        }
        feed
    })
}

pub(crate) fn in_software(cycles: u64, instructions: u64) -> Feed {
    let mut feed = Feed::new(&events());
    for (key, count) in [(CYCLES, cycles), (INSTRUCTIONS, instructions)] {
        feed.add(events().find(key).unwrap(), Privilege::Kernel, count).unwrap();
    }
    feed
}

/// Returns the counters of a processor that CPUID describes, and that has nothing else: a guest accesses directly what
/// it may.
pub(crate) fn host_counters(host: Configuration) -> HostCounters {
    let snapshot = pmu_tests::deviations::snapshot(host, Deviations::NONE);
    let cpuid = |leaf, subleaf| {
        let found = snapshot.leaf(leaf, subleaf);
        [found.eax, found.ebx, found.ecx, found.edx]
    };
    let counters = HostCounters::from_cpuid(cpuid, 1 << 13).unwrap();
    assert!(!counters.intercepts_rdpmc());
    counters
}

/// Returns counters that no session has.
pub(crate) fn lent() -> &'static mut LentCounters {
    Box::leak(Box::new(LentCounters::unowned(CounterSet::ALL, 0)))
}

/// A hypervisor with one guest.
pub(crate) struct Machine<'h> {
    pub(crate) vendor: Vendor,
    pub(crate) mock: Mock<'h>,
    pub(crate) counters: HostCounters,
    pub(crate) guest: VirtualPmu,
    pub(crate) loaded: Option<Loaded<'static>>,
    pub(crate) cell: &'static GuestInterrupts,
    /// The hypervisor intercepts every access.
    pub(crate) intercepts_all: bool,
    /// The processor's interrupt is on its way.
    pub(crate) in_flight: bool,
    /// Number of interrupts that the guest has had.
    pub(crate) interrupts: u32,
}

pub(crate) const GLOBAL_CONTROL: u32 = 0x38F;

/// The outcome of a put: its report, or the counters that are still loaded and the reason.
pub(crate) type PutOutcome = Result<Put, (Loaded<'static>, MediationError)>;

impl Machine<'_> {
    pub(crate) fn new(host: Configuration, guest: Configuration) -> Self {
        let (mock, counters) = (processor(host), host_counters(host));
        let _ = counters.stop(&mock).unwrap();
        Self {
            vendor: host.vendor(),
            mock,
            counters,
            guest: VirtualPmu::new(guest, events()).unwrap(),
            loaded: None,
            cell: Box::leak(Box::default()),
            intercepts_all: false,
            in_flight: false,
            interrupts: 0,
        }
    }

    pub(crate) fn deliver(&mut self) {
        self.cell.deliver_to(&mut self.guest);
        if self.guest.pmi_pending() {
            self.guest.set_pmi_pending(false);
            self.interrupts += 1;
        }
    }

    /// Enters the guest.
    pub(crate) fn enter(&mut self) {
        let loaded = self.counters.load(lent(), &mut self.guest, self.cell, &self.mock);
        let loaded = loaded.unwrap();
        self.set_global_control(loaded.global_control());
        self.loaded = Some(loaded);
    }

    /// Sets the global control, as an Intel processor does at an entry and an exit.
    pub(crate) fn set_global_control(&self, value: u64) {
        if self.vendor == Vendor::Intel {
            self.mock.with_pmu(|pmu| {
                assert_eq!(pmu.write(GLOBAL_CONTROL, value).answer, Write::Done);
            });
        }
    }

    pub(crate) fn saved(&self) -> u64 {
        self.mock.with_pmu(|pmu| match pmu.read(GLOBAL_CONTROL) {
            pmu_virt::Read::Value(value) => value,
            _ => 0,
        })
    }

    /// Leaves the guest.
    pub(crate) fn leave(&mut self) {
        let Some(loaded) = self.loaded.take() else { return };
        let saved = self.saved();
        self.set_global_control(0);
        let put = self.counters.put(loaded, saved, &mut self.guest, &self.mock).unwrap();
        assert!(!put.interrupt_is_coming || self.in_flight, "it is announced and does not come");
        self.arrive();
        self.deliver();
    }

    /// Leaves the guest while accesses fault. Returns the outcome, and the global control that was saved.
    pub(crate) fn put_with(&mut self, fault: Fault) -> (PutOutcome, u64) {
        let (loaded, saved) = (self.loaded.take().unwrap(), self.saved());
        self.set_global_control(0);
        self.mock.inject(fault);
        let put = self.counters.put(loaded, saved, &mut self.guest, &self.mock);
        self.mock.inject(Fault::None);
        (put, saved)
    }

    /// Puts a guest's counters back after an attempt that failed, with nothing left of them.
    #[track_caller]
    pub(crate) fn put_again(&mut self, loaded: Loaded<'static>, saved: u64, context: &str) {
        let put = self.counters.put(loaded, saved, &mut self.guest, &self.mock).unwrap();
        assert!(!put.interrupt_is_coming, "{context}");
        assert_eq!(left_over(self), 0, "{context}");
    }

    /// Delivers the processor's interrupt, if it is on its way.
    pub(crate) fn arrive(&mut self) {
        if core::mem::take(&mut self.in_flight) {
            assert!(self.counters.interrupted(self.cell, &self.mock), "it is the guest's");
        }
    }

    /// Executes WRMSR in the guest: what is not intercepted is the processor's.
    pub(crate) fn guest_writes(&mut self, address: u32, value: u64) -> Write {
        if !self.intercepts_all && !self.counters.intercepts(&self.guest, address) {
            return self.mock.with_pmu(|pmu| pmu.write(address, value).answer);
        }
        let loaded = self.loaded.as_mut().unwrap();
        let written = self.counters.write(loaded, &mut self.guest, address, value, &self.mock);
        if [0x38F].contains(&address) && written == Ok(Write::Done) {
            // The guest's field of the VMCS.
            let control = loaded.global_control();
            self.set_global_control(control);
        }
        written.unwrap()
    }

    /// Executes RDMSR in the guest.
    pub(crate) fn guest_reads(&self, address: u32) -> Read {
        if !self.intercepts_all && !self.counters.intercepts(&self.guest, address) {
            return self.mock.with_pmu(|pmu| pmu.read(address));
        }
        let loaded = self.loaded.as_ref().unwrap();
        self.counters.read(loaded, &self.guest, address, &self.mock).unwrap()
    }

    /// Executes RDPMC in the guest.
    pub(crate) fn guest_reads_pmc(&self, ecx: u32) -> Read {
        let mode = pmu_virt::Mode::KERNEL;
        if !self.intercepts_all && !self.counters.intercepts_rdpmc() {
            return self.mock.with_pmu(|pmu| pmu.read_counter(ecx, mode));
        }
        let loaded = self.loaded.as_ref().unwrap();
        self.counters.read_counter(loaded, &self.guest, ecx, mode, &self.mock).unwrap()
    }

    /// Lets events happen, and perhaps the processor's interrupt, at once or later.
    pub(crate) fn happen(&mut self, cycles: u64, instructions: u64, at_once: bool) {
        let mut feed = on(&self.mock, self.vendor, cycles, instructions);
        while !feed.is_empty() {
            if self.mock.pass(&mut feed).pmi {
                self.mock.with_pmu(VirtualPmu::init);
                // One that is on its way already is one with this.
                self.in_flight = true;
                if at_once || !feed.is_empty() {
                    self.arrive();
                    self.deliver();
                }
            }
        }
    }
}

/// Returns a guest with two counters that are near an overflow, about to be entered.
pub(crate) fn busy(host: Configuration, given: Configuration) -> Machine<'static> {
    let mut machine = Machine::new(host, given);
    let (select, value) =
        if machine.vendor == Vendor::Intel { (0x186, 0x4C1) } else { (0xC001_0200, 0xC001_0201) };
    let stride = if machine.vendor == Vendor::Intel { 1 } else { 2 };
    for (n, (bits, left)) in [(0x53_003C, 100), (0x53_00C0, 1_000_000)].into_iter().enumerate() {
        let n = stride * n as u32;
        assert_eq!(machine.guest.write(select + n, bits).answer, Write::Done);
        let value = machine.guest.write(value + n, (1 << 48) - left);
        assert_eq!(value.answer, Write::Done);
    }
    machine
}

/// Selects, fixed control and values of the real counters that a guest had.
pub(crate) fn left_over(machine: &Machine<'_>) -> u64 {
    let registers: Vec<u32> = match machine.vendor {
        Vendor::Intel => {
            (0x186..0x18A).chain(0x4C1..0x4C5).chain(0x309..0x30C).chain([0x38D, 0x38E]).collect()
        }
        Vendor::Amd => (0xC001_0200..0xC001_020C).chain([0xC000_0300, 0xC000_0301]).collect(),
    };
    let enabled = |register: u32, value: u64| match register {
        // A select that is not enabled counts nothing.
        0x186..0x18E => value & 1 << 22,
        0xC001_0200..0xC001_0210 if register & 1 == 0 => value & 1 << 22,
        _ => value,
    };
    machine.mock.with_pmu(|pmu| {
        registers
            .iter()
            .fold(0, |all, register| all | enabled(*register, software_pmu::get(pmu, *register)))
    })
}
