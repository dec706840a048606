//! Hardware as a given Windows has it.

use pmu_core::{HalInterface, InterfaceError, KProfileSource, ProcessorNumber, Rules};

use super::ProfileHardware;
use crate::Affinity;

/// Hardware as a given Windows would have it: where its HAL has no counter sources for the interface,
/// only `ProfileTime` exists.
#[derive(Debug)]
pub struct AsOfVersion<'h, H> {
    hardware: &'h mut H,
    has_counters: bool,
}

impl<'h, H: ProfileHardware> AsOfVersion<'h, H> {
    /// The hardware of `interface`, seen by the Windows of `rules`.
    pub fn new(hardware: &'h mut H, interface: HalInterface, rules: Rules) -> Self {
        let has_counters = rules.version.has_counters(interface, rules.width);
        Self { hardware, has_counters }
    }

    fn has(&self, source: KProfileSource) -> bool {
        self.has_counters || source == KProfileSource::TIME
    }
}

impl<H: ProfileHardware> ProfileHardware for AsOfVersion<'_, H> {
    fn this_processor(&self) -> ProcessorNumber {
        self.hardware.this_processor()
    }

    fn in_interrupt(&self) -> bool {
        self.hardware.in_interrupt()
    }

    fn active_processors(&self) -> Affinity {
        self.hardware.active_processors()
    }

    fn supports(&self, source: KProfileSource) -> bool {
        self.has(source) && self.hardware.supports(source)
    }

    fn start(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        if self.has(source) {
            self.hardware.start(processor, source)
        } else {
            Err(InterfaceError::UnsupportedSource(source))
        }
    }

    fn stop(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        self.hardware.stop(processor, source)
    }
}
