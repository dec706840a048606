//! Intel's registers. Read first: SDM vol. 3B, "Architectural Performance Monitoring"; vol. 4,
//! "Architectural MSRs".

use crate::model::{EACH, MAX_PER_KIND, Model, bits_of};
use crate::{EventPolicy, IntelConfiguration, Read, Write, Written};

/// Register numbers. SDM vol. 4, table "IA-32 Architectural MSRs", in its order.
mod msr {
    pub(super) const PMC_FIRST: u32 = 0x0C1;
    pub(super) const PMC_LAST: u32 = 0x0C8;
    pub(super) const PERFEVTSEL_FIRST: u32 = 0x186;
    pub(super) const PERFEVTSEL_LAST: u32 = 0x18D;
    pub(super) const MISC_ENABLE: u32 = 0x1A0;
    pub(super) const DEBUGCTL: u32 = 0x1D9;
    pub(super) const FIXED_CTR_FIRST: u32 = 0x309;
    pub(super) const FIXED_CTR_LAST: u32 = 0x310;
    pub(super) const PERF_CAPABILITIES: u32 = 0x345;
    pub(super) const FIXED_CTR_CTRL: u32 = 0x38D;
    pub(super) const PERF_GLOBAL_STATUS: u32 = 0x38E;
    pub(super) const PERF_GLOBAL_CTRL: u32 = 0x38F;
    /// `IA32_PERF_GLOBAL_OVF_CTRL` up to version 3.
    pub(super) const PERF_GLOBAL_STATUS_RESET: u32 = 0x390;
    pub(super) const PERF_GLOBAL_STATUS_SET: u32 = 0x391;
    pub(super) const PERF_GLOBAL_INUSE: u32 = 0x392;
    pub(super) const A_PMC_FIRST: u32 = 0x4C1;
    pub(super) const A_PMC_LAST: u32 = 0x4C8;
    /// Version 6: four registers of each counter from `IA32_PMC_GP0_CTR` on. The fixed counters follow the 32
    /// places of general ones, with `IA32_PMC_FX0_CTR` at 0x1980.
    pub(super) const PMC_GP_FIRST: u32 = 0x1900;
    pub(super) const PMC_FX_LAST: u32 = 0x19BF;
}

/// Fields. SDM vol. 3B, the figures of "Architectural Performance Monitoring".
pub(crate) mod bits {
    /// All of an event select that every version has: bits 31:0 without AnyThread. Pin control
    /// (19) is taken and has no effect, as in KVM: there is no pin.
    pub(crate) const SELECT: u64 = 0xFFDF_FFFF;
    pub(crate) const SELECT_ANY_THREAD: u64 = 1 << 21;
    /// Version 6, where leaf 0x23 declares them.
    pub(crate) const SELECT_EQUAL: u64 = 1 << 36;
    pub(crate) const SELECT_RDPMC_USER_DISABLE: u64 = 1 << 37;
    pub(crate) const SELECT_UNIT_MASK_2: u64 = 0xFF << 40;
    /// Of fixed counter 0; those of the others follow, four bits apart.
    pub(crate) const FIXED_RDPMC_USER_DISABLE: u64 = 1 << 33;
    pub(crate) const STATUS_COUNTERS_FROZEN: u64 = 1 << 59;
    pub(crate) const STATUS_BUFFER_OVERFLOW: u64 = 1 << 62;
    pub(crate) const STATUS_CONDITION_CHANGED: u64 = 1 << 63;
    /// What the status has beside the counters' bits from version 4 on: Trace_ToPA_PMI (55), LBR_Frz
    /// (58), CTR_Frz, ASCI (60), Ovf_Uncore (61), OvfBuf and CondChgd. SDM vol. 4,
    /// `IA32_PERF_GLOBAL_STATUS_RESET`, makes all but the first depend on the version alone.
    pub(crate) const STATUS_FROM_VERSION_4: u64 = 0xFC80_0000_0000_0000;
    pub(crate) const INUSE_PMI: u64 = 1 << 63;
    pub(crate) const DEBUG_LBR: u64 = 1 << 0;
    pub(crate) const DEBUG_FREEZE_COUNTERS: u64 = 1 << 12;
    /// LBR (0), TR (6), BTS, BTINT, BTS_OFF_OS, BTS_OFF_USR, FREEZE_LBRS_ON_PMI,
    /// FREEZE_PERFMON_ON_PMI, ENABLE_UNCORE_PMI, FREEZE_WHILE_SMM (14).
    pub(crate) const DEBUG_OF_PMU: u64 = 0x7FC1;
    pub(crate) const MISC_PERFMON_AVAILABLE: u64 = 1 << 7;
    pub(crate) const MISC_BTS_UNAVAILABLE: u64 = 1 << 11;
    pub(crate) const MISC_PEBS_UNAVAILABLE: u64 = 1 << 12;
    pub(crate) const MISC_OF_PMU: u64 =
        MISC_PERFMON_AVAILABLE | MISC_BTS_UNAVAILABLE | MISC_PEBS_UNAVAILABLE;
    pub(crate) const CAPABILITY_FULL_WIDTH: u64 = 1 << 13;
}

