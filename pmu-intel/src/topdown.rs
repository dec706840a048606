//! Top-down analysis: counts the issue slots that retired an operation, and the issue slots that were lost. The causes
//! of a lost slot are wrong speculation, a stall of the front end, and a stall of the back end.
//!
//! Read first: Intel SDM vol. 3B, "Performance Metrics", and vol. 4, `MSR_PERF_METRICS`.

pub(crate) mod access;
pub(crate) mod counter;
pub(crate) mod counts;
pub(crate) mod error;
pub(crate) mod filter;
pub(crate) mod harvest;
pub(crate) mod interrupt;
pub(crate) mod lend;
pub(crate) mod memory;
pub(crate) mod part;
pub(crate) mod switch;
pub(crate) mod unit;
pub(crate) mod view;

pub use counter::TopDownCounter;
pub use counts::TopDownCounts;
pub use error::{NoTopDown, TopDownError};
pub use filter::TopDownFilter;
pub use interrupt::TopDownInterrupt;
pub use memory::TopDownMemory;
pub use part::TopDownPart;
pub use switch::SavedTopDown;
pub use unit::TopDownUnit;
pub use view::TopDownView;
