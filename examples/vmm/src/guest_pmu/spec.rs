//! `--pmu SPEC`: the guest's PMU.

use core::fmt;
use core::num::ParseIntError;

use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative;
use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
use pmu_virt::configuration::{
    AmdConfiguration, AmdCounters, Configuration, ConfigurationError, IntelConfiguration,
    IntelFeature, Vendor,
};
use pmu_virt::ibs::{IbsConfiguration, VirtualIbs};
use pmu_virt::mock::Deviations;
use pmu_virt::precise::{PreciseConfiguration, VirtualPrecise};
use pmu_virt::topdown::VirtualTopDown;

use crate::guest_pmu::deviating::Observable;
use crate::guest_pmu::facilities::{Facilities, Precise};

/// Reason why a SPEC names no PMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpecError {
    /// Neither `none`, `intel` nor `amd`.
    Vendor(String),
    /// Not one of AMD's three.
    AmdKind(String),
    /// No such key for this PMU.
    Key(String),
    /// The key needs a value.
    NoValue(&'static str),
    /// The key takes no value.
    Flag(&'static str),
    /// The value is not a number of 8 bits.
    Value { key: &'static str, value: String, error: ParseIntError },
    /// More than eight counters.
    Counters { key: &'static str, count: u8 },
    /// The parts contradict each other.
    Impossible(ConfigurationError),
    /// The PMU cannot have branch records.
    Branches(ConfigurationError),
    /// The PMU cannot have precise records.
    Precise(ConfigurationError),
    /// The PMU cannot have top-down metrics.
    TopDown(ConfigurationError),
    /// The processor has no instruction-based sampling.
    Sampling,
}

/// The guest's PMU, and what it has beside its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestPmu {
    pub(crate) counters: Configuration,
    pub(crate) branches: Option<BranchConfiguration>,
    pub(crate) precise: Option<PreciseConfiguration>,
    pub(crate) sampling: Option<IbsConfiguration>,
    /// The PMU has top-down metrics.
    pub(crate) top_down: bool,
}

/// Top-down metrics are those of Ice Lake, of level 1 alone.
const LEVEL_2: bool = false;

impl GuestPmu {
    /// Returns what a processor after reset has beside counters of this configuration.
    pub(crate) fn facilities(
        &self,
        counters: &Configuration,
        deviation: Option<Observable>,
    ) -> Facilities {
        let branches =
            self.branches.and_then(|branches| VirtualBranches::new(counters, branches).ok());
        let records = self.precise.and_then(|records| VirtualPrecise::new(counters, records).ok());
        let platform = deviation.map_or(Deviations::NONE, Observable::platform);
        let precise = records.map(|records| Precise::new(records, platform));
        let top_down = self.top_down.then(|| VirtualTopDown::new(counters, LEVEL_2).ok()).flatten();
        ((branches, precise), (self.sampling.map(VirtualIbs::new), top_down))
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vendor(vendor) => write!(f, "`{vendor}` is not none, intel or amd"),
            Self::AmdKind(kind) => write!(f, "`{kind}` is not legacy, core or v2"),
            Self::Key(key) => write!(f, "no key `{key}` here"),
            Self::NoValue(key) => write!(f, "`{key}` needs a value"),
            Self::Flag(key) => write!(f, "`{key}` takes no value"),
            Self::Value { key, value, error } => write!(f, "{key}={value}: {error}"),
            Self::Counters { key, count } => write!(f, "{key}={count}: at most 8 counters"),
            Self::Impossible(error) => write!(f, "there is no such PMU: {error}"),
            Self::Branches(error) => write!(f, "lbr: {error}"),
            Self::Precise(error) => write!(f, "pebs: {error}"),
            Self::TopDown(error) => write!(f, "topdown: {error}"),
            Self::Sampling => f.write_str("ibs: only Zen 4's, with amd:v2"),
        }
    }
}

impl core::error::Error for SpecError {}

/// Returns the PMU that `spec` names.
pub(crate) fn parse(spec: &str) -> Result<GuestPmu, SpecError> {
    let (vendor, keys) = spec.split_once(':').unwrap_or((spec, ""));
    let has = |name: &str| keys.split(',').any(|key| key == name);
    let (lbr, top_down) = (has("lbr"), has("topdown"));
    let valued = |name: &str| keys.split(',').map(split).find(|(key, _)| *key == name);
    let (pebs, ibs) = (valued("pebs"), valued("ibs"));
    let mut keys = keys.split(',').filter(|key| {
        !["", "lbr", "topdown"].contains(key) && !["pebs", "ibs"].contains(&split(key).0)
    });
    let mut counters = match vendor {
        "none" => Configuration::hidden(hidden(keys)?),
        "intel" => intel(keys)?,
        "amd" => amd(keys.next().unwrap_or_default(), keys)?,
        _ => return Err(SpecError::Vendor(vendor.into())),
    };
    counters.check().map_err(SpecError::Impossible)?;
    let branches = lbr.then(|| branches(&counters));
    if let Some(branches) = branches {
        VirtualBranches::new(&counters, branches).map_err(SpecError::Branches)?;
    }
    let sampling = ibs.map(|(_, value)| sampling(&counters, value)).transpose()?;
    let precise = pebs.map(|(_, value)| precise(value)).transpose()?;
    if let Some(precise) = precise {
        VirtualPrecise::new(&counters, precise).map_err(SpecError::Precise)?;
    }
    if top_down {
        if let Configuration::Intel(pmu) = counters {
            // CPUID declares the event of the slots.
            counters = Configuration::Intel(pmu.with(|intel| intel.events |= 1 << 7));
        }
        VirtualTopDown::new(&counters, LEVEL_2).map_err(SpecError::TopDown)?;
    }
    Ok(GuestPmu { counters, branches, precise, sampling, top_down })
}

/// Returns the precise records of this format, Ice Lake's if there is no value, and the branch trace store; or
/// architectural ones.
fn precise(format: Option<&str>) -> Result<PreciseConfiguration, SpecError> {
    let format = match format {
        Some("architectural") => return Ok(PreciseConfiguration::ARCHITECTURAL),
        Some(_) => number("pebs", format)?,
        None => 4,
    };
    Ok(PreciseConfiguration { branch_trace: true, ..PreciseConfiguration::debug_store(format) })
}

/// Returns the instruction-based sampling of a processor with these counters: Zen 4's if there is no value, Zen 5's, or
/// that of Zen 4 with the erratum of families 16h to 18h.
fn sampling(counters: &Configuration, value: Option<&str>) -> Result<IbsConfiguration, SpecError> {
    let Configuration::Amd(AmdConfiguration { counters: AmdCounters::PerfMonV2 { .. }, .. }) =
        counters
    else {
        return Err(SpecError::Sampling);
    };
    match value {
        None => Ok(IbsConfiguration::ZEN_4),
        Some("zen5") => Ok(IbsConfiguration::ZEN_5),
        Some("fetch-count-kept") => {
            Ok(IbsConfiguration { fetch_count_kept: true, ..IbsConfiguration::ZEN_4 })
        }
        Some(other) => Err(SpecError::Key(format!("ibs={other}"))),
    }
}

/// Returns the branch records of a processor with these counters: 32 on Intel, 16 on AMD.
fn branches(counters: &Configuration) -> BranchConfiguration {
    match counters {
        Configuration::Intel(_) => {
            BranchConfiguration::ARCHITECTURAL.with_architectural(|branches| {
                // Nothing tells the monitor of mispredictions, cycles and the counters' events.
                (branches.mispredictions, branches.cycles, branches.counters) = (false, false, 0);
            })
        }
        _ => BranchConfiguration::AMD,
    }
}

/// Returns the vendor of a guest without a PMU: the named one, or the host's.
fn hidden<'a>(mut keys: impl Iterator<Item = &'a str>) -> Result<Vendor, SpecError> {
    let vendor = match keys.next() {
        None => host_vendor(),
        Some("intel") => Vendor::Intel,
        Some("amd") => Vendor::Amd,
        Some(key) => return Err(SpecError::Key(key.into())),
    };
    keys.next().map_or(Ok(vendor), |key| Err(SpecError::Key(key.into())))
}

