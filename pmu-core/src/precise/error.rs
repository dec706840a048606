//! Reasons why an event cannot be sampled precisely.

use core::fmt;

use crate::precise::parts::SampleParts;

/// Reason why a processor cannot sample an event as [precisely](crate::Event::precise) as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NotPrecise {
    /// The session's event source has no facility that samples precisely, or the processor has none. The
    /// vendor's crate and `Pmu` tell the reason.
    NoFacility,
    /// The event has no [period](crate::Event::every), so it has no samples.
    NoPeriod,
    /// The processor cannot write records of the event.
    Event,
    /// The requested precision needs the address of the sampled instruction. Records of this processor have only the
    /// address of the next instruction.
    NextAddressOnly,
    /// Zero skid is [required](crate::precise::Precision::ZeroSkidRequired), but no counter that can count this event
    /// supports zero skid.
    NoExactCounter,
    /// Samples of this processor cannot have these parts, or the event is not [precise](crate::Event::precise).
    Parts(SampleParts),
    /// A [latency](crate::Event::latency_at_least) was requested for an event that is not the processor's load-latency
    /// event. Some processors have no load-latency event.
    NotLatencyEvent,
    /// The event is the processor's load-latency event, but no [latency](crate::Event::latency_at_least) was requested.
    NoLatency,
    /// The processor counts the event only beside the event with this number and unit mask (bits 15:0 of a select),
    /// which comes before it in the same group.
    NeedsBeside(u16),
    /// The processor lacks a filter of the sampled fetches or ops, or its latency is none that the processor has. The
    /// check of the vendor's crate tells which.
    Filter,
    /// Firmware assigned no interrupt to the sampling units, or the platform could not unmask its entry of the local
    /// vector table.
    NoInterrupt,
    /// The event counts in guests only, or the processor cannot write records of an event with this [extra
    /// register](crate::Event::with_extra) and value.
    Unsupported,
}

impl fmt::Display for NotPrecise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFacility => f.write_str(
                "the source of the events has no precise records, or the processor has none",
            ),
            Self::NoPeriod => f.write_str("precise samples need a period"),
            Self::Event => f.write_str("the processor writes no records of this event"),
            Self::NextAddressOnly => {
                f.write_str("records have only the address of the next instruction")
            }
            Self::NoExactCounter => {
                f.write_str("no counter records the very instruction that overflows")
            }
            Self::Parts(parts) => write!(f, "samples cannot have {parts:?}"),
            Self::NotLatencyEvent => {
                f.write_str("the processor samples only its event of load latencies by latency")
            }
            Self::NoLatency => f.write_str("the event of load latencies needs a latency"),
            Self::NeedsBeside(event) => {
                write!(f, "the event {event:#x} is to come before it in its group")
            }
            Self::Filter => f.write_str("the processor lacks a filter of the samples"),
            Self::NoInterrupt => f.write_str("the sampling units have no interrupt"),
            Self::Unsupported => f.write_str(
                "an event of guests only, or with this extra register, cannot be sampled precisely",
            ),
        }
    }
}

impl core::error::Error for NotPrecise {}
