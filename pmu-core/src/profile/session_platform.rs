//! The platform of a session, with its profile timer.

use crate::platform::{Platform, PlatformError};

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

    fn unmask_extended_interrupt(&self, entry: u8) -> Result<(), PlatformError> {
        self.platform.unmask_extended_interrupt(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A platform with one extended entry.
    struct One;

    impl Platform for One {
        fn unmask_performance_interrupt(&self) {}

        fn mask_performance_interrupt(&self) {}

        fn unmask_extended_interrupt(&self, entry: u8) -> Result<(), PlatformError> {
            if entry == 1 { Ok(()) } else { Err(PlatformError::ExtendedEntryInUse(entry.into())) }
        }
    }

    #[test]
    fn a_session_reaches_the_extended_entries_of_its_platform() {
        let session = SessionPlatform { platform: One, usable: true, running: false };
        assert_eq!(session.unmask_extended_interrupt(1), Ok(()));
        let taken = Err(PlatformError::ExtendedEntryInUse(2));
        assert_eq!(session.unmask_extended_interrupt(2), taken);
    }
}
