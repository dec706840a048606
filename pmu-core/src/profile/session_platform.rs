//! The platform of a session, with its profile timer.

use crate::platform::Platform;

/// The kernel's [`Platform`], with a record of whether the profile timer runs.
#[derive(Debug)]
pub struct SessionPlatform<P> {
    pub(crate) platform: P,
    /// Sources can be started: the embedder has provided the memory, and the session is open.
    pub(crate) usable: bool,
    pub(crate) running: bool,
}

impl<P: Platform> Platform for SessionPlatform<P> {
    fn unmask_performance_interrupt(&self) {
        self.platform.unmask_performance_interrupt();
    }

    fn mask_performance_interrupt(&self) {
        self.platform.mask_performance_interrupt();
    }
}
