//! A guest whose counters write records.

use crate::naive_precise::memory::{RAM, Ram};
use pmu_core::access::RegisterAddress;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::precise::{FedRecord, PreciseConfiguration, Recorded, VirtualPrecise};
use pmu_virt::{Advanced, EventKey, FedEvents, Feed, Privilege, Read, VirtualPmu, Write};

pub(super) const BRANCHES: EventKey = EventKey::general(0xC4, 0);
pub(super) const FULL: u64 = 1 << 48;
/// The guest's area, and its buffer.
pub(super) const AREA: u64 = RAM;
pub(super) const BUFFER: u64 = RAM + 0x1000;

pub(super) fn intel(version: u8) -> Configuration {
    Configuration::Intel(IntelConfiguration::new(version, 4, 3))
}

pub(super) fn msr(address: u32) -> RegisterAddress {
    // SAFETY: the mock's registers are numbers.
    unsafe { RegisterAddress::new(address) }
}

/// A processor that counts branches, with precise records, and memory for them.
pub(super) struct Guest {
    pub(super) pmu: VirtualPmu,
    pub(super) precise: VirtualPrecise,
    pub(super) ram: Ram,
    pub(super) events: FedEvents,
}

impl Guest {
    pub(super) fn new(pmu: Configuration, precise: PreciseConfiguration) -> Self {
        let events = FedEvents::new(&[BRANCHES]).unwrap();
        Self {
            pmu: VirtualPmu::new(pmu, events).unwrap(),
            precise: VirtualPrecise::new(&pmu, precise).unwrap(),
            ram: Ram::new(),
            events,
        }
    }

    pub(super) fn write(&mut self, address: u32, value: u64) {
        let written = self.pmu.write_beside(&mut self.precise, address, value);
        assert_eq!(written.illegal, 0, "{address:#X}");
        assert!(!matches!(written.answer, Write::GeneralProtection), "{address:#X}");
    }

    pub(super) fn read(&self, address: u32) -> u64 {
        match self.pmu.read_beside(&self.precise, address) {
            Read::Value(value) | Read::Shared { value, .. } => value,
            other => panic!("{address:#X}: {other:?}"),
        }
    }

    /// Describes a buffer of `size` bytes, with an interrupt from `threshold` bytes on.
    pub(super) fn buffer(&mut self, size: u64, threshold: u64) {
        let words = [BUFFER, BUFFER, BUFFER + size, BUFFER + threshold];
        for (number, word) in (4..).zip(words) {
            self.ram.put(AREA + 8 * number, word);
        }
        self.write(0x600, AREA);
    }

    /// Enables counter 0 with branches, `period` before its overflow.
    pub(super) fn sample(&mut self, period: u64) {
        self.ram.put(AREA + 0x40, period.wrapping_neg());
        self.write(0x3F1, 1);
        self.write(0x4C1, FULL - period);
        self.write(0x186, 0x43_00C4);
    }

    pub(super) fn feed(&mut self, count: u64) -> (Feed, Advanced) {
        let mut feed = Feed::new(&self.events);
        let branches = self.events.find(BRANCHES).unwrap();
        feed.add(branches, Privilege::User, count).unwrap();
        let advanced = self.pmu.advance_beside(&mut self.precise, &mut feed).unwrap();
        (feed, advanced)
    }

    pub(super) fn record(&mut self, fed: &FedRecord<'_>) -> Recorded {
        self.precise.record(&mut self.pmu, u64::MAX, fed, &mut self.ram)
    }
}
