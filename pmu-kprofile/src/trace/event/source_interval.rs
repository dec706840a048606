//! The records of the sampling intervals of profile sources.

use pmu_core::windows::PointerWidth;

use crate::trace::bytes::{Reader, Utf16, Writer};
use crate::trace::error::TraceError;

/// Hook id of the record that Windows writes when a source's interval is set:
/// `PERFINFO_LOG_TYPE_SAMPLED_PROFILE_SET_INTERVAL`.
pub const SET_INTERVAL_HOOK: u16 = 0x0F48;

/// Hook id of the records that Windows writes when a trace begins, one for each source and its interval:
/// `PERFINFO_LOG_TYPE_SAMPLED_PROFILE_DC_START`.
pub const COLLECTION_START_HOOK: u16 = 0x0F49;

/// Hook id of the records that Windows writes when a trace ends, one for each source and its interval:
/// `PERFINFO_LOG_TYPE_SAMPLED_PROFILE_DC_END`.
pub const COLLECTION_END_HOOK: u16 = 0x0F4A;

/// The occasion on which a trace records the sampling interval of a profile source. Each occasion has its own hook id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum IntervalHook {
    /// The interval was set: [`SET_INTERVAL_HOOK`].
    Set,
    /// The trace begins: [`COLLECTION_START_HOOK`].
    CollectionStart,
    /// The trace ends: [`COLLECTION_END_HOOK`].
    CollectionEnd,
}

/// A record of a profile source's sampling interval. A reader of the trace needs the interval to weigh the source's
/// samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SourceInterval<'b> {
    /// Occasion on which the interval is recorded.
    pub hook: IntervalHook,
    /// Number of the source: see [`KProfileSource`](pmu_core::profile::KProfileSource).
    pub source: u32,
    /// Interval that is in force after this occasion, in the unit of the source.
    pub new: u32,
    /// Interval that was in force before this occasion. The value is 0 if that interval was set while tracing was off.
    pub old: u32,
    /// Name of the source. Only records of version 3 have the name.
    pub name: Option<Utf16<'b>>,
}

impl<'b> SourceInterval<'b> {
    pub(super) fn hook(&self) -> u16 {
        match self.hook {
            IntervalHook::Set => SET_INTERVAL_HOOK,
            IntervalHook::CollectionStart => COLLECTION_START_HOOK,
            IntervalHook::CollectionEnd => COLLECTION_END_HOOK,
        }
    }

    pub(super) fn encode(&self, _: PointerWidth, to: &mut Writer<'_>) {
        for word in [self.source, self.new, self.old] {
            to.put(&word.to_le_bytes());
        }
        if let Some(name) = &self.name {
            to.utf16(name.units());
        }
    }

    pub(super) fn decode(
        hook: u16,
        _: PointerWidth,
        from: &mut Reader<'b>,
    ) -> Result<Self, TraceError> {
        Ok(Self {
            hook: match hook {
                COLLECTION_START_HOOK => IntervalHook::CollectionStart,
                COLLECTION_END_HOOK => IntervalHook::CollectionEnd,
                _ => IntervalHook::Set,
            },
            source: from.u32()?,
            new: from.u32()?,
            old: from.u32()?,
            name: from.utf16(),
        })
    }
}
