//! Deviations of real platforms, as the mock of `pmu-virt` plays them for drivers: here for a guest that looks for one.

use core::fmt;
use core::str::FromStr;

use pmu_virt::configuration::{Configuration, Vendor};
use pmu_virt::mock::{Deviation, Deviations};
use pmu_virt::{Delivery, PerformanceEntry, PmiOutcome, Read, VirtualPmu};

const MASKED: u32 = 1 << 16;
/// Registers of both vendors, or of one: SDM vol. 4, table 2-2; APM vol. 2, "Performance Monitoring Counter MSRs".
const MISC_ENABLE: u32 = 0x1A0;
const PEBS_UNAVAILABLE: u64 = 1 << 12;
const PEBS_ENABLE: u32 = 0x3F1;
const DEBUG_CONTROL: u32 = 0x1D9;
const FREEZE: u64 = 1 << 12;
const FROZEN: u64 = 1 << 59;
const STATUS: [u32; 2] = [0x38E, 0xC000_0300];
const ACKNOWLEDGE: [u32; 2] = [0x390, 0xC000_0302];
/// The second general counter at each of its addresses.
const SECOND: [u32; 4] = [0xC2, 0x4C2, 0xC001_0005, 0xC001_0203];
/// The bits of general counters in the status.
const GENERAL: u64 = 0xFF;

/// A deviation that a guest can observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Observable(Deviation);

/// The reason for which a name is none of an [`Observable`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotObservable {
    Unknown,
    Hidden(&'static str),
}

impl core::error::Error for NotObservable {}

impl fmt::Display for NotObservable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("no deviation; there are")?;
                Deviation::ALL
                    .into_iter()
                    .filter(|one| hidden(*one).is_none())
                    .try_for_each(|one| write!(f, " {}", one.name()))
            }
            Self::Hidden(why) => write!(f, "a guest cannot observe it: {why}"),
        }
    }
}

/// The reason for which a guest cannot observe a deviation here.
fn hidden(deviation: Deviation) -> Option<&'static str> {
    match deviation {
        Deviation::OverflowsWhileServiced => {
            Some("counters run while an interrupt is serviced on every machine here")
        }
        Deviation::NestsInterrupts => Some("KVM blocks NMIs until an IRET, as the processor does"),
        Deviation::ServicesLate => {
            Some("every interrupt comes as late as the host lets the monitor run")
        }
        Deviation::AcknowledgesWhileEnabled => {
            Some("it is Zhaoxin's, and the monitor has no such processor")
        }
        Deviation::NeverFreezesBranches
        | Deviation::BranchesLostInDeepSleep
        | Deviation::ErroneousBranches => Some("the branch records are as in the manuals here"),
        Deviation::LateIbs => Some("a sampled op interrupts at once here"),
        _ => None,
    }
}

impl FromStr for Observable {
    type Err = NotObservable;

    fn from_str(text: &str) -> Result<Self, NotObservable> {
        let found = Deviation::ALL.into_iter().find(|one| one.name() == text);
        let deviation = found.ok_or(NotObservable::Unknown)?;
        hidden(deviation).map_or(Ok(Self(deviation)), |why| Err(NotObservable::Hidden(why)))
    }
}

impl Observable {
    /// Returns the platform with the deviation.
    pub(crate) fn platform(self) -> Deviations {
        Deviations::of(&[self.0])
    }

    /// Returns the PMU of a processor, where the boot processor's is `configuration`.
    pub(crate) fn configuration(self, configuration: Configuration, number: u8) -> Configuration {
        if number == 0 { configuration } else { self.platform().configuration(configuration) }
    }
}

/// A processor's part of a deviation.
pub(crate) struct Deviating {
    deviation: Option<Deviation>,
    vendor: Vendor,
    /// `IA32_PEBS_ENABLE`, and the freeze bit where it has no effect.
    precise: u64,
    freezes: u64,
    /// The status' bit of frozen counters, until it is acknowledged.
    frozen: u64,
    /// The LVT entry was masked when it was last looked at.
    was_masked: bool,
}

impl Deviating {
    /// Prepares a processor that was created: what firmware has left is there.
    pub(crate) fn new(observable: Option<Observable>, pmu: &mut VirtualPmu) -> Self {
        let vendor = pmu.vendor();
        let deviation = observable.map(|observable| observable.0);
        let (intel, width) = (vendor == Vendor::Intel, 48);
        let place = usize::from(!intel);
        let mut frozen = 0;
        let has_status = pmu.read(STATUS[place]) == Read::Value(0);
        match deviation {
            Some(Deviation::LeftRunning) => {
                // Cycles, at every privilege level, interrupting.
                let (select, counter, event) =
                    if intel { (0x186, 0xC1, 0x3C) } else { (0xC001_0000, 0xC001_0004, 0x76) };
                let _ = pmu.host_write(counter, (1 << width) - (1 << 20));
                let _ = pmu.host_write(select, 0x53_0000 | event);
                let _ = pmu.host_write(if intel { 0x38F } else { 0xC000_0301 }, 1);
            }
            Some(Deviation::LeftOverflowed) if has_status => {
                let _ = pmu.host_write(STATUS[place], 1);
            }
            Some(Deviation::LeftFrozen) if has_status => {
                // A model that does not freeze does not keep the bit of the status.
                frozen = if intel { 0 } else { FROZEN };
                if intel {
                    let _ = pmu.host_write(DEBUG_CONTROL, FREEZE);
                }
            }
            _ => {}
        }
        let precise = if deviation == Some(Deviation::LeftPrecise) && intel { 0xFF } else { 0 };
        Self { deviation, vendor, precise, freezes: 0, frozen, was_masked: true }
    }

