//! A machine as the tools speak of it: its processor, the profile interface chosen for it, and the
//! interface's sources.

use pmu_amd::{Amd64, Generation};
use pmu_core::EventSource;
use pmu_core::error::NoInterface;
use pmu_core::profile::{
    DefaultInterface, InterfaceError, KProfileSource, ProfileSource, SourceInformation,
};
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdReader;
use pmu_intel::Emon;

use crate::untrusted::visible;

/// A processor, and what Windows' rule makes of it.
pub struct Machine {
    processor: String,
    interface: Box<dyn Interface>,
    absent: Option<NoInterface>,
    /// The vendor's sources, where the interface is not the vendor's: named, and not supported.
    foregone: Vec<Source>,
    /// The meaning of an AMD processor's events.
    generation: Option<Generation>,
}

impl Machine {
    /// The machine whose boot processor answers CPUID through `reader`.
    pub fn new(reader: impl CpuIdReader) -> Self {
        let snapshot = Snapshot::capture(reader);
        let processor = visible(&name_of(&snapshot)).into_owned();
        let generation = Generation::of(&snapshot);
        let claimed: Result<Box<dyn Interface>, NoInterface> = match Emon::detect(&snapshot) {
            Ok(emon) => Ok(Box::new(emon)),
            Err(not_intel) => match Amd64::detect(&snapshot) {
                Ok(amd64) => Ok(Box::new(amd64)),
                Err(not_amd) => Err(not_intel.or(not_amd)),
            },
        };
        match claimed {
            Ok(interface) => {
                Self { processor, interface, absent: None, foregone: Vec::new(), generation }
            }
            Err(reason) => Self {
                processor,
                interface: Box::new(DefaultInterface::new()),
                absent: Some(reason),
                foregone: foregone(&snapshot.vendor()),
                generation,
            },
        }
    }

    /// The machine that executes the call; `None` where there is no CPUID.
    pub fn this() -> Option<Self> {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        {
            Some(Self::new(pmu_core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative))
        }
        #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
        {
            None
        }
    }

    /// A machine of which nothing is known but that it has this interface, with every source.
    pub fn with_interface(interface: impl Interface + 'static) -> Self {
        Self {
            processor: "(any that has the interface)".into(),
            interface: Box::new(interface),
            absent: None,
            foregone: Vec::new(),
            generation: None,
        }
    }

    /// The same machine as if it had Intel's counters, in software. (Of AMD's sources none counts what
    /// could be told.)
    pub fn in_software(self) -> Self {
        Self { processor: self.processor, ..Self::with_interface(Emon::declared()) }
    }

    /// The processor's name, as it gives it itself.
    pub fn processor(&self) -> &str {
        &self.processor
    }

    /// The profile interface in use.
    pub fn interface(&self) -> &dyn Interface {
        &*self.interface
    }

    /// The reason for which only the default interface is in use, if so.
    pub fn absent(&self) -> Option<NoInterface> {
        self.absent
    }

    /// The generation of an AMD processor, by which its sources mean what they say or do not.
    pub fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// The interface's name, or the reason why there is none.
    pub fn describe_interface(&self) -> String {
        match self.absent {
            None => self.interface.name().into(),
            Some(reason) => format!("none, {reason}; only time profiles"),
        }
    }

    /// Every source that the machine has a name for, ascending by number.
    pub fn sources(&self) -> Vec<Source> {
        if self.foregone.is_empty() { self.interface.sources() } else { self.foregone.clone() }
    }

    /// The source of this number (decimal, or hexadecimal after `0x`) or name (documented or
    /// Windows' own), letters in either case.
    ///
    /// # Errors
    /// There is none, or it is not supported.
    pub fn find(&self, wanted: &str) -> Result<Source, FindError> {
        let source = self.named(wanted)?;
        if source.information.is_supported() {
            Ok(source)
        } else {
            Err(FindError::Unsupported(source.name, self.absent))
        }
    }

    /// As [`find`](Self::find), where the source need not be supported.
    ///
    /// # Errors
    /// There is none.
    pub fn named(&self, wanted: &str) -> Result<Source, FindError> {
        let number = match wanted.strip_prefix("0x").or_else(|| wanted.strip_prefix("0X")) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => wanted.parse().ok(),
        };
        self.sources()
            .into_iter()
            .find(|source| match number {
                Some(number) => source.id.value() == number,
                None => [source.name, source.windows_name]
                    .iter()
                    .any(|name| name.eq_ignore_ascii_case(wanted)),
            })
            .ok_or_else(|| FindError::Unknown(wanted.into()))
    }

    /// Returns the vendor's interface that has a source of this number or name, if it is not the one in use.
    pub fn elsewhere(&self, wanted: &str) -> Option<&'static str> {
        let others =
            [Self::with_interface(Emon::declared()), Self::with_interface(Amd64::declared())];
        let has_it = |other: &&Self| {
            other.interface.name() != self.interface.name() && other.named(wanted).is_ok()
        };
        others.iter().find(has_it).map(|other| other.interface.name())
    }
}