fn host_vendor() -> Vendor {
    match &Snapshot::capture(CpuIdReaderNative).vendor() {
        b"AuthenticAMD" | b"HygonGenuine" => Vendor::Amd,
        _ => Vendor::Intel,
    }
}

fn intel<'a>(keys: impl Iterator<Item = &'a str>) -> Result<Configuration, SpecError> {
    let mut pmu = IntelConfiguration::new(4, 4, 3)
        .with(|intel| intel.set(IntelFeature::FullWidthWrites, false));
    let mut fixed_named = false;
    for key in keys {
        let (key, value) = split(key);
        fixed_named |= key.starts_with("fixed");
        match key {
            "version" => pmu.version = number("version", value)?,
            "gp" => pmu.general = counters("gp", value)?,
            "fixed" => pmu.fixed = counters("fixed", value)?,
            "gp-mask" => pmu.general = number("gp-mask", value)?,
            "fixed-mask" => pmu.fixed = number("fixed-mask", value)?,
            "width" => {
                pmu.general_width = number("width", value)?;
                pmu.fixed_width = pmu.general_width;
            }
            "gp-width" => pmu.general_width = number("gp-width", value)?,
            "fixed-width" => pmu.fixed_width = number("fixed-width", value)?,
            "events" => pmu.events = number("events", value)?,
            _ => {
                let mut features = IntelFeature::ALL.into_iter();
                let feature = features.find(|feature| feature.name() == key);
                let feature = feature.ok_or_else(|| SpecError::Key(key.into()))?;
                pmu.set(feature, flag(feature.name(), value)?);
            }
        }
    }
    if pmu.version == 1 && !fixed_named {
        pmu.fixed = 0;
    }
    // Version 6 declares its features only in that leaf.
    if pmu.version >= 6 {
        pmu.set(IntelFeature::ExtendedLeaf, true);
    }
    Ok(Configuration::Intel(pmu))
}