/// What `IA32_MISC_ENABLE` says: neither BTS nor PEBS.
const fn misc_enable(visible: bool) -> u64 {
    let available = if visible { bits::MISC_PERFMON_AVAILABLE } else { 0 };
    available | bits::MISC_BTS_UNAVAILABLE | bits::MISC_PEBS_UNAVAILABLE
}

/// Registers that are a PMU's and that this model never offers, or in version 6 alone (the last range):
/// elsewhere RDMSR and WRMSR find none.
///
/// Off-core response, LBR, PEBS, the DS area, `PERF_METRICS`, the reload registers. SDM vol. 4, the same table and those of the processor families.
const fn is_not_offered(address: u32) -> bool {
    matches!(
        address,
        0x1A6 | 0x1A7
            | 0x1C8
            | 0x1C9
            | 0x329
            | 0x3F1..=0x3F7
            | 0x600
            | 0x680..=0x69F
            | 0x6C0..=0x6DF
            | 0xDC0..=0xDDF
            | 0x1200..=0x121F
            | 0x1309..=0x1310
            | 0x14C1..=0x14C8
            | 0x14CE
            | 0x14CF
            | 0x1500..=0x151F
            | 0x1600..=0x161F
            | msr::PMC_GP_FIRST..=msr::PMC_FX_LAST
    )
}

/// Returns whether the address is one of this vendor's PMU registers that a guest without a PMU lacks.
const fn is_pmu_register(address: u32) -> bool {
    use msr::*;
    is_not_offered(address)
        || matches!(
            address,
            PMC_FIRST..=PMC_LAST
                | PERFEVTSEL_FIRST..=PERFEVTSEL_LAST
                | FIXED_CTR_FIRST..=FIXED_CTR_LAST
                | PERF_CAPABILITIES
                | FIXED_CTR_CTRL..=PERF_GLOBAL_INUSE
                | A_PMC_FIRST..=A_PMC_LAST
        )
}

/// RDMSR where there is no PMU.
pub(crate) const fn read_hidden(address: u32) -> Read {
    match address {
        msr::MISC_ENABLE => Read::Shared { value: misc_enable(false), mask: bits::MISC_OF_PMU },
        msr::DEBUGCTL => Read::Shared { value: 0, mask: bits::DEBUG_OF_PMU },
        _ if is_pmu_register(address) => Read::GeneralProtection,
        _ => Read::Unhandled,
    }
}

/// WRMSR where there is no PMU.
pub(crate) const fn write_hidden(address: u32, value: u64) -> Written {
    match address {
        msr::MISC_ENABLE => write_misc_enable(value, false),
        msr::DEBUGCTL => check_debug_control(value, 0),
        _ if is_pmu_register(address) => Written::REFUSED,
        _ => Written::UNHANDLED,
    }
}

