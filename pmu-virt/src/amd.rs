//! AMD's registers. Read first: APM vol. 2, "Performance Monitoring Counters"; APM vol. 2, appendix
//! "MSR Cross-Reference".

use crate::model::Model;
use crate::{AmdConfiguration, EventPolicy, Read, Written};

/// Register numbers, in the order of the APM's appendix.
mod msr {
    pub(super) const GLOBAL_STATUS: u32 = 0xC000_0300;
    pub(super) const GLOBAL_CONTROL: u32 = 0xC000_0301;
    pub(super) const GLOBAL_STATUS_CLEAR: u32 = 0xC000_0302;
    pub(super) const GLOBAL_STATUS_SET: u32 = 0xC000_0303;
    pub(super) const LEGACY_SELECT_FIRST: u32 = 0xC001_0000;
    pub(super) const LEGACY_SELECT_LAST: u32 = 0xC001_0003;
    pub(super) const LEGACY_COUNTER_FIRST: u32 = 0xC001_0004;
    pub(super) const LEGACY_COUNTER_LAST: u32 = 0xC001_0007;
    /// Event selects at even numbers, counters at odd ones.
    pub(super) const CORE_FIRST: u32 = 0xC001_0200;
    pub(super) const CORE_LAST: u32 = 0xC001_020F;
}

/// Fields. APM vol. 2, figure "Core Performance Event-Select Register".
pub(crate) mod bits {
    /// Without 19, 21 and 63:36. Bits 41:40, host and guest only, belong to SVM, which is not
    /// offered to the guest here.
    pub(crate) const SELECT: u64 = 0x0000_000F_FFD7_FFFF;
    /// In bits.
    pub(crate) const WIDTH: u8 = 48;
}

/// Registers that are a PMU's and that this model never offers: LBR, the counters of the L2 cache
/// and the northbridge, sampled branches, UMC, IBS, retired instructions.
const fn is_not_offered(address: u32) -> bool {
    matches!(
        address,
        0xC000_00E9
            | 0xC000_010E
            | 0xC000_010F
            | 0xC001_0230..=0xC001_023F
            | 0xC001_0240..=0xC001_024F
            | 0xC001_0300..=0xC001_031F
            | 0xC001_0800..=0xC001_081F
            | 0xC001_1030..=0xC001_103F
    )
}

const fn is_legacy(address: u32) -> bool {
    matches!(address, msr::LEGACY_SELECT_FIRST..=msr::LEGACY_COUNTER_LAST)
}

const fn is_pmu_register(address: u32) -> bool {
    use msr::*;
    is_not_offered(address)
        || is_legacy(address)
        || matches!(address, GLOBAL_STATUS..=GLOBAL_STATUS_SET | CORE_FIRST..=CORE_LAST)
}

/// RDMSR where there is no PMU. Every processor of AMD has the legacy registers, so guests do not
/// ask before they touch them; as in KVM they read 0.
pub(crate) const fn read_hidden(address: u32) -> Read {
    match address {
        _ if is_legacy(address) => Read::Value(0),
        _ if is_pmu_register(address) => Read::GeneralProtection,
        _ => Read::Unhandled,
    }
}

/// WRMSR where there is no PMU.
pub(crate) const fn write_hidden(address: u32) -> Written {
    match address {
        _ if is_legacy(address) => Written::IGNORED,
        _ if is_pmu_register(address) => Written::REFUSED,
        _ => Written::UNHANDLED,
    }
}

/// A register of a counter: its select or its value.
enum Register {
    Select(u32),
    Counter(u32),
}

/// Which counter's register this is. The legacy registers are the same as the first of the core
/// extension (APM vol. 2).
#[inline]
const fn decode(amd: AmdConfiguration, address: u32) -> Option<Register> {
    use msr::*;
    let core = address.wrapping_sub(CORE_FIRST);
    if core <= CORE_LAST - CORE_FIRST && !matches!(amd, AmdConfiguration::Legacy) {
        let counter = core / 2;
        return Some(if core & 1 == 0 {
            Register::Select(counter)
        } else {
            Register::Counter(counter)
        });
    }
    match address {
        LEGACY_SELECT_FIRST..=LEGACY_SELECT_LAST => {
            Some(Register::Select(address - LEGACY_SELECT_FIRST))
        }
        LEGACY_COUNTER_FIRST..=LEGACY_COUNTER_LAST => {
            Some(Register::Counter(address - LEGACY_COUNTER_FIRST))
        }
        _ => None,
    }
}

/// RDMSR.
#[inline]
pub(crate) fn read(model: &Model, amd: AmdConfiguration, address: u32) -> Read {
    use msr::*;
    let value = match decode(amd, address) {
        Some(Register::Select(counter)) => model.select(counter),
        Some(Register::Counter(counter)) => model.counter(counter),
        None if !is_pmu_register(address) => return Read::Unhandled,
        None if model.layout.global == 0 => None,
        None => match address {
            GLOBAL_STATUS => Some(model.global_status),
            GLOBAL_CONTROL => Some(model.global_control),
            // Where the manual is silent, as KVM.
            GLOBAL_STATUS_CLEAR | GLOBAL_STATUS_SET => Some(0),
            _ => None,
        },
    };
    match value {
        Some(value) => Read::Value(value),
        None => Read::GeneralProtection,
    }
}

/// WRMSR. Reserved bits never fault on AMD's counters: they are dropped, as in KVM.
#[inline]
pub(crate) fn write<P: EventPolicy>(
    model: &mut Model,
    policy: &P,
    amd: AmdConfiguration,
    address: u32,
    value: u64,
) -> Written {
    use msr::*;
    let (legal, exists) = match decode(amd, address) {
        Some(Register::Select(counter)) => {
            let legal = model.layout.select;
            (legal, model.set_select(policy, counter, value & legal))
        }
        Some(Register::Counter(counter)) => {
            let legal = model.layout.masks[0];
            (legal, model.set_counter(counter, value & legal))
        }
        None if !is_pmu_register(address) => return Written::UNHANDLED,
        None if model.layout.global == 0 => return Written::REFUSED,
        None => {
            let legal = model.layout.global;
            match address {
                GLOBAL_STATUS => return Written::IGNORED,
                GLOBAL_CONTROL => model.global_control = value & legal,
                GLOBAL_STATUS_CLEAR => model.global_status &= !(value & legal),
                GLOBAL_STATUS_SET => model.global_status |= value & legal,
                _ => return Written::REFUSED,
            }
            (legal, true)
        }
    };
    if exists { Written::done(value & !legal) } else { Written::REFUSED }
}

/// RDPMC. APM vol. 3: ECX is the counter's number, without types.
#[inline]
pub(crate) fn read_pmc(model: &Model, ecx: u32) -> Read {
    match model.counter(ecx) {
        Some(value) if ecx < 8 => Read::Value(value),
        _ => Read::GeneralProtection,
    }
}