fn amd<'a>(kind: &str, keys: impl Iterator<Item = &'a str>) -> Result<Configuration, SpecError> {
    let mut pmu = match kind {
        "legacy" => AmdConfiguration::LEGACY,
        "core" => AmdConfiguration::CORE_EXTENSION,
        "v2" => AmdConfiguration::perf_mon_v2(6),
        _ => return Err(SpecError::AmdKind(kind.into())),
    };
    for key in keys {
        match (&mut pmu.counters, split(key)) {
            (AmdCounters::PerfMonV2 { counters }, ("counters", value)) => {
                *counters = number("counters", value)?;
            }
            (_, ("guest-host", value)) => pmu.guest_host = flag("guest-host", value)?,
            (_, (key, _)) => return Err(SpecError::Key(key.into())),
        }
    }
    Ok(Configuration::Amd(pmu))
}

fn split(key: &str) -> (&str, Option<&str>) {
    key.split_once('=').map_or((key, None), |(key, value)| (key, Some(value)))
}

/// Parses a number, decimal or hexadecimal with 0x.
fn number(key: &'static str, value: Option<&str>) -> Result<u8, SpecError> {
    let value = value.ok_or(SpecError::NoValue(key))?;
    match value.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => value.parse(),
    }
    .map_err(|error| SpecError::Value { key, value: value.into(), error })
}

/// Returns the bitmap of a number of counters, from number 0 on.
fn counters(key: &'static str, value: Option<&str>) -> Result<u8, SpecError> {
    match number(key, value)? {
        count @ 0..=7 => Ok((1 << count) - 1),
        8 => Ok(u8::MAX),
        count => Err(SpecError::Counters { key, count }),
    }
}

