//! The events that records describe: each has one line of the table and one file with its members.

mod context_switch;
mod counter_names;
mod sample;
mod sample_cache;
mod source_interval;
mod stack_walk;

pub use context_switch::*;
pub use counter_names::*;
pub use sample::*;
pub use sample_cache::*;
pub use source_interval::*;
pub use stack_walk::*;

use pmu_core::PointerWidth;

pub(super) use sample::SAMPLE_WORDS;
pub(super) use stack_walk::{STACK_WORDS, fill};

use super::bytes::{Reader, Writer};
use super::record::RecordError;

/// Defines the enum of events; `hook`, `put` and `take` of each event's type read and write it.
macro_rules! events {
    ($($(#[$doc:meta])* $($hook:ident)|+ => $name:ident$(<$borrowed:lifetime>)?,)*) => {
        /// The event of a record.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[non_exhaustive]
        pub enum Event<'b> {
            $($(#[$doc])* $name($name$(<$borrowed>)?),)*
            /// An unknown event, kept as it is.
            Other {
                /// Hook id.
                hook: u16,
                /// Bytes after the header and the extended data.
                payload: &'b [u8],
            },
        }

        $(impl<'b> From<$name$(<$borrowed>)?> for Event<'b> {
            fn from(event: $name$(<$borrowed>)?) -> Self {
                Self::$name(event)
            }
        })*

        impl<'b> Event<'b> {
            /// Returns the name of the event's type; `None` for an unknown event.
            pub const fn name(&self) -> Option<&'static str> {
                match self {
                    $(Self::$name(_) => Some(stringify!($name)),)*
                    Self::Other { .. } => None,
                }
            }

            /// Returns the hook id.
            pub fn hook(&self) -> u16 {
                match self {
                    $(Self::$name(event) => event.hook(),)*
                    Self::Other { hook, .. } => *hook,
                }
            }

            pub(super) fn put(&self, width: PointerWidth, to: &mut Writer<'_>) {
                match self {
                    $(Self::$name(event) => event.put(width, to),)*
                    Self::Other { payload, .. } => to.put(payload),
                }
            }

            pub(super) fn take(
                hook: u16,
                width: PointerWidth,
                from: &mut Reader<'b>,
            ) -> Result<Self, RecordError> {
                match hook {
                    $($($hook)|+ => $name::take(hook, width, from).map(Self::$name),)*
                    _ => Ok(Self::Other { hook, payload: from.bytes(from.len())? }),
                }
            }
        }
    };
}

events! {
    /// A profile interrupt.
    SAMPLED_PROFILE_HOOK | PMC_INTERRUPT_HOOK => Sample,
    /// Several sampled profiles in one record.
    SAMPLED_PROFILE_CACHE_HOOK => SampleCache<'b>,
    /// A call chain.
    STACK_WALK_HOOK => StackWalk<'b>,
    /// A context switch.
    CONTEXT_SWITCH_HOOK => ContextSwitch,
    /// The interval of a source.
    SET_INTERVAL_HOOK | COLLECTION_START_HOOK | COLLECTION_END_HOOK => SourceInterval<'b>,
    /// The names of the counters whose values records have.
    PMC_CONFIG_HOOK => CounterNames<'b>,
}
