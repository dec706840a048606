//! The profile hardware of several processors, reached through a mailbox.

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, KProfileSource};

use crate::affinity::Affinity;
use crate::hardware::mailbox::Mailbox;
use crate::hardware::processors::RemoteProcessors;
use crate::hardware::profile_hardware::ProfileHardware;
use crate::hardware::request::SourceRequest;

/// The profile hardware of several processors, reached through a mailbox.
///
/// ```
/// use pmu_core::profile::{InterfaceError, KProfileSource};
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_kprofile::Affinity;
/// use pmu_kprofile::hardware::{Mailbox, Remote, RemoteProcessors, SourceRequest};
///
/// static MAILBOX: Mailbox<2> = Mailbox::new();
///
/// struct Kernel;
///
/// impl RemoteProcessors for Kernel {
/// #   fn this_processor(&self) -> ProcessorNumber { ProcessorNumber::from_index(0) }
/// #   fn in_interrupt(&self) -> bool { false }
/// #   fn active_processors(&self) -> Affinity { Affinity::first(2) }
/// #   fn supports(&self, _: KProfileSource) -> bool { true }
///     fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
///         // … with the inter-processor interrupt masked: session.start(source), session.stop(source) …
/// #       Ok(())
///     }
///     fn interrupt(&self, processor: ProcessorNumber) {
///         // … send the inter-processor interrupt …
///     }
///     fn keep_waiting(&self, turns: u64) -> bool {
///         turns < 10_000_000 // … or as long as a clock says …
///     }
///     // …
/// }
///
/// /// The handler of that interrupt, on each processor.
/// fn on_interrupt() {
///     MAILBOX.drain(&Kernel);
/// }
///
/// let mut hardware = Remote::new(&MAILBOX, Kernel); // for `Profiles::try_start`
/// ```
#[derive(Debug)]
pub struct Remote<'m, K, const P: usize> {
    mailbox: &'m Mailbox<P>,
    processors: K,
}

impl<'m, K: RemoteProcessors, const P: usize> Remote<'m, K, P> {
    /// Creates the profile hardware of several processors. Each of these processors must [drain](Mailbox::drain)
    /// `mailbox`.
    pub const fn new(mailbox: &'m Mailbox<P>, processors: K) -> Self {
        Self { mailbox, processors }
    }
}

impl<K: RemoteProcessors, const P: usize> ProfileHardware for Remote<'_, K, P> {
    fn this_processor(&self) -> ProcessorNumber {
        self.processors.this_processor()
    }

    fn in_interrupt(&self) -> bool {
        self.processors.in_interrupt()
    }

    fn active_processors(&self) -> Affinity {
        self.processors.active_processors()
    }

    fn supports(&self, source: KProfileSource) -> bool {
        self.processors.supports(source)
    }

    fn start(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        self.mailbox.ask(&self.processors, processor, SourceRequest::Start(source))
    }

    fn stop(
        &mut self,
        processor: ProcessorNumber,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        self.mailbox.ask(&self.processors, processor, SourceRequest::Stop(source))
    }
}