fn flag(key: &'static str, value: Option<&str>) -> Result<bool, SpecError> {
    if value.is_some() { Err(SpecError::Flag(key)) } else { Ok(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the PMU that a spec names which has nothing beside its counters.
    fn named(spec: &str) -> Result<Configuration, SpecError> {
        let GuestPmu { counters, branches, precise, sampling, top_down } = parse(spec)?;
        assert_eq!((branches, precise, sampling, top_down), (None, None, None, false), "{spec}");
        Ok(counters)
    }

    /// Processor programming reference of family 19h, model 61h, CPUID Fn8000_001B: Zen 4 has all features up to bit 8,
    /// extended fetch control, and filters of misses.
    #[test]
    fn ibs_adds_the_sampling_of_zen_4() {
        for spec in ["amd:v2,ibs", "amd:v2,counters=4,ibs,lbr"] {
            let pmu = parse(spec).unwrap();
            let (_, sampling) = pmu.facilities(&pmu.counters, None);
            assert_eq!(sampling.0.unwrap().configuration().capabilities, 0xBFF, "{spec}");
        }
        for spec in ["amd:core,ibs", "amd:legacy,ibs", "intel:ibs", "none:amd,ibs"] {
            let why = parse(spec).unwrap_err().to_string();
            assert_eq!(why, "ibs: only Zen 4's, with amd:v2", "{spec}");
        }
    }

    #[test]
    fn lbr_adds_32_branch_records_on_intel_and_16_on_amd() {
        for (spec, depth) in [("intel:lbr,version=5", 32), ("intel:lbr", 32), ("amd:v2,lbr", 16)] {
            let pmu = parse(spec).unwrap();
            let ((branches, precise), sampling) = pmu.facilities(&pmu.counters, None);
            assert_eq!(branches.map(|branches| branches.depth()), Some(depth));
            assert_eq!((precise, sampling), (None, (None, None)));
        }
        for (spec, why) in [
            ("intel:version=3,lbr", "lbr: architectural branch records in version 3 of the PMU"),
            ("amd:core,lbr", "lbr: AMD's branch records without PerfMonV2"),
            ("none:amd,lbr", "lbr: the PMU is another vendor's, or hidden"),
        ] {
            assert_eq!(parse(spec).unwrap_err().to_string(), why, "{spec}");
        }
    }

    #[test]
    fn the_documented_specs_name_these_pmus() {
        let full = IntelConfiguration::new(4, 8, 3);
        assert_eq!(
            named("intel:version=4,gp=8,fixed=3,width=48,full-width"),
            Ok(Configuration::Intel(full))
        );
        assert_eq!(named("amd:legacy"), Ok(Configuration::Amd(AmdConfiguration::LEGACY)));
        assert_eq!(named("amd:core"), Ok(Configuration::Amd(AmdConfiguration::CORE_EXTENSION)));
        assert_eq!(
            named("amd:v2,counters=5"),
            Ok(Configuration::Amd(AmdConfiguration::perf_mon_v2(5)))
        );
        assert_eq!(named("none"), Ok(Configuration::hidden(host_vendor())));
        assert_eq!(named("none:intel"), Ok(Configuration::hidden(Vendor::Intel)));
        assert_eq!(named("none:amd"), Ok(Configuration::hidden(Vendor::Amd)));
        let odd = IntelConfiguration::new(5, 0, 0).with(|intel| {
            intel.general = 0b101;
            intel.fixed = 0b11;
            intel.general_width = 40;
            intel.fixed_width = 32;
            intel.set(IntelFeature::FullWidthWrites, false);
            intel.events = 0x21;
            intel.set(IntelFeature::AnyThread, true);
            intel.set(IntelFeature::ExtendedLeaf, true);
        });
        assert_eq!(
            named(
                "intel:version=5,gp-mask=0x5,fixed=2,gp-width=40,fixed-width=32,events=0x21,\
                 any-thread,extended-leaf"
            ),
            Ok(Configuration::Intel(odd))
        );
        let qualified = IntelConfiguration::new(4, 4, 3).with(|intel| {
            intel.set(IntelFeature::FullWidthWrites, false);
            intel.set(IntelFeature::Transactional, true);
        });
        assert_eq!(named("intel:transactional"), Ok(Configuration::Intel(qualified)));
        let qualified = AmdConfiguration::LEGACY.with(|amd| amd.guest_host = true);
        assert_eq!(named("amd:legacy,guest-host"), Ok(Configuration::Amd(qualified)));
        let sixth = IntelConfiguration::new(6, 4, 3).with(|intel| {
            intel.set(IntelFeature::FullWidthWrites, false);
            intel.set(IntelFeature::UnitMask2, true);
            intel.set(IntelFeature::Equal, true);
            intel.set(IntelFeature::RdpmcUserDisable, true);
        });
        assert_eq!(
            named("intel:version=6,unit-mask-2,equal,rdpmc-user-disable"),
            Ok(Configuration::Intel(sixth))
        );
    }

    #[test]
    fn a_spec_that_names_no_pmu_says_why() {
        for (spec, why) in [
            ("", "`` is not none, intel or amd"),
            ("arm", "`arm` is not none, intel or amd"),
            ("none:gp=1", "no key `gp=1` here"),
            ("none:amd,intel", "no key `intel` here"),
            ("amd", "`` is not legacy, core or v2"),
            ("amd:v3", "`v3` is not legacy, core or v2"),
            ("amd:core,counters=4", "no key `counters` here"),
            ("amd:v2,counters=9", "there is no such PMU: PerfMonV2 with 9 counters"),
            ("intel:gp", "`gp` needs a value"),
            ("intel:gp=9", "gp=9: at most 8 counters"),
            ("intel:gp=0", "there is no such PMU: no general counter"),
            ("intel:gp=x", "gp=x: invalid digit found in string"),
            ("intel:gp=300", "gp=300: number too large to fit in target type"),
            ("intel:full-width=1", "`full-width` takes no value"),
            ("intel:bts", "no key `bts` here"),
            ("intel:topdown", "topdown: top-down metrics need fixed counter 3 of Intel's PMU"),
            ("amd:v2,topdown", "topdown: top-down metrics need fixed counter 3 of Intel's PMU"),
            ("amd:v2,ibs=zen7", "no key `ibs=zen7` here"),
            ("intel:pebs=7", "pebs: the format 7 of precise records is not 0-6"),
            ("intel:pebs=adaptive", "pebs=adaptive: invalid digit found in string"),
            ("intel:version=5,pebs=architectural", "pebs: precise records in version 5 of the PMU"),
            ("intel:version=1,pebs", "pebs: precise records in version 1 of the PMU"),
            ("amd:v2,pebs", "pebs: the PMU is another vendor's, or hidden"),
            (
                "intel:version=7",
                "there is no such PMU: no version 7 of architectural performance monitoring",
            ),
            (
                "intel:version=5,equal",
                "there is no such PMU: equal in version 5: the feature needs version 6",
            ),
            ("intel:width=65", "there is no such PMU: counters of 65 bits"),
        ] {
            assert_eq!(parse(spec).unwrap_err().to_string(), why, "{spec}");
        }
    }
}
