//! Top-down analysis: counts the issue slots that retired an operation, and the issue slots that were lost. The causes
//! of a lost slot are wrong speculation, a stall of the front end, and a stall of the back end.
//!
//! Read first: Intel SDM vol. 3B, "Performance Metrics", and vol. 4, `MSR_PERF_METRICS`.

pub(crate) mod counts;
pub(crate) mod facility;
pub(crate) mod part;
pub(crate) mod unit;
pub(crate) mod view;

pub use counts::TopDownCounts;
pub use facility::TopDown;
pub use part::TopDownPart;
pub use unit::{TopDownEvents, TopDownUnit};
pub use view::TopDownView;
