//! Depth and registers of the legacy stacks, by processor model. No register or CPUID leaf declares the depth and the
//! registers.

use pmu_core::Snapshot;

use crate::branches::select::Select;

/// The legacy stack of some models of family 6.
pub(crate) struct Stack {
    pub(crate) models: &'static [u8],
    pub(crate) depth: u8,
    /// The records are at the addresses of Core 2, which later processors changed.
    pub(crate) core_addresses: bool,
    pub(crate) select: Select,
    pub(crate) call_stack: bool,
}

/// Haswell, which records an abort twice.
pub(crate) const HASWELL: [u8; 4] = [0x3C, 0x3F, 0x45, 0x46];

/// Knights Landing and Knights Mill, which report format 1 and have format 3.
pub(crate) const KNIGHTS: [u8; 2] = [0x57, 0x85];

/// Bonnell, whose records do not freeze before stepping 10.
const BONNELL: u8 = 0x1C;

/// The stacks from Core 2 on. (SDM vol. 4, the tables of the models' registers; the grouping is that of Linux perf.)
static STACKS: [Stack; 9] = [
    // Core 2.
    Stack {
        models: &[0x0F, 0x16, 0x17, 0x1D],
        depth: 4,
        core_addresses: true,
        select: Select::None,
        call_stack: false,
    },
    // Bonnell.
    Stack {
        models: &[BONNELL, 0x26, 0x27, 0x35, 0x36],
        depth: 8,
        core_addresses: true,
        select: Select::None,
        call_stack: false,
    },
    // Silvermont, Airmont.
    Stack {
        models: &[0x37, 0x4A, 0x4D, 0x5D, 0x4C, 0x5A, 0x75],
        depth: 8,
        core_addresses: true,
        select: Select::Nehalem,
        call_stack: false,
    },
    Stack {
        models: &KNIGHTS,
        depth: 8,
        core_addresses: false,
        select: Select::SandyBridge,
        call_stack: false,
    },
    // Nehalem, Westmere.
    Stack {
        models: &[0x1A, 0x1E, 0x1F, 0x2E, 0x25, 0x2C, 0x2F],
        depth: 16,
        core_addresses: false,
        select: Select::Nehalem,
        call_stack: false,
    },
    // Sandy Bridge, Ivy Bridge.
    Stack {
        models: &[0x2A, 0x2D, 0x3A, 0x3E],
        depth: 16,
        core_addresses: false,
        select: Select::SandyBridge,
        call_stack: false,
    },
    // Haswell, Broadwell.
    Stack {
        models: &[0x3C, 0x3F, 0x45, 0x46, 0x3D, 0x47, 0x4F, 0x56],
        depth: 16,
        core_addresses: false,
        select: Select::SandyBridge,
        call_stack: true,
    },
    // Skylake to Rocket Lake.
    Stack {
        models: &[
            0x4E, 0x5E, 0x55, 0x8E, 0x9E, 0xA5, 0xA6, 0x66, 0x7D, 0x7E, 0x6A, 0x6C, 0x9D, 0x8C,
            0x8D, 0xA7,
        ],
        depth: 32,
        core_addresses: false,
        select: Select::SandyBridge,
        call_stack: true,
    },
    // Goldmont, Goldmont Plus, Tremont, Lakefield.
    Stack {
        models: &[0x5C, 0x5F, 0x7A, 0x86, 0x96, 0x9C, 0x8A],
        depth: 32,
        core_addresses: false,
        select: Select::SandyBridge,
        call_stack: false,
    },
];

impl Stack {
    /// Returns the stack of a processor, if its model is known.
    pub(crate) fn of(processor: &Snapshot) -> Option<&'static Self> {
        let (family, model) = (processor.family(), processor.model());
        let has = |stack: &&Self| family == 6 && stack.models.contains(&model);
        STACKS.iter().find(has)
    }
}

/// Returns whether the processor's records do not freeze, though it says that they do: Bonnell before stepping 10.
pub(crate) fn never_freezes(processor: &Snapshot) -> bool {
    processor.family() == 6 && processor.model() == BONNELL && processor.stepping() < 10
}