/// SDM vol. 4 has all three bits read-only. As KVM does: a write that changes one of the two
/// "unavailable" bits faults, one that changes "available" is ignored.
const fn write_misc_enable(value: u64, visible: bool) -> Written {
    let changed = (value ^ misc_enable(visible)) & bits::MISC_OF_PMU;
    let answer = if changed & !bits::MISC_PERFMON_AVAILABLE != 0 {
        Write::GeneralProtection
    } else {
        Write::Shared { mask: bits::MISC_OF_PMU }
    };
    Written { answer, illegal: changed }
}

/// Where there are no LBRs, KVM drops their enable bit; every other bit without a facility faults.
const fn check_debug_control(value: u64, legal: u64) -> Written {
    let illegal = value & bits::DEBUG_OF_PMU & !legal;
    let answer = if illegal & !bits::DEBUG_LBR != 0 {
        Write::GeneralProtection
    } else {
        Write::Shared { mask: bits::DEBUG_OF_PMU }
    };
    Written { answer, illegal }
}

#[inline]
fn read_counter(model: &Model, counter: u32) -> Read {
    match model.counter(counter) {
        Some(value) => Read::Value(value),
        None => Read::GeneralProtection,
    }
}

#[inline]
fn read_select(model: &Model, counter: u32) -> Read {
    match model.select(counter) {
        Some(select) => Read::Value(select),
        None => Read::GeneralProtection,
    }
}

/// A register of version 6 that a counter has at an older address as well.
enum Alias {
    /// `IA32_PMC_GPn_CTR`.
    General(u32),
    /// `IA32_PMC_GPn_CFG_A`.
    Select(u32),
    /// `IA32_PMC_FXn_CTR`.
    Fixed(u32),
}

/// The register at this offset from `IA32_PMC_GP0_CTR`, of a counter that may be absent. `CFG_B` and `CFG_C`
/// belong to auto counter reload and architectural PEBS, which this model never offers.
#[inline]
const fn alias(offset: u32) -> Option<Alias> {
    let counter = offset >> 2;
    match offset & 3 {
        1 => Some(Alias::Select(counter)),
        0 if counter < 8 => Some(Alias::General(counter)),
        0 if counter >= 32 => Some(Alias::Fixed(counter - 32)),
        _ => None,
    }
}

/// RDMSR.
#[inline]
pub(crate) fn read(model: &Model, intel: &IntelConfiguration, address: u32) -> Read {
    use msr::*;
    let version = intel.version;
    match address {
        PMC_FIRST..=PMC_LAST => read_counter(model, address - PMC_FIRST),
        A_PMC_FIRST..=A_PMC_LAST if intel.full_width_writes => {
            read_counter(model, address - A_PMC_FIRST)
        }
        PERFEVTSEL_FIRST..=PERFEVTSEL_LAST => read_select(model, address - PERFEVTSEL_FIRST),
        PMC_GP_FIRST..=PMC_FX_LAST if version >= 6 => match alias(address - PMC_GP_FIRST) {
            Some(Alias::General(counter)) => read_counter(model, counter),
            Some(Alias::Select(counter)) => read_select(model, counter),
            Some(Alias::Fixed(counter)) => read_counter(model, counter + 8),
            None => Read::GeneralProtection,
        },
        MISC_ENABLE => Read::Shared { value: misc_enable(true), mask: bits::MISC_OF_PMU },
        DEBUGCTL => Read::Shared { value: model.debug_control, mask: bits::DEBUG_OF_PMU },
        FIXED_CTR_FIRST..=FIXED_CTR_LAST => read_counter(model, address - FIXED_CTR_FIRST + 8),
        PERF_CAPABILITIES => {
            Read::Value(if intel.full_width_writes { bits::CAPABILITY_FULL_WIDTH } else { 0 })
        }
        // As KVM: version 1 has no global registers.
        FIXED_CTR_CTRL if version >= 2 => Read::Value(model.fixed_control),
        PERF_GLOBAL_STATUS if version >= 2 => Read::Value(model.global_status),
        PERF_GLOBAL_CTRL if version >= 2 => Read::Value(model.global_control),
        // Where the SDM is silent, as KVM: the write registers of the status read 0.
        PERF_GLOBAL_STATUS_RESET if version >= 2 => Read::Value(0),
        PERF_GLOBAL_STATUS_SET if version >= 4 => Read::Value(0),
        PERF_GLOBAL_INUSE if version >= 4 => Read::Value(in_use(model)),
        _ if is_pmu_register(address) => Read::GeneralProtection,
        _ => Read::Unhandled,
    }
}