/// The brand string, or what is in its place.
fn name_of(snapshot: &Snapshot) -> String {
    let brand = snapshot.cpuid().get_processor_brand_string();
    match brand.as_ref().map(|brand| brand.as_str().trim()) {
        Some(brand) if !brand.is_empty() => brand.into(),
        _ => format!(
            "{}, family {} model {} stepping {}",
            snapshot.vendor().escape_ascii(),
            snapshot.family(),
            snapshot.model(),
            snapshot.stepping()
        ),
    }
}

/// The offer of a vendor's interface, all of it but time not supported.
fn foregone(vendor: &[u8; 12]) -> Vec<Source> {
    let none = DefaultInterface::new();
    match vendor {
        b"GenuineIntel" => sources(&pmu_intel::SOURCES, |source| none.query(source)),
        b"AuthenticAMD" => sources(&pmu_amd::SOURCES, |source| none.query(source)),
        _ => Vec::new(),
    }
}

fn sources(
    table: &[ProfileSource],
    query: impl Fn(KProfileSource) -> SourceInformation,
) -> Vec<Source> {
    let row = |row: &ProfileSource| Source {
        id: row.source(),
        name: row.name(),
        windows_name: row.windows_name(),
        select: row.select().select_bits(),
        event: row.select().event_number(),
        unit_mask: row.select().event_unit_mask(),
        raw: raw(row.select().event_number(), row.select().event_unit_mask()),
        information: query(row.source()),
    };
    table.iter().map(row).collect()
}

fn raw(event: u16, unit_mask: u8) -> u64 {
    let (event, unit_mask) = (u64::from(event), u64::from(unit_mask));
    event & 0xFF | unit_mask << 8 | (event >> 8) << 32
}

/// A row of an interface's table, and what is known of it on a machine.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The number that selects it.
    pub id: KProfileSource,
    /// The documented name.
    pub name: &'static str,
    /// The name that Windows' own tools show.
    pub windows_name: &'static str,
    /// The event-select register's value for it.
    pub select: u64,
    /// The event's number in that.
    pub event: u16,
    /// The unit mask in that.
    pub unit_mask: u8,
    /// The raw configuration for perf: event and unit mask where the select has them.
    pub raw: u64,
    /// Its interval, and whether it is supported.
    pub information: SourceInformation,
}

/// A profile interface, whichever.
pub trait Interface {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Its table.
    fn sources(&self) -> Vec<Source>;

    /// Sets the interval of a source.
    ///
    /// # Errors
    /// The interval is outside the limits, which the error carries, or the source is not supported.
    fn set_interval_of(&self, source: KProfileSource, units: u64) -> Result<u32, InterfaceError>;
}

impl<I: EventSource> Interface for I {
    fn name(&self) -> &'static str {
        pmu_core::EventSource::name(self)
    }

    fn sources(&self) -> Vec<Source> {
        sources(EventSource::sources(self), |source| self.query(source))
    }

    fn set_interval_of(&self, source: KProfileSource, units: u64) -> Result<u32, InterfaceError> {
        self.set_interval(source, units).map(|interval| interval.get())
    }
}

/// The reason that makes a source unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindError {
    /// No source has this number or name.
    Unknown(String),
    /// The source of this name is not supported, for want of an interface or of its event.
    Unsupported(&'static str, Option<NoInterface>),
}

impl core::fmt::Display for FindError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unknown(wanted) => {
                write!(f, "no profile source \"{wanted}\"")
            }
            Self::Unsupported(name, Some(reason)) => write!(f, "{name} is not supported: {reason}"),
            Self::Unsupported(name, None) => {
                write!(f, "{name} is not supported: the processor declares its event unavailable")
            }
        }
    }
}

impl core::error::Error for FindError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_found_by_either_name_and_by_number_in_either_base() {
        let machine = Machine::with_interface(Emon::declared());
        for wanted in
            ["ProfileLLCMisses", "LLCMisses", "llcmisses", "PROFILELLCMISSES", "29", "0x1D", "0X1d"]
        {
            assert_eq!(machine.find(wanted).unwrap().id.value(), 0x1D, "{wanted}");
        }
        for wanted in ["24", "0x18", "", "0x", "-1", "99999999999"] {
            let unknown = FindError::Unknown(wanted.into());
            assert_eq!(machine.find(wanted).unwrap_err(), unknown, "{wanted}");
        }
    }

    #[test]
    fn without_an_interface_only_time_is_found_and_the_rest_says_why_not() {
        let intel_without_counters = |leaf: u32, _: u32| {
            let vendor = [(1, 0x756E_6547, 0x6C65_746E, 0x4965_6E69), (0, 0, 0, 0)];
            let (eax, ebx, ecx, edx) = vendor[usize::from(leaf != 0)];
            pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
        };
        let machine = Machine::new(intel_without_counters);
        assert_eq!(machine.absent(), Some(NoInterface::NoPerformanceMonitoring));
        assert_eq!(machine.find("Timer").unwrap().id, KProfileSource::TIME);
        let reason = machine.absent();
        let unsupported = FindError::Unsupported("ProfileTotalCycles", reason);
        assert_eq!(machine.find("TotalCycles").unwrap_err(), unsupported);
        let interface = machine.interface();
        assert!(interface.set_interval_of(KProfileSource::TOTAL_CYCLES, 0x1_0000).is_err());
    }
}
