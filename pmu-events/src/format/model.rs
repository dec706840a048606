//! The models of processors that have a core type.

use crate::format::core_type::CoreType;

/// Processors with the same core type: a family and ranges of models and steppings.
pub(crate) struct Model {
    pub(crate) vendor: [u8; 12],
    pub(crate) family: u16,
    /// First model and last.
    pub(crate) models: [u8; 2],
    /// First stepping and last.
    pub(crate) steppings: [u8; 2],
    /// A hybrid's: type and native model in EAX of leaf 0x1A.
    pub(crate) core: Option<u32>,
    pub(crate) core_type: &'static CoreType,
}

impl Model {
    pub(crate) fn is_of(&self, vendor: [u8; 12], family: u16, model: u8, stepping: u8) -> bool {
        let within = |[first, last]: [u8; 2], number| (first..=last).contains(&number);
        self.vendor == vendor
            && self.family == family
            && within(self.models, model)
            && within(self.steppings, stepping)
    }
}