/// SDM vol. 3B, "IA32_PERF_GLOBAL_INUSE MSR": an event other than 0 is selected, a fixed counter's
/// enable field is not 0, an interrupt is enabled anywhere.
fn in_use(model: &Model) -> u64 {
    let selected = u64::from_le_bytes(model.selects.map(|select| select as u8));
    let low = !(EACH << 7);
    let general = u64::from(bits_of((((selected & low) + low) | selected) >> 7));
    let fixed = u64::from(model.enabled >> MAX_PER_KIND);
    let pmi = if model.interrupting != 0 { bits::INUSE_PMI } else { 0 };
    general | fixed << 32 | pmi
}

/// WRMSR.
#[inline]
pub(crate) fn write<P: EventPolicy>(
    model: &mut Model,
    policy: &P,
    intel: &IntelConfiguration,
    address: u32,
    value: u64,
) -> Written {
    use msr::*;
    let version = intel.version;
    match address {
        PMC_FIRST..=PMC_LAST => write_narrow(model, address - PMC_FIRST, value),
        A_PMC_FIRST..=A_PMC_LAST if intel.full_width_writes => {
            write_full_width(model, address - A_PMC_FIRST, value)
        }
        PERFEVTSEL_FIRST..=PERFEVTSEL_LAST => {
            write_select(model, policy, address - PERFEVTSEL_FIRST, value)
        }
        PMC_GP_FIRST..=PMC_FX_LAST if version >= 6 => match alias(address - PMC_GP_FIRST) {
            Some(Alias::General(counter)) => write_full_width(model, counter, value),
            Some(Alias::Select(counter)) => write_select(model, policy, counter, value),
            Some(Alias::Fixed(counter)) => write_fixed(model, counter, value),
            None => Written::REFUSED,
        },
        MISC_ENABLE => write_misc_enable(value, true),
        DEBUGCTL => {
            let written = check_debug_control(value, model.layout.debug_control);
            if written.answer != Write::GeneralProtection {
                model.debug_control = value & model.layout.debug_control;
            }
            written
        }
        FIXED_CTR_FIRST..=FIXED_CTR_LAST => write_fixed(model, address - FIXED_CTR_FIRST, value),
        FIXED_CTR_CTRL if version >= 2 => {
            let illegal = value & !model.layout.fixed_control;
            if illegal == 0 {
                model.set_fixed_control(value);
                Written::done(0)
            } else {
                Written::fault(illegal)
            }
        }
        PERF_GLOBAL_CTRL if version >= 2 => {
            let illegal = value & !model.layout.global;
            if illegal == 0 {
                model.global_control = value;
                Written::done(0)
            } else {
                Written::fault(illegal)
            }
        }
        PERF_GLOBAL_STATUS_RESET if version >= 2 => {
            // Nothing but a guest's own SET sets the bits of absent features.
            let illegal = value & !(model.layout.global | model.layout.status);
            // The SDM has a bit for the DS buffer in every version, and without one, KVM ignores it.
            if illegal & !bits::STATUS_BUFFER_OVERFLOW != 0 {
                return Written::fault(illegal);
            }
            model.global_status &= !value;
            Written::done(illegal)
        }
        PERF_GLOBAL_STATUS_SET if version >= 4 => {
            // SDM vol. 4: bit 63 is reserved here. The bits of absent features are set as asked: an
            // embedder that wants otherwise refuses the write before it hands it over.
            let legal =
                (model.layout.global | model.layout.status) & !bits::STATUS_CONDITION_CHANGED;
            let illegal = value & !legal;
            if illegal == 0 {
                model.global_status |= value;
                Written::done(0)
            } else {
                Written::fault(illegal)
            }
        }
        // PERF_CAPABILITIES, PERF_GLOBAL_STATUS and PERF_GLOBAL_INUSE are read-only.
        _ if is_pmu_register(address) => Written::REFUSED,
        _ => Written::UNHANDLED,
    }
}

