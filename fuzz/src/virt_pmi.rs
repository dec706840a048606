//! The interrupt through whatever the guest has in the LVT entry (LVTPC).
//!
//! The bytes: the vendor; then turns, each the guest's entry if it writes one, and whether a counter
//! overflows before the interrupt is delivered.

use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::{
    Delivery, EventKey, FedEvents, Feed, PerformanceEntry, PmiOutcome, Privilege, VirtualPmu, Write,
};

use crate::input::Input;

/// A local APIC that remembers.
#[derive(Default)]
struct Apic {
    entry: u32,
    set: Vec<u32>,
    raised: Vec<Delivery>,
}

impl PerformanceEntry for Apic {
    fn entry(&self) -> u32 {
        self.entry
    }

    fn set_entry(&mut self, entry: u32) {
        assert!(!self.raised.is_empty(), "the entry is masked after the interrupt is raised");
        self.set.push(entry);
        self.entry = entry;
    }

    fn raise(&mut self, delivery: Delivery) {
        assert!(self.set.is_empty());
        self.raised.push(delivery);
    }
}

/// A PMU whose first counter interrupts at each event.
fn pmu(intel: bool, events: FedEvents) -> VirtualPmu {
    let (configuration, writes) = if intel {
        let configuration = Configuration::Intel(IntelConfiguration::new(2, 1, 0));
        (configuration, [(0x186, 0x51_003C), (0x38F, 1), (0x4C1, 0xFFFF_FFFF_FFFF)])
    } else {
        let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(4));
        let counter = (0xC001_0201, 0xFFFF_FFFF_FFFF);
        (configuration, [(0xC001_0200, 0x51_003C), (0xC000_0301, 1), counter])
    };
    let mut pmu = VirtualPmu::new(configuration, events).unwrap();
    for (address, value) in writes {
        assert_eq!(pmu.write(address, value).answer, Write::Done);
    }
    pmu
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let key = EventKey::general(0x3C, 0);
    let events = FedEvents::new(&[key]).unwrap();
    let intel = input.bool();
    let counter = if intel { 0x4C1 } else { 0xC001_0201 };
    let mut pmu = pmu(intel, events);
    let mut apic = Apic::default();
    while !input.is_empty() {
        let turn = input.u8();
        if turn & 1 != 0 {
            apic.entry = input.u32();
        }
        let overflows = turn & 2 != 0;
        if overflows {
            assert_eq!(pmu.write(counter, 0xFFFF_FFFF_FFFF).answer, Write::Done);
            let mut feed = Feed::new(&events);
            feed.add(events.find(key).unwrap(), Privilege::User, 1).unwrap();
            assert!(pmu.advance(&mut feed).unwrap().pmi);
        }
        assert_eq!(pmu.pmi_pending(), overflows);
        let before = apic.entry;
        (apic.set, apic.raised) = (Vec::new(), Vec::new());
        let outcome = pmu.deliver_pmi(&mut apic);
        // SDM vol. 3A, "Local Vector Table": 7:0 vector, 10:8 delivery mode (0 fixed, 4 NMI), 16 mask.
        let expected = match (overflows, before >> 16 & 1, before >> 8 & 7) {
            (false, ..) => PmiOutcome::NotPending,
            (true, 1, _) => PmiOutcome::Masked,
            (true, _, 0) => PmiOutcome::Raised(Delivery::Fixed((before & 0xFF) as u8)),
            (true, _, 4) => PmiOutcome::Raised(Delivery::NonMaskable),
            (true, _, mode) => PmiOutcome::Raised(Delivery::Other(mode as u8)),
        };
        assert_eq!(outcome, expected, "{before:#010X}");
        let raised = match expected {
            PmiOutcome::Raised(delivery) => vec![delivery],
            _ => vec![],
        };
        let masked = intel && !raised.is_empty();
        assert_eq!(apic.raised, raised);
        // Delivery sets Intel's mask bit, and no other of the guest's.
        assert_eq!(apic.entry, if masked { before | 1 << 16 } else { before });
        assert!(!pmu.pmi_pending(), "an interrupt is delivered or lost, once");
        assert_eq!(pmu.deliver_pmi(&mut apic), PmiOutcome::NotPending);
    }
}
