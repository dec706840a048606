//! The trait by which a mailbox reaches a kernel's processors.

use pmu_core::{InterfaceError, KProfileSource, ProcessorNumber};

use crate::affinity::Affinity;
use crate::hardware::request::SourceRequest;

/// Lets a [`Mailbox`](crate::Mailbox) interrupt a kernel's processors, and serve requests with their sessions.
///
/// # For implementers
/// - [`interrupt`](Self::interrupt) makes the processor call [`Mailbox::drain`](crate::Mailbox::drain) soon, from the
///   handler of an inter-processor interrupt or from a task that the handler wakes, and does not wait for it.
/// - [`serve`](Self::serve) is called in task context and in that handler. Mask that interrupt while using the session;
///   otherwise the handler finds the session in use.
/// - [`keep_waiting`](Self::keep_waiting) bounds how long a start or a stop waits for another processor.
///
/// # Examples
///
/// ```
/// use pmu_core::{InterfaceError, KProfileSource, ProcessorNumber};
/// use pmu_kprofile::{Affinity, Mailbox, Processors, Remote, SourceRequest};
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
/// impl Processors for Kernel {
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
pub trait Processors {
    /// Returns the processor that executes the call, as
    /// [`ProfileHardware::this_processor`](crate::ProfileHardware::this_processor).
    fn this_processor(&self) -> ProcessorNumber;

    /// Returns whether this processor is handling an interrupt, as
    /// [`ProfileHardware::in_interrupt`](crate::ProfileHardware::in_interrupt).
    fn in_interrupt(&self) -> bool;

    /// Returns the active processors whose sessions are initialized, as
    /// [`ProfileHardware::active_processors`](crate::ProfileHardware::active_processors).
    fn active_processors(&self) -> Affinity;

    /// Returns whether the interface supports a source, as
    /// [`ProfileHardware::supports`](crate::ProfileHardware::supports).
    fn supports(&self, source: KProfileSource) -> bool;

    /// Performs a request with this processor's session.
    ///
    /// # Errors
    /// The error of the session. [`NoAnswer`](InterfaceError::NoAnswer): the session is in use; a stop is then left to
    /// be done. [`NoSession`](InterfaceError::NoSession): there is no session, and so nothing to be stopped.
    fn serve(&self, request: SourceRequest) -> Result<(), InterfaceError>;

    /// Interrupts another processor, whose handler drains the mailbox or wakes the task that does.
    fn interrupt(&self, processor: ProcessorNumber);

    /// Returns whether to keep waiting for an answer, after `turns` iterations of the waiting loop.
    fn keep_waiting(&self, turns: u64) -> bool;
}
