//! Processors of x86: those with all facilities, those that lack some, and the cores of a hybrid.

use pmu_virt::branches::BranchConfiguration;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, Vendor};
use pmu_virt::ibs::IbsConfiguration;
use pmu_virt::precise::PreciseConfiguration;

use crate::world::{EINVAL, ENOENT, EOPNOTSUPP, Has};

/// A processor: its name, counters, and branch records; its precise records, or its sampling units.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) configuration: Configuration,
    pub(crate) branches: Option<BranchConfiguration>,
    pub(crate) precise: Option<PreciseConfiguration>,
    pub(crate) sampling: Option<IbsConfiguration>,
    /// EAX of CPUID leaf 0x1A on a hybrid, otherwise 0.
    pub(crate) core_type: u32,
    pub(crate) has: Has,
}

impl Model {
    /// A processor with counters alone.
    const fn plain(name: &'static str, configuration: Configuration, has: Has) -> Self {
        let (branches, precise, sampling) = (None, None, None);
        Self { name, configuration, branches, precise, sampling, core_type: 0, has }
    }
}

const fn intel(version: u8, general: u8, fixed: u8) -> Configuration {
    Configuration::Intel(IntelConfiguration::new(version, general, fixed))
}

/// Models with every facility of their vendor's.
pub(crate) fn models() -> Vec<Model> {
    let intel = |name, version, branches, precise| Model {
        branches: Some(branches),
        precise: Some(precise),
        ..Model::plain(name, intel(version, 4, 3 + version / 5), Has::ALL)
    };
    let amd = |name, sampling| Model {
        branches: Some(BranchConfiguration::AMD),
        sampling: Some(sampling),
        ..Model::plain(
            name,
            Configuration::Amd(AmdConfiguration::perf_mon_v2(6)),
            Has { counters: 6, part: Ok(()), ..Has::ALL },
        )
    };
    let last = |format| BranchConfiguration::Legacy { format };
    let store = PreciseConfiguration::debug_store;
    let architectural = BranchConfiguration::ARCHITECTURAL;
    // The mock shows these branch records with the counters of Sandy Bridge, of which four write records.
    let early = store(0).with_debug_store(|records| records.general = 0xF);
    vec![
        intel("version 2, format 0", 2, last(3), early),
        intel("version 3, format 1", 3, last(3), store(1)),
        intel("version 3, format 2", 3, last(4), store(2)),
        intel("version 4, format 3", 4, last(5), store(3)),
        intel("version 5, format 4", 5, architectural, store(4)),
        intel("version 5, format 5", 5, architectural, store(5)),
        intel("version 6", 6, architectural, PreciseConfiguration::ARCHITECTURAL),
        amd("Zen 4", IbsConfiguration::ZEN_4),
        amd("Zen 6", IbsConfiguration::ZEN_6),
    ]
}

/// A virtual processor of AMD without a PMU: CPUID cannot say that it has no counters, which ignore writes.
pub(crate) const HIDDEN_AMD: Configuration = Configuration::hidden(Vendor::Amd);

/// Models that lack facilities, or the PMU.
pub(crate) fn lesser_models() -> Vec<Model> {
    let none =
        Has { branches: Err(EOPNOTSUPP), precise: Err(EOPNOTSUPP), part: Err(EINVAL), ..Has::ALL };
    let (first, k8) = (intel(1, 2, 0), Configuration::Amd(AmdConfiguration::LEGACY));
    let family_10h = Some(IbsConfiguration::FAMILY_10H);
    // Without Linux' PMU `cpu`, there is no event of its types.
    let absent =
        Has { counters: 0, branches: Err(ENOENT), precise: Err(ENOENT), part: Err(ENOENT) };
    vec![
        Model::plain("version 1", first, Has { counters: 2, ..none }),
        Model::plain("K8", k8, Has { counters: 4, part: Ok(()), ..none }),
        Model {
            sampling: family_10h,
            ..Model::plain(
                "family 10h",
                k8,
                Has { counters: 4, part: Ok(()), precise: Ok(()), ..none },
            )
        },
        Model::plain("no PMU", Configuration::hidden(Vendor::Intel), absent),
        Model::plain("no PMU of AMD's", HIDDEN_AMD, absent),
        Model::plain("no PMU of AMD's", HIDDEN_AMD, absent),
    ]
}

/// A P-core and an E-core of Alder Lake. SDM vol. 2A, CPUID leaf 0x1A: EAX 31:24 is 40h for Core, and 20h for Atom.
pub(crate) fn hybrid() -> [Model; 2] {
    let core = |name, configuration, core_type, format, counters| Model {
        branches: Some(BranchConfiguration::ARCHITECTURAL),
        precise: Some(PreciseConfiguration::debug_store(format)),
        core_type,
        ..Model::plain(name, configuration, Has { counters, ..Has::ALL })
    };
    [
        core("P-core", intel(5, 8, 4), 0x4000_0001, 5, 9),
        core("E-core", intel(5, 6, 3), 0x2000_0001, 4, 7),
    ]
}