    fn is(&self, deviation: Deviation) -> bool {
        self.deviation == Some(deviation)
    }

    fn has_precise(&self) -> bool {
        self.is(Deviation::LeftPrecise) && self.vendor == Vendor::Intel
    }

    /// Returns the guest's answer to RDMSR, where the processor without deviation would give this one.
    pub(crate) fn read(&self, address: u32, value: Option<u64>) -> Option<u64> {
        match address {
            PEBS_ENABLE if self.has_precise() => Some(self.precise),
            MISC_ENABLE if self.has_precise() => value.map(|value| value & !PEBS_UNAVAILABLE),
            DEBUG_CONTROL => value.map(|value| value | self.freezes),
            _ if STATUS.contains(&address) => value.map(|value| value | self.frozen),
            _ if self.is(Deviation::DeadCounter) && SECOND.contains(&address) => value.map(|_| 0),
            _ => value,
        }
    }

    /// Returns the guest's answer to WRMSR, where it is another than that of the processor without deviation: `None`:
    /// #GP. Otherwise changes the value to one to be written.
    pub(crate) fn write(&mut self, address: u32, value: &mut u64) -> Option<Option<()>> {
        match address {
            PEBS_ENABLE if self.has_precise() => {
                self.precise = *value;
                Some(Some(()))
            }
            DEBUG_CONTROL if self.is(Deviation::IgnoresDebugControl) => Some(Some(())),
            DEBUG_CONTROL if self.is(Deviation::NarrowAcknowledge) => {
                // It is kept, and nothing ever freezes.
                self.freezes = *value & FREEZE;
                *value &= !FREEZE;
                None
            }
            _ if self.is(Deviation::NarrowAcknowledge) && ACKNOWLEDGE.contains(&address) => {
                (*value & FROZEN != 0).then_some(None)
            }
            _ if ACKNOWLEDGE.contains(&address) => {
                self.frozen &= !*value;
                None
            }
            _ if self.is(Deviation::DeadCounter) && SECOND.contains(&address) => Some(Some(())),
            _ => None,
        }
    }

    /// Performs INIT.
    pub(crate) fn init(&self, pmu: &mut VirtualPmu) {
        if self.is(Deviation::LosesRegisters) { pmu.reset() } else { pmu.init() }
    }

    /// Returns whether the LVT entry is to be looked at from time to time.
    pub(crate) fn looks(&self) -> bool {
        self.is(Deviation::RaisesOnUnmask) && self.vendor == Vendor::Intel
    }

    /// Looks at the LVT entry, and raises the interrupt of a status that was there when the guest unmasked the entry.
    pub(crate) fn look(&mut self, pmu: &mut VirtualPmu, entry: &impl PerformanceEntry) {
        let is_masked = entry.entry() & MASKED != 0;
        let was_masked = core::mem::replace(&mut self.was_masked, is_masked);
        if was_masked && !is_masked && overflows(pmu, self.vendor) != 0 {
            pmu.set_pmi_pending(true);
        }
    }

    /// Delivers what is beside a PMI that was delivered: a mask, or a second interrupt.
    pub(crate) fn delivered(
        &self,
        outcome: PmiOutcome,
        pmu: &mut VirtualPmu,
        entry: &mut impl PerformanceEntry,
    ) {
        let PmiOutcome::Raised(delivery) = outcome else { return };
        if self.is(Deviation::MasksOnDelivery) {
            let masked = entry.entry() | MASKED;
            entry.set_entry(masked);
        }
        let several = overflows(pmu, self.vendor).count_ones() > 1;
        if self.is(Deviation::LatchesSecondInterrupt)
            && several
            && delivery == Delivery::NonMaskable
        {
            entry.raise(delivery);
        }
    }
}

/// Returns the general counters that have overflowed, by the status.
fn overflows(pmu: &mut VirtualPmu, vendor: Vendor) -> u64 {
    match pmu.read(STATUS[usize::from(vendor == Vendor::Amd)]) {
        Read::Value(status) => status & GENERAL,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deviation_is_one_to_play_or_has_the_reason_why_not() {
        let mut played = 0;
        for deviation in Deviation::ALL {
            match deviation.name().parse::<Observable>() {
                Ok(observable) => {
                    assert_eq!(observable.0, deviation);
                    played += 1;
                }
                Err(NotObservable::Hidden(why)) => assert!(!why.is_empty()),
                Err(NotObservable::Unknown) => panic!("{}", deviation.name()),
            }
        }
        assert_eq!(played, 16);
        assert_eq!("dead".parse::<Observable>(), Err(NotObservable::Unknown));
    }
}