/// A general counter, in full width.
#[inline]
fn write_full_width(model: &mut Model, counter: u32, value: u64) -> Written {
    let illegal = value & !model.layout.masks[0];
    if model.counter(counter).is_none() {
        Written::REFUSED
    } else if illegal != 0 {
        Written::fault(illegal)
    } else {
        model.set_counter(counter, value);
        Written::done(0)
    }
}

/// An event select.
#[inline]
fn write_select<P: EventPolicy>(
    model: &mut Model,
    policy: &P,
    counter: u32,
    value: u64,
) -> Written {
    let illegal = value & !model.layout.select;
    if model.select(counter).is_none() {
        Written::REFUSED
    } else if illegal != 0 {
        Written::fault(illegal)
    } else {
        model.set_select(policy, counter, value);
        Written::done(0)
    }
}

/// A fixed counter. The SDM calls bits above the width reserved. As KVM does, they are dropped.
#[inline]
fn write_fixed(model: &mut Model, counter: u32, value: u64) -> Written {
    let mask = model.layout.masks[1];
    if model.set_counter(counter + 8, value & mask) {
        Written::done(value & !mask)
    } else {
        Written::REFUSED
    }
}

/// SDM vol. 3B, "Full-Width Writes to Performance Counter Registers": the value is EAX, extended
/// with its sign. EDX is ignored; only a sign's extension, or nothing, is what software may put there.
#[inline]
fn write_narrow(model: &mut Model, counter: u32, value: u64) -> Written {
    let mask = model.layout.masks[0];
    let extended = i64::from(value as u32 as i32) as u64;
    if !model.set_counter(counter, extended & mask) {
        return Written::REFUSED;
    }
    let high = value >> 32;
    if high == 0 || high == extended >> 32 || high == (extended & mask) >> 32 {
        Written::done(0)
    } else {
        Written::done((value ^ extended) & !0xFFFF_FFFF)
    }
}

/// RDPMC. SDM vol. 2B: ECX 31:16 is the type, ECX 15:0 the index. As in KVM, there are types for
/// general (0) and fixed (0x4000) counters; the fast mode of bit 31 and `PERF_METRICS` fault.
///
/// A counter that is hidden from user code reads 0 there: Intel Architecture Instruction Set Extensions
/// Programming Reference, chapter "RDPMC User Disable"; the same in Linux's commit 59af95e028d4.
#[inline]
pub(crate) fn read_pmc(model: &Model, ecx: u32, privileged: bool) -> Read {
    let index = ecx & 0xFFFF;
    let (place, disabled) = match ecx >> 16 {
        0 if index < 8 => {
            let select = model.selects[index as usize % MAX_PER_KIND];
            (index, select & bits::SELECT_RDPMC_USER_DISABLE)
        }
        0x4000 if index < 8 => {
            (index + 8, model.fixed_control & bits::FIXED_RDPMC_USER_DISABLE << (4 * index))
        }
        _ => return Read::GeneralProtection,
    };
    if disabled != 0 && !privileged {
        // Only a counter that exists has the bit.
        return Read::Value(0);
    }
    read_counter(model, place)
}

/// The counters stand still until the guest clears the bit. SDM vol. 3B, the same section as
/// [`freeze`].
#[inline]
pub(crate) fn is_frozen(model: &Model) -> bool {
    model.global_status & bits::STATUS_COUNTERS_FROZEN != 0
}

/// SDM vol. 3B, "Freezing LBR and Performance Counters on PMI": versions 2 and 3 clear the global
/// control register, version 4 on sets a bit of the status.
pub(crate) fn freeze(model: &mut Model) {
    if model.debug_control & bits::DEBUG_FREEZE_COUNTERS == 0 {
        return;
    }
    if model.layout.freezes_by_status {
        model.global_status |= bits::STATUS_COUNTERS_FROZEN;
    } else {
        model.global_control = 0;
    }
}
