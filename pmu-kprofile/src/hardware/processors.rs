//! The trait by which a mailbox reaches a kernel's processors.

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{InterfaceError, KProfileSource};

use crate::affinity::Affinity;
use crate::hardware::request::SourceRequest;

/// Functions of the kernel that a [`Mailbox`](super::Mailbox) calls. The functions interrupt another processor, perform
/// a request with the session of the processor that executes the call, and limit how long a caller waits for an answer.
///
/// # For implementers
/// - [`interrupt`](Self::interrupt) makes the other processor call [`Mailbox::drain`](super::Mailbox::drain) soon, from
///   the handler of an inter-processor interrupt or from a task that the handler wakes. `interrupt` does not wait for
///   that call.
/// - [`serve`](Self::serve) is called in task context, and in the handler of the inter-processor interrupt if the
///   handler calls `drain`. Mask the inter-processor interrupt while any code uses the session; otherwise the handler
///   may find the session in use.
/// - [`keep_waiting`](Self::keep_waiting) limits how long a start or a stop waits for another processor.
///
/// # Examples
///
/// ```
/// use pmu_core::profile::{InterfaceError, KProfileSource};
/// use pmu_core::frame::ProcessorNumber;
/// use pmu_kprofile::Affinity;
/// use pmu_kprofile::hardware::{Mailbox, Remote, RemoteProcessors, SourceRequest};
/// # fn processor() -> u16 { 0 }
/// # fn interrupt_depth() -> usize { 0 }
/// # fn send_interrupt(_: usize, _: u8) {}
/// # fn with_interrupts_off(act: impl FnOnce() -> Result<(), InterfaceError>) -> Result<(), InterfaceError> { act() }
/// # fn use_session(_: SourceRequest) -> Result<(), InterfaceError> { Ok(()) }
///
/// static MAILBOX: Mailbox<4> = Mailbox::new();
/// const VECTOR: u8 = 0xF0; // its handler calls `MAILBOX.drain(&Kernel)`
///
/// struct Kernel;
///
/// impl RemoteProcessors for Kernel {
///     fn this_processor(&self) -> ProcessorNumber {
///         ProcessorNumber::from_index(processor())
///     }
///     fn in_interrupt(&self) -> bool {
///         interrupt_depth() > 0
///     }
///     fn active_processors(&self) -> Affinity {
///         Affinity::first(4)
///     }
///     fn supports(&self, source: KProfileSource) -> bool {
///         source == KProfileSource::TIME // … or what the interface's `query` says
///     }
///     fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError> {
///         with_interrupts_off(|| use_session(request))
///     }
///     fn interrupt(&self, processor: ProcessorNumber) {
///         send_interrupt(processor.index(), VECTOR);
///     }
///     fn keep_waiting(&self, turns: u64) -> bool {
///         turns < 10_000_000
///     }
/// }
///
/// let mut hardware = Remote::new(&MAILBOX, Kernel); // which starts and stops profiles
/// # let _ = &mut hardware;
/// ```
pub trait RemoteProcessors {
    /// Returns the processor that executes the call: see
    /// [`ProfileHardware::this_processor`](crate::ProfileHardware::this_processor).
    fn this_processor(&self) -> ProcessorNumber;

    /// Returns whether this processor is handling an interrupt: see
    /// [`ProfileHardware::in_interrupt`](crate::ProfileHardware::in_interrupt).
    fn in_interrupt(&self) -> bool;

    /// Returns the processors that are active and have an initialized session: see
    /// [`ProfileHardware::active_processors`](crate::ProfileHardware::active_processors).
    fn active_processors(&self) -> Affinity;

    /// Returns whether the profile interface supports a source: see
    /// [`ProfileHardware::supports`](crate::ProfileHardware::supports).
    fn supports(&self, source: KProfileSource) -> bool;

    /// Performs a request with the session of the processor that executes the call.
    ///
    /// # Errors
    /// - The error that the session returned.
    /// - [`NoAnswer`](InterfaceError::NoAnswer): the session is in use. If the request is a stop, the
    ///   [`Mailbox`](super::Mailbox) keeps the request, and performs the stop later.
    /// - [`NoSession`](InterfaceError::NoSession): the processor has no session, so no source runs on it.
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError>;

    /// Interrupts another processor. On that processor, the handler of the interrupt calls
    /// [`Mailbox::drain`](super::Mailbox::drain), or wakes a task that calls `drain`.
    fn interrupt(&self, processor: ProcessorNumber);

    /// Returns whether to keep waiting for another processor's answer. `turns` is the number of iterations of the
    /// waiting loop so far.
    fn keep_waiting(&self, turns: u64) -> bool;
}
