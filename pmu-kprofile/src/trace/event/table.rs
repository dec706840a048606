//! The table of events. A macro generates the enum `Event` from the lines of this table.

// To add a record: in `records.rs`, its hook id, and a public type of its members with `hook`, `encode` and `decode`;
// its line below; and its bytes, from the document and counted by hand, in a test of `tests/tests/trace/records.rs`
// that calls `check`. Length, extended data, what is unknown, rings and the reader follow.

use pmu_core::windows::PointerWidth;

use crate::trace::TraceError;
use crate::trace::event::records::{
    COLLECTION_END_HOOK, COLLECTION_START_HOOK, CONTEXT_SWITCH_HOOK, ContextSwitch, CounterNames,
    PMC_CONFIG_HOOK, SET_INTERVAL_HOOK, STACK_WALK_HOOK, SourceInterval, StackWalk,
};
use crate::trace::event::sample::{
    PMC_INTERRUPT_HOOK, SAMPLED_PROFILE_CACHE_HOOK, SAMPLED_PROFILE_HOOK, Sample, SampleCache,
};
use crate::trace::record::{Reader, Writer};

/// Defines the enum of events; `hook`, `encode` and `decode` of each event's type write and read it.
macro_rules! events {
    ($($(#[$doc:meta])* $($hook:ident)|+ => $name:ident$(<$borrowed:lifetime>)?,)*) => {
        /// The event of a trace record.
        ///
        /// ```
        /// use pmu_kprofile::trace::{Detail, Event, Record};
        ///
        /// /// Prints a record, if it is of a profile interrupt or of a context switch.
        /// fn print(record: &Record<'_>) {
        ///     match &record.event {
        ///         Event::Sample(sample) => {
        ///             let counts = match sample.detail {
        ///                 Detail::SampledProfile { count, .. } => count,
        ///                 Detail::PmcInterrupt { .. } => 1,
        ///             };
        ///             println!("{}: thread {} at {:#x}, {counts} times", record.timestamp, sample.thread, sample.pc);
        ///         }
        ///         Event::ContextSwitch(switch) => {
        ///             println!("{}: thread {} to {}", record.timestamp, switch.old_thread, switch.new_thread);
        ///         }
        ///         _ => {}
        ///     }
        /// }
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[non_exhaustive]
        pub enum Event<'b> {
            $($(#[$doc])* $name($name$(<$borrowed>)?),)*
            /// An event that this crate does not know, with its bytes unchanged.
            Other {
                /// Hook id of the event.
                hook: u16,
                /// Bytes of the record after the header and the extended data.
                payload: &'b [u8],
            },
        }

        $(impl<'b> From<$name$(<$borrowed>)?> for Event<'b> {
            fn from(event: $name$(<$borrowed>)?) -> Self {
                Self::$name(event)
            }
        })*

        impl<'b> Event<'b> {
            /// Returns the name of the event's variant, such as `ContextSwitch`; `None` for an unknown event.
            pub const fn name(&self) -> Option<&'static str> {
                match self {
                    $(Self::$name(_) => Some(stringify!($name)),)*
                    Self::Other { .. } => None,
                }
            }

            /// Returns the hook id: the number in a record's header that says which event the record describes.
            pub fn hook(&self) -> u16 {
                match self {
                    $(Self::$name(event) => event.hook(),)*
                    Self::Other { hook, .. } => *hook,
                }
            }

            pub(in crate::trace) fn encode(&self, width: PointerWidth, to: &mut Writer<'_>) {
                match self {
                    $(Self::$name(event) => event.encode(width, to),)*
                    Self::Other { payload, .. } => to.put(payload),
                }
            }

            pub(in crate::trace) fn decode(
                hook: u16,
                width: PointerWidth,
                from: &mut Reader<'b>,
            ) -> Result<Self, TraceError> {
                match hook {
                    $($($hook)|+ => $name::decode(hook, width, from).map(Self::$name),)*
                    _ => Ok(Self::Other { hook, payload: from.bytes(from.len())? }),
                }
            }
        }
    };
}

events! {
    /// A profile interrupt.
    SAMPLED_PROFILE_HOOK | PMC_INTERRUPT_HOOK => Sample,
    /// Several sampled profiles that are written in one record.
    SAMPLED_PROFILE_CACHE_HOOK => SampleCache<'b>,
    /// A call chain.
    STACK_WALK_HOOK => StackWalk<'b>,
    /// A context switch.
    CONTEXT_SWITCH_HOOK => ContextSwitch,
    /// The interval of a source.
    SET_INTERVAL_HOOK | COLLECTION_START_HOOK | COLLECTION_END_HOOK => SourceInterval<'b>,
    /// The names of the counters whose values the records of the trace contain.
    PMC_CONFIG_HOOK => CounterNames<'b>,
}
