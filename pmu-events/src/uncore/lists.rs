//! The lists of events, and the core types of their processors.

use crate::format::core_type::CoreType;
use crate::uncore::list::Uncore;

impl Uncore {
    /// Returns the uncore events of processors with this core type; `None` if this crate has no list of these events.
    pub fn of(core_type: &CoreType) -> Option<&'static Self> {
        let is_of = |list: &&Self| list.core_types.split(' ').any(|name| name == core_type.name());
        LISTS.iter().find(is_of)
    }
}

const fn list(core_types: &'static str, source: &'static str, text: &'static str) -> Uncore {
    Uncore { core_types, source, text }
}

/// One list per kind of processor. Intel's lists leave out events that are deprecated or marked as experimental.
static LISTS: [Uncore; 27] = [
    list(
        "alderlake_goldencove alderlake_gracemont",
        "Linux 6.12 alderlake",
        include_str!("../../uncore/alderlake.csv"),
    ),
    list("broadwell", "Linux 6.12 broadwell", include_str!("../../uncore/broadwell.csv")),
    list("broadwellde", "Linux 6.12 broadwellde", include_str!("../../uncore/broadwellde.csv")),
    list("broadwellx", "Linux 6.12 broadwellx", include_str!("../../uncore/broadwellx.csv")),
    list("cascadelakex", "Linux 6.12 cascadelakex", include_str!("../../uncore/cascadelakex.csv")),
    list(
        "emeraldrapids sapphirerapids",
        "Linux 6.12 emeraldrapids",
        include_str!("../../uncore/emeraldrapids.csv"),
    ),
    list("grandridge", "Linux 6.12 grandridge", include_str!("../../uncore/grandridge.csv")),
    list(
        "graniterapids",
        "Linux 6.12 graniterapids",
        include_str!("../../uncore/graniterapids.csv"),
    ),
    list("haswell", "Linux 6.12 haswell", include_str!("../../uncore/haswell.csv")),
    list("haswellx", "Linux 6.12 haswellx", include_str!("../../uncore/haswellx.csv")),
    list("icelake rocketlake", "Linux 6.12 icelake", include_str!("../../uncore/icelake.csv")),
    list("icelakex", "Linux 6.12 icelakex", include_str!("../../uncore/icelakex.csv")),
    list(
        "ivybridge sandybridge",
        "Linux 6.12 ivybridge",
        include_str!("../../uncore/ivybridge.csv"),
    ),
    list("ivytown", "Linux 6.12 ivytown", include_str!("../../uncore/ivytown.csv")),
    list("jaketown", "Linux 6.12 jaketown", include_str!("../../uncore/jaketown.csv")),
    list(
        "knightslanding",
        "Linux 6.12 knightslanding",
        include_str!("../../uncore/knightslanding.csv"),
    ),
    list(
        "meteorlake_crestmont meteorlake_redwoodcove",
        "Linux 6.12 meteorlake",
        include_str!("../../uncore/meteorlake.csv"),
    ),
    list("sierraforest", "Linux 6.12 sierraforest", include_str!("../../uncore/sierraforest.csv")),
    list("skylake", "Linux 6.12 skylake", include_str!("../../uncore/skylake.csv")),
    list("skylakex", "Linux 6.12 skylakex", include_str!("../../uncore/skylakex.csv")),
    list("snowridgex", "Linux 6.12 snowridgex", include_str!("../../uncore/snowridgex.csv")),
    list("tigerlake", "Linux 6.12 tigerlake", include_str!("../../uncore/tigerlake.csv")),
    list("zen1 zen2", "Linux 7.2 amdzen1", include_str!("../../uncore/zen1.csv")),
    list("zen3", "Linux 7.2 amdzen3", include_str!("../../uncore/zen3.csv")),
    list("zen4", "Linux 7.2 amdzen4", include_str!("../../uncore/zen4.csv")),
    list("zen5", "Linux 7.2 amdzen5", include_str!("../../uncore/zen5.csv")),
    list("zen6", "Linux 7.2 amdzen6", include_str!("../../uncore/zen6.csv")),
];
