//! Top-down analysis: counts how many issue slots retired an operation, were lost to wrong speculation, or were lost
//! because the front end or the back end stalled.
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
