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

/// A list: its core types, where Linux has it, and the name of its file, with which the list's name in Linux ends.
macro_rules! list {
    ($core_types:literal, $linux:literal, $file:literal) => {
        Uncore {
            core_types: $core_types,
            source: concat!($linux, $file),
            text: include_str!(concat!("../../uncore/", $file, ".csv")),
        }
    };
}

/// One list per kind of processor. Intel's lists leave out events that are deprecated or marked as experimental.
static LISTS: [Uncore; 27] = [
    list!("alderlake_goldencove alderlake_gracemont", "Linux 6.12 ", "alderlake"),
    list!("broadwell", "Linux 6.12 ", "broadwell"),
    list!("broadwellde", "Linux 6.12 ", "broadwellde"),
    list!("broadwellx", "Linux 6.12 ", "broadwellx"),
    list!("cascadelakex", "Linux 6.12 ", "cascadelakex"),
    list!("emeraldrapids sapphirerapids", "Linux 6.12 ", "emeraldrapids"),
    list!("grandridge", "Linux 6.12 ", "grandridge"),
    list!("graniterapids", "Linux 6.12 ", "graniterapids"),
    list!("haswell", "Linux 6.12 ", "haswell"),
    list!("haswellx", "Linux 6.12 ", "haswellx"),
    list!("icelake rocketlake", "Linux 6.12 ", "icelake"),
    list!("icelakex", "Linux 6.12 ", "icelakex"),
    list!("ivybridge sandybridge", "Linux 6.12 ", "ivybridge"),
    list!("ivytown", "Linux 6.12 ", "ivytown"),
    list!("jaketown", "Linux 6.12 ", "jaketown"),
    list!("knightslanding", "Linux 6.12 ", "knightslanding"),
    list!("meteorlake_crestmont meteorlake_redwoodcove", "Linux 6.12 ", "meteorlake"),
    list!("sierraforest", "Linux 6.12 ", "sierraforest"),
    list!("skylake", "Linux 6.12 ", "skylake"),
    list!("skylakex", "Linux 6.12 ", "skylakex"),
    list!("snowridgex", "Linux 6.12 ", "snowridgex"),
    list!("tigerlake", "Linux 6.12 ", "tigerlake"),
    list!("zen1 zen2", "Linux 7.2 amd", "zen1"),
    list!("zen3", "Linux 7.2 amd", "zen3"),
    list!("zen4", "Linux 7.2 amd", "zen4"),
    list!("zen5", "Linux 7.2 amd", "zen5"),
    list!("zen6", "Linux 7.2 amd", "zen6"),
];
