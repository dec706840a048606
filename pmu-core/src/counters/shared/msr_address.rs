//! The address of a register, in memory that tasks and the interrupt share.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::msr::MsrAddress;

/// A shared `Option<MsrAddress>`. New memory is zeros, which stand for `None`; an address is stored inverted, so that
/// only `FFFF_FFFFh`, which is no register's, cannot be told from `None`.
#[derive(Debug)]
pub(crate) struct SharedMsrAddress(AtomicU32);

impl SharedMsrAddress {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(crate) fn store(&self, address: Option<MsrAddress>) {
        self.0.store(address.map_or(0, |address| !address.get()), Relaxed);
    }

    pub(crate) fn load(&self) -> Option<MsrAddress> {
        match self.0.load(Relaxed) {
            0 => None,
            // SAFETY: only `store` writes here, and it had this address from a `MsrAddress`.
            inverted => Some(unsafe { MsrAddress::new(!inverted) }),
        }
    }
}
