//! Traits that the layers above implement, and that the control path and the interrupt path call.

pub(crate) mod division;
pub(crate) mod event_facility;
pub(crate) mod facility;
pub(crate) mod facility_source;
pub(crate) mod running;
pub(crate) mod software;
